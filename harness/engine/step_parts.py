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

from harness.engine.constrained_step import truncate_verdict
from harness.engine.constraint.masks import BITS_PER_WORD, Masks, unpacked, words_ahead
from harness.engine.constraint.matcher import FREE
from harness.engine.slots import StepInputs
from harness.engine.step import Drafted, Scored, Step, StepOutput, Verified
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
    """The parts of one step; they are called in the order of their definition, `end`, `end_masked` or `finish`
    last."""

    drafted: Drafted
    scored: Scored
    verified: Verified
    """Of the last `verify_to_cut`."""

    def __init__(self, step: Step, given: StepInputs, max_masks: int) -> None:
        self.step = step
        self.given = given
        num_rows, num_tokens, device = given.decides.numel(), step.num_speculative_tokens, given.slots.device
        num_numbers, num_drafts = max_numbers(max_masks, num_tokens), num_rows * num_tokens
        num_words = -(-step.target.vocab_size // BITS_PER_WORD)
        self._memory = torch.zeros(words_ahead(num_numbers) + max_masks * num_words, dtype=torch.int32, device=device)
        numbers, words = unpacked(self._memory, num_numbers, step.target.vocab_size)
        numbers.fill_(FREE)
        draft_rows = numbers[:num_drafts].view(num_rows, num_tokens)
        self.masks = DeviceMasks(words, draft_rows, numbers[num_drafts : 2 * num_drafts + num_rows])
        self._num_kept = torch.full((num_rows,), num_tokens + 1, dtype=torch.int64, device=device)
        width = num_tokens + 1 if given.has_rounds else 1
        self.shown = torch.zeros(num_rows, width, dtype=torch.int64, pin_memory=device.type == "cuda")
        if device.type == "meta":
            self.shown = self.shown.to(device)
        """[B, K + 1] int64 on the host, the drafts of `draft` and their number; [B, 1] zeros where no slot decodes."""

    def run_all(self) -> None:
        """Run every part once, operation by operation."""
        StepParts.draft(self)
        StepParts.score(self)
        StepParts.end(self)
        StepParts.end_masked(self)
        StepParts.verify_to_cut(self)
        StepParts._finish(self)

    def draft(self) -> None:
        """Apply the host's input, and draft without masks."""
        self.drafted = self.step.draft(self.given)
        draft = self.drafted.draft
        if draft.token_ids.shape[1]:
            rows = torch.cat([draft.token_ids, draft.num_draft_tokens.unsqueeze(1)], dim=1)
            self.shown.copy_(rows, non_blocking=True)

    def read_drafts(self) -> tuple[list[list[int]], list[int]]:
        """The drafts of each slot and their number, once they are on the host."""
        rows = self.shown.tolist()
        return [row[:-1] for row in rows], [row[-1] for row in rows]

    def score(self) -> None:
        """The target's forward over `drafted`."""
        self.scored = self.step.score(self.given, self.drafted)

    def end(self) -> StepOutput:
        """Verification and what follows it, without masks."""
        return self._end(self.drafted, None)

    def end_masked(self) -> StepOutput:
        """The same under `masks`."""
        return self._end(self.masked(), TokenMask(self.masks.words, self.masks.target_rows))

    def verify_to_cut(self) -> Tensor:
        """Verification under `masks` alone; returns what was decided (see StepOutput). `finish` must follow."""
        target_mask = TokenMask(self.masks.words, self.masks.target_rows)
        self.verified = self.step.verify(self.given, self.masked(), self.scored, target_mask)
        return self.step.decided(self.verified)

    def finish(self, num_kept: list[int]) -> StepOutput:
        """What follows verification, of so many tokens of each slot at most."""
        self._num_kept.copy_(torch.tensor(num_kept))
        return self._finish()

    def _finish(self) -> StepOutput:
        cut = truncate_verdict(self.verified, self._num_kept)
        self.step.extend(self.given, self.scored, cut)
        return self.step.commit(self.scored, cut)

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

    def write_masks(self, masks: Masks, draft_rows: Tensor | None, target_rows: list[int]) -> None:
        """Put masks into their place on the device, in one copy; no draft rows are masked where `draft_rows` is None.

        The copy may still be under way when this returns: the masks must stay as they are until the step was read.
        """
        numbers = [FREE] * self.masks.draft_rows.numel() if draft_rows is None else draft_rows.flatten().tolist()
        packed = masks.packed(numbers + target_rows)
        self._memory[: len(packed)].copy_(packed, non_blocking=True)

    def _end(self, drafted: Drafted, mask: TokenMask | None) -> StepOutput:
        verified = self.step.verify(self.given, drafted, self.scored, mask)
        self.step.extend(self.given, self.scored, verified)
        return self.step.commit(self.scored, verified)


def max_numbers(max_masks: int, num_tokens: int) -> int:
    """Numbers of masks that any step has: of its draft rows and of its target rows, which have a mask each at most."""
    return max_masks + max_masks // (num_tokens + 1) * num_tokens


class CapturedParts(StepParts):
    """The same as CUDA graphs."""

    def __init__(self, step: Step, given: StepInputs, max_masks: int, pool: Any) -> None:
        super().__init__(step, given, max_masks)
        # kernels are compiled and scratch memory grows outside of the capture
        self.run_all()
        torch.cuda.synchronize()
        self.pool = pool
        self._draft, _ = self._captured(super().draft)
        self._score, _ = self._captured(super().score)
        self._end_free, self._output_free = self._captured(super().end)
        self._end_under_masks, self._output_under_masks = self._captured(super().end_masked)
        self._verify_to_cut, self._decided = self._captured(super().verify_to_cut)
        self._finish_cut, self._output_cut = self._captured(super()._finish)
        self._arrived = torch.cuda.Event()
        # the first replay of a graph brings it to the device
        for replay in (self.draft, self.score, self.end, self.end_masked, self.verify_to_cut, self._finish):
            replay()
        torch.cuda.synchronize()

    def _captured(self, part: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What replays the graph of a part, and what it returned; its memory comes from the pool that all share."""
        graph = torch.cuda.CUDAGraph()
        target = self.step.target
        with (
            target.captured_elsewhere() as replay_elsewhere,
            torch.cuda.graph(graph, pool=self.pool, capture_error_mode=target.capture_error_mode),
        ):
            result = part()
        self.pool = graph.pool()

        def replay() -> None:
            replay_elsewhere()
            graph.replay()

        return replay, result

    def draft(self) -> None:
        self._draft()
        self._arrived.record()

    def read_drafts(self) -> tuple[list[list[int]], list[int]]:
        self._arrived.synchronize()
        return super().read_drafts()

    def score(self) -> None:
        self._score()

    def end(self) -> StepOutput:
        self._end_free()
        output: StepOutput = self._output_free
        return output

    def end_masked(self) -> StepOutput:
        self._end_under_masks()
        output: StepOutput = self._output_under_masks
        return output

    def verify_to_cut(self) -> Tensor:
        self._verify_to_cut()
        decided: Tensor = self._decided
        return decided

    def _finish(self) -> StepOutput:
        self._finish_cut()
        output: StepOutput = self._output_cut
        return output
