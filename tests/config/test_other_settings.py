"""What tells cells apart where no column does: two rows of a table never look the same for want of a setting."""

from pathlib import Path

import pytest

from harness.analysis.cell import analyse
from harness.analysis.frame import results_frame
from harness.records.runs import Run
from harness.report.blocks import blocks
from harness.report.tables.summary import summary_table
from tests.support.synthetic_cells import analysed, baseline_settings, config, simulated_cell

pytestmark = pytest.mark.fast

LIMIT = "backend__prompt_tokens_beside_rounds"


def cell(**changes):
    settings = config(**{"backend__graphs": True, **changes})
    return simulated_cell(settings, (0.6, 0.4), num_prompts=3, num_rounds=2)


def others(*cells):
    return [item["other_settings"] for item in analysed(*cells)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (LIMIT, (8, 64)),
        ("backend__graphs", (False, True)),
        ("workload__request_rate", (2.0, 10.0)),
        ("workload__num_turns", (1, 2)),
        ("target__path", ("a/x", "b/x")),
    ],
)
def test_settings_without_a_column_are_told_apart(name, values):
    dotted = name.replace("__", ".")
    texts = [str(value).lower() for value in values]
    assert others(*(cell(**{name: value}) for value in values)) == [f"{dotted}={text}" for text in texts]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([{"decoding__temperature": 0.5}, {"decoding__temperature": 1.0}], id="a column"),
        pytest.param([{"backend__weight_dtype": "auto"}, {"backend__weight_dtype": "fp8"}], id="rounding"),
        pytest.param([{"verification__method": "typical", "verification__delta": value} for value in (0.1, 0.2)],
                     id="parameters in the name of the method"),
        pytest.param([{"drafter__kind": "ngram", "drafter__ngram_max": value} for value in (3, 4)],
                     id="lengths in the name of the drafter"),
        pytest.param([{"workload__split": value} for value in ("a", "b")], id="an unused setting"),
        pytest.param([{"workload__path": "a.jsonl", "workload__layout": "plain"},
                      {"workload__path": "b.jsonl", "workload__layout": "mt_bench"}], id="what comes with a column"),
    ],
)  # fmt: skip
def test_what_can_be_read_already_is_not_repeated(changes):
    assert others(*(cell(**item) for item in changes)) == ["", ""]


def test_tables_titles_and_the_data_frame_name_them():
    """The baseline too has one, though it is the only baseline: it belongs to the cells with that value."""
    baseline = simulated_cell(baseline_settings(backend__graphs=True, **{LIMIT: None}), (), num_prompts=3)
    cells = analysed(baseline, cell(**{LIMIT: None}), cell(**{LIMIT: 64}))
    names = [f"backend.prompt_tokens_beside_rounds={text}" for text in ("–", "–", "64")]
    table = summary_table(cells)
    column = table.header.index("other_settings")
    assert sorted(row[column] for row in table.texts) == sorted(names)
    assert list(results_frame(cells)["other_settings"]) == names and len(blocks(cells)) == 2


def test_they_are_sorted_by_the_size_of_their_numbers():
    rows = summary_table(analysed(*(cell(workload__request_rate=rate) for rate in (10.0, 2.0)))).texts
    assert "request_rate=2.0" in rows[0][0]


def test_cells_of_other_runs_are_not_compared():
    runs = [Run(name, Path(), {}, [cell(**{LIMIT: value})]) for name, value in (("a", 8), ("b", 64))]
    assert [item["other_settings"] for item in analyse(runs)] == ["", ""]
