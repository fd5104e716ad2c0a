"""Runs that are killed on the way, at a place that they come to."""

import pytest

from harness.records import fault_points
from tests.support.resumed_runs import Told, run


class Killed(BaseException):
    """Stands for SIGKILL; `make soak` sends real ones."""


def kill_at(monkeypatch, place, times=1):
    """Kill the process when it comes to a place for the n-th time."""
    left = [times]

    def count(reached):
        left[0] -= reached == place
        if not left[0]:
            raise Killed

    monkeypatch.setattr(fault_points, "on_reached", count)


def killed(folder, monkeypatch, place, times=1, **options):
    """Run the plan and kill it on the way; returns what was told."""
    told = Told()
    kill_at(monkeypatch, place, times)
    with pytest.raises(Killed):
        run(folder, told=told, **options)
    monkeypatch.setattr(fault_points, "on_reached", None)
    return told
