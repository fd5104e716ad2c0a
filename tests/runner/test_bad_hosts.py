"""Hosts and devices on which nothing runs do not end a run that others can finish."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.config.schema import SettingsError
from harness.config.sections import LogprobsMode
from harness.config.workload import WorkloadConfig
from harness.records.files import read_cell
from harness.records.run_status import DONE, read_status
from harness.runner import supervisor
from harness.runner.launchers.local import Local
from harness.runner.launchers.local_run import LocalLauncher
from harness.runner.plan.run_plan import Resume
from harness.runner.supervised_worker import MAX_STARTS
from harness.runner.supervisor import Supervisor
from tests.support.supervised_runs import METHODS, Counting, plan_on


@pytest.mark.parametrize("is_taken", [False, True], ids=["not taken", "ends before it begins"])
def test_a_host_on_which_no_worker_begins_ends_no_other_worker(is_taken, tmp_path, monkeypatch):
    """Would catch a sweep that one bad host ends, and one that starts workers there for ever."""
    started, killed = [], []

    class OneHostIsBad(LocalLauncher):
        def start(self, place):
            started.append(place)
            if place == 0:
                return super().start(place)
            if not is_taken:
                raise SettingsError("the job is not taken")
            return SimpleNamespace(
                channel=None,
                has_ended=lambda: True,
                ending=lambda: "bad host",
                end=lambda hurry: None,
                kill=lambda: killed.append(place),
            )

    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    monkeypatch.setattr(Local, "launcher", lambda config, plan: OneHostIsBad(plan))
    finished = []
    run_plan = plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0, 0.8), devices=("0", "1"))
    Supervisor(run_plan, Counting(), finished).run()
    assert len(finished) == 9 and 1 <= started.count(1) <= MAX_STARTS
    # its cluster may requeue it
    assert len(killed) == (started.count(1) if is_taken else 0)


def test_a_job_that_begins_after_it_was_given_up_is_ended(tmp_path, monkeypatch):
    """Would catch a job that holds its GPU and waits for work until its time limit."""
    bell, push = os.pipe()

    class Late:
        channel, num_kills = None, 0

        def kill(self):
            self.num_kills += 1
            if self.num_kills == 1:
                os.write(push, b"!")

        def has_ended(self):
            return True

        def ending(self):
            return "its host was not there"

        def end(self, hurry):
            pass

    class OneJobIsLate(LocalLauncher):
        doors = (bell,)
        late = ()

        def start(self, place):
            if place == 0:
                return super().start(place)
            if self.late:
                raise SettingsError("the job is not taken")
            self.late = (Late(),)
            return self.late[0]

        def begun(self):
            os.read(bell, 1)
            return self.late

    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    launcher = []
    monkeypatch.setattr(Local, "launcher", lambda config, plan: launcher.append(OneJobIsLate(plan)) or launcher[0])
    run_plan = plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0, 0.8), devices=("0", "1"))
    Supervisor(run_plan, Counting(), finished := []).run()
    assert len(finished) == 9 and launcher[0].late[0].num_kills == 2
    os.close(bell)
    os.close(push)


def test_an_error_while_workers_are_ended_hides_none_of_the_run(tmp_path, monkeypatch):
    """Would catch a full disk that is reported as a connection that could not be closed, and workers that are left."""
    told, killed = [], []

    class Display(Counting):
        def note(self, text):
            told.append(text)

    class CannotBeEnded(LocalLauncher):
        def start(self, place):
            if place == 2:
                raise SettingsError("the first error")

            def kill():
                killed.append(place)
                raise RuntimeError(f"no connection to {place}")

            return SimpleNamespace(channel=None, end=lambda hurry: None, kill=kill)

        def close(self, hurry):
            raise RuntimeError("no connection to the cluster")

    monkeypatch.setattr(Local, "launcher", lambda config, plan: CannotBeEnded(plan))
    run_plan = plan_on("Raises", tmp_path, temperatures=(0.6, 1.0, 0.8), devices=("0", "1", "2"))
    with pytest.raises(SettingsError, match="the first error"):
        Supervisor(run_plan, Display(), []).run()
    assert killed == [0, 1]
    assert all(any(f"no connection to {what}" in text for text in told) for what in (0, 1, "the cluster"))


def test_a_run_ends_without_the_jobs_that_its_cluster_has_not_begun(tmp_path, monkeypatch):
    """Would catch a finished run that waits for a GPU only to give it back."""
    cancelled = []

    class OneJobWaits(LocalLauncher):
        def start(self, place):
            if place == 0:
                return super().start(place)
            return SimpleNamespace(
                channel=None, has_ended=lambda: False, end=lambda hurry: None, kill=lambda: cancelled.append(place)
            )

    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    monkeypatch.setattr(Local, "launcher", lambda config, plan: OneJobWaits(plan))
    run_plan = plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0), devices=("0", "1"))
    Supervisor(run_plan, Counting(), finished := []).run()
    assert len(finished) == len(run_plan.cells) and cancelled == [1] and read_status(tmp_path).state == DONE


def test_groups_run_on_several_devices_and_each_stays_on_one(tmp_path):
    """Would catch arms of one comparison on two devices, and a second device that gets nothing."""
    devices = {}
    Supervisor(plan_on("TellsItsDevice", tmp_path, temperatures=(0.6, 1.0), devices=("3", "5")), Counting(), []).run()
    for path in (tmp_path / "cells").iterdir():
        record = read_cell(path)
        devices.setdefault(record.config["decoding"]["temperature"], set()).add(record.provenance["sampling_core"])
    assert sorted(devices) == [0.6, 1.0] and sorted(map(sorted, devices.values())) == [["3"], ["5"]]


def test_what_no_worker_can_run_ends_the_run_with_its_reason(tmp_path):
    """Would catch a mistake of the settings that becomes a failed cell, or starts workers again and again."""
    first = plan_on("Raises", tmp_path).cells[1]
    second = replace(first, decoding=replace(first.decoding, logprobs_mode=LogprobsMode.processed))
    with pytest.raises(ValueError, match="two cells differ in"):
        Supervisor(replace(plan_on("Raises", tmp_path), cells=(first, second)), Counting(), []).run()
    assert not (tmp_path / "cells").exists()


def plan_of_files(paths, name, folder, methods=METHODS[:1]):
    """The same cells for each of several files of prompts."""
    for path in paths:
        path.write_text(json.dumps({"prompt": f"Why {path.name}?"}) + 3 * '\n{"prompt": "Why?"}')
    run_plan = plan_on(name, folder, methods)
    cells = [
        replace(cell, workload=WorkloadConfig(path=str(path), num_turns=1)) for path in paths for cell in run_plan.cells
    ]
    return replace(run_plan, cells=tuple(cells))


def records_by_file(folder):
    """File of the prompts -> its records."""
    found = {}
    for path in sorted((folder / "cells").iterdir()):
        record = read_cell(path)
        found.setdefault(Path(record.config["workload"]["path"]), []).append(record)
    return found


class Removes(Counting):
    """The supervisor has read all prompts, the workers have not."""

    def __init__(self, paths):
        super().__init__()
        self.paths = paths

    def start(self, num_requests_total):
        super().start(num_requests_total)
        for path in self.paths:
            path.unlink()


def test_prompts_that_a_worker_cannot_read_fail_their_cells_only(tmp_path):
    """Would catch a night's sweep that ends with the files of some groups, failed cells that take each other's place,
    and a failure that is forgotten, or kept for ever, once the files are back."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    run_plan = plan_of_files(paths, "Raises", tmp_path)
    Supervisor(run_plan, display := Removes(paths[:2]), []).run()
    records = records_by_file(tmp_path)
    assert [[len(record.requests) for record in records[path]] for path in paths] == [[0, 0], [0, 0], [4, 4]]
    assert all(str(path) in record.failures[0].message for path in paths[:2] for record in records[path])
    assert display.num_requests == display.total == 8
    plan_of_files(paths, "Raises", tmp_path)
    Supervisor(run_plan, Counting(), finished := []).run()
    assert len(finished) == 6 and sum(len(found) for found in records_by_file(tmp_path).values()) == 6
    assert all(record.has_failed for path in paths[:2] for record in records_by_file(tmp_path)[path])
    Supervisor(replace(run_plan, resume=Resume(retries_failed=True)), Counting(), []).run()
    assert all([len(record.requests) for record in records_by_file(tmp_path)[path]] == [4, 4] for path in paths)


def test_a_run_of_which_no_prompts_can_be_read_ends_with_its_reason(tmp_path):
    """Would catch a run that records every cell as failed instead of naming the file."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(2)]
    with pytest.raises(ValueError, match=str(paths[0])):
        Supervisor(plan_of_files(paths, "Raises", tmp_path), Removes(paths), []).run()
    assert not (tmp_path / "cells").exists() and read_status(tmp_path) is None


def test_what_is_finished_does_not_fail_with_prompts_that_the_next_worker_cannot_read(tmp_path, monkeypatch):
    """Would catch results that a takeover writes off, and a cell that has two records."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    monkeypatch.setenv("GONE", str(paths[1]))
    run_plan = plan_of_files(paths, "KilledWithItsPrompts", tmp_path, METHODS)
    Supervisor(run_plan, display := Removes(paths[:1]), []).run()
    records = records_by_file(tmp_path)
    assert [sorted(len(record.requests) for record in records[path]) for path in paths] == [[0] * 3, [0, 4, 4], [4] * 3]
    (failed,) = (record for record in records[paths[1]] if record.has_failed)
    assert failed.failures[0].error == "WorkerDiedError" and display.num_requests == display.total
    listed = json.loads((tmp_path / "run.json").read_text())["cells"]
    assert sorted(listed) == sorted(record.cell_id for found in records.values() for record in found)


@pytest.mark.parametrize("last", ["bad", "0"])
def test_a_host_that_can_run_nothing_ends_no_other_worker(last, tmp_path, begun, monkeypatch):
    """Would catch a sweep that one broken GPU ends, whether it fails before or after the other host begins."""
    monkeypatch.setenv("LAST", last)

    class Display(Counting):
        """Lets the waiting host continue once the supervisor has an event of the other one."""

        def tell(self):
            if begun.exists():
                begun.open("w").close()
                begun.unlink()

        def note(self, text):
            if last == "0" and "the other workers go on" in text:
                self.tell()

        def advance(self, *arguments):
            super().advance(*arguments)
            if last == "bad":
                self.tell()

    run_plan = plan_on("WaitsForTheOther", tmp_path, temperatures=(0.6, 1.0), devices=("bad", "0"))
    Supervisor(run_plan, Display(), finished := []).run()
    assert len(finished) == 6


def test_a_run_of_which_no_host_can_run_anything_ends_with_its_reason(tmp_path, monkeypatch):
    """Would catch a run that waits for hosts that have all refused."""
    monkeypatch.setenv("LAST", "")
    run_plan = plan_on("WaitsForTheOther", tmp_path, temperatures=(0.6, 1.0), devices=("bad", "bad"))
    with pytest.raises(ValueError, match="no GPU here"):
        Supervisor(run_plan, Counting(), []).run()
    assert not (tmp_path / "cells").exists()
