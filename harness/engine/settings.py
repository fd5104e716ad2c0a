"""What an engine is built for."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.sampling import SamplingSettings
from harness.config.tree import DynamicTree, Tree
from harness.drafters.own_drafter import OwnDrafter
from harness.engine.request import Limits
from harness.engine.row_groups import GROUP_TOKENS
from harness.engine.token_logprobs import LogprobsSettings
from kernels.contract import Verification


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built for."""

    num_slots: int
    capacity: int
    """Tokens a slot holds: prompt, output, and `draft_slack`."""
    num_speculative_tokens: int
    sampling: SamplingSettings
    """Of requests that have none of their own."""
    verification: Verification
    limits: Limits
    logprobs: LogprobsSettings | None = None
    """Log-probabilities of the output tokens; None if not requested."""
    truncates: bool | None = None
    """Some requests cut their distribution (top-k, top-p, min-p); None: if `sampling` does."""
    is_mixed: bool = False
    """Some requests cut theirs and others do not; see SlotSampling."""
    num_fixed_tokens: int | None = None
    """Some requests change the target's logits, by penalties, biases or a least number of tokens, and so many tokens of
    one have a bias or end it, at most; None: if `sampling` does. See SlotEdits."""
    expected_acceptance: bool = False
    """Compute, per round, the acceptance that each chain method expects on the same drafts, and the bound of any; of
    trees the bound alone. Where steps are launched ahead, their rows are copied until then (see measuring.py)."""
    round_terms: bool = False
    """Beside it keep the terms of every full draft, for a replay."""
    multi_draft_terms: bool = False
    """Among them what several drafts a position would be worth."""
    graphs: bool = False
    """Steps of a few fixed sizes, captured as CUDA graphs where there is a GPU; else operation by operation."""
    overlaps: bool | None = None
    """Launch a step before the one before it has been read; None does so where a launch does not wait for the device:
    with CUDA graphs on a GPU. Never where it is `constrained` without `graphs`."""
    constrained: bool = False
    """Requests may have grammar states, so that the host may take part in steps; those of others run as without."""
    drafts_trees: bool = False
    """Drafts are trees of K tokens at most, of the drafter's own shape. Not where it is `constrained` or keeps terms of
    rounds."""
    own_drafter: OwnDrafter | None = None
    """What drafts must fit, if the drafter is the user's own."""
    prompt_tokens_beside_rounds: int | None = None
    """Prompt tokens of a step in which others decode, at most, in whole groups of rows (row_groups) and at least one;
    None for no limit. With `graphs` only: without them prompts have a forward of their own. Moves tokens by rounding
    alone."""


def draft_slack(num_speculative_tokens: int, tree: Tree | DynamicTree | None = None, graphs: bool = False) -> int:
    """Tokens that a slot must hold beyond prompt and output: two rounds, both of which may prove superfluous.

    A dynamic tree is chosen from more nodes than it has, which the drafter's slots must hold. With `graphs` also what a
    prompt leaves empty of its last group of rows.
    """
    num_read = tree.num_read if isinstance(tree, DynamicTree) else 0
    rounds = 2 * (max(num_speculative_tokens, num_read) + 1)
    return max(rounds, GROUP_TOKENS) if graphs else rounds
