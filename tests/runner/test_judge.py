"""Answers of a finished cell are judged by its prompts' known answers, and reported with paired differences."""

from dataclasses import replace

import pytest

from harness.config.identity import determinants
from harness.models.described_target import target_here
from harness.records.counts import Arrival, Knowledge
from harness.report.tables.task_accuracy import task_accuracy_tables, task_lines
from harness.runner.judge import NO_TOKENIZER_NOTE, NO_TOKENS_NOTE, judged
from harness.runner.plan.compose import compose_plan
from harness.workload.conversations import conversations, fingerprint
from harness.workload.prompt import KnownAnswer, Prompt
from harness.workload.tasks import humaneval
from tests.support.prompt_files import write_lines
from tests.support.synthetic_cells import analysed, baseline_settings, cell_record, request_record, round_record

TESTS = humaneval.known("def one():\n", "def check(f):\n    assert f() == 1\n", "one")
PROMPTS = [
    Prompt("number", "maths", ("How many?", "And now?"), known=KnownAnswer("gsm8k", "12")),
    Prompt("code", "code", ("Write one().",), known=KnownAnswer("humaneval", TESTS)),
    Prompt("open", "chat", ("Hello",)),
]


@pytest.fixture(scope="module")
def cell():
    return compose_plan(["drafter=none"]).cells[0]


def answered(cell, texts):
    """A record with these answers, by prompt and turn."""
    tokenizer = target_here(cell.target).tokenizer
    requests = []
    for (prompt_id, turn), text in texts.items():
        tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
        rounds = [round_record(0, 0, 1.0, num_output=1) for _ in tokens]
        requests.append(request_record(rounds, prompt_id, turn=turn, output_token_ids=tokens))
    return cell_record(requests)


ANSWERS = {
    ("number", 0): "5 and 7, so</think> 12",
    ("number", 1): "12",
    ("code", 0): "    return 1\n",
    ("open", 0): "Hi 12",
}


@pytest.mark.parametrize(("runs_code", "of_code"), [(False, None), (True, True)])
def test_only_what_is_known_is_judged_and_code_is_run_if_asked_for(cell, runs_code, of_code):
    """Would catch code of a model that runs unasked, and a later turn that is judged by the first one's answer."""
    asked = replace(cell, measurement=replace(cell.measurement, run_code=runs_code))
    played = conversations(PROMPTS, cell.workload, seed=0)
    found = judged(answered(cell, ANSWERS), asked, played)
    assert {item.key[:2]: item.answer_is_right for item in found.requests} == {
        ("number", 0): True, ("number", 1): None, ("code", 0): of_code, ("open", 0): None,
    }  # fmt: skip
    wrong = judged(answered(cell, {("number", 0): "12</think> or 13"}), asked, played)
    assert [item.answer_is_right for item in wrong.requests] == [False]


def test_an_answer_that_is_cut_off_within_its_reasoning_is_wrong(cell):
    """Would catch the last number of the working that is taken for the answer, where that has not begun."""
    played = conversations(PROMPTS, cell.workload, seed=0)
    sought = compose_plan(["drafter=none", "constraint=none"]).cells[0]
    for asked, text, is_right in [
        (cell, "<think>perhaps 12", False), (cell, "<think>7</think>12", True), (cell, "perhaps 12", True),
        (sought, "perhaps 12", False),
    ]:  # fmt: skip
        found = judged(answered(cell, {("number", 0): text}), asked, played)
        assert [item.answer_is_right for item in found.requests] == [is_right], text


def test_answers_that_cannot_be_judged_are_told(cell, monkeypatch):
    """Would catch an accuracy of the few answers whose tokens are known that reads as that of all."""
    played = conversations(PROMPTS, cell.workload, seed=0)
    record = answered(cell, ANSWERS)
    served = replace(record.requests[0], rounds=(), arrivals=(Arrival(1.0, 3),), output_token_ids=(), counts=None)
    without = replace(record, requests=(served, *record.requests[1:]), knowledge=Knowledge.arrivals)
    found = judged(without, cell, played)
    assert found.requests[0].answer_is_right is None and found.fallbacks == (NO_TOKENS_NOTE.format(1),)
    monkeypatch.setattr("harness.runner.judge.target_here", lambda target: None)
    assert judged(record, cell, played).fallbacks == (NO_TOKENIZER_NOTE.format(1),)


def test_code_that_is_run_makes_another_cell_and_no_answers_no_other_prompts(tmp_path):
    """Would catch a finished cell without verdicts that is taken for one with them."""
    path = write_lines(
        tmp_path / "a.jsonl", {"task_id": "t", "prompt": "def one():", "test": "x", "entry_point": "one"}
    )
    plain, asked = (
        compose_plan(["drafter=none", f"workload.path={path}", f"measurement.run_code={value}"]).cells[0]
        for value in ("false", "true")
    )
    assert determinants(plain, "p") != determinants(asked, "p") and "run_code" not in str(determinants(plain, "p"))
    assert fingerprint(PROMPTS) == fingerprint([replace(prompt, known=None) for prompt in PROMPTS])


def test_the_price_of_a_method_is_paired_by_prompt():
    """Would catch a difference of two means with the noise of the prompts in it: here every prompt loses alike."""

    def cell_of(verdicts, settings=None):
        rounds = [round_record(0, 0, 1.0), round_record(3, 2, 2.0)]
        requests = [request_record(rounds, f"p{at:02}", answer_is_right=verdict) for at, verdict in enumerate(verdicts)]
        return cell_record(requests, settings=settings)

    right = [True, True, False, True] * 5
    lost = [verdict and at % 4 != 0 for at, verdict in enumerate(right)]
    cells = list(analysed(cell_of(right, baseline_settings()), cell_of(lost)))
    (table,) = task_accuracy_tables(cells)
    alone, beside = task_lines(cells)
    assert alone.startswith("right answers (%), baseline: ") and beside.endswith(" − baseline")
    difference = table.header.index("right answers (%) − baseline")
    (baseline, row) = table.rows
    assert row[difference].value == pytest.approx(-0.25) and row[difference].high < 0
    assert row[difference - 1].value == pytest.approx(0.5) and baseline[difference - 1].value == pytest.approx(0.75)
    unknown = analysed(cell_of([None] * 4))
    assert not task_accuracy_tables(unknown) and not task_lines(unknown)
