"""Which cells may be compared, in which order, which follow the same law, and which differ in one setting alone.

This module knows the settings of cells; it does not know how a comparison is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from harness.analysis.answers import OtherAnswers, other_answers
from harness.analysis.cell import CellResult
from harness.analysis.columns import GROUP_COLUMNS, PAIRED_COLUMNS, SIDE_COLUMNS
from harness.analysis.definitions import TASK_ACCURACY, metric
from harness.analysis.estimates import Estimate, paired, paired_difference, paired_ratio
from harness.config.constraint import PolicyKind
from harness.config.drafting import cache_rounds
from harness.config.tree import is_chain, is_dynamic
from harness.records.request import EXPECTED_METHODS
from kernels.methods import NAMED_METHODS, TreeMethod

METHOD_ORDER = tuple(NAMED_METHODS)
DRAFT_ORDER = ("greedy", "sampled", "coupled", "")

WITHIN_GROUP = (
    *("verification", "guarantee", "measurement"),
    *("draft_sampling", "drafting.sampling", "drafting.siblings", "drafting.cache_dtype", "drafting.drawn_from"),
)
"""Settings in which cells of one group may differ."""
SHAPE = "drafting.tree"
"""The setting in which cells of as many draft tokens may differ too where they are compared in pairs."""


@dataclass(frozen=True)
class Group:
    """Cells that differ in verification, draft sampling, draft-logit cache and what else `groups` was given, in the
    order of METHOD_ORDER."""

    cells: tuple[CellResult, ...]

    @property
    def first(self) -> CellResult:
        return self.cells[0]

    @property
    def baseline(self) -> CellResult | None:
        return self.first.baseline

    @property
    def num_positions(self) -> int:
        return max(cell.estimates.sums.num_positions for cell in self.cells)


def method_name(cell: CellResult) -> str:
    """The verification method without its parameters."""
    return cell["verification"].split("(", 1)[0]


def shape(cell: CellResult) -> str:
    """The tree of its drafts; empty for chains, also those that are drafted as trees."""
    return "" if cell["tree"] and is_chain(cell["tree"]) else cell["tree"]


def method_rank(cell: CellResult) -> tuple[int, float, tuple[bool, bool, str], int, str, str]:
    """Sorts cells in the order in which methods are printed; synthetic ones by what they accept, then chains, trees of
    a fixed shape and dynamic ones."""
    name = method_name(cell)
    order = METHOD_ORDER.index(name) if name in METHOD_ORDER else len(METHOD_ORDER)
    given = cell.record.config["verification"] if _has(name, "ignores_tokens") else {}
    accepted = float(sum(given.get("rates", ())) + sum(map(sum, given.get("tree_rates", ()))))
    tree = shape(cell)
    shapes = (tree != "", is_dynamic(tree), tree)
    return order, accepted, shapes, DRAFT_ORDER.index(cell["draft_sampling"]), cell["verification"], cell.cache_text


def groups(cells: Sequence[CellResult], *beside: str) -> list[Group]:
    """The cells with a drafter that have not failed, by target, drafter, K, decoding and all else but the method.

    Args:
        cells: of any runs.
        beside: settings in which the cells of a group may differ too, such as SHAPE.
    """
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        if not cell.is_baseline and not cell.record.has_failed:
            found.setdefault(cell.key_without(*WITHIN_GROUP, *beside), []).append(cell)
    return [Group(tuple(sorted(items, key=method_rank))) for items in found.values()]


def law(cell: CellResult) -> tuple[str, ...]:
    """Equal for two cells of a group whose output and acceptance follow the same law."""
    method = "probabilistic" if cell["verification"] == "lenient(leniency=1)" else method_name(cell)
    tree = shape(cell)
    of_trees = next((each for each in TreeMethod if each.value == method), None)
    if not tree and of_trees is not None and of_trees.traits.on_chains is not None:
        method = of_trees.traits.on_chains.value
    drafted = (tree, cell["siblings"]) if tree else ()
    if takes_argmax(cell):
        return ("argmax", *drafted, *_rounding(cell, compares=False))
    if cell["draft_sampling"] == "greedy" and _has(method, "is_strict_on_one_hot"):
        return ("one-hot drafts", *drafted)
    if cell["num_speculative_tokens"] == 1 and method == "block":
        method = "probabilistic"
    parameters = cell["verification"] if method == method_name(cell) else method
    is_as_sampled = cell["draft_sampling"] == "coupled" and _has(method, "shares_no_noise")
    sampling = "sampled" if is_as_sampled else cell["draft_sampling"]
    compares = method not in METHOD_ORDER or _has(method, "reads_draft")
    return parameters, sampling, *drafted, *_rounding(cell, compares)


def takes_argmax(cell: CellResult) -> bool:
    """Whether every token of a cell with a drafter is the target's argmax, as far as rounding lets it be."""
    method = method_name(cell)
    return cell.is_argmax and (method not in METHOD_ORDER or _has(method, "keeps_argmax"))


def unlike_baseline(cell: CellResult) -> OtherAnswers | None:
    """The answers of a cell beside those of its baseline, which they equal but for rounding; None where they need not
    be equal, and where no tokens of both are known."""
    is_late = cell["constraint"].startswith(PolicyKind.late.value)
    if cell.baseline is None or cell.is_baseline or cell.record.has_failed or is_late or not takes_argmax(cell):
        return None
    found = other_answers(cell.baseline.record, cell.record)
    return found if found.num_compared else None


def _has(method: str, trait: str) -> bool:
    """Whether a method of the table has a trait; false for a method of the user's own."""
    return method in NAMED_METHODS and bool(getattr(NAMED_METHODS[method].traits, trait))


def _rounding(cell: CellResult, compares: bool) -> tuple[str, ...]:
    """What a draft-logit cache that rounds does to a law: to what is drawn, and to what verification compares with."""
    if not cache_rounds(cell["draft_cache_dtype"], cell["dtype"]):
        return ()
    is_unrounded = cell["drawn_from"] == "unrounded"
    if is_unrounded and not compares:
        return ()
    return cell["draft_cache_dtype"], *(["unrounded"] if is_unrounded else [])


def same_law(first: CellResult, second: CellResult) -> bool:
    """Whether two cells of a group cannot differ in law."""
    return law(first) == law(second)


def ids_of_same_law(cells: Sequence[CellResult]) -> set[str]:
    """The ids of cells beside which another cell of their group follows the same law."""
    found: set[str] = set()
    for group in groups(cells):
        laws = [law(cell) for cell in group.cells]
        found |= {cell.record.cell_id for cell, own in zip(group.cells, laws, strict=True) if laws.count(own) > 1}
    return found


def expected_difference(first: CellResult, second: CellResult) -> Estimate | None:
    """Expected acceptance length of the second's method less the first's, both on the first's drafts.

    None where a method has no closed form recorded or the cells draw their drafts differently.
    """
    names = [method_name(cell) for cell in (first, second)]
    if not set(names) <= set(EXPECTED_METHODS) or first.drafts != second.drafts:
        return None
    (first_value, first_replicates), (second_value, second_replicates) = (
        first.estimates.distribution(f"expected_length_{name}") for name in names
    )
    return first.estimates.with_interval(second_value - first_value, second_replicates - first_replicates)


COMPARED = (
    "acceptance_rate",
    "mean_acceptance_length",
    "full_draft_length",
    "mean_acceptance_length_macro",
    "tokens_per_forward",
    TASK_ACCURACY,
    "wall_s",
    "output_tokens_per_s",
    "ttft_mean_ms",
    "tpot_mean_ms",
    "itl_mean_ms",
)
AS_RATIO = ("wall_s", "output_tokens_per_s")
"""Also compared as second / first."""


def comparisons_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Paired comparisons of every two methods, and shapes of as many draft tokens, one row per pair and metric.

    Returns:
        the columns of `harness.analysis.columns.PAIRED_COLUMNS`.
    """
    rows: list[dict[str, Any]] = []
    for group in groups(cells, SHAPE):
        for first, second in combinations(group.cells, 2):
            rows += _comparison_rows(group, first, second)
    return pd.DataFrame(rows, columns=list(PAIRED_COLUMNS))


def _comparison_rows(group: Group, first: CellResult, second: CellResult) -> list[dict[str, Any]]:
    common: dict[str, Any] = {name: first[name] for name in GROUP_COLUMNS}
    for side, cell in (("first", first), ("second", second)):
        common |= {f"{side}_{name}": cell[name] for name in SIDE_COLUMNS}
    common["num_prompts"] = paired(first.estimates, second.estimates)[0].num_prompts
    positions = [f"acceptance_rate_per_pos_{position}" for position in range(1, group.num_positions + 1)]
    results = [
        (name, "difference", paired_difference(first.estimates, second.estimates, name))
        for name in [*COMPARED, *positions]
    ]
    results += [(name, "ratio", paired_ratio(first.estimates, second.estimates, name)) for name in AS_RATIO]
    expected = expected_difference(first, second)
    if expected is not None:
        results.append(("expected_length", "difference", expected))
    alike = same_law(first, second)
    if takes_argmax(first) and takes_argmax(second):
        common |= other_answers(first.record, second.record).columns
    return [
        common
        | {"metric": name, "kind": kind, "value": value, "low": low, "high": high}
        | {"same_law": alike and (name == "expected_length" or metric(name).of_tokens)}
        for name, kind, (value, low, high) in results
    ]


NOT_COMPARED = ("measurement", "device", "dtype")
"""Sections and settings that do not decide which cells belong together, or that repeat another."""


@dataclass(frozen=True)
class Series:
    """Cells with a drafter that differ in one setting alone, in the order of its values."""

    cells: tuple[CellResult, ...]

    @property
    def first(self) -> CellResult:
        return self.cells[0]


def series_along(cells: Sequence[CellResult], section: str, name: str, *beside: str) -> list[Series]:
    """The cells in lines along `section.name`; only lines of two cells and more. Those that failed are left out.

    Args:
        cells: of any runs; those of two runs are never in one line.
        section: of the setting, such as `drafting`.
        name: of the setting, such as `num_speculative_tokens`; its values can be ordered.
        beside: settings in which the cells of a line may differ too, such as SHAPE.
    """
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        if not cell.is_baseline and not cell.record.has_failed:
            found.setdefault(cell.key_without(*NOT_COMPARED, f"{section}.{name}", *beside), []).append(cell)

    def value(cell: CellResult) -> Any:
        return cell.record.config[section][name]

    return [Series(tuple(sorted(line, key=value))) for line in found.values() if len(line) > 1]
