"""The objective of a drafter over rows of text, and what of it would be accepted.

What is minimised is a loss of harness.training.losses. The target's states are computed anew for each batch; its logits
over the whole vocabulary exist for a few tokens at a time.

Shapes: B rows, L tokens of a row, P pairs of a row, V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.target import TargetModel, TargetOutput
from harness.training.drafter import Drafter
from harness.training.losses.loss import Loss
from harness.training.optimizer import autocast
from harness.training.unrolled import StepTerms, accepted, step_terms

_LOGITS_AT_ONCE = 1 << 30
"""Logits of the target's whole vocabulary that exist at a time."""


class TargetStates(NamedTuple):
    """What of the target a step wants of rows of text; the logits follow from it."""

    hidden: Tensor
    """[B, L, H] after the final norm."""
    aux: tuple[Tensor, ...]
    lse: Tensor
    """[B, L] float32, log of the sum of exponentials over the whole vocabulary."""

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (self.hidden, *self.aux, self.lse))

    def of(self, rows: Tensor) -> TargetStates:
        """Those of some rows, by number."""
        return TargetStates(self.hidden[rows], tuple(states[rows] for states in self.aux), self.lse[rows])

    def room(self, num_rows: int) -> TargetStates:
        """Room for so many rows of their kind."""
        hidden, lse = (each.new_empty(num_rows, *each.shape[1:]) for each in (self.hidden, self.lse))
        return TargetStates(hidden, tuple(each.new_empty(num_rows, *each.shape[1:]) for each in self.aux), lse)

    def put(self, start: int, states: TargetStates) -> None:
        """Copy those of other rows here, from a row on."""
        rows = slice(start, start + len(states.lse))
        for ours, theirs in zip(
            (self.hidden, *self.aux, self.lse), (states.hidden, *states.aux, states.lse), strict=True
        ):
            ours[rows].copy_(theirs)


class TargetRows(NamedTuple):
    """What the target says of rows of text."""

    hidden: Tensor
    """[B, L, H] after the final norm."""
    aux: tuple[Tensor, ...]
    logits: Tensor
    """[B, L, V] of the draft vocabulary."""
    lse: Tensor
    """[B, L] float32, log of the sum of exponentials over the whole vocabulary."""


class Learner:
    """Runs a target and a drafter over rows of text."""

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        *,
        length: int,
        num_steps: int,
        compiles: bool,
        loss: Loss,
    ) -> None:
        """num_steps: of the chain. compiles: whether torch compiles what is computed most."""
        self.target, self.drafter, self.num_steps = target, drafter, num_steps
        self._loss = loss
        self._positions = torch.arange(length, device=target.device)[None]
        self._to_draft = self._target_to_draft()
        ids = drafter.draft_to_target
        # where the logits are this product and nothing else
        is_plain = type(target) is TargetModel and ids is not None
        self._draft_rows = target.output_matrix[ids] if is_plain else None
        compiled: Callable[[Any], Any] = torch.compile if compiles else lambda function: function
        self._terms, self._tail = compiled(self._run_terms), compiled(self._run_tail)

    def _target_to_draft(self) -> Tensor:
        """[target's vocabulary] int64, -1 where the drafter cannot propose a token."""
        ids, size, device = self.drafter.draft_to_target, self.target.vocab_size, self.target.device
        if ids is None:
            return torch.arange(size, device=device)
        table = torch.full((size,), -1, dtype=torch.int64, device=device)
        table[ids] = torch.arange(len(ids), device=device)
        return table

    def _run_tail(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.target.logits(hidden)
        lse = logits.float().logsumexp(-1)
        if self.drafter.draft_to_target is not None:
            logits = logits.index_select(-1, self.drafter.draft_to_target)
        return logits, lse

    def _run_terms(self, hidden: Tensor, target_logits: Tensor, target_lse: Tensor, draft_ids: Tensor) -> StepTerms:
        return step_terms(self.drafter.logits(hidden), target_logits, target_lse, draft_ids)

    def _num_parts(self, num_tokens: int) -> int:
        return -(-num_tokens * self.target.vocab_size // _LOGITS_AT_ONCE)

    @torch.no_grad()
    def _target_rows(self, token_ids: Tensor) -> TargetRows:
        # a network of transformers takes positions of every row
        positions = self._positions.expand(len(token_ids), -1)
        output = self.target.forward(token_ids, positions, None, self.drafter.aux_layers)
        num_parts = self._num_parts(token_ids.numel())
        logits, lse = zip(*(self._tail(part) for part in output.hidden.chunk(num_parts)), strict=True)
        return TargetRows(output.hidden, output.aux, torch.cat(logits), torch.cat(lse))

    def states(self, token_ids: Tensor) -> TargetStates:
        """What the target says of rows of text, [B, L] int64, to be kept."""
        with autocast(token_ids.device):
            rows = self._target_rows(token_ids)
        return TargetStates(rows.hidden, rows.aux, rows.lse)

    @torch.no_grad()
    def _kept_rows(self, states: TargetStates) -> TargetRows:
        if self._draft_rows is None:
            num_parts = self._num_parts(states.lse.numel())
            logits = torch.cat([self._tail(part)[0] for part in states.hidden.chunk(num_parts)])
        else:
            logits = functional.linear(states.hidden, self._draft_rows)
        return TargetRows(states.hidden, states.aux, logits, states.lse)

    def terms(
        self,
        # [B, L] int64
        token_ids: Tensor,
        known: TargetStates | None = None,
    ) -> tuple[list[StepTerms], Tensor]:
        """Terms of every step, and the distance between the chain's features and the target's (0 where not learnt).

        known: the target's states of these rows, where they are kept.
        """
        drafter, size = self.drafter, self.drafter.num_pairs
        rows = self._target_rows(token_ids) if known is None else self._kept_rows(known)
        states = drafter.chain(token_ids, drafter.features(TargetOutput(rows.hidden, rows.aux)))
        terms, distance = [], rows.hidden.new_zeros((), dtype=torch.float32)
        padded = functional.pad(token_ids, (0, 1))  # the last step's next token is never looked at
        for index, state in enumerate(states.hidden):
            at = slice(1 + index, 1 + index + size)
            draft_ids = self._to_draft[padded[:, 2 + index : 2 + index + size]]
            terms.append(self._terms(state, rows.logits[:, at], rows.lse[:, at], draft_ids))
            if drafter.learns_features:
                learnt = states.features[index].float()
                distance = distance + functional.smooth_l1_loss(learnt, rows.hidden[:, at].float())
        return terms, distance

    def loss(
        self,
        # [B, L] int64
        token_ids: Tensor,
        fraction: float,
        # [B, L] bool
        counted: Tensor | None = None,
        known: TargetStates | None = None,
    ) -> Tensor:
        """The objective at a point of the budget.

        counted: tokens whose prediction is learnt; a chain counts by the first token that it predicts. None is all.
        known: as of `terms`.
        """
        terms, distance = self.terms(token_ids, known)
        size = self.drafter.num_pairs
        # of one step the last pair may predict what lies behind the row
        weight = None if counted is None else functional.pad(counted.float(), (0, 1))[:, 2 : 2 + size]

        values = self._loss.values(terms, fraction)
        mean = values.mean() if weight is None else (values * weight).sum() / weight.sum().clamp(min=1)
        return mean + self._loss.feature_weight(fraction) * distance

    @torch.no_grad()
    def measure(
        self,
        # [N, L] int64
        token_ids: Tensor,
        # [N, L] bool
        drawn: Tensor,
        num_rows: int,
        *,
        greedy: bool = False,
    ) -> dict[str, Any]:
        """Acceptance where all tokens of a chain were drawn from the target, of batches of `num_rows` rows.

        Sampled text gives that of sampled drafts at T = 1, text of T = 0 (`greedy`) that of the drafter's argmax. Where
        rows do not fill a batch, the remainder is left out.
        """
        size, num_steps = self.drafter.num_pairs, self.num_steps
        sums = torch.zeros(2, num_steps, dtype=torch.float64, device=token_ids.device)
        count = torch.zeros((), dtype=torch.float64, device=token_ids.device)
        for start in range(0, max(1, len(token_ids) - num_rows + 1), num_rows):
            with autocast(token_ids.device):
                terms, _ = self.terms(token_ids[start : start + num_rows])
            at = drawn[start : start + num_rows].unfold(1, num_steps, 1)[:, 2 : 2 + size].all(-1)
            at = functional.pad(at, (0, size - at.shape[1]))
            count += at.sum()
            reached = torch.stack([term.hit.float() for term in terms]).cumprod(0) if greedy else accepted(terms)
            for index, (term, chance) in enumerate(zip(terms, reached, strict=True)):
                sums[0, index] += ((term.hit if greedy else term.overlap) * at).sum()
                sums[1, index] += (chance * at).sum()
        overlap, kept = (sums / count).tolist()
        return {
            "overlap": [round(value, 4) for value in overlap],
            "acceptance_by_position": [round(value, 4) for value in kept],
            "expected_length": round(1 + sum(kept), 4),
        }
