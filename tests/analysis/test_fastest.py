"""The fastest cell among drafters, methods and trees, which tables of one axis never hold beside each other."""

from harness.report.tables.fastest import NO_DRAFTS, fastest_tables
from tests.report.test_axis_tables import baseline, cell, column
from tests.support.synthetic_cells import analysed


def test_chains_and_trees_and_no_drafts_are_candidates():
    """Would catch methods that are compared with themselves alone, a slow one that is called equal, and a lossy method
    that wins."""
    chains = cell(2, step_s=0.011), cell(3, step_s=0.0125, method="block")
    tree = cell(3, step_s=0.03, method="recursive", drafting__tree="3")
    lossy = cell(3, step_s=0.001, method="lenient", guarantee="lossy")
    (table,) = fastest_tables(analysed(baseline(), *chains, tree, lossy))
    (found,), (equals,) = column(table, "fastest"), column(table, "not told apart from it")
    assert {found, equals} == {"K = 2, probabilistic, sampled drafts", "K = 3, block, sampled drafts"}
    (table,) = fastest_tables(analysed(baseline(), cell(2, step_s=0.05), cell(2, step_s=0.06, method="block")))
    assert column(table, "fastest") == [NO_DRAFTS] and column(table, "not told apart from it") == ["none"]


def test_each_setting_has_a_line_and_drafters_are_named_where_they_differ():
    """Would catch cells of two temperatures or batch sizes in one line, held against another one's baseline."""
    records = []
    for size in (1, 8):
        settings = {"backend__max_concurrency": size}
        records += [baseline(**settings), cell(2, **settings), cell(2, drafter__kind="mtp", step_s=0.02, **settings)]
    (table,) = fastest_tables(analysed(*records))
    assert sorted(column(table, "max_concurrency")) == ["1", "8"]
    assert all(name.endswith(", K = 2, probabilistic, sampled drafts") for name in column(table, "fastest"))


def test_depths_of_one_method_have_tables_of_their_own():
    """Would catch a table that repeats "Best draft depth", and random weights that choose a method."""
    assert fastest_tables(analysed(baseline(), cell(1), cell(3))) == []
    random = {"target__weights": "random", "drafter__weights": "random"}
    cells = analysed(
        baseline(target__weights="random"), *(cell(2, method=each, **random) for each in ("block", "strict"))
    )
    assert fastest_tables(cells) == []
