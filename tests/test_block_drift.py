"""Blocks that differ by more than their prompts explain are noted, others are not."""

from dataclasses import replace

import pytest

from harness.metrics.block_drift import block_drift, block_throughputs
from harness.metrics.cell import Results
from harness.metrics.frame import results_frame
from harness.report.warnings import warnings
from tests.synthetic_cells import analysed, baseline_settings, config, simulated_cell


def slowed(record, factor, first=20):
    """The record with steps of the requests from `first` on that took `factor` times as long."""
    requests = [
        replace(item, rounds=tuple(replace(each, share_s=each.share_s * factor) for each in item.rounds))
        if number >= first
        else item
        for number, item in enumerate(record.requests)
    ]
    return replace(record, requests=tuple(requests))


def cells_of(baseline_factor, factor):
    baseline = simulated_cell(baseline_settings(), [])
    return analysed(slowed(baseline, baseline_factor), slowed(simulated_cell(config(), [0.6, 0.5, 0.4]), factor))


@pytest.mark.parametrize(
    ("baseline_factor", "factor", "is_noted"),
    [(1.0, 1.0, False), (1.0, 2.0, True), (2.0, 2.0, False), (2.0, 1.0, True)],
    ids=["quiet", "one cell slowed", "both slowed", "the baseline slowed"],
)
def test_a_block_that_slowed_one_cell_is_noted(baseline_factor, factor, is_noted):
    """Would catch a note where the machine slowed for all cells alike, and none where it did for one."""
    baseline, cell = cells_of(baseline_factor, factor)
    assert block_drift(baseline) is None
    assert (block_drift(cell) is not None) is is_noted
    table = results_frame([baseline, cell])
    assert list(table.block_drift.notna()) == [False, is_noted], "cells.csv says it as well"
    told = [line for line in warnings(Results((), (baseline, cell))) if line.startswith("blocks of ")]
    assert len(told) == int(is_noted)
    if is_noted:
        assert "the machine was busy, or drifts; run again" in told[0]


def test_the_note_says_which_of_several_cells_it_is():
    """Would catch five remarks that are alike, of cells that differ in K."""
    rates = [0.6, 0.5, 0.4, 0.3]
    cells = [simulated_cell(config(drafting__num_speculative_tokens=k), rates[:k]) for k in (3, 4)]
    found = analysed(simulated_cell(baseline_settings(), []), *(slowed(cell, 2.0) for cell in cells))
    told = [line for line in warnings(Results((), found)) if line.startswith("blocks of ")]
    assert len(told) == 2 and ", K = 3 differ" in told[0] and ", K = 4 differ" in told[1]


def test_many_such_cells_share_a_note():
    """Would catch forty lines in front of a report's answers."""
    cells = [simulated_cell(config(drafting__num_speculative_tokens=k), [0.6] * k) for k in range(1, 7)]
    found = analysed(simulated_cell(baseline_settings(), []), *(slowed(cell, 2.0) for cell in cells))
    (told,) = [line for line in warnings(Results((), found)) if line.startswith("blocks of ")]
    assert told.startswith("blocks of each of 6 cells differ by ") and "block_drift in cells.csv" in told


def test_blocks_are_shares_of_the_conversations():
    record = slowed(simulated_cell(baseline_settings(), []), 4.0)
    first, second = block_throughputs(record)
    assert first == pytest.approx(4 * second)
    assert block_throughputs(replace(record, num_skipped_turns=1)) == []
