"""Capped hierarchical speculative decoding (HSD, arXiv 2601.05724) is block verification: one rule, one name here.

Definitions 4 to 6 as the package sequential-speculative-decoding quotes them, written out token by token:

    r(X1:t)   = p(X1:t) / q(X1:t)
    m         = argmax of r(X1:i) over 1 <= i < t, 0 if none is above 1
    r*(X1:t)  = min(r(X1:m), 1) r(X_{m+1:t})
    D+, D-    = sum over x of (r*(X1:t x) - 1) q(x), where it is positive, and of what it lacks
    accept t  with D+ / D-, all K tokens with min(r*(X1:K), 1); resample from (r*(X1:t x) - 1)+ q(x)
"""

import math

import pytest
import torch

from kernels.contract import Verification
from tests.support.emitted_laws import EXACT, Method, Tree, acceptance_odds, emission_weights, random_tree

pytestmark = pytest.mark.fast


def capped_ratio(ratios: list[float]) -> float:
    """r* of a sequence from the ratios p / q of its tokens."""
    products = [math.prod(ratios[:count]) for count in range(1, len(ratios))]
    cap = max([ratio for ratio in products if ratio > 1], default=None)
    return math.prod(ratios) if cap is None else math.prod(ratios[products.index(cap) + 1 :])


def capped_hsd(tree: Tree, path: int, num_tokens: int) -> tuple[float, list[float]]:
    """(chance to accept `num_tokens` tokens of a path when more were refused, weights of the token after them)."""
    nodes, tokens = tree.nodes[path].tolist(), tree.paths[path].tolist()
    p, q = tree.target_probs.tolist(), tree.draft_probs.tolist()
    before = [p[node][token] / q[node][token] for node, token in zip(nodes, tokens[:num_tokens], strict=False)]
    node = nodes[num_tokens]
    if num_tokens == tree.num_draft_tokens:
        return min(capped_ratio(before), 1.0), p[node]
    excess = [
        (capped_ratio([*before, target / draft]) - 1) * draft for target, draft in zip(p[node], q[node], strict=True)
    ]
    weights = [max(value, 0.0) for value in excess]
    return sum(weights) / (sum(weights) - sum(excess)), weights


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 4])
def test_capped_hsd_is_block_verification(num_draft_tokens: int):
    """Would catch a block that caps elsewhere, and the wish for a second name of the same rule."""
    tree = random_tree(seed=num_draft_tokens, num_draft_tokens=num_draft_tokens)
    block = Verification(Method.block)
    proposal = tree.propose(False, Method.block)
    chances = acceptance_odds(proposal, block).probability()
    capped = 0
    for num_tokens in range(num_draft_tokens + 1):
        emitted = emission_weights(proposal, block, torch.full_like(tree.paths[:, 0], num_tokens))
        for path in range(len(tree.paths)):
            chance, weights = capped_hsd(tree, path, num_tokens)
            if num_tokens:
                assert float(chances[path, num_tokens - 1]) == pytest.approx(chance, rel=1e-9, abs=EXACT)
            if sum(weights):  # else no round ends here
                found = (emitted[path] / emitted[path].sum()).tolist()
                assert found == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-9, abs=EXACT)
            capped += num_tokens > 1 and chance < 1
    assert num_draft_tokens == 1 or capped, "no path is refused behind its first token"
