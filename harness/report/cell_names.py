"""What cells are called in tables, titles and figures, and the order in which they stand.

This module knows the settings of cells; it does not know their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.comparison import Group, method_rank
from harness.analysis.definitions import LABEL_NOTES
from harness.config.drafter import drafter_traits
from harness.config.guarantee import RANDOM_WEIGHTS
from harness.config.models import UNPACKED, Weights
from harness.config.tree import is_chain, is_dynamic
from harness.records.shared_cores import beside_other_workers
from harness.report.loop_notes import LOOPS_NOTE, is_looping
from kernels.methods.acceptance_profiles import AcceptanceProfile

MINUS = " − "
DISTURBED = "†"
"""Marks the times of a cell whose speedup is impossible, whose speed changed between its blocks, or whose GPU others
had open."""

_TEXT_AND_NUMBER = re.compile(r"(\D*)(\d+(?:\.\d+)?)?")


def varying(cells: Sequence[CellResult], names: Sequence[str]) -> list[str]:
    """Those settings that are not the same in all cells."""
    return [name for name in names if len({cell[name] for cell in cells}) > 1]


CONTEXT = (
    "run",
    "target",
    "top_k",
    "top_p",
    "min_p",
    "max_new_tokens",
    "ignore_eos",
    "workload",
    "constraint",
    "prompt_tokens",
    "max_concurrency",
    "engine",
    "ranks",
    "rounding",
    "other_settings",
    "device",
    "dtype",
    "seed",
)
"""Settings that a table or title names only where they vary."""


def in_flight(max_concurrency: int) -> str:
    """The number of requests in flight, at most, as titles and sentences say it."""
    return f"{max_concurrency} in flight"


def context_texts(cell: CellResult, names: Sequence[str]) -> list[str]:
    """Settings of a cell as parts of a title; other_settings name themselves."""
    own = {"other_settings": cell["other_settings"], "max_concurrency": in_flight(cell["max_concurrency"])}
    return [own.get(name, f"{name} = {cell[name]}") for name in names if cell[name] != ""]


def target_name(cell: CellResult) -> str:
    """The target, and whether its weights are random."""
    return cell["target"] + _weights_suffix(cell["target_weights"])


def _weights_suffix(weights: str) -> str:
    return f" ({RANDOM_WEIGHTS})" if weights == Weights.random.value else ""


def drafter_name(cell: CellResult) -> str:
    """The drafter with its own settings, its checkpoint or shape where one was named, and whether its weights are
    random. A folder of packed weights, as built-in heads are, with the drafter's name says no more."""
    name = drafter_traits(cell["drafter"]).name.format(**cell.record.config["drafter"])
    path = cell["drafter_checkpoint"]
    says_more = path and not (path == name and cell["drafter_path"].startswith(UNPACKED))
    return (f"{name} ({path})" if says_more else name) + _weights_suffix(cell["drafter_weights"])


def column_name(cell: CellResult) -> str:
    """A method as the header of a column: method, draft sampling, draft-logit cache, labels."""
    return f"{cell['verification']}, {drafts_text(cell)}" + label_suffix(cell)


def drafts_text(cell: CellResult) -> str:
    """How drafts are drawn and kept, and what decides their number beside K, in words."""
    texts = f"{cell['draft_sampling']} drafts", cell["depth"], cell.tree_text, cell.cache_text
    return ", ".join(text for text in texts if text)


def baseline_name(cell: CellResult) -> str:
    """The baseline as the header of a column or row, with its labels."""
    return "baseline" + label_suffix(cell)


OWN_SAMPLING = (
    "own sampling: some requests have sampling parameters of their own, which the workload gives; the temperature and "
    "truncation shown are those of the others."
)


TREES = (
    "tree: the K draft tokens are the nodes of a tree, children level by level or a list of parents, and siblings are "
    "drawn as named. A position is a depth. It counts if a node was drafted there, another token may follow it, and no "
    "end-of-sequence token was drafted there or above on any branch. A round accepts at most one node a depth, so "
    "lengths of trees and chains have one unit, acceptance rates do not. But the acceptance length of full drafts "
    "leaves out every round with an end-of-sequence token on any branch: more rounds of a tree than of a chain of its "
    "depth, and often fewer than of a chain of as many tokens (drafts_left_out of cells.csv). Rates by position leave "
    "out the depths from there on. Such rounds tend to accept less: compare tokens per target forward, which counts "
    "every round."
)


DYNAMIC_TREES = (
    "dynamic:NODES-DEPTH-WIDTH: each round drafts the NODES that the drafter finds most probable, chosen from WIDTH "
    "nodes a level with WIDTH children each (ngram: the continuations of WIDTH occurrences). A depth that "
    "a round's tree does not reach is no rejection: its rates are over the rounds that reach it, which the drafter "
    "chose. Compare lengths, which are over all depths."
)


DEPTHS = (
    "depth: rounds draft as many tokens as named or found, K at most. A position that was not drafted is no rejection: "
    "its rates are over the rounds that drafted it, which draft rows, the planner or what was found in the text may "
    "have chosen, and lengths are over rounds with drafts. With fixed depths compare tokens per target forward and "
    "throughput, which count every round."
)


TREE_NOTES = (TREES, DYNAMIC_TREES, DEPTHS)
"""How trees and depths are counted."""


SESSIONS = (
    "sessions: so many processes measured the cell, one after the other, since the run or a worker ended and another "
    "went on; what was not the same in them is named. Times of different sessions do not compare: speedups and ratios "
    "of times use the prompts that both cells measured in one session."
)


REQUESTS_FAILED = (
    "requests failed: these got no answer; the numbers of the cell are those of the others. Its times are compared "
    "with no other cell: it has no speedup, and no ratio or difference of times."
)


TIMES = "times: "
"""Begins a note on what may have changed the times of some cells."""


ASSUMED = "assumed"
"""Begins a note on what the files of a model do not say."""


DISTURBED_NOTE = (
    f"{DISTURBED}: disturbed, the machine was busier at one time than at another, or shared. The speedup of the cell "
    "is more than its drafts can buy where a round costs as much as a plain forward (speedup_bound of cells.csv, about "
    "its tokens per target forward), or the time of its forwards over the baseline's changed between its blocks by "
    "more than its prompts explain, or processes of others had the GPU open while it or its baseline was timed. The "
    "warnings of the report say which."
)


def label_notes(cells: Sequence[CellResult]) -> list[str]:
    """What the labels and marks of some cells mean, which workers disturbed each other, what was assumed of their
    models, where their acceptance profiles come from, whether requests had sampling parameters of their own, and how
    trees and depths that differ are counted.
    """
    notes = [text for label, text in LABEL_NOTES.items() if any(label in cell["labels"] for cell in cells)]
    found = " ".join(label for cell in cells for label in cell["labels"].split("; "))
    notes += [SESSIONS] if re.search(r"\d sessions", found) else []
    notes += [REQUESTS_FAILED] if re.search(r"\d requests failed", found) else []
    notes += [DISTURBED_NOTE] if any(is_disturbed(cell) for cell in cells) else []
    notes += [LOOPS_NOTE] if any(map(is_looping, cells)) else []
    notes += [f"{TIMES}{text}." for cell in cells for text in beside_other_workers(cell.record.fallbacks)]
    notes += [f"{ASSUMED}: {text}." for cell in cells for text in cell.record.assumptions]
    notes += [OWN_SAMPLING] if any(cell.has_own_sampling for cell in cells) else []
    notes += [TREES] if any(cell["tree"] and not is_chain(cell["tree"]) for cell in cells) else []
    notes += [DYNAMIC_TREES] if any(is_dynamic(cell["tree"]) for cell in cells) else []
    notes += [DEPTHS] if any(cell["depth"] or cell.positions_vary for cell in cells) else []
    return list(dict.fromkeys([*notes, *(note for cell in cells for note in _profile_note(cell))]))


def layer_notes(cells: Sequence[CellResult]) -> list[str]:
    """Which layers of its target each drafter reads, of those that read any."""
    read = dict.fromkeys((drafter_name(cell), cell.record.aux_layers) for cell in cells if cell.record.aux_layers)
    return [
        f"{name} reads the states that enter layers {', '.join(map(str, layers))} of the target, counted from 0."
        for name, layers in read
    ]


def _profile_note(cell: CellResult) -> list[str]:
    """The rates of a cell's acceptance profile, as recorded, and their source where this version knows it."""
    config = cell.record.config["verification"]
    name = config.get("profile")
    if cell.is_baseline or name is None:
        return []
    sources = {item.value: item.source for item in AcceptanceProfile}
    rates, beside = ", ".join(f"{rate:g}" for rate in config["rates"]), "position"
    if config.get("tree_rates"):
        levels = config["tree_rates"]
        rates = ", ".join("/".join(f"{rate:g}" for rate in level) for level in levels)
        beside = "depth, of the first / second / further child of an accepted node"
    return [f"profile {name}: acceptance rates {rates} by {beside}; {sources.get(name, 'source not known here')}."]


def is_disturbed(cell: CellResult) -> bool:
    """Whether its times are not to be trusted: its speedup is impossible, its blocks differ, or others had the GPU."""
    return bool(cell.disturbed)


def label_suffix(*cells: CellResult) -> str:
    """The labels of some cells in brackets, or nothing."""
    labels = "; ".join(dict.fromkeys(cell["labels"] for cell in cells if cell["labels"]))
    return f" [{labels}]" if labels else ""


def group_title(group: Group, cells: Sequence[CellResult]) -> str:
    """The settings that the cells of a group share and that tell them from the other cells."""
    return shared_title(group.first, cells)


def depth_text(cell: CellResult) -> str:
    """K, and the shape of a tree."""
    texts = [f"K = {cell['num_speculative_tokens']}", cell["depth"], f"tree {cell['tree']}" if cell["tree"] else ""]
    return ", ".join(text for text in texts if text)


def name_in_line(cell: CellResult, settings: Sequence[str], has_drafters: bool) -> str:
    """A cell in a line of text.

    Args:
        settings: in which the cells of such lines differ, beside drafter, method and depth.
        has_drafters: whether they have several drafters.
    """
    method = f"{drafter_name(cell)} {cell.method}" if has_drafters else cell.method
    name = baseline_name(cell) if cell.is_baseline else f"{method} at {depth_text(cell)}"
    return ", ".join([name, *context_texts(cell, settings)])


def have_drafters(cells: Sequence[CellResult]) -> bool:
    """Whether several drafters drafted for some cells."""
    return len({drafter_name(cell) for cell in cells if not cell.is_baseline}) > 1


def shared_title(first: CellResult, cells: Sequence[CellResult], *, with_depth: bool = True) -> str:
    """The same of cells like the first; their K is left out where they do not share it."""
    parts = [target_name(first), drafter_name(first)]
    parts += [depth_text(first)] if with_depth else []
    parts.append(f"T = {first['temperature']:g}")
    parts += context_texts(first, [name for name in varying(cells, CONTEXT) if name != "target"])
    return " · ".join(parts)


def summary_order(cell: CellResult) -> tuple:
    """Sorts cells for a summary: target, settings, temperature, baseline first, drafter, K, method."""
    context_key = tuple(_in_order(cell[name]) for name in CONTEXT)
    drafter = (
        "" if cell.is_baseline else drafter_name(cell),
        cell["num_speculative_tokens"],
        cell["depth"],
        cell["tree"],
    )
    rank = (-1, 0, "") if cell.is_baseline else method_rank(cell)
    return cell["target"], cell["temperature"], context_key, drafter, rank


def _in_order(value: Any) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Sorts numbers by their size, before names, and those in names by theirs."""
    if isinstance(value, (int, float)):
        return float(value), ()
    return inf, tuple((text, float(number or 0)) for text, number in _TEXT_AND_NUMBER.findall(str(value)))
