"""Training-time chains: a head run for several steps at every position of a text at once, and what each step keeps.

At step s the pair with index t holds token x_{t+1+s}, lies at position t + s, and reads the features its own step
s - 1 returned (at step 0: the target's). It attends to the pairs u <= t of step 0 and to its own pairs of the steps
1 .. s: exactly what the same chain sees in the engine, where the known pairs come from the target and the rest from
the head. Its logits are for x_{t+2+s} and are compared with the target's at index t + 1 + s.

Source of the scheme: Li et al., EAGLE-3 (2025), training-time test.
Shapes: B rows, P pairs of a row, K steps, H hidden size, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.head import Head, HeadOutput
from harness.models.peagle import PEagleHead
from harness.models.target import TargetModel
from harness.training.step_attention import StepAttention


class UnrolledView:
    """What the pairs of one step see; the views of a chain share their keys and values."""

    rope_table = None

    def __init__(self, attention: StepAttention) -> None:
        self.mask: Any = attention
        """An `AttendingMask`; it gets the keys and values of each step."""

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object) -> tuple[Tensor, Tensor]:
        return key, value


class ChainStates(NamedTuple):
    """What a drafter says at each step: hidden [B, P, H] for its logits, features [B, P, H] for the next step."""

    hidden: list[Tensor]
    features: list[Tensor]


def num_pairs(length: int, num_steps: int) -> int:
    """Pairs of a row of `length` tokens that all steps can use; a multiple of 8, which fast attention wants."""
    return (length - num_steps) // 8 * 8


class HeadChain:
    """Runs a head for K steps over rows of text."""

    def __init__(self, head: Head, length: int, num_steps: int, *, compiles: bool = False) -> None:
        """compiles: whether torch compiles what the head computes around its attention."""
        self.head, self.num_steps = head, num_steps
        self.num_pairs = num_pairs(length, num_steps)
        self._positions = torch.arange(self.num_pairs, device=head.target.device)[None]
        self._run: Callable[..., HeadOutput] = torch.compile(head.forward) if compiles else head.forward

    def __call__(self, token_ids: Tensor, features: Tensor) -> ChainStates:
        """token_ids: [B, length]; features: [B, length, H] of the target's states."""
        size = self.num_pairs
        attention = StepAttention()
        states = ChainStates([], [])
        current = features[:, :size]
        for index in range(self.num_steps):
            tokens, read = self._pairs(index, token_ids, current)
            output = self._run(tokens, read, self._positions + index, UnrolledView(attention))
            current = output.next_features
            states.hidden.append(output.hidden)
            states.features.append(current)
        return states

    def _pairs(self, step: int, token_ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, P] and features [B, P, H] of a step, from the features that the step before returned."""
        return token_ids[:, 1 + step : 1 + step + self.num_pairs], features


class ParallelChain(HeadChain):
    """The same for a P-EAGLE head of one layer, whose pairs of the steps 1 .. are masked: one forward in the engine."""

    def __init__(self, head: PEagleHead, length: int, num_steps: int) -> None:
        super().__init__(head, length, num_steps)
        assert len(head.decoder_layers) == 1, "the keys of several layers would mix"
        self._mask_token_id, self._mask_features = head.config.mask_token_id, head.mask_features

    def _pairs(self, step: int, token_ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        tokens, known = super()._pairs(step, token_ids, features)
        if step == 0:
            return tokens, known
        return torch.full_like(tokens, self._mask_token_id), self._mask_features().expand_as(features)


class ModelChain:
    """The same for an independent draft model: it reads the text itself, so one pass gives every step."""

    def __init__(self, model: TargetModel, length: int, num_steps: int) -> None:
        self.model, self.num_steps = model, num_steps
        self.num_pairs = num_pairs(length, num_steps)
        self._positions = torch.arange(length, device=model.device)[None]

    def __call__(self, token_ids: Tensor, features: Tensor) -> ChainStates:
        hidden = self.model.forward(token_ids, self._positions, None).hidden
        return ChainStates([hidden[:, 1 + step : 1 + step + self.num_pairs] for step in range(self.num_steps)], [])


class StepTerms(NamedTuple):
    """Per position of one step, each [B, P] float32."""

    cross_entropy: Tensor
    """- sum over the draft vocabulary of target probability times draft log-probability."""
    overlap: Tensor
    """Sum of the smaller of both probabilities: the chance that a sampled draft token is accepted at T = 1."""
    kept: Tensor
    """min(1, draft / target) of the text's own next token; its mean over text drawn from the target is the overlap."""
    hit: Tensor
    """Bool: whether the text's own next token is the draft's argmax."""


def step_terms(
    # [B, P, V] logits of the draft
    draft_logits: Tensor,
    # [B, P, V] logits of the target, at the tokens of the draft vocabulary
    target_logits: Tensor,
    # [B, P] log of the sum of exponentials over the target's whole vocabulary
    target_lse: Tensor,
    # [B, P] int64 draft id of the text's next token; -1 when the draft cannot propose it
    draft_ids: Tensor,
) -> StepTerms:
    """What one step of a chain is worth against the target. All arithmetic is float32."""
    draft_logprob = functional.log_softmax(draft_logits.float(), dim=-1)
    target_logprob = target_logits.float() - target_lse[..., None]
    target_prob = target_logprob.exp()
    cross_entropy = -(target_prob * draft_logprob).sum(-1)
    overlap = torch.minimum(target_prob, draft_logprob.exp()).sum(-1)
    index = draft_ids.clamp(min=0)[..., None]
    ratio = (draft_logprob.gather(-1, index) - target_logprob.gather(-1, index))[..., 0]
    kept = torch.where(draft_ids >= 0, ratio.clamp(max=0).exp(), 0.0)
    hit = draft_logits.argmax(-1) == draft_ids
    return StepTerms(cross_entropy, overlap, kept, hit)


def accepted(terms: Sequence[StepTerms]) -> list[Tensor]:
    """Chance that at least 1, 2, .. K draft tokens are accepted, [B, P] each.

    Averaged over text drawn from the target it is exact for chains of sampled drafts under token-by-token
    verification: P(step s accepted) = E[prod over i < s of min(1, draft / target)(x_i) * overlap_s].
    """
    reached: Tensor | float = 1.0
    chances = []
    for term in terms:
        chances.append(reached * term.overlap)
        reached = reached * term.kept
    return chances
