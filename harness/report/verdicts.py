"""What a block of cells answers, in a sentence: which method keeps most, at which position, and what it buys.

This module knows what may be concluded from intervals and guarantees; it does not know where a sentence stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan

from harness.analysis.cell import CellResult
from harness.analysis.comparison import Group, expected_difference, same_law
from harness.analysis.estimates import Estimate, paired_difference
from harness.analysis.ranking import THROUGHPUT, Ranking, comparable
from harness.report.blocks import Block
from harness.report.cell_names import depth_text
from harness.report.entries import estimate_number, metric_number
from harness.report.missing_values import NO_BASELINE, OTHER_SESSIONS, UNKNOWN
from harness.report.number_format import NOT_AVAILABLE, Number, format_value
from harness.report.ranking_notes import CANNOT_BE_TOLD
from harness.report.tables.by_position import largest_gain, length_metric, position_metrics_of
from harness.report.tables.depth import accepts_by_random_weights
from kernels.methods import Guarantee

NAMED = 3
"""As many methods are named beside the first."""
PER_FORWARD = "tokens_per_forward"
TIMES_AS_FAST = "times as fast as without drafts"
LOSSLESS, SYNTHETIC = Guarantee.lossless.value, Guarantee.synthetic.value


def verdict(block: Block) -> str:
    """Which method keeps most of the drafts and how surely, then what drafting buys."""
    if block.first.is_baseline:
        return "failed" if block.first.record.has_failed else _throughput(block.first)
    if block.main is None:
        return "every cell failed"
    return f"{_keeps(block, block.main)}. {_buys(block)}"


def _keeps(block: Block, group: Group) -> str:
    """Which of the methods that leave the target's distribution alone accepts most."""
    at_depth = f"at {depth_text(group.first)} " if len(block.groups) > 1 else ""
    cells = [cell for cell in group.cells if not accepts_by_random_weights(cell) and cell["guarantee"] != SYNTHETIC]
    if not cells:
        is_set = all(cell["guarantee"] == SYNTHETIC for cell in group.cells)
        return f"acceptance {'was set, not measured' if is_set else 'says nothing here, weights are random'}"
    name = length_metric(cells)
    if name is None:
        return f"what is kept is not known: {UNKNOWN.get(cells[0].record.knowledge, 'no draft counts as evidence')}"
    known = [cell for cell in cells if not isnan(cell.estimate(name).value)]
    exact = [cell for cell in known if cell["guarantee"] == LOSSLESS]
    ranked = sorted(exact or known, key=lambda cell: -cell.estimate(name).value)
    best, promise = ranked[0], "" if exact else f" ({ranked[0]['guarantee']}) "
    others = [cell for cell in ranked if not same_law(cell, best)]
    if not others:
        alike = _listed([block.names[cell.record.cell_id] for cell in sorted(ranked, key=group.cells.index)])
        verb = "accept with the same probability here (same law)" if len(ranked) > 1 else "keeps"
        text = f"{alike} {at_depth}{verb}: {_by_position(best)}acceptance length {estimate_number(best, name)}"
    else:
        text = f"{_lead(block, best, others, name, at_depth, promise)}"
        text += _against_reference(block, group, best, others[0], name)
    return text + _without_guarantee(block, known, best, name) if exact else text


def _lead(block: Block, best: CellResult, others: Sequence[CellResult], name: str, at_depth: str, promise: str) -> str:
    """Which cells keep most, and how far the best is ahead of the second.

    Args:
        others: of another law than the best, in falling order.
    """
    ahead = [paired_difference(other.estimates, best.estimates, name) for other in others]
    own, second = (block.names[cell.record.cell_id] for cell in (best, others[0]))
    shown = f"acceptance length {estimate_number(best, name)}, {_signed(ahead[0])} over {second}"
    equal = [cell for cell, difference in zip(others, ahead, strict=True) if difference.low <= 0]
    if not equal:
        is_told = not isnan(ahead[0].low)
        text = f"{own} {promise}{at_depth}keeps most: {shown}" + ("" if is_told else " (no interval)")
    else:
        names = [own, *(block.names[cell.record.cell_id] for cell in equal[: NAMED - 1])]
        names += [f"{len(equal) - NAMED + 1} more"] if len(equal) >= NAMED else []
        text = f"{_listed(names)} {promise}{at_depth}keep most and are not told apart: {shown}"
    expected = expected_difference(others[0], best)
    if expected is None or isnan(expected.value):
        return text
    if expected.high < 0:
        fewer = Estimate(-expected.value, -expected.high, -expected.low)
        return f"{text}; on the same drafts {second} is expected to keep more, {_signed(fewer)}"
    what = f"{own} is expected to keep more, {_signed(expected)}"
    return f"{text}; on the same drafts {what if expected.low > 0 else f'they are not told apart, {_signed(expected)}'}"


def _signed(difference: Estimate) -> str:
    return str(Number(*difference, style="length", signed=True))


def _against_reference(block: Block, group: Group, best: CellResult, second: CellResult, name: str) -> str:
    """Where, by position, the best gains most: on the reference, or on the second if it is the reference itself."""
    reference = block.reference_of(group)
    is_other = reference not in (best, second) and not same_law(reference, best) and _is_known(reference, name)
    other = reference if is_other else second
    gain = largest_gain(other, best)
    where = "" if gain is None or not gain[1].value > 0 else f"most at position {gain[0]}: {_points(gain[1])}"
    if not is_other:
        return f"; {where}" if where else ""
    ahead = paired_difference(other.estimates, best.estimates, name)
    lead = f"; over {block.names[other.record.cell_id]} {_signed(ahead)}"
    return f"{lead}, {where}" if where else lead


def _points(change: Number) -> str:
    """A change of a rate: 30.7 → 57.0 %, +26.3 [+20.1, +32.0] points."""
    return f"{change.sign.removesuffix(':')} %, {replace(change, sign='')} points"


def _without_guarantee(block: Block, known: Sequence[CellResult], best: CellResult, name: str) -> str:
    """The methods that keep more, at the price of another distribution than the target's."""
    more = [
        cell
        for cell in known
        if cell["guarantee"] != LOSSLESS and cell.estimate(name).value > best.estimate(name).value
    ]
    if not more:
        return ""
    texts = [
        f"{block.names[cell.record.cell_id]} ({cell['guarantee']}) {estimate_number(cell, name)}"
        for cell in sorted(more, key=lambda cell: -cell.estimate(name).value)
    ]
    return f"; more, but not the target's distribution: {_few(texts)}"


def _buys(block: Block) -> str:
    """How fast the fastest cell is beside no drafts, and which cells are as fast."""
    by_guarantee = [
        [cell for cell in block.cells if cell["guarantee"] == guarantee and not cell.record.has_failed]
        for guarantee in (LOSSLESS, SYNTHETIC)
    ]
    candidates = next((cells for cells in by_guarantee if cells), [])
    if not candidates:
        return "No lossless method was measured, so none is ranked by speed"
    if all(map(accepts_by_random_weights, candidates)):
        return f"So does its speed{_speeds(candidates)}"
    candidates = [cell for cell in candidates if not accepts_by_random_weights(cell)]
    baseline = [candidates[0].baseline] if candidates[0].baseline is not None else []
    compared = comparable([*baseline, *candidates])
    drafted = tuple(cell for cell in compared.cells if not cell.is_baseline)
    reasons = list(dict.fromkeys(reason for cell, reason in compared.left_out if not cell.is_baseline))
    left_out = f" (not ranked: {', '.join(reasons)})" if reasons else ""
    if not drafted:
        return f"What it buys {CANNOT_BE_TOLD}{left_out}"
    ranking = Ranking(replace(compared, cells=drafted))
    best = ranking.best
    assert best is not None
    if block.is_one_law and len(drafted) > 1:
        return f"Differences in speed are the machine's{_speeds(drafted)}{left_out}"
    equal = [cell for cell in drafted if cell is not best and ranking.equals(cell)]
    equal = sorted(equal, key=lambda cell: -cell.estimate(THROUGHPUT).value)
    beside = f"; not told apart in speed: {_few([block.label(cell) for cell in equal])}" if equal else ""
    way = f"Fastest with drafts: {block.label(best)}, " if len(drafted) > 1 else "Speed: "
    return f"{way}{_speed(best)}{beside}{left_out}"


def _speed(cell: CellResult) -> str:
    """Its speedup and what follows from it."""
    if isnan(cell.speedup.value):
        why = NO_BASELINE if cell.baseline is None else OTHER_SESSIONS
        return f"{_throughput(cell)}, speedup {NOT_AVAILABLE}: {why}"
    shown = estimate_number(cell, "speedup")
    low, high = shown.low, shown.high
    if low is None or high is None or isnan(low) or isnan(high):
        what = ""
    elif high < 1:
        what = ", so drafting costs more than it saves here"
    else:
        what = "" if low > 1 else ", so the two are not told apart"
    why = _why(cell)
    return f"{shown} {TIMES_AS_FAST}{f': {why}' if why else ''}{what}"


def _why(cell: CellResult) -> str:
    """What a round costs in plain steps and how many tokens it brings; empty where rounds are not known.

    The ratio of the two is the speedup: time per round and request over time per token without drafts.
    """
    num_tokens = cell.estimate(PER_FORWARD).value
    plain = cell.baseline.estimate(PER_FORWARD).value if cell.baseline is not None else nan
    cost = num_tokens / plain / cell.speedup.value
    if isnan(cost):
        return ""
    return f"a round takes {cost:.1f} times as long as a plain step and brings {num_tokens:.1f} tokens"


def _speeds(cells: Sequence[CellResult]) -> str:
    """The range of their speedups, or of their tokens per second where there is none."""
    speedups = [cell.speedup.value for cell in cells if not isnan(cell.speedup.value)]
    if speedups:
        low, high = (format_value(value, "length") for value in (min(speedups), max(speedups)))
        return f": {low if low == high else f'{low} to {high}'} {TIMES_AS_FAST}"
    speeds = [cell.estimate(THROUGHPUT).value for cell in cells]
    low, high = (format_value(value, "significant") for value in (min(speeds), max(speeds)))
    return f": {low} to {high} tokens/s"


def _throughput(cell: CellResult) -> str:
    return f"{metric_number(cell.estimate(THROUGHPUT), THROUGHPUT, cells=[cell])} tokens/s"


def _by_position(cell: CellResult) -> str:
    names = position_metrics_of([cell])
    rates = [format_value(cell.estimate(name).value, "percent", decimals=0) for name in names]
    of_others = " (each of the rounds that drafted it)" if rates and cell.positions_vary else ""
    return f"{' / '.join(rates)} % by position{of_others}, " if rates else ""


def _is_known(cell: CellResult, name: str) -> bool:
    return not isnan(cell.estimate(name).value)


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
