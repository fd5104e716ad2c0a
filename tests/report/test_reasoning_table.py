"""The table of policies, from cells of known truth."""

import csv
import io

import pytest

from harness.analysis.reasoning_sums import boundary_values
from harness.records.request import CutReason, FinishReason
from harness.report.console import print_summary
from harness.report.tables.reasoning import ADVICE, NEVER_ENDED, reasoning_lines, reasoning_table
from tests.support.synthetic_cells import analysed, cell_record, config, request_record, round_record


def constrained(prompt_id, policy):
    """Two tokens, reasoning ends in the second round with its marker drafted second, an answer in two more rounds."""
    cut = {"num_output": 2, "cut": CutReason.grammar, "num_cut_tokens": 2} if policy == "commit" else {}
    cut |= {} if policy == "none" else {"is_whole": False, "num_held_steps": 2}
    rounds = [
        round_record(2, 1, 1.0, num_free_tokens=2, host_us=2.0, **({} if policy == "none" else {"is_whole": True})),
        round_record(2, 2, 2.0, num_proposed=3, num_free_tokens=2, host_us=8.0, **cut),
        round_record(2, 0, 3.0, num_free_tokens=0, host_us=30.0),
        round_record(2, 2, 4.0, num_free_tokens=0, host_us=50.0),
    ]
    return request_record(
        rounds,
        prompt_id,
        finish_reason=FinishReason.grammar,
        num_reasoning_tokens=4,
        answer_is_valid=prompt_id != "b" or policy != "late",
    )


def cell(policy):
    constraint = {"policy": policy, "parser": "zoo", "kind": "json_schema", "grammar": None}
    return cell_record([constrained(name, policy) for name in "abc"], settings=config(constraint=constraint))


def test_a_request_is_split_at_its_boundary():
    values = {name: row[0] for name, row in boundary_values([constrained("a", "commit")]).items()}
    assert values["boundary_num_draft_tokens_before"] == 4 and values["boundary_num_accepted_tokens_before"] == 3
    assert values["boundary_num_draft_tokens_after"] == 4 and values["boundary_num_accepted_tokens_after"] == 2
    assert [values[f"boundary_num_rounds_{phase}"] for phase in ("before", "boundary", "after")] == [1, 1, 2]
    assert [values[f"boundary_host_us_{phase}"] for phase in ("before", "boundary", "after")] == [2, 8, 80]
    assert [values[f"boundary_num_tokens_{phase}"] for phase in ("before", "boundary", "after")] == [2, 2, 4]
    assert values["boundary_num_refused_tokens"] == 2 and values["boundary_num_valid"] == 1


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({"finish_reason": FinishReason.length}, "num_length_cut"),
        ({"num_reasoning_tokens": None, "answer_is_valid": None, "finish_reason": FinishReason.eos}, "num_unanswered"),
        ({"finish_reason": FinishReason.eos}, "num_finished"),
    ],
    ids=["cut by the length limit", "ended while it reasoned", "answered"],
)
def test_outputs_are_counted_apart_by_how_they_ended(changes, counted):
    """Would catch a length-cut answer in the share of valid ones."""
    rounds = [round_record(2, 1, 1.0, num_free_tokens=2)]
    values = {"num_reasoning_tokens": 1, "answer_is_valid": False} | changes
    sums = boundary_values([request_record(rounds, **values)])
    found = [name for name in ("num_finished", "num_length_cut", "num_unanswered") if sums[f"boundary_{name}"][0]]
    assert found == [counted]
    assert sums["boundary_num_judged"][0] == (counted == "num_finished")


def test_the_table_has_a_row_for_each_policy_and_leaves_other_cells_out():
    plain = cell_record([request_record([round_record(2, 1, 1.0)])])
    assert reasoning_table(analysed(plain)) is None
    table = reasoning_table(analysed(*(cell(policy) for policy in ("mask", "late", "none", "commit")), plain))
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["policy"].split()[0] for row in rows] == ["none", "late", "commit", "mask"]
    assert [row["valid (%)"].split()[0] for row in rows] == ["100.0", "66.7", "100.0", "100.0"]
    assert rows[2]["tokens refused per 100 requests"].startswith("200.00")
    assert [rows[2][name] for name in ("rounds whole", "rounds with the host", "rounds held")] == ["3", "3", "6"]
    assert rows[0]["rounds whole"] == rows[0]["rounds with the host"] == "0"
    assert rows[0]["before / none"] == "–" and rows[3]["after / none"].startswith("1.000")


def test_the_summary_says_what_became_of_the_answers():
    """Would catch a console summary of a constrained run without its main result."""
    stream = io.StringIO()
    print_summary(analysed(cell("late")), stream)
    (line,) = [line for line in stream.getvalue().splitlines() if "answers, " in line]
    assert "finished 3, cut by length 0, valid (%) 66.7" in line and NEVER_ENDED not in line
    plain = cell_record([request_record([round_record(2, 1, 1.0)])])
    assert reasoning_lines(analysed(plain)) == []


def test_the_summary_names_the_policy_of_each_line_where_they_differ():
    late, mask = reasoning_lines(analysed(cell("late"), cell("mask")))
    assert "constraint = late" in late and "constraint = mask" in mask
    assert "constraint" not in reasoning_lines(analysed(cell("late")))[0]


def test_the_summary_says_when_no_request_reached_the_end_of_its_reasoning():
    rounds = [round_record(2, 1, 1.0, num_free_tokens=2)]
    ended = {"num_reasoning_tokens": None, "answer_is_valid": None, "finish_reason": FinishReason.length}
    requests = [request_record(rounds, name, **ended) for name in "ab"]
    for parser, end in (("zoo", NEVER_ENDED + ADVICE), ("never", NEVER_ENDED)):
        constraint = {"policy": "mask", "parser": parser, "kind": "json_schema", "grammar": None}
        (line,) = reasoning_lines(analysed(cell_record(requests, settings=config(constraint=constraint))))
        assert "finished 0, cut by length 2, valid (%) n/a" in line and line.endswith(end)
