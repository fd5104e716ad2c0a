"""Worker processes: what ends one of them fails a cell and not the sweep."""

import threading
from dataclasses import replace

import pytest

from harness.runner.launchers.local_run import LocalLauncher
from harness.runner.plan.run_plan import Resume
from harness.runner.supervisor import Supervisor
from tests.runner.test_failing_cells import records_of
from tests.support.supervised_runs import Counting, plan_on


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("Raises", "RuntimeError", "out of memory"),
        ("Killed", "WorkerDiedError", "SIGKILL"),
        ("LosesTheDevice", "RuntimeError", "illegal memory access"),
    ],
)
def test_what_ends_a_worker_fails_its_cell_and_another_worker_does_the_rest(name, error, words, tmp_path):
    """Would catch a sweep that ends with a worker, blames another cell, or counts a lost worker's requests twice."""
    display, finished = Counting(), []
    Supervisor(plan_on(name, tmp_path), display, finished).run()
    records = records_of(tmp_path)
    (failure,) = records["block"].failures
    assert failure.error == error and words in failure.message
    assert [len(records[method].requests) for method in ("none", "strict", "block")] == [4, 4, 0]
    assert len(finished) == 3 and display.num_requests == display.total
    # what the first worker had done is kept
    sessions = [block.session for method in ("none", "strict") for block in records[method].blocks]
    assert len(set(sessions)) == (1 if name == "Raises" else 2) and sessions[:2] == sessions[2:]


def test_a_cell_that_failed_before_its_worker_died_is_counted_once(tmp_path, monkeypatch):
    """Would catch requests that are left out again by the next worker, a failure that takes another's place, one of
    this run that is retried like one of an earlier run, and one that every worker tells again."""
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    display = Counting()
    notes: list[str] = []
    display.note = notes.append
    run_plan = replace(plan_on("RaisesAndIsKilled", tmp_path), resume=Resume(retries_failed=True))
    Supervisor(run_plan, display, []).run()
    assert (tmp_path / "once").stat().st_size == 1
    records = records_of(tmp_path)
    assert [records[method].failures[0].error for method in ("strict", "block")] == ["RuntimeError", "WorkerDiedError"]
    assert display.num_requests == display.total > 0
    assert [note.partition(":")[0] for note in notes if "fail" in note] == ["failed", "failed"]


def test_a_run_from_the_start_keeps_what_its_own_workers_did(tmp_path):
    """Would catch a second worker that throws the first one's work away."""
    fresh = replace(plan_on("Killed", tmp_path), resume=Resume(is_fresh=True, retries_failed=True))
    Supervisor(fresh, Counting(), []).run()
    records = records_of(tmp_path)
    assert records["block"].has_failed
    assert len({block.session for block in records["strict"].blocks}) == 2


def test_a_run_from_the_start_takes_no_earlier_cell_after_its_worker_died(tmp_path, monkeypatch):
    """Would catch a second worker that lists what an earlier run measured as measured now."""
    run_plan = plan_on("KilledIfAsked", tmp_path)
    Supervisor(run_plan, Counting(), []).run()
    before = records_of(tmp_path)["block"].sessions
    monkeypatch.setenv("KILL", "1")
    Supervisor(replace(run_plan, resume=Resume(is_fresh=True)), Counting(), []).run()
    records = records_of(tmp_path)
    assert records["strict"].has_failed and not {*before} & {*records["block"].sessions}


@pytest.mark.parametrize("option", ["is_fresh", "retries_failed"])
def test_what_to_retry_outlives_a_worker_that_was_lost_before_it_looked(option, tmp_path, monkeypatch):
    """Would catch a night in which nothing is retried, because the first worker was taken away while it started."""
    run_plan = plan_on("KilledBeforeItLooks", tmp_path, devices=("0",))
    Supervisor(run_plan, Counting(), []).run()
    assert records_of(tmp_path)["block"].has_failed
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    monkeypatch.setattr(LocalLauncher, "forgives", True)
    Supervisor(replace(run_plan, resume=Resume(**{option: True})), Counting(), []).run()
    assert (tmp_path / "once").exists()
    assert [len(record.requests) for record in records_of(tmp_path).values()] == [4, 4, 4]


def test_a_cell_that_keeps_nothing_when_it_is_preempted_fails_in_the_end(tmp_path, monkeypatch):
    """Would catch a worker that is replaced for ever, since requests finish that nothing keeps."""
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    Supervisor(plan_on("IsPreemptedAgainAndAgain", tmp_path), Counting(), []).run()
    records = records_of(tmp_path)
    assert [item.error for item in records["block"].failures] == ["StoppedError"]
    assert [len(records[name].requests) for name in ("none", "strict")] == [4, 4]


def test_a_cell_that_advances_between_two_lost_workers_does_not_fail(tmp_path, monkeypatch):
    """Would catch a long cell that fails because hosts were lost under it, hours apart."""
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))
    monkeypatch.setattr(LocalLauncher, "forgives", True)
    Supervisor(plan_on("KilledInBothBlocks", tmp_path), Counting(), []).run()
    assert (tmp_path / "once").stat().st_size == 2
    assert [len(record.requests) for record in records_of(tmp_path).values()] == [4, 4, 4]


def test_a_worker_that_is_silent_for_too_long_is_ended(tmp_path, begun):
    """Would catch a sweep that waits for ever, a limit that counts from the start and not from the last event, and a
    display that hears of no time while a worker says nothing, as when it times steps for a planner."""

    class Clock(Counting):
        """Each request takes most of the limit; else time passes once the server is silent, in steps far below the
        limit, since events that it sent before may still be unread."""

        now_s, is_silent, num_ticks = 0.0, False, 0

        def tick(self):
            self.num_ticks += self.is_silent

        def start(self, num_requests_total):
            super().start(num_requests_total)
            threading.Thread(target=self.hear, daemon=True).start()

        def hear(self):
            begun.open().close()
            self.is_silent = True

        def advance(self, num_requests=1, num_tokens=0):
            super().advance(num_requests, num_tokens)
            self.now_s += 0.2 * num_requests

        def note(self, text):
            # the next worker begins
            self.is_silent = False

        def __call__(self):
            self.now_s += 0.03 * self.is_silent
            return self.now_s

    clock = Clock()
    Supervisor(plan_on("Hangs", tmp_path, stall_limit_s=0.3), clock, [], clock).run()
    records = records_of(tmp_path)
    assert clock.num_ticks
    assert [item.error for item in records["block"].failures] == ["StallError"]
    assert [len(records[method].requests) for method in ("none", "strict", "block")] == [4, 4, 0]
