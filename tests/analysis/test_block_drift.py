"""Blocks that differ by more than their prompts explain are noted, others are not."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from harness.analysis.block_drift import NO_BLOCKS, ONE_BLOCK, ONE_PROMPT, TOO_FEW
from harness.analysis.frame import results_frame
from harness.analysis.results import Results
from harness.records.schema import Block
from harness.report.warnings import warnings
from tests.support.synthetic_cells import analysed, baseline_settings, config, simulated_cell

pytestmark = pytest.mark.fast


def slowed(record, factor, first=20):
    """The record with steps of the requests from `first` on that took `factor` times as long."""
    requests = [
        replace(item, rounds=tuple(structs.replace(each, share_s=each.share_s * factor) for each in item.rounds))
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
    assert baseline.drift is None
    assert (cell.drift is not None) is is_noted
    table = results_frame([baseline, cell])
    assert list(table.block_drift.notna()) == [False, is_noted], "cells.csv says it as well"
    told = [line for line in warnings(Results((), (baseline, cell))) if line.startswith("blocks of ")]
    assert len(told) == int(is_noted)
    if is_noted:
        assert cell.drift == pytest.approx(1.0) and "the machine was busy, or drifts; run again" in told[0]


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


RATES = [0.6, 0.5, 0.4]


def in_blocks(record, *sizes, sessions=("one",)):
    """The record with blocks of so many requests, of one session after the other, and the time that they took."""
    blocks, first = [], 0
    for index, size in enumerate(sizes):
        part = record.requests[first : first + size]
        wall_s = sum(each.share_s for item in part for each in item.rounds)
        tokens = sum(item.num_output_tokens for item in part)
        session = sessions[min(index, len(sessions) - 1)]
        blocks.append(Block(index, session, 0, 10.0 * index, 10.0 * index + wall_s, size, tokens, wall_s))
        first += size
    return replace(record, blocks=tuple(blocks), wall_s=sum(item.wall_s for item in blocks))


def small_run(*sizes, factor=1.0, sessions=("one",), seed=0):
    """A cell of few prompts whose requests after the first block took `factor` times as long."""
    settings = {"num_prompts": sum(sizes), "seed": seed}
    records = simulated_cell(baseline_settings(), [], **settings), simulated_cell(config(), RATES, **settings)
    records = records[0], slowed(records[1], factor, sizes[0])
    return analysed(*(in_blocks(record, *sizes, sessions=sessions) for record in records))


@pytest.mark.parametrize("sessions", [("one",), ("one", "two")], ids=["one session", "resumed"])
def test_a_small_run_that_was_slowed_is_noted(sessions):
    """Would catch a test against what all prompts vary by, which drift between two blocks of two prompts widens more
    than it could ever exceed, and a run that was resumed, of which nothing was judged."""
    _, cell = small_run(2, 2, factor=1.4, sessions=sessions)
    assert cell.drift == pytest.approx(0.4) and cell.disturbed == "blocks differ"
    _, quiet = small_run(2, 2, sessions=sessions)
    assert quiet.drift is None and quiet.judged_drift.not_judged == ""


def test_a_part_that_only_one_of_two_cells_measured_in_a_session_says_nothing():
    """Would catch a block of five prompts that is held against one of ten, and drift between sessions that hit both."""
    cells = small_run(6, 4, factor=1.0, sessions=("one", "two"))
    baseline = slowed(cells[0].record, 3.0, 6)
    baseline = in_blocks(baseline, 6, 4, sessions=("one", "two"))
    cell = in_blocks(slowed(cells[1].record, 3.0, 7), 7, 3, sessions=("one", "two"))
    _, found = analysed(baseline, cell)
    assert found.drift is None and found.judged_drift.not_judged == ""


@pytest.mark.parametrize(
    ("sizes", "reason"), [((4,), ONE_BLOCK), ((1, 1, 1), ONE_PROMPT)], ids=["one block", "a prompt a block"]
)
def test_a_report_says_of_which_cells_drift_could_not_be_judged(sizes, reason):
    """Would catch a run of one block whose report says nothing, as if it had been found quiet."""
    baseline, cell = small_run(*sizes)
    assert cell.drift is None and cell.judged_drift.not_judged == reason
    (line,) = [line for line in warnings(Results((), (baseline, cell))) if line.startswith("drift could not be judged")]
    assert reason in line and "eagle3" in line and "baseline" not in line.removeprefix(reason).split("(")[-1]


def test_turns_left_out_leave_no_blocks_in_an_old_record():
    record = simulated_cell(baseline_settings(), [])
    _, cell = analysed(replace(record, num_skipped_turns=1), simulated_cell(config(), RATES))
    assert cell.judged_drift.not_judged == NO_BLOCKS


def noisy(record, generator, scale):
    """The record whose requests each took another time for the same work."""
    factors = np.exp(generator.normal(0.0, scale, len(record.requests)))
    requests = [
        replace(item, rounds=tuple(structs.replace(each, share_s=each.share_s * factor) for each in item.rounds))
        for item, factor in zip(record.requests, factors, strict=True)
    ]
    return replace(record, requests=tuple(requests))


def test_prompts_that_differ_are_no_drift():
    """Would catch alarms that prompts set off: 3 in 1000 may be false, so 3 of 150 come once in 100 tests."""
    generator = np.random.default_rng(4)
    baseline = simulated_cell(baseline_settings(), [], num_prompts=6)
    cell = simulated_cell(config(), RATES, num_prompts=6)
    found = [
        analysed(*(in_blocks(noisy(record, generator, 0.15), 3, 3) for record in (baseline, cell)))[1]
        for _ in range(150)
    ]
    assert sum(item.drift is not None for item in found) <= 2
    assert any(item.judged_drift.not_judged == TOO_FEW for item in found)
