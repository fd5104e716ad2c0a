"""What tells cells apart where no column does: two rows of a table never look the same for want of a setting."""

from pathlib import Path

from harness.console import blocks
from harness.metrics import analyse, results_frame
from harness.other_settings import other_settings
from harness.runs import Run
from harness.tables import summary_table
from tests.synthetic_cells import CONFIG, analysed, baseline_settings, config, simulated_cell

LIMIT = "backend.prompt_tokens_beside_rounds"


def limited(limit):
    return simulated_cell(config(backend__prompt_tokens_beside_rounds=limit), (0.6, 0.4), num_prompts=3, num_rounds=2)


def test_cells_that_differ_in_a_setting_without_a_column_are_told_apart():
    cells, names = analysed(limited(None), limited(64)), [f"{LIMIT}=–", f"{LIMIT}=64"]
    assert [cell["other_settings"] for cell in cells] == names
    table = summary_table(cells)
    column = table.header.index("other_settings")
    assert sorted(row[column] for row in table.rows) == sorted(names)
    assert len(blocks(cells)) == 2 and list(results_frame(cells)["other_settings"]) == names


def test_columns_and_settings_that_are_not_used_are_not_repeated():
    """Would catch a column shown twice, and a baseline told apart from its methods by settings that it ignores."""
    shown = (config(decoding__temperature=0.5), config(backend__max_concurrency=3), config(drafter__kind="mtp"))
    assert other_settings([CONFIG, *shown, baseline_settings()]) == [""] * 5
    with_path = config(workload__path="a.jsonl", workload__layout="plain")
    assert other_settings([CONFIG, with_path]) == ["", ""]


def test_cells_of_other_runs_are_not_compared():
    runs = [Run("a", Path(), {}, [limited(None)]), Run("b", Path(), {}, [limited(64)])]
    assert [cell["other_settings"] for cell in analyse(runs)] == ["", ""]
