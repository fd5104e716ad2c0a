"""Why a table has no number somewhere stands below it: for every gap, and only where there is one."""

from pathlib import Path

import pytest

from harness.analysis.cell import analyse
from harness.analysis.definitions import METRICS, REASONING_METRICS, TASK_ACCURACY
from harness.analysis.results import Results
from harness.records.runs import Run
from harness.report.missing_values import (
    NO_BASELINE,
    NO_DRAFTS,
    NOT_RECORDED,
    OF_BASELINE,
    OF_CHAINS,
    TURNED_OFF,
    missing_value_notes,
)
from harness.report.sections import make_tables
from tests.support.synthetic_cells import (
    baseline_settings,
    cell_record,
    config,
    request_record,
    round_record,
    simulated_cell,
)

pytestmark = pytest.mark.fast

EXPECTED = "expected_length_strict"


def cell_of(rates=(0.6, 0.5), *, expected=True, **changes):
    """A simulated cell, with or without expected acceptance."""
    settings = config(measurement__expected_acceptance=expected, measurement__num_resamples=100, **changes)
    record = simulated_cell(settings, list(rates), num_prompts=3, num_rounds=4)
    return record if expected else without_expected(record)


def without_expected(record):
    requests = [
        request_record(
            [round_record(item.num_draft_tokens, item.num_accepted_tokens, item.arrival_s) for item in request.rounds],
            request.prompt_id,
        )
        for request in record.requests
    ]
    return cell_record(requests, record.wall_s, record.config)


def baseline():
    return simulated_cell(baseline_settings(), [], num_prompts=3, num_rounds=4)


def tree():
    shape = {"drafting__tree": "1-1", "drafting__siblings": "distinct", "verification__method": "recursive"}
    return without_expected(cell_of(drafting__num_speculative_tokens=2, **shape))


def nothing_drafted():
    return cell_record([request_record([round_record(0, 0, 0.1)], name) for name in "abc"], 1.0, config())


def results_of(*records):
    runs = (Run("run", Path(), {}, records),)
    return Results(runs, tuple(analyse(runs)))


SWEPT = {
    "turned off": [baseline(), cell_of(expected=False), cell_of(expected=False, verification__method="block")],
    "without a baseline": [cell_of(), cell_of(verification__method="block")],
    "nothing drafted": [baseline(), nothing_drafted()],
    "depths": [baseline(), cell_of(), cell_of((0.6,), drafting__num_speculative_tokens=1)],
    "concurrency without a baseline": [cell_of(), cell_of(backend__max_concurrency=4)],
    "pairs": [
        cell_of(draft_sampling=sampling, verification__method=method)
        for sampling, method in (("greedy", "strict"), ("sampled", "strict"), ("sampled", "block"))
    ],
}


@pytest.mark.parametrize("name", SWEPT)
def test_every_dash_and_every_missing_number_of_a_table_is_explained_below_it(name):
    """Would catch a column of n/a, or dashes, that a reader cannot tell from a fault."""
    tables = [table for made in make_tables(results_of(*SWEPT[name])) for table in made.tables]
    assert tables
    for table in tables:
        notes = "\n".join(table.notes)
        for row in table.texts:
            for label, text in zip(table.header, row, strict=True):
                if text == "–":
                    assert "–: " in notes or "– under " in notes, (table.title, label)
                if text == "n/a":
                    assert "n/a under " in notes, (table.title, label)


@pytest.mark.parametrize(
    ("records", "note"),
    [
        ([baseline(), cell_of(expected=False)], f"n/a under expected length: {TURNED_OFF}."),
        ([baseline(), without_expected(cell_of())], f"n/a under expected length: {NOT_RECORDED}."),
        ([baseline(), tree()], f"n/a under expected length: {OF_CHAINS}."),
        ([cell_of()], f"n/a under speedup: {NO_BASELINE}."),
        ([baseline(), nothing_drafted()], f"n/a under acceptance rate (%): {NO_DRAFTS}."),
        ([baseline()], OF_BASELINE),
    ],
    ids=["turned off", "not recorded", "tree", "no baseline", "no drafts", "baseline"],
)
def test_the_reason_is_the_one_of_this_run(records, note):
    assert note in missing_value_notes(results_of(*records).cells, ["acceptance_rate", EXPECTED, "speedup"])


def test_a_table_without_a_gap_says_nothing():
    cells = [cell for cell in results_of(baseline(), cell_of()).cells if not cell.is_baseline]
    # answers without token ids are not looked at for loops, whose columns no table prints
    loops = {name for name in METRICS if "loop" in name}
    asked = METRICS.keys() - REASONING_METRICS.keys() - loops - {"goodput_requests_per_s", TASK_ACCURACY}
    assert missing_value_notes(cells, [*asked, "speedup"]) == []
