"""A cell in which requests failed: it is marked wherever it is shown, and its times compare with no other cell's."""

import io
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from harness.analysis.cell import analyse
from harness.analysis.comparison import comparisons_frame
from harness.analysis.results import Results
from harness.records.runs import Run
from harness.records.schema import Failure
from harness.report.console import print_summary
from harness.report.sections import make_tables
from tests.support.synthetic_cells import baseline_settings, drafted, simulated_cell

MARK = "requests failed"
LOST = Failure("ConnectionLost", "the server closed the connection", request=("prompt000", 0, 0))


def losing(cell):
    return replace(cell, failures=(LOST,))


def results(records):
    run = Run("run", Path(), {}, tuple(records))
    return Results((run,), tuple(analyse([run])))


def baseline(**changes):
    return simulated_cell(baseline_settings(**changes), [], num_prompts=10, num_rounds=60)


def sweep():
    """Cells of every axis that has a table of its own: K, concurrency, draft sampling, cache, seed."""
    at = [{"backend__max_concurrency": number} for number in (4, 16)]
    cells = [baseline(**each, seed=seed) for each in at for seed in (0, 1)]
    cells += [drafted(name, how, depth=k, **each) for name, how in PAIRS for k in (2, 3) for each in at]
    return [*cells, drafted("block", drafting__cache_dtype="bfloat16", dtype="float32", **at[0])]


PAIRS = (("strict", "sampled"), ("strict", "greedy"), ("block", "sampled"))


def shown(found):
    """Header and rows of every table that has rows, by its title, and the console."""
    tables = {
        f"{made.kind.name}: {table.title}": "\n".join(" | ".join(row) for row in (table.header, *table.texts))
        for made in make_tables(found)
        for table in made.shown
    }
    stream = io.StringIO()
    print_summary(found.cells, stream)
    return tables | {"console": stream.getvalue()}


def test_a_cell_with_failed_requests_is_marked_in_every_table():
    """Would catch a table whose reader takes the survivors' throughput for that of the cell."""
    found = shown(results(map(losing, sweep())))
    titles = {title.partition(": ")[2].partition(":")[0] for title in found}
    assert {"Repeats over seeds", "Throughput by draft depth", "Where speculation pays"} < titles
    assert {"Drafting by verification", "Draft-logit cache"} < titles
    assert [title for title, text in found.items() if MARK not in text] == []


def test_only_the_row_of_such_a_cell_is_marked():
    """Would catch a mark that stands on another K."""
    found = results([baseline(), *(losing(drafted("block", depth=k)) if k == 2 else drafted("block", depth=k)
                                   for k in (1, 2, 3))])  # fmt: skip
    text = next(text for title, text in shown(found).items() if title.endswith("Throughput by draft depth"))
    rows = [row.split(" | ") for row in text.splitlines()[1:]]
    assert [(row[3], MARK in " ".join(row)) for row in rows] == [("0", False), ("1", False), ("2", True), ("3", False)]


@pytest.mark.parametrize("loses", ["cell", "baseline"])
def test_its_times_compare_with_no_other(loses):
    """20 of 40 requests failed, and the table printed a speedup: the survivors had the machine for themselves."""
    cells = [baseline(), drafted("strict"), drafted("block")]
    place = 0 if loses == "baseline" else 2
    cells[place] = losing(cells[place])
    found = results(cells)
    assert [isnan(cell.speedup.value) for cell in found.cells] == (
        [True] * 3 if loses == "baseline" else [False, False, True]
    )
    frame = comparisons_frame(found.cells).set_index(["metric", "kind"])
    has_times = not isnan(frame.loc[("output_tokens_per_s", "ratio"), "value"])
    assert has_times == (loses == "baseline") and not isnan(frame.loc[("acceptance_rate", "difference"), "value"])
    assert MARK in shown(found)["console"]
