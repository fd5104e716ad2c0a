"""Which cell a worker plays next, so that cells which share compiled kernels meet in one process."""

from __future__ import annotations

from collections.abc import Mapping

from harness.certification.cases import Case
from harness.certification.controls import Control
from kernels.contract import DraftSampling, VerificationMethod

Group = tuple[VerificationMethod, DraftSampling, str, bool]
"""Method, draft sampling, dtype and whether anything truncates: what the kernels of a cell are compiled for."""
TRUNCATION_COST = 2
"""How many plain cells a truncating one is taken for."""


def group_of(job: Case | Control) -> Group:
    """The group of a cell, or of the cell that a control plays."""
    case = job.case if isinstance(job, Control) else job
    truncates = any(profile.truncates for profile in case.profiles)
    return case.verification.method, case.draft_sampling, case.dtype, truncates


class Schedule:
    """Hands out every job once: whole groups, the longest first; at the end what is left of the others' groups."""

    def __init__(self, jobs: Mapping[int, Case | Control]) -> None:
        groups: dict[Group, list[int]] = {}
        for index, job in jobs.items():
            groups.setdefault(group_of(job), []).append(index)

        def cost(group: Group) -> int:
            truncates = group[-1]
            return len(groups[group]) * (TRUNCATION_COST if truncates else 1)

        self._waiting = [groups[group] for group in sorted(groups, key=cost, reverse=True)]
        self._own: dict[int, list[int]] = {}

    def next(self, worker: int) -> int | None:
        """The number of the job that this worker should play now; None when all are handed out."""
        if not self._own.get(worker):
            self._own[worker] = self._waiting.pop(0) if self._waiting else self._taken_over()
        return self._own[worker].pop(0) if self._own[worker] else None

    def _taken_over(self) -> list[int]:
        """One job of the worker that has most left."""
        longest = max(self._own.values(), key=len, default=[])
        return [longest.pop()] if longest else []
