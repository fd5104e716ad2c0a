"""The law of an answer's first tokens, in bins: the probable sequences one by one, the others by where they leave them.

A bin is a whole sequence, or a probable beginning followed by any token that is not probable there. Every answer falls
into exactly one. Shapes: N bins, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checks.certification.goodness_of_fit import MIN_EXPECTED
from harness.checks.certification.toy_models import Profile, processed_row
from harness.checks.server_certification.known_model import KnownModel, Tokens
from harness.config.sampling import SamplingSettings

SMALLEST_SHARE = 0.002
"""Of the requests that a sequence of its own must expect: more bins would spread what a deviation adds to them."""
Bin = tuple[Tokens, bool]
"""A whole sequence or a beginning, and whether another token than the probable ones follows."""


@dataclass(frozen=True)
class SequenceLaw:
    """The law of the answers to one prompt under one sampling."""

    places: dict[Bin, int]
    exact: Tensor
    """[N] float64, sums to 1."""
    rounded: Tensor
    """[N] float64, the same of logits computed in the dtype of the server."""

    def place(self, token_ids: Tokens) -> int:
        """The bin of an answer, which has as many tokens as the law is of, or more."""
        for end in range(1, len(token_ids) + 1):
            known = self.places.get((token_ids[:end], False))
            if known is not None:
                return known
            if (token_ids[:end], True) not in self.places:
                return self.places[token_ids[: end - 1], True]
        raise ValueError(f"expected an answer of as many tokens as its law, found {len(token_ids)}")

    @property
    def divergence(self) -> float:
        """Sum of the squared deviations of rounding over the law; infinite where rounding moves a cut."""
        is_possible = self.exact > 0
        if bool((self.rounded[~is_possible] > 0).any()):
            return float("inf")
        return float(((self.rounded - self.exact)[is_possible] ** 2 / self.exact[is_possible]).sum())

    @property
    def variation(self) -> float:
        """Total variation of rounding."""
        return float((self.rounded - self.exact).abs().sum()) / 2


def sequence_laws(
    model: KnownModel, prompt: Tokens, samplings: Sequence[SamplingSettings], num_tokens: int, num_requests: int
) -> list[SequenceLaw]:
    """The laws of the first tokens of the answers to one prompt, one for each sampling.

    Args:
        model: the target.
        prompt: token ids.
        samplings: of the requests.
        num_tokens: of an answer.
        num_requests: of the prompt under each sampling, which decides how rare a bin may be.
    """
    share = max(SMALLEST_SHARE, 2 * MIN_EXPECTED / num_requests)
    growing = [_Growing(Profile(*_numbers(sampling)), share) for sampling in samplings]
    nodes: list[Tokens] = [()]
    for length in range(1, num_tokens + 1):
        exact, rounded = model.logits(prompt, nodes)
        index = {node: place for place, node in enumerate(nodes)}
        for law in growing:
            law.grow(index, exact, rounded, is_last=length == num_tokens)
        nodes += dict.fromkeys(node for law in growing for node in law.frontier if node not in index)
    return [law.finished() for law in growing]


def _numbers(sampling: SamplingSettings) -> tuple[float, int, float, float]:
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p


class _Growing:
    """A law up to some length."""

    def __init__(self, profile: Profile, share: float) -> None:
        self._profile, self._share = profile, share
        self.frontier: dict[Tokens, tuple[float, float]] = {(): (1.0, 1.0)}
        """Beginning -> its probability, exact and rounded."""
        self._bins: dict[Bin, tuple[float, float]] = {}

    def grow(self, index: dict[Tokens, int], exact: Tensor, rounded: Tensor, is_last: bool) -> None:
        """Follow every beginning by one token.

        Args:
            index: row of each beginning.
            exact, rounded: [n, V] logits.
            is_last: whether sequences are whole then.
        """
        grown: dict[Tokens, tuple[float, float]] = {}
        for node, (mass, rounded_mass) in self.frontier.items():
            row = processed_row(exact[index[node]], self._profile)
            rounded_row = processed_row(rounded[index[node]], self._profile)
            is_probable = mass * row >= self._share
            for token in is_probable.nonzero().flatten().tolist():
                grown[*node, token] = mass * float(row[token]), rounded_mass * float(rounded_row[token])
            others = tuple(float(each[~is_probable].sum()) for each in (row, rounded_row))
            self._bins[node, True] = mass * others[0], rounded_mass * others[1]
        self.frontier = {} if is_last else grown
        if is_last:
            self._bins |= {(node, False): masses for node, masses in grown.items()}

    def finished(self) -> SequenceLaw:
        masses = torch.tensor(list(self._bins.values()), dtype=torch.float64)
        return SequenceLaw({found: place for place, found in enumerate(self._bins)}, *(masses / masses.sum(0)).T)
