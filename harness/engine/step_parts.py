"""A step of one size in parts that can be launched apart: drafts, target forward, and the rest with or without masks.

On a GPU every part is a CUDA graph over memory that stays where it is, so that the host may overwrite drafts, counts
and masks between two parts. Without one the same parts run operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.constraint.masks import FREE
from harness.engine.slots import StepInputs
from harness.engine.step import Drafted, Scored, Step, StepOutput
from kernels.contract import TokenMask


class DeviceMasks(NamedTuple):
    """The masks of a step on the device."""

    words: Tensor
    """[M, ceil(V / 32)] int32."""
    draft_rows: Tensor
    """[B, K] int64."""
    target_rows: Tensor
    """[B * T] int64."""


class StepParts:
    """The parts of one step; they are called in the order of their definition, `end` or `end_masked` last."""

    drafted: Drafted
    scored: Scored

    def __init__(self, step: Step, given: StepInputs, max_masks: int) -> None:
        self.step = step
        self.given = given
        num_rows, num_tokens, device = given.decides.numel(), step.num_speculative_tokens, given.slots.device
        num_words = -(-step.target.vocab_size // 32)
        self.masks = DeviceMasks(
            torch.zeros(max_masks, num_words, dtype=torch.int32, device=device),
            torch.full((num_rows, num_tokens), FREE, dtype=torch.int64, device=device),
            torch.full((num_rows * (num_tokens + 1),), FREE, dtype=torch.int64, device=device),
        )

    def draft(self) -> None:
        """Apply the host's input, and draft without masks."""
        self.drafted = self.step.draft(self.given)

    def score(self) -> None:
        """The target's forward over `drafted`."""
        self.scored = self.step.score(self.given, self.drafted)

    def end(self) -> StepOutput:
        """Verification and what follows it, without masks."""
        return self._end(self.drafted, None)

    def end_masked(self) -> StepOutput:
        """The same under `masks`."""
        return self._end(self.masked(), TokenMask(self.masks.words, self.masks.target_rows))

    def masked(self) -> Drafted:
        """The drafts with the masks that they were drawn under."""
        draft = self.drafted.draft
        if draft.logits is None:
            return self.drafted
        mask = TokenMask(self.masks.words, self.masks.draft_rows)
        return self.drafted._replace(draft=replace(draft, mask=mask))

    def write(self, token_ids: Tensor | None, counts: list[int]) -> None:
        """Put other drafts, [B, K] int64, and other counts in the place of those that `draft` left."""
        draft = self.drafted.draft
        if token_ids is not None:
            draft.token_ids.copy_(token_ids)
        draft.num_draft_tokens.copy_(torch.tensor(counts))

    def write_masks(self, words: Tensor, draft_rows: Tensor | None, target_rows: list[list[int]]) -> None:
        """Put masks into their place on the device; no draft rows are masked where `draft_rows` is None."""
        self.masks.words[: len(words)].copy_(words)
        if draft_rows is None:
            self.masks.draft_rows.fill_(FREE)
        else:
            self.masks.draft_rows.copy_(draft_rows)
        self.masks.target_rows.copy_(torch.tensor(target_rows).flatten())

    def _end(self, drafted: Drafted, mask: TokenMask | None) -> StepOutput:
        verified = self.step.verify(self.given, drafted, self.scored, mask)
        self.step.extend(self.given, self.scored, verified)
        return self.step.commit(self.scored, verified)


class CapturedParts(StepParts):
    """The same as CUDA graphs."""

    def __init__(self, step: Step, given: StepInputs, max_masks: int, pool: Any) -> None:
        super().__init__(step, given, max_masks)
        # kernels are compiled and scratch memory grows outside of the capture
        super().draft()
        super().score()
        super().end()
        super().end_masked()
        torch.cuda.synchronize()
        self.pool = pool
        self._draft, _ = self._captured(super().draft)
        self._score, _ = self._captured(super().score)
        self._end_free, self._output_free = self._captured(super().end)
        self._end_under_masks, self._output_under_masks = self._captured(super().end_masked)
        # the first replay of a graph brings it to the device
        for replay in (self.draft, self.score, self.end, self.end_masked):
            replay()
        torch.cuda.synchronize()

    def _captured(self, part: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        """The graph of a part, and what it returned; its memory comes from the pool that all share."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            result = part()
        self.pool = graph.pool()
        return graph, result

    def draft(self) -> None:
        self._draft.replay()

    def score(self) -> None:
        self._score.replay()

    def end(self) -> StepOutput:
        self._end_free.replay()
        output: StepOutput = self._output_free
        return output

    def end_masked(self) -> StepOutput:
        self._end_under_masks.replay()
        output: StepOutput = self._output_under_masks
        return output
