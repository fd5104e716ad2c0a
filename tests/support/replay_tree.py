"""A round over every draft path of a tiny vocabulary, and the exact acceptance of each method by plain enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from harness.records.acceptance_terms import DraftTerms, RequestTerms, RoundTerms, collect_terms
from kernels.contract import Draft, Sampling, Verification, VerificationMethod
from kernels.reference.acceptance import AcceptanceTerms, acceptance_terms

Method = VerificationMethod
Floats = NDArray[np.float64]


class ReplayTree:
    """Random distributions after every prefix; every path of K draft tokens is one request of a batch."""

    def __init__(self, seed: int, vocab_size: int = 3, num_draft_tokens: int = 3, num_unknown: int = 0) -> None:
        """num_unknown: last tokens of the vocabulary that the drafter never proposes."""
        generator = np.random.default_rng(seed)
        self.vocab_size, self.num_draft_tokens = vocab_size, num_draft_tokens
        self.target: dict[tuple[int, ...], Floats] = {}
        self.draft: dict[tuple[int, ...], Floats] = {}
        for depth in range(num_draft_tokens + 1):
            for prefix in product(range(vocab_size), repeat=depth):
                self.target[prefix] = generator.dirichlet(np.full(vocab_size, 0.7))
                known = generator.dirichlet(np.full(vocab_size - num_unknown, 0.7))
                self.draft[prefix] = np.append(known, np.zeros(num_unknown))
        self.paths = list(product(range(vocab_size - num_unknown), repeat=num_draft_tokens))

    @property
    def path_probs(self) -> Floats:
        """[paths] probability that a path is drafted."""
        return np.array([np.prod([self.draft[path[:i]][token] for i, token in enumerate(path)]) for path in self.paths])

    def terms(self) -> RoundTerms:
        """The recorded terms of a batch with every path once."""
        depths = range(self.num_draft_tokens)
        rows = [self.target[path[:depth]] for path in self.paths for depth in range(self.num_draft_tokens + 1)]
        cache = np.array([[self.draft[path[:depth]] for depth in depths] for path in self.paths])
        num_paths = len(self.paths)
        draft = Draft(
            torch.tensor(self.paths),
            torch.full((num_paths,), self.num_draft_tokens),
            torch.tensor(cache).log(),
        )
        plain = Sampling(
            torch.ones(num_paths),
            torch.zeros(num_paths, dtype=torch.long),
            torch.ones(num_paths),
            torch.zeros(num_paths),
        )
        return round_terms(acceptance_terms(torch.tensor(np.array(rows)).log(), draft, plain))

    def exact(self, rule: Verification) -> Floats:
        """[K] P(A >= i), by definition: every path, and for block every pattern of positions that pass."""
        if rule.method is Method.block:
            return sum(prob * self._block(path) for path, prob in zip(self.paths, self.path_probs, strict=True))  # type: ignore[return-value]
        found = np.zeros(self.num_draft_tokens)
        for path, prob in zip(self.paths, self.path_probs, strict=True):
            accepted = [self._accept(rule, path[:i], token) for i, token in enumerate(path)]
            found += prob * np.cumprod(accepted)
        return found

    def _accept(self, rule: Verification, prefix: tuple[int, ...], token: int) -> float:
        """Probability that a method that goes token by token accepts a drafted token."""
        target, draft = self.target[prefix], self.draft[prefix]
        match rule.method:
            case Method.strict:
                return target[token]
            case Method.coupled:
                joint = 1 / np.maximum(target / target[token], draft / draft[token]).sum()
                return joint / draft[token]
            case Method.probabilistic | Method.lenient:
                return min(1.0, target[token] / (rule.rule.parameters.get("leniency", 1.0) * draft[token]))
            case Method.typical:
                entropy = -(target * np.log(target)).sum()
                return float(target[token] > min(rule.rule.epsilon, rule.rule.delta * np.exp(-entropy)))
        raise AssertionError(rule)

    def _block(self, path: tuple[int, ...]) -> Floats:
        """[K] P(A >= i | path), A the last position that passes."""
        ratio, thresholds = 1.0, []
        for depth, token in enumerate(path):
            target, draft = self.target[path[:depth]], self.draft[path[:depth]]
            ratio = min(1.0, ratio * target[token] / draft[token])
            after = path[: depth + 1]
            residual = np.maximum(ratio * self.target[after] - self.draft[after], 0).sum()
            is_last = depth == len(path) - 1
            thresholds.append(ratio if is_last or ratio == 1 else residual / (residual + 1 - ratio))
        found = np.zeros(len(path))
        for pattern in product([False, True], repeat=len(path)):
            weight = np.prod([h if passes else 1 - h for h, passes in zip(thresholds, pattern, strict=True)])
            num_accepted = max((i for i, passes in enumerate(pattern, start=1) if passes), default=0)
            found[:num_accepted] += weight
        return found


def round_terms(terms: AcceptanceTerms) -> RoundTerms:
    """Terms of a batch of full drafts of one length, each a request of its own."""
    columns = {name: column.numpy() for name, column in terms._asdict().items()}
    drafts = [
        DraftTerms(1, {name: column[row] for name, column in columns.items()}) for row in range(len(columns["overlap"]))
    ]
    return collect_terms("toy", [RequestTerms.of((str(row), 0, 0), (draft,)) for row, draft in enumerate(drafts)])
