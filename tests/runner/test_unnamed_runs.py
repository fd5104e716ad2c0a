"""Runs without a name: each has a folder of its own, and the same settings go on in the last one of theirs."""

import re
from dataclasses import replace

import pytest

from experiments import report as report_command
from experiments import run as command
from experiments import status as status_command
from harness.records.run_status import DONE, STOPPED
from harness.records.runs import PROFILE, RUNS, last_run, named
from harness.runner import whole_run
from harness.runner.manifest import Manifest
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.run_plan import Resume
from harness.runner.plan.unnamed import WORDS, resumed, word_of
from tests.runner.test_status import STATUS_OF_A_RUN
from tests.support.stand_in_sweeps import finished

TWO_K = ["drafter=ngram", "drafting.num_speculative_tokens=2,3"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def plan():
    """Composed once; its folder is chosen in each test."""
    return compose_plan(TWO_K)


def goes_on_in(plan, **resume):
    return resumed(plan, Resume(**resume)).folder


def began(plan, time, state=STOPPED, of=None):
    """A folder of a run of a plan that has finished nothing."""
    folder = RUNS / f"{time}-{word_of(plan)}"
    folder.mkdir(parents=True)
    replace(STATUS_OF_A_RUN, state=state, plan=(of or plan).key, command="rejection-lab run x").write(folder)
    return folder


def test_a_run_without_a_name_has_the_time_and_the_word_of_its_plan(plan):
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{word_of(plan)}", plan.name) and plan.folder == RUNS / plan.name
    assert plan.title == plan.name and len(set(WORDS)) == len(WORDS) > 200
    again, other = compose_plan(TWO_K), compose_plan([*TWO_K, "seed=1"])
    assert again.key == plan.key != other.key and word_of(again) == word_of(plan)
    first = resumed(plan, Resume()).folder
    first.mkdir(parents=True)
    assert goes_on_in(plan, is_fresh=True) != first, "begun in the same second"


@pytest.mark.parametrize("given", ["name=mine", "experiment=methods", "output.folder=elsewhere/x"])
def test_a_run_with_a_name_stays_where_it_is(given):
    plan = compose_plan([given, "drafter=ngram", "decoding.temperature=0", "verification=strict"])
    assert not plan.is_unnamed and goes_on_in(plan, is_fresh=True) == goes_on_in(plan) == plan.folder


def test_the_same_plan_goes_on_in_its_last_folder(plan):
    """Also one that was stopped before a cell had a record. Would catch another plan with the same word, a profile, an
    earlier run of the same plan, and a fresh run that overwrites what is there."""
    other = compose_plan([*TWO_K, "seed=1"])
    began(plan, "20260101-000000", DONE)
    last = began(plan, "20260102-000000")
    began(plan, "20260103-000000", of=other)
    profile = RUNS / f"20260104-000000-{word_of(plan)}"
    profile.mkdir()
    (profile / PROFILE).touch()
    assert goes_on_in(plan) == goes_on_in(plan, retries_failed=True) == last
    assert goes_on_in(plan, is_fresh=True) not in set(RUNS.iterdir())
    Manifest(replace(other, folder=last), last, []).add(0, "cell", has_failed=False)
    assert goes_on_in(plan).name.startswith("20260101"), "the manifest is that of the records that are there"


def test_reports_of_two_runs_without_a_name_stay(monkeypatch, capsys):
    """Would catch a second command that overwrites the report of the first, and a third, the first again, that begins
    anew."""
    monkeypatch.setattr(whole_run, "run_plan", lambda plan, cells: finished(plan.folder)(plan, cells))
    assert command.main(["drafter=ngram"]) == 0
    (first,) = RUNS.iterdir()
    page = first / "report.md"
    page.write_text("kept")
    assert command.main(["drafter=ngram", "seed=1"]) == 0
    (second,) = set(RUNS.iterdir()) - {first}
    assert page.read_text() == "kept" and (second / "report.md").is_file()
    assert "last run of the same settings" not in capsys.readouterr().err
    assert command.main(["drafter=ngram"]) == 0
    assert set(RUNS.iterdir()) == {first, second} and page.read_text() != "kept"
    assert f"results in {first}\nthis is the last run of the same settings" in capsys.readouterr().err


def test_a_run_without_a_name_is_found(plan, capsys):
    """By its word, by its name, in the list with its command, and as the last run."""
    assert report_command.main(["--format", "csv"]) == 2
    assert "found no run in results/runs" in capsys.readouterr().err
    older, newer = (began(plan, f"2026010{day}-000000") for day in (1, 2))
    assert named(word_of(plan)) == newer and named(older.name) == older and named("nothing").parts == ("nothing",)
    assert status_command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith("; rejection-lab run x") for line in lines) and len(lines) == 2
    assert last_run() is None, "nothing to report yet"
    whole = finished(RUNS / "mine")
    whole(plan, [])
    assert report_command.main(["--format", "csv"]) == 0
    told = capsys.readouterr()
    assert told.err == "the last run: results/runs/mine\n" and len(told.out.splitlines()) == 4
