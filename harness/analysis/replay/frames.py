"""The numbers of a replay with all their digits: one row per cell, method and estimator, and one per difference.

This module knows replayed cells; it does not know how they are printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from harness.analysis.cell import CellResult
from harness.analysis.columns import with_interval
from harness.analysis.comparison import groups
from harness.analysis.estimates import NOT_AVAILABLE, Estimate, paired_difference
from harness.analysis.replay.estimators import Estimator, estimators_of, rule_name
from harness.analysis.replay.replayed import SAMPLED, Replayed, num_ended_drafts, series_name, width
from kernels.verification import Verification

CELL_COLUMNS = ("run", "cell_id", "target", "drafter", "num_speculative_tokens", "temperature")
RECORDED_COLUMNS = ("verification", "draft_sampling", "draft_cache_dtype", "drawn_from", "labels")


def replay_frame(replayed: Sequence[Replayed]) -> pd.DataFrame:
    """Acceptance of every method on the drafts of every cell.

    Returns:
        run, cell_id, target, drafter, num_speculative_tokens, temperature; recorded_verification,
        recorded_draft_sampling, recorded_draft_cache_dtype, recorded_drawn_from, recorded_labels: of the run that made
        the drafts; verification, guarantee: of the
        replayed method; estimator: given or before (harness.analysis.replay.estimators); is_own: the run's own method;
        num_prompts, num_drafts, num_ended_drafts; length, acceptance_per_pos_<i>, each with _low and _high; for the
        run's own method sampled_length, sampled_acceptance_per_pos_<i> on the same drafts, with _low and _high, and
        width_ratio: width of the sampled interval of the length / width of the replayed one.
    """
    rows = [_row(item, rule, kind) for item in replayed for rule in item.rules for kind in estimators_of(rule)]
    num_positions = max((item.num_positions for item in replayed), default=0)
    names = ["length", *(f"acceptance_per_pos_{position}" for position in range(1, num_positions + 1))]
    first = [*CELL_COLUMNS, *(f"recorded_{name}" for name in RECORDED_COLUMNS), "verification", "guarantee"]
    first += ["estimator", "is_own", "num_prompts", "num_drafts", "num_ended_drafts"]
    measured = [each for name in [*names, *(f"sampled_{name}" for name in names)] for each in with_interval(name)]
    return pd.DataFrame(rows, columns=[*first, *measured, "width_ratio"])


def _row(replayed: Replayed, rule: Verification, estimator: Estimator) -> dict[str, Any]:
    cell, is_own = replayed.cell, rule == replayed.own_rule
    row: dict[str, Any] = {name: cell[name] for name in CELL_COLUMNS}
    row |= {f"recorded_{name}": cell[name] for name in RECORDED_COLUMNS}
    row |= {"verification": rule_name(rule), "guarantee": rule.guarantee.value, "estimator": estimator.value}
    row |= {"is_own": is_own, "num_prompts": replayed.estimates.num_prompts}
    row |= {"num_drafts": len(replayed.recorded.terms.request), "num_ended_drafts": num_ended_drafts(cell)}
    name = series_name(rule, estimator)
    row |= _columns("length", replayed.estimate(name))
    for position in range(1, replayed.num_positions + 1):
        row |= _columns(f"acceptance_per_pos_{position}", replayed.estimate(name, position))
        if is_own:
            row |= _columns(f"sampled_acceptance_per_pos_{position}", replayed.estimate(SAMPLED, position))
    if is_own:
        sampled = replayed.estimate(SAMPLED)
        row |= _columns("sampled_length", sampled) | {"width_ratio": ratio_of_widths(sampled, replayed.estimate(name))}
    return row


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    return dict(zip(with_interval(name), estimate, strict=True))


def ratio_of_widths(sampled: Estimate, replayed: Estimate) -> float:
    """How many times wider the sampled interval is; nan where the replayed one has no width."""
    return width(sampled) / width(replayed) if width(replayed) > 0 else float("nan")


def differences_frame(replayed: Sequence[Replayed], cells: Sequence[CellResult]) -> pd.DataFrame:
    """Differences of acceptance lengths between every two methods on the same drafts.

    Args:
        replayed: the cells with terms.
        cells: all cells, for the sampled difference of two of them.

    Returns:
        run, cell_id, target, drafter, num_speculative_tokens, temperature, recorded_*; first, second: methods;
        estimator; difference (second - first), difference_low, difference_high; and where the run itself used one of
        the two methods and a cell of its group the other: sampled_difference of the two cells (acceptance length over
        full drafts, paired by prompt) with _low and _high, and width_ratio.
    """
    group_of = {(cell["run"], cell["cell_id"]): group.cells for group in groups(cells) for cell in group.cells}
    rows = [_differences(item, group_of[item.cell["run"], item.cell["cell_id"]]) for item in replayed]
    return pd.DataFrame([row for found in rows for row in found])


def _differences(replayed: Replayed, group: Sequence[CellResult]) -> Iterator[dict[str, Any]]:
    common: dict[str, Any] = {name: replayed.cell[name] for name in CELL_COLUMNS}
    common |= {f"recorded_{name}": replayed.cell[name] for name in RECORDED_COLUMNS}
    for first, second in combinations(replayed.rules, 2):
        sampled = sampled_difference(replayed, first, second, group)
        for estimator in estimators_of(first):
            if estimator not in estimators_of(second):
                continue
            names = (series_name(first, estimator), series_name(second, estimator))
            difference = replayed.difference(*names)
            row = common | {"first": rule_name(first), "second": rule_name(second), "estimator": estimator.value}
            row |= _columns("difference", difference) | _columns("sampled_difference", sampled)
            yield row | {"width_ratio": ratio_of_widths(sampled, difference)}


def sampled_difference(
    replayed: Replayed, first: Verification, second: Verification, group: Sequence[CellResult]
) -> Estimate:
    """Of the run's own cell and the group's cell of the other method; NOT_AVAILABLE where there is no such pair."""
    own = replayed.own_rule
    if own not in (first, second):
        return NOT_AVAILABLE
    other = rule_name(second if own == first else first)
    siblings = [
        cell
        for cell in group
        if cell["verification"] == other and cell is not replayed.cell and _same_drafts(cell, replayed.cell)
    ]
    if not siblings:
        return NOT_AVAILABLE
    pair = (replayed.cell, siblings[0]) if own == first else (siblings[0], replayed.cell)
    return paired_difference(pair[0].estimates, pair[1].estimates, "full_draft_length")


def _same_drafts(first: CellResult, second: CellResult) -> bool:
    """Whether drafts of two cells have one law: coupled ones have that of sampled ones, greedy ones are one-hot."""
    one_hot = [cell["draft_sampling"] == "greedy" for cell in (first, second)]
    return first.cache_text == second.cache_text and one_hot[0] == one_hot[1]
