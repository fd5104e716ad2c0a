"""What a run tells of itself while it goes on: how far it is, how fast, and how long it takes."""

import io
from threading import Event

import pytest

from harness.config.cli.command_line import say
from harness.records.files import write_cell
from harness.records.runs import CELLS
from harness.runner import check_plan
from harness.runner import progress as module
from harness.runner.plan.compose import compose_plan
from harness.runner.progress import UNKNOWN, LiveProgress, Progress, duration, progress_on
from harness.runner.whole_run import write_report
from tests.support.synthetic_cells import cell_record, request_record, round_record


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_plain_progress_writes_a_line_now_and_then_with_the_time_left():
    """Would catch a rest that takes as long for each request as the first one, with all that was loaded before it."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock)
    progress.start(100)
    clock.now_s += 20.0
    progress.cell("eagle3 block", 1, 4)
    for _ in range(40):
        clock.now_s += 1.0
        progress.advance(1, 10)
    lines = stream.getvalue().splitlines()
    assert lines == [
        f"0/100 requests (0 %), 20 s, {UNKNOWN}: cell 2/4 eagle3 block",
        "10/100 requests (10 %), 30 s, about 1 min 30 s left: cell 2/4 eagle3 block",
        "20/100 requests (20 %), 40 s, about 1 min 20 s left: cell 2/4 eagle3 block",
        "30/100 requests (30 %), 50 s, about 1 min 10 s left: cell 2/4 eagle3 block",
        "40/100 requests (40 %), 1 min 00 s, about 1 min 00 s left: cell 2/4 eagle3 block",
    ]
    clock.now_s += 20.0
    progress.cell("eagle3 strict", 2, 4)
    assert stream.getvalue().splitlines()[5].endswith("cell 3/4 eagle3 strict")
    progress.finish()
    progress.finish()
    assert stream.getvalue().splitlines()[6:] == ["40/100 requests, 400 tokens in 1 min 20 s"]


def test_a_line_comes_while_nothing_ends():
    """Would catch a run that says nothing while it loads, or times steps before its first request."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock)
    progress.tick()
    progress.start(100)
    for _ in range(8):
        clock.now_s += 5.0
        progress.tick()
    progress.finish()
    clock.now_s += 60.0
    progress.tick()
    assert stream.getvalue().splitlines() == [
        *(f"0/100 requests (0 %), {seconds} s, {UNKNOWN}: loading" for seconds in (10, 20, 30, 40)),
        "0/100 requests, 0 tokens in 40 s",
    ]


def test_requests_of_earlier_sessions_count_and_take_no_time():
    """Would catch a total that shrinks as cells are found to be done, and a pace of requests that took none."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock)
    progress.start(100)
    clock.now_s += 20.0
    progress.done_before(60)
    progress.cell("eagle3 block", 2, 4)
    clock.now_s += 20.0
    progress.advance(4, 40)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        f"60/100 requests (60 %), 20 s, {UNKNOWN}: loading",
        "64/100 requests (64 %), 40 s, about 3 min 00 s left: cell 3/4 eagle3 block",
        "64/100 requests (60 before), 40 tokens in 40 s",
    ]
    assert (progress.num_done, progress.num_left) == (4, 36)


def test_what_takes_long_is_told_now_and_then(monkeypatch, capsys, tmp_path):
    """Would catch a report that is written without a word for a minute."""
    told = Event()
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.001)
    monkeypatch.setattr(module, "say", lambda line: (say(line), told.set()))
    write_cell(cell_record([request_record([round_record(4, 2, 1.0)])]), tmp_path / CELLS)

    def show(results):
        # of reading the records there may have been a line
        told.clear()
        assert told.wait(60)

    write_report(tmp_path, show, tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert "writing the report: 0 s" in lines and lines[-1].startswith("report: ")


def test_a_plan_whose_check_takes_long_is_told_of(monkeypatch, capsys):
    """Would catch a data set that is downloaded, or thousands of prompts that are tokenized, without a word."""
    told = Event()
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.001)
    monkeypatch.setattr(module, "say", lambda line: (say(line), told.set()))
    monkeypatch.setattr(check_plan, "check_prompts", lambda *_, **__: told.wait(60) or pytest.fail("nothing was told"))
    check_plan.check_inputs(compose_plan(["drafter=ngram"]), downloads=True)
    assert capsys.readouterr().err.splitlines()[0] == "checking what the run needs: 0 s"


@pytest.mark.parametrize(("num_done", "turns", "left_s"), [(9, 1, None), (10, 1, 90.0), (1, 2, 990.0), (0, 2, None)])
def test_no_time_is_told_before_it_is_measured(num_done, turns, left_s):
    """Would catch a rest that is wrong by multiples: told by requests that compiled, or that all ended together."""
    clock = Clock()
    progress = Progress(io.StringIO(), clock)
    progress.start(100)
    progress.cell("eagle3 block", 0, 2)
    clock.now_s += 10.0
    progress.advance(num_done)
    for index in range(1, turns):
        progress.cell("eagle3 strict", index, 2)
    assert progress.left_s == left_s


def test_live_progress_runs_and_notes_stay():
    stream = io.StringIO()
    progress = LiveProgress(stream)
    progress.note("before")
    progress.start(2)
    progress.cell("[eagle3] block", 0, 1)
    progress.advance(2, 30)
    progress.note("a note [with brackets]")
    progress.finish()
    progress.finish()
    assert stream.getvalue().startswith("before\n")
    assert "a note [with brackets]" in stream.getvalue()


def test_the_display_suits_the_stream():
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    assert isinstance(progress_on(terminal), LiveProgress)
    assert type(progress_on(io.StringIO())) is Progress


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


def test_a_line_says_what_getting_ready_took_and_when_measuring_began():
    """Would catch a time that counts from the last turn instead of from the start."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock)
    progress.start(100)
    clock.now_s += 9.0
    progress.cell("eagle3 block", 0, 1)
    clock.now_s += 3.25
    progress.ready("eagle3 block: 20 kernels were compiled before")
    assert stream.getvalue() == "eagle3 block: 20 kernels were compiled before; measured from 12.2 s on\n"
