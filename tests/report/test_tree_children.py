"""Acceptance by depth and child of trees, on rounds whose paths are known."""

import pytest

from harness.analysis.tree_children import child_rates
from harness.config.tree import branching, tree_name
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.report.tables.tree_children import tree_children_tables
from tests.support.synthetic_cells import analysed, cell_record, config, request_record, round_record

UNEVEN = (-1, -1, 0, 0, 1, 3)
"""The context has two children, the first of them two and the second one; a chain of three leads to the last node."""
NUM_NODES = len(UNEVEN)


def round_of(*path, evidence=3, drafted=NUM_NODES):
    """A round whose first depths are evidence, with so many draft tokens at them; accepted is what lies within."""
    return round_record(
        drafted,
        min(len(path), evidence),
        0.2,
        num_output=len(path) + 1,
        num_proposed=NUM_NODES,
        path=path,
        num_draft_positions=evidence,
    )


def cell_of(*rounds, tree=UNEVEN, **changes):
    settings = config(drafting__tree=tree_name(tree), drafting__num_speculative_tokens=len(tree))
    settings["verification"]["method"] = "recursive"
    halves = rounds[::2], rounds[1::2]
    requests = [request_record([round_record(0, 0, 0.1), *half], name) for name, half in zip("ab", halves, strict=True)]
    return analysed(cell_record(requests, settings=settings, **changes))[0]


ROUNDS = [round_of(), round_of(0), round_of(1, 4), round_of(0, 3, 5), round_of(0, 2), round_of(1)]


def test_a_child_is_counted_among_the_walks_that_came_to_its_parent():
    """Would catch ranks by place in the draft, nodes without that child among the walks, and walks that ended above."""
    found = {(item.depth, item.child): (item.num_walks, item.estimate.value) for item in child_rates(cell_of(*ROUNDS))}
    assert found == {
        (1, 1): (6, pytest.approx(3 / 6)),
        (1, 2): (6, pytest.approx(2 / 6)),
        # below the first node twice, below the second once; the second child has the first node alone for a parent
        (2, 1): (5, pytest.approx(2 / 5)),
        (2, 2): (3, pytest.approx(1 / 3)),
        (3, 1): (1, pytest.approx(1.0)),
    }


def test_a_depth_that_is_no_evidence_is_counted_neither_way():
    """A walk beyond the last token that counts. Would catch acceptances that could not have been rejections."""
    (first, second, *others) = child_rates(cell_of(round_of(0, 3, 5, evidence=1, drafted=2), round_of(1)))
    assert (first.num_walks, first.estimate.value, second.estimate.value) == (2, 0.5, 0.5)
    assert [(item.depth, item.num_walks) for item in others] == [(2, 1)]


def test_the_table_ends_with_the_rates_as_a_setting():
    (table,) = tree_children_tables([cell_of(*ROUNDS)])
    assert len(table.rows) == 5 and table.header[-1] == "acceptance of the child (%)"
    assert any("verification.tree_rates=[[0.5,0.333],[0.4,0.333],[1]]" in note for note in table.notes)


def test_there_is_no_table_of_chains_nor_where_siblings_or_rounds_are_not_known():
    """Would catch a dynamic tree that is read as a fixed one."""
    chain = cell_of(round_of(0), tree=branching(1, 1, 1))
    dynamic = config(drafting__tree="dynamic:6-3-2", drafting__num_speculative_tokens=6)
    counted = request_record([], counts=DraftCounts(1, 3, 2), arrivals=(Arrival(1.0, 3),), output_token_ids=(7,) * 3)
    rounds = request_record([round_record(0, 0, 0.1), round_of(0)])
    others = analysed(
        cell_record([rounds], settings=dynamic),
        cell_record([rounds]),
        cell_record([counted], knowledge=Knowledge.requests, settings=chain.record.config),
    )
    assert [child_rates(cell) for cell in (chain, *others)] == [[]] * 4 and not tree_children_tables([chain, *others])
