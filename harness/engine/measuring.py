"""When the drafts of steps are measured, and which rounds of requests that belongs to.

The rows of a step, its logits and draft logits, lie where the next step overwrites them. While steps are launched ahead
that happens before the host has read the step. Its rows are therefore copied on the device, on the stream of the steps:
after the step, and before the launch of the next one. The copies of many steps are measured together, with the device
idle and the clock stopped; where steps run one after another every step is measured where it lies. So copies count as
time of the run, and measuring does not. It does not know the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from harness.engine.measure_drafts import DraftRows, MeasureDrafts, Measures, measure_trees
from harness.engine.sequence import Sequence
from harness.engine.settings import EngineSettings
from harness.engine.step import Step, StepOutput

MAX_STEPS = 32
"""Whose rows wait to be measured, at most. Each time the device idles until the next step is launched."""
MAX_BYTES = 2**30
"""Of these rows, at most. 16 slots with 5 drafts of 150,000 logits in bfloat16 have 53 MB a step. A step that alone has
more is measured where it lies, before another one is launched."""


class DraftsOfStep:
    """The drafts of one step, and the rounds of requests that they became."""

    def __init__(self, rows: DraftRows | None, num_bytes: int) -> None:
        self.rows = rows
        """None once they are measured."""
        self.num_bytes = num_bytes
        """Of a copy; 0 where they lie."""
        self._measures: Measures | None = None
        self._rounds: list[tuple[Sequence, int, int]] = []
        """Sequence, index of its round and slot."""

    def became_round(self, sequence: Sequence, slot: int) -> None:
        """Note that the last round of a sequence is of the draft of a slot."""
        index = sequence.num_rounds - 1
        if self._measures is None:
            self._rounds.append((sequence, index, slot))
        else:
            _give(self._measures, sequence, index, slot)

    def measure(self, measure: Callable[[DraftRows], Measures]) -> None:
        """Measure them, and tell the rounds, those still to come too; may be called again after an interruption."""
        if self.rows is not None:
            self._measures, self.rows = measure(self.rows), None
        assert self._measures is not None
        for sequence, index, slot in self._rounds:
            _give(self._measures, sequence, index, slot)
        self._rounds = []


def _give(measures: Measures, sequence: Sequence, index: int, slot: int) -> None:
    sequence.take_measured(index, measures.of(slot, sequence.num_proposed_tokens(index)))


class Measuring:
    """Measures the drafts of an engine's steps, if that is asked for."""

    def __init__(self, step: Step, measure: Callable[[DraftRows], Measures] | None, is_ahead: bool) -> None:
        """measure: of a step; None measures nothing. is_ahead: steps are launched ahead, so that rows are copied."""
        self._step, self._measure = step, measure
        self._max_steps = MAX_STEPS if is_ahead else 0
        self._waiting: deque[DraftsOfStep] = deque()
        self.is_due = False
        """`measure` must be called before another step is launched."""

    @classmethod
    def of(cls, step: Step, settings: EngineSettings, is_ahead: bool) -> Measuring:
        """What the settings ask for."""
        if not settings.expected_acceptance:
            return cls(step, None, is_ahead)
        if settings.drafts_trees:
            return cls(step, measure_trees, is_ahead)
        terms = MeasureDrafts(settings.verification, settings.round_terms, settings.multi_draft_terms)
        return cls(step, terms, is_ahead)

    def keep(self, output: StepOutput) -> DraftsOfStep | None:
        """The drafts of the last step that was launched, in rows that the next one leaves alone, unless it `is_due`.

        None where nothing is measured.
        """
        if self._measure is None or not output.draft.token_ids.shape[1]:
            return None
        rows = DraftRows.of(self._step, output)
        self.is_due = len(self._waiting) >= self._max_steps
        size = 0 if self.is_due else num_bytes(rows)
        if size:
            self.is_due = size + sum(item.num_bytes for item in self._waiting) > MAX_BYTES
        drafts = DraftsOfStep(rows, 0) if self.is_due else DraftsOfStep(copied(rows), size)
        self._waiting.append(drafts)
        return drafts

    def measure(self) -> None:
        """Measure all that waits; waits for the device. What an interruption left is measured by the next call."""
        self.is_due = False
        while self._waiting:
            assert self._measure is not None
            self._waiting[0].measure(self._measure)
            self._waiting.popleft()

    def forget(self) -> None:
        """Let go of what waits, of a run that failed."""
        self._waiting.clear()
        self.is_due = False


def copied(rows: DraftRows) -> DraftRows:
    """The same rows in memory of their own, copied by the device after everything launched so far."""
    return _each(rows, lambda tensor: tensor.clone(memory_format=torch.contiguous_format))


def num_bytes(rows: DraftRows) -> int:
    """Memory that a copy takes."""
    sizes: list[int] = []

    def noted(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    _each(rows, noted)
    return sum(sizes)


def _each(rows: DraftRows, change: Callable[[Tensor], Tensor]) -> DraftRows:
    """The same rows, every tensor changed that another step may overwrite."""
    # what never changes, and what the reference core has compared for this step alone, may stay where it is
    output = rows.output._replace(
        decided=change(rows.output.decided),
        logits=change(rows.output.logits),
        draft=_fields(rows.output.draft, change, but=("draft_to_target",)),
    )
    drawn_rows = None if rows.drawn_rows is None else change(rows.drawn_rows)
    return DraftRows(output, _fields(rows.sampling, change), drawn_rows)


def _fields(value: Any, change: Callable[[Tensor], Tensor], but: tuple[str, ...] = ()) -> Any:
    """A dataclass with its tensors changed, and those of dataclasses in it, except the fields `but`."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    for name, each in found.items():
        if isinstance(each, Tensor) and name not in but:
            found[name] = change(each)
        elif is_dataclass(each):
            found[name] = _fields(each, change)
    return type(value)(**found)
