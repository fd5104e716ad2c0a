"""How far a training run is, by the clock or by steps, and the learning rate that follows from it."""

from __future__ import annotations

import time


class Schedule:
    """Warm-up over steps, constant, then linear to zero at the end of the budget.

    With a budget in seconds the number of steps depends on the machine; with `steps` it is exact. The clock starts at
    the first call of `fraction`, so that compiling can be kept out by calling it late.
    """

    def __init__(
        self,
        seconds: float,
        steps: int | None,
        *,
        num_warmup_steps: int,
        decay_from: float,
        peak: float,
        seconds_before: float = 0.0,
    ) -> None:
        """decay_from: fraction of the budget after which the rate falls. peak: the highest learning rate.
        seconds_before: what earlier runs have used of the budget."""
        self.seconds = seconds
        self.steps = steps
        self.num_warmup_steps = num_warmup_steps
        self.decay_from = decay_from
        self.peak = peak
        self._seconds_before = seconds_before
        self._began: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the first call of `fraction`, and those of earlier runs."""
        return self._seconds_before + (0.0 if self._began is None else time.perf_counter() - self._began)

    def fraction(self, step: int) -> float:
        """0 at the start, 1 or more when the budget is used up."""
        if self._began is None:
            self._began = time.perf_counter()
        return self.reached(step)

    def reached(self, step: int) -> float:
        """The same, without a start of the clock."""
        return step / self.steps if self.steps is not None else self.elapsed / self.seconds

    def learning_rate(self, step: int, fraction: float) -> float:
        warmup = min(1.0, (step + 1) / self.num_warmup_steps)
        decay = min(1.0, max(0.0, 1.0 - fraction) / (1.0 - self.decay_from))
        return self.peak * min(warmup, decay)
