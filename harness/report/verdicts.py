"""What a block of cells answers, in a sentence: which method keeps most, at which position, and what it buys.

This module knows what may be concluded from intervals and guarantees; it does not know where a sentence stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import isnan, nan

from harness.analysis.cell import CellResult
from harness.analysis.comparison import Group, expected_difference, law, same_law
from harness.analysis.definitions import TASK_ACCURACY, metric
from harness.analysis.estimates import Estimate, paired_difference
from harness.analysis.ranking import THROUGHPUT, Ranking, comparable
from harness.report.blocks import Block
from harness.report.cell_names import depth_text
from harness.report.entries import estimate_number, metric_number
from harness.report.missing_values import NO_BASELINE, OTHER_SESSIONS, UNKNOWN
from harness.report.number_format import NOT_AVAILABLE, Number, format_value, scaled
from harness.report.ranking_notes import CANNOT_BE_TOLD
from harness.report.tables.by_position import largest_gain, length_metric, position_metrics_of
from harness.report.tables.depth import accepts_by_random_weights
from harness.report.tables.summary import counting_every_round
from kernels.methods import Guarantee

NAMED = 3
"""As many are named; of more than one that is left the number is told."""
EXPECTED_DECIMALS = 3
"""Of differences on the same drafts, which are small and hardly noisy."""
PER_FORWARD = "tokens_per_forward"
TIMES_AS_FAST = "times as fast as without drafts"
ALIKE = "statistically indistinguishable"
LOSSLESS, SYNTHETIC = Guarantee.lossless.value, Guarantee.synthetic.value


@dataclass(frozen=True)
class Longest:
    """The cells of a group that may be said to keep most: lossless ones if there are any, in falling order."""

    ranked: tuple[CellResult, ...]
    name: str
    """Of the length that they are ranked by."""

    @property
    def best(self) -> CellResult:
        return self.ranked[0]

    @cached_property
    def others(self) -> tuple[CellResult, ...]:
        """Those of another law than the best."""
        return tuple(cell for cell in self.ranked if not same_law(cell, self.best))

    @cached_property
    def ahead(self) -> list[Estimate]:
        """What the best keeps more than each of these."""
        return [paired_difference(other.estimates, self.best.estimates, self.name) for other in self.others]

    @cached_property
    def equal(self) -> list[CellResult]:
        """Those of these that are statistically indistinguishable from the best."""
        return [cell for cell, difference in zip(self.others, self.ahead, strict=True) if difference.low <= 0]

    def keeps_less(self, cell: CellResult) -> bool:
        """Whether a cell, of this group or another, is not among those that keep most."""
        is_equal = cell is self.best or any(cell is other for other in self.equal)
        return not is_equal and not any(cell is other and same_law(cell, self.best) for other in self.ranked)


def sentences(block: Block, distances: Mapping[str, Estimate] | None = None) -> tuple[str, ...]:
    """Which method keeps most of the drafts and how surely, at which position, and what drafting buys.

    Args:
        distances: cell id -> distance from the target, of cells that recorded it.
    """
    if block.first.is_baseline:
        return ("failed." if block.first.record.has_failed else f"{_throughput(block.first)}.",)
    if block.main is None:
        return ("every cell failed.",)
    longest = _longest(block.main)
    kept = _keeps(block, block.main, longest, distances or {})
    texts = *kept, _of_every_depth(block), _buys(block, longest)
    return tuple(f"{text}." for text in texts if text)


def _longest(group: Group) -> Longest | None:
    """None where nothing is known of what any cell keeps, or it was set."""
    cells = _judged(group)
    name = length_metric(cells)
    if name is None:
        return None
    known = [cell for cell in cells if _is_known(cell, name)]
    exact = [cell for cell in known if cell["guarantee"] == LOSSLESS]
    return Longest(tuple(sorted(exact or known, key=lambda cell: -cell.estimate(name).value)), name)


def _judged(group: Group) -> list[CellResult]:
    """The cells whose acceptance says something."""
    return [cell for cell in group.cells if not accepts_by_random_weights(cell) and cell["guarantee"] != SYNTHETIC]


def _keeps(block: Block, group: Group, longest: Longest | None, distances: Mapping[str, Estimate]) -> list[str]:
    """Which of the methods that leave the target's distribution alone accepts most, and what others do."""
    at_depth = f"At {depth_text(group.first)}, " if block.has_depths else ""
    cells = _judged(group)
    if not cells:
        is_set = all(cell["guarantee"] == SYNTHETIC for cell in group.cells)
        return [f"acceptance {'was set, not measured' if is_set else 'says nothing here, weights are random'}"]
    if longest is None:
        return [f"what is kept is not known: {UNKNOWN.get(cells[0].record.knowledge, 'no draft counts as evidence')}"]
    best, name = longest.best, longest.name
    is_exact = best["guarantee"] == LOSSLESS
    known = [cell for cell in cells if _is_known(cell, name)]
    without_guarantee = _without_guarantee(block, known, best, name, distances) if is_exact else ""
    if longest.others:
        promise = "" if is_exact else f" ({best['guarantee']})"
        return [*_lead(block, group, longest, at_depth, promise), without_guarantee]
    alike = _listed([block.names[cell.record.cell_id] for cell in sorted(longest.ranked, key=group.cells.index)])
    verb = "are equal by law" if len(longest.ranked) > 1 else "keeps"
    # of one law, and of draws of their own
    drawn = any(cell.estimate(name).value != best.estimate(name).value for cell in longest.ranked)
    verb += f", as measured with {block.names[best.record.cell_id]}" if drawn else ""
    return [f"{at_depth}{alike} {verb}: {_by_position(best)}{_length(best, name)}", without_guarantee]


def _lead(block: Block, group: Group, longest: Longest, at_depth: str, promise: str) -> tuple[str, str]:
    """Which cells keep most, and where the best gains most on the reference."""
    best, name, others = longest.best, longest.name, longest.others
    own, *names = (block.names[cell.record.cell_id] for cell in (best, *others))
    reference = _reference(block, group, best, others, name)
    if longest.equal:
        # the fastest of them first, which the sentence on speed is about
        leaders = sorted(longest.equal, key=lambda cell: isnan(cell.speedup.value) or -cell.speedup.value)
        shown = _few([own, *(block.names[cell.record.cell_id] for cell in leaders)])
        text = f"{at_depth}{shown}{promise} keep most and are {ALIKE}: {_length(best, name)} with {own}"
        text += _on_the_same_drafts(block, [best, *longest.equal])
        return text, _gain(block, best, reference, name, own)
    ahead = longest.ahead[0]
    text = f"{at_depth}{own}{promise} keeps most: {_length(best, name)}, {_signed(ahead)} over {names[0]}"
    text += (" (no interval)" if isnan(ahead.low) else "") + _on_the_same_drafts(block, [best, others[0]])
    return text, _gain(block, best, reference, name, "it", is_told=reference is others[0])


def _length(cell: CellResult, name: str) -> str:
    """An acceptance length; where rounds leave drafts out, also what all rounds bring."""
    text = f"{metric(name).label} {estimate_number(cell, name)}"
    if not (counting_every_round([cell]) or cell.drafts_rarely) or not _is_known(cell, PER_FORWARD):
        return text
    every = f"{estimate_number(cell, PER_FORWARD)} tokens per target forward"
    return f"{text} (over rounds with a full draft; over all rounds {every})"


def _reference(block: Block, group: Group, best: CellResult, others: Sequence[CellResult], name: str) -> CellResult:
    """The cell that the best is set against: that of the run, or the second where that is the best itself."""
    found = block.reference_of(group)
    is_other = found is not best and not same_law(found, best) and _is_known(found, name)
    return found if is_other else others[0]


def _gain(
    block: Block, best: CellResult, reference: CellResult, name: str, subject: str, *, is_told: bool = False
) -> str:
    """What the best gains on the reference, and at which position most.

    Args:
        subject: what the best is called.
        is_told: whether its whole gain on the reference stands in the sentence before.
    """
    gain = largest_gain(reference, best)
    where = "" if gain is None or not gain[1].value > 0 else f"most at position {gain[0]}: {_points(gain[1])}"
    if is_told:
        return where and f"{subject.capitalize()} gains {where}"
    whole = _signed(paired_difference(reference.estimates, best.estimates, name))
    gained = f"Over {block.names[reference.record.cell_id]}, {subject} gains {whole}"
    return f"{gained}, {where}" if where else gained


def _on_the_same_drafts(block: Block, ranked: Sequence[CellResult]) -> str:
    """What the better of two of these cells is expected to keep more of the same drafts, free of sampling noise.

    The first two whose methods have a closed form and that draw their drafts alike; empty without such two.
    """
    for pair in combinations(ranked, 2):
        expected = expected_difference(*reversed(pair))
        if expected is None or isnan(expected.value):
            continue
        is_ahead = expected.value >= 0
        first, second = (block.names[cell.record.cell_id] for cell in (pair if is_ahead else reversed(pair)))
        ahead = expected if is_ahead else Estimate(-expected.value, -expected.high, -expected.low)
        shown = Number(*ahead, style="length", signed=True, decimals=EXPECTED_DECIMALS)
        if ahead.low <= 0:
            return f"; nor does expectation on the same drafts tell {first} from {second}: {shown}"
        return f"; on the same drafts {first} is expected to keep {shown} drafts a round more than {second}"
    return ""


def _of_every_depth(block: Block) -> str:
    """Where a block has several K, shapes or settings of its drafter, which cell of all keeps most."""
    cells = [cell for group in block.groups for cell in group.cells if not accepts_by_random_weights(cell)]
    exact = [cell for cell in cells if cell["guarantee"] == LOSSLESS]
    names = [*counting_every_round(exact), *([name] if (name := length_metric(exact)) else [])]
    if len(block.groups) < 2 or not names:
        return ""
    name = names[0]
    best, *others = sorted(
        (cell for cell in exact if _is_known(cell, name)), key=lambda cell: -cell.estimate(name).value
    )
    equal = [cell for cell in others if paired_difference(cell.estimates, best.estimates, name).low <= 0]
    alike = _alike(_labels(block, best, equal))
    every = ("K and shape" if any(cell["tree"] for cell in exact) else "K") if block.has_depths else "setting"
    has_equals = any(depth_text(cell) == depth_text(best) and same_law(cell, best) for cell in others)
    own = depth_text(best) if has_equals and block.has_depths else block.label(best)
    return f"Of every {every}, {own} keeps most: {metric(name).label} {estimate_number(best, name)}{alike}"


def _labels(block: Block, best: CellResult, equal: Sequence[CellResult]) -> list[str]:
    """Names of cells that are as good as the best, but for those that cannot differ from it.

    Where there are several K, cells of one law are named by theirs.
    """
    found: dict[tuple[str, ...], list[CellResult]] = {}
    for cell in equal:
        found.setdefault((depth_text(cell), cell["other_settings"], *law(cell)), []).append(cell)
    found.pop((depth_text(best), best["other_settings"], *law(best)), None)
    by_depth = block.has_depths
    named = (
        [depth_text(cells[0])] if by_depth and len(cells) > 1 else map(block.label, cells) for cells in found.values()
    )
    return [name for names in named for name in names]


def _alike(names: Sequence[str]) -> str:
    return f", {ALIKE} from {_few(names)}" if names else ""


def _signed(difference: Estimate) -> str:
    return str(Number(*difference, style="length", signed=True))


def _points(change: Number) -> str:
    """A change of a rate: 30.7 → 57.0 % (+26.3 [+20.1, +32.0])."""
    return f"{change.sign.removesuffix(':')} % ({replace(change, sign='')})"


def _without_guarantee(
    block: Block, known: Sequence[CellResult], best: CellResult, name: str, distances: Mapping[str, Estimate]
) -> str:
    """The methods that keep more, with what they cost: another distribution than the target's."""
    more = [
        cell
        for cell in known
        if cell["guarantee"] != LOSSLESS and cell.estimate(name).value > best.estimate(name).value
    ]
    if not more:
        return ""
    texts = [
        f"{block.names[cell.record.cell_id]} ({cell['guarantee']}) {estimate_number(cell, name)}"
        f"{_price(cell, best, distances.get(cell.record.cell_id))}"
        for cell in sorted(more, key=lambda cell: -cell.estimate(name).value)
    ]
    is_known = all(cell.record.cell_id in distances for cell in more)
    unknown = "" if is_known else ". How far from it was not recorded (measurement.round_terms=true)"
    return f"More, but not the target's distribution: {_few(texts)}{unknown}"


def _price(cell: CellResult, exact: CellResult, distance: Estimate | None) -> str:
    """How far a method is from the target, what it changes in right answers, and its speed, as far as they are known.

    Args:
        exact: a cell that leaves the target's distribution alone.
    """
    parts = []
    if distance is not None and not isnan(distance.value):
        shown = Number(*scaled(distance, 100), style="length")
        parts.append(f"total variation {shown} % in a round's first token")
    right = paired_difference(exact.estimates, cell.estimates, TASK_ACCURACY)
    if not isnan(right.value):
        parts.append(f"right answers {Number(*right, style='percent', signed=True)} points")
    if not isnan(cell.speedup.value):
        parts.append(f"{estimate_number(cell, 'speedup')} {TIMES_AS_FAST}")
    return "".join(f", {part}" for part in parts)


def _buys(block: Block, longest: Longest | None) -> str:
    """How fast the fastest cell is beside no drafts, which cells are as fast, and why what keeps most is slower."""
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
    if _is_one_law(block, drafted):
        return f"Differences in speed are noise of the machine{_speeds(drafted)}{left_out}"
    equal = [cell for cell in drafted if cell is not best and ranking.equals(cell)]
    equal = sorted(equal, key=lambda cell: -cell.estimate(THROUGHPUT).value)
    way = f"Fastest with drafts is {block.label(best)}: " if len(drafted) > 1 else "Speed: "
    return f"{way}{_speed(best, _labels(block, best, equal))}{_why_not(block, best, longest)}{left_out}"


def _is_one_law(block: Block, cells: Sequence[CellResult]) -> bool:
    """Whether these are several cells of one K and law, which differ in nothing but the machine."""
    return len(cells) > 1 and len(block.groups) == 1 and all(same_law(cells[0], cell) for cell in cells[1:])


def _speed(cell: CellResult, equal: Sequence[str]) -> str:
    """Its speedup, what that comes from, and what is as fast.

    Args:
        equal: names of the cells that are as fast as far as intervals tell.
    """
    if isnan(cell.speedup.value):
        why = NO_BASELINE if cell.baseline is None else OTHER_SESSIONS
        return f"{_throughput(cell)}{_alike(equal)}; speedup {NOT_AVAILABLE}: {why}"
    shown = estimate_number(cell, "speedup")
    low, high = (nan if end is None else end for end in (shown.low, shown.high))
    others = [*(["no drafts"] if low <= 1 <= high else []), *equal]
    costs = ", so drafting costs more than it saves here" if high < 1 else ""
    return f"{shown} {TIMES_AS_FAST}{_alike(others)}{_why(cell)}{costs}"


def _why(cell: CellResult) -> str:
    """What a round costs in plain steps and how many tokens it brings; empty where rounds are not known.

    The ratio of the two is the speedup: time per round and request over time per token without drafts.
    """
    num_tokens = cell.estimate(PER_FORWARD).value
    plain = cell.baseline.estimate(PER_FORWARD).value if cell.baseline is not None else nan
    cost = num_tokens / plain / cell.speedup.value
    if isnan(cost):
        return ""
    return f"; a round takes as long as {cost:.1f} plain steps and brings {num_tokens:.1f} tokens"


def _why_not(block: Block, fastest: CellResult, longest: Longest | None) -> str:
    """Where the fastest cell is none of those that keep most, what the one that keeps most is slower by."""
    if longest is None or not longest.keeps_less(fastest):
        return ""
    best = longest.best
    speed = "" if isnan(best.speedup.value) else f" and is {estimate_number(best, 'speedup')} {TIMES_AS_FAST}"
    return f". {block.label(best)} keeps more{speed}{_why(best)}"


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
    if len(texts) <= NAMED + 1:
        return _listed(texts)
    return _listed([*texts[:NAMED], f"{len(texts) - NAMED} more"])


def _listed(texts: Sequence[str]) -> str:
    between = "; " if any(", " in text for text in texts) else ", "
    return texts[0] if len(texts) == 1 else f"{between.join(texts[:-1])} and {texts[-1]}"
