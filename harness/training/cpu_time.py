"""Whether a CPU has the memory and the time for a training, asked before anything is loaded.

Times are the least there can be: products with weights, and attention, at a rate that is measured. What else a run does
comes on top.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from harness.config.schema import SettingsError
from harness.models.eagle3 import Eagle3Head
from harness.models.free_memory import Need, check_fits, weights_need
from harness.models.target import TargetModel
from harness.training.run_folder import reason_for_no_text
from harness.training.settings import OF_FRESH, HeadTraining, Output

SMALLER: dict[str, Any] = {"length": 128, "rows_at_once": 64, "batch_rows": 4, "draft_vocab_size": 1024}
"""As the help's example for a CPU has them."""
FEW_STEPS = 10
"""Fewer train no head."""
TOLD_BELOW = 1000
"""Steps of a training of which a user is told."""
_SIDE, _TRIES = 1024, 3


class LeastTime(NamedTuple):
    """Seconds that parts of a training take at least."""

    text_s: float
    """The first rows, which are written whatever time they take."""
    step_s: float

    @classmethod
    def of(cls, settings: HeadTraining, target: TargetModel, rate: float, start: Eagle3Head | None = None) -> LeastTime:
        """Of a training with these settings.

        Args:
            target: may lie on the meta device.
            rate: operations a second of all processes together.
            start: head of settings.start, whose draft tokens and output count in place of those of the settings.
        """
        cost, num_rows, length = target.cost, settings.rows_at_once, settings.length
        text = cost.passes(num_rows, [1] * length, 1).num_operations + cost.logits(length, num_rows).num_operations
        num_tokens = settings.batch_rows * length
        forward = (
            cost.passes(settings.batch_rows, [length], 1).num_operations + cost.logits(1, num_tokens).num_operations
        )
        # logits, gradients of the states and, of a matrix of the head's own, of its weights
        has_own_output = settings.output is Output.own if start is None else start.has_own_output
        num_products = 3 if has_own_output else 2
        num_draft = min(settings.draft_vocab_size, target.vocab_size) if start is None else start.vocab_size
        learnt = 2 * num_products * settings.num_unrolled * num_tokens * target.hidden_size * num_draft
        step = learnt + (0 if settings.keep_states else forward)
        return cls(settings.processes * text / rate, settings.processes * step / rate)


def check_on_cpu(
    settings: HeadTraining,
    target: TargetModel,
    dtype: torch.dtype,
    rate: float,
    start: Eagle3Head | None = None,
) -> str | None:
    """What a user should know of a training on a CPU; None where there is time for many steps.

    Args:
        target: on the meta device.
        dtype: of its weights.
        rate: see `matrix_rate`.
        start: see `LeastTime.of`.

    Raises:
        SettingsError: the first rows, or a few steps, take longer than all the time that they are given.
        ValueError: target and text have no room.
    """
    writes = reason_for_no_text(settings) is None
    _check_memory(settings, target, writes)
    least = LeastTime.of(settings, target, rate, start)
    rows, batch = (
        f"{num:,} rows of {settings.length:,} tokens" for num in (settings.rows_at_once, settings.batch_rows)
    )
    on = f"on this CPU ({rate / 1e9:,.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}, measured)"
    if writes and least.text_s > max(60.0, 60 * settings.generate_minutes):
        raise SettingsError(
            f"rows_at_once: expected the first rows within generate_minutes={settings.generate_minutes:g}, found "
            f"{rows}, which take {_told(least.text_s)} or more {on}; " + _advice(settings, target, rate, start)
        )
    minutes = 0.0 if settings.steps or settings.only_text else settings.minutes or settings.run_minutes
    num_steps = 60 * minutes / least.step_s
    if minutes and num_steps < FEW_STEPS and FEW_STEPS * least.step_s > 60:
        raise SettingsError(
            f"batch_rows: expected time for {FEW_STEPS} steps or more in {minutes:g} minutes, found that a step of "
            f"{batch} takes {_told(least.step_s)} or more {on}; " + _advice(settings, target, rate, start)
        )
    if minutes and num_steps < TOLD_BELOW:
        text = f"the first {rows} take {_told(least.text_s)} or more {on}, and " if writes else f"{on} "
        return (
            f"{text}a step of {batch} {_told(least.step_s)} or more: by products of matrices alone {num_steps:,.0f} "
            f"steps in {minutes:g} minute{'' if minutes == 1 else 's'}, with all else fewer; for more of them "
            f"{_advice(settings, target, rate, start)}"
        )
    return None


def _advice(settings: HeadTraining, target: TargetModel, rate: float, start: Eagle3Head | None) -> str:
    kept = () if start is None else OF_FRESH
    lower = {name: value for name, value in SMALLER.items() if name not in kept and value < getattr(settings, name)}
    if not lower or settings.num_unrolled > SMALLER["length"] // 2:
        return "give more minutes, or take a GPU"
    least = LeastTime.of(replace(settings, **lower), target, rate, start)
    given = " ".join(f"{name}={value}" for name, value in lower.items())
    return f"set {given} ({_told(least.text_s)} and {_told(least.step_s)} at least), or take a GPU"


def _check_memory(settings: HeadTraining, target: TargetModel, writes: bool) -> None:
    needs = [weights_need(f"target {target.name}", target.causal_lm)]
    if writes:
        num_bytes = target.new_cache(settings.rows_at_once, settings.length).num_bytes
        needs.append(
            Need(f"keys and values of {settings.rows_at_once:,} rows of {settings.length:,} tokens", num_bytes)
        )
    several = [
        need._replace(what=f"{settings.processes} times {need.what}", num_bytes=settings.processes * need.num_bytes)
        for need in needs
    ]
    check_fits(
        needs if settings.processes == 1 else several,
        torch.device("cpu"),
        "What a step computes comes on top. Lower rows_at_once or length, or take a smaller target or a GPU.",
    )


def matrix_rate(dtype: torch.dtype) -> float:
    """Operations a second of a product of matrices on the CPU; the best of a few."""
    left, right = (torch.ones(_SIDE, _SIDE, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2 * _SIDE**3 / min(seconds)


def _told(seconds: float) -> str:
    return f"{seconds / 60:,.1f} minutes" if seconds >= 60 else f"{seconds:.2g} s"
