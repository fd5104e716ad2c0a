"""A replay as tables of text: every method on the drafts of each cell, and their differences.

This module knows what to show; numbers with all their digits are in `harness.analysis.replay.frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from harness.analysis.columns import with_interval
from harness.analysis.definitions import INTERVALS
from harness.analysis.estimates import Estimate
from harness.analysis.replay.estimators import Estimator
from harness.analysis.replay.replayed import Replayed
from harness.report.cell_names import CONTEXT, MINUS, label_notes, varying
from harness.report.entries import setting, settings_of
from harness.report.number_format import NOT_AVAILABLE, Number, count, format_value
from harness.report.table import NONE, Entry, Table
from kernels.methods import Guarantee, VerificationMethod

BASIS = (
    "Drafts: those that count in full and were recorded, which leaves out drafts under a grammar's masks. Every method "
    "is computed on the same drafts of the cell named under drafts of, in closed form: no random number decides an "
    "acceptance."
)
ESTIMATORS = (
    "given the drafts: mean of 1 + E[A | X_1..X_K], with the drafted tokens as they are; it has the expectation of the "
    "sampled length of the same drafts. before the draw: each position's acceptance averaged over its draft token too, "
    "given the tokens before it and weighted by the probability that the method reaches it; the same expectation again "
    "where draft tokens are drawn from the recorded draft distribution and no draft is left out because of its tokens. "
    "Drafts with an end-of-sequence token are left out: where they are a share s of the drafts, the two may differ by "
    "up to 2 s K tokens. For lossy methods only the first is recorded."
)
SAMPLED_TEXT = (
    "sampled: the run's own acceptance length of full drafts, beside the method that made these; – beside the others. "
    "replayed interval: how much narrower (width of the sampled one / its own) or wider (the inverse) it is, given the "
    "drafts, than the sampled one; n/a where one of them has no width. Both include the variation between prompts, "
    "which no replay removes."
)
LIMITS = (
    "What a replay cannot say: the contexts are those that the recorded method visited, so a method that would start "
    "its rounds elsewhere (all do), or write another text (the lossy ones), may accept more or less on its own; drafts "
    "that the length limit or an end of sequence shortens are not evidence; another draft sampling or another K draws "
    "other drafts. Coupled verification is computed for drafts drawn with its own noise, whose law is that of "
    "sampled ones."
)
SAME_LAW_NOTE = (
    "At temperature 0, and with one-hot (greedy) drafts, strict, coupled, probabilistic and block accept with one and "
    "the same probability: their rows are equal and their differences 0."
)
DIFFERENCE_TEXT = (
    "sampled: difference of the acceptance lengths of full drafts of the run's cells with the two methods, paired by "
    "prompt, where one of them made these drafts; replayed interval: how much narrower or wider it is than the sampled "
    "one. The two differ in what they estimate: each sampled length is on its own drafts. – where the run did not play "
    "both methods, or neither made these drafts."
)
_Row = Mapping[Any, Any]
WIDTH = "replayed interval"
TITLES = {Estimator.given: "length, given the drafts", Estimator.before: "length, before the draw"}


def replay_table(replayed: Sequence[Replayed], frame: pd.DataFrame) -> Table:
    """One row per cell and method."""
    header = ("drafts", "method", *TITLES.values(), "by position (%)", "sampled", WIDTH, "left out", "labels")
    by_position = "by position: probability that at least i tokens are accepted, given the drafts."
    left_out = "left out: drafts with a drafted end-of-sequence token."
    notes = (BASIS, ESTIMATORS, by_position, SAMPLED_TEXT, left_out, LIMITS, SAME_LAW_NOTE, INTERVALS)
    table = _table(replayed, frame, ["verification"], header, _method_entries)
    return replace(table, title="Every method on the same drafts", notes=(*notes, *table.notes))


def differences_table(replayed: Sequence[Replayed], frame: pd.DataFrame) -> Table:
    """One row per cell and pair of methods: the lossless ones with each other, the lossy ones with probabilistic."""
    header = ("comparison", *(title.replace("length, ", "") for title in TITLES.values()), "sampled", WIDTH)
    shown = frame.loc[[_is_shown(*pair) for pair in zip(frame["first"], frame["second"], strict=True)]]
    table = _table(replayed, shown, ["first", "second"], header, _difference_entries)
    notes = (BASIS, ESTIMATORS, DIFFERENCE_TEXT, LIMITS, SAME_LAW_NOTE, INTERVALS)
    return replace(table, title="Differences on the same drafts", notes=(*notes, *table.notes))


def _table(
    replayed: Sequence[Replayed],
    frame: pd.DataFrame,
    keys: list[str],
    header: Sequence[str],
    entries: Callable[[Mapping[str, _Row]], list[Entry]],
) -> Table:
    """A row per cell and keys; `entries` gets the rows of the frame by estimator."""
    cells = [item.cell for item in replayed]
    extra, rows = varying(cells, CONTEXT), []
    for cell in cells:
        of_cell = frame[(frame["run"] == cell["run"]) & (frame["cell_id"] == cell["cell_id"])]
        settings = (*settings_of(cell, extra), setting(cell["num_speculative_tokens"]), cell.method)
        for _, group in of_cell.groupby(keys, sort=False):
            by_estimator = {row["estimator"]: row for row in group.to_dict("records")}
            rows.append((*settings, *entries(by_estimator)))
    header = (*extra, "T", "drafter", "K", "drafts of", *header)
    return Table("", header, tuple(rows), tuple(label_notes(cells)))


def _of_estimators(rows: Mapping[str, _Row], name: str, *, signed: bool = False) -> list[Entry]:
    return [_number(rows[item.value], name, signed=signed) if item.value in rows else NONE for item in TITLES]


def _method_entries(rows: Mapping[str, _Row]) -> list[Entry]:
    """The columns of one method."""
    given = rows[Estimator.given.value]
    positions = [name for name in given if name.startswith("acceptance_per_pos_") and name[-1].isdigit()]
    rates = " / ".join(format_value(given[name], "percent") for name in positions if not pd.isna(given[name]))
    sampled: list[Entry] = [NONE, NONE]
    if given["is_own"]:
        sampled = [_number(given, "sampled_length"), width_text(given["width_ratio"])]
    labels = [str(given["recorded_labels"])]
    labels += [str(given["guarantee"])] if given["guarantee"] != Guarantee.lossless.value else []
    label = "; ".join(dict.fromkeys(item for item in labels if item))
    shown = [count(given["num_drafts"]), given["verification"], *_of_estimators(rows, "length"), rates]
    return [*shown, *sampled, count(given["num_ended_drafts"]), label]


def _is_shown(first: str, second: str) -> bool:
    lossy = [name for name in (first, second) if "(" in name]
    return not lossy or (len(lossy) == 1 and VerificationMethod.probabilistic.value in (first, second))


def _difference_entries(rows: Mapping[str, _Row]) -> list[Entry]:
    given = rows[Estimator.given.value]
    shown: list[Entry] = [f"{given['second']}{MINUS}{given['first']}"]
    shown += _of_estimators(rows, "difference", signed=True)
    if pd.isna(given["sampled_difference"]):
        return [*shown, NONE, NONE]
    return [*shown, _number(given, "sampled_difference", signed=True), width_text(given["width_ratio"])]


def _number(row: _Row, name: str, *, signed: bool = False) -> Number:
    return Number(*Estimate(*(row[item] for item in with_interval(name))), style="length", signed=signed)


def width_text(ratio: float) -> str:
    """A ratio of widths, sampled / replayed, in words: "1.04 times wider" where the replayed interval is the wider one.

    n/a where one of the two has no width.
    """
    if pd.isna(ratio) or ratio == 0:
        return NOT_AVAILABLE
    text = format_value(max(ratio, 1 / ratio), "length")
    if text == format_value(1.0, "length"):
        return "as wide"
    return f"{text} times {'narrower' if ratio > 1 else 'wider'}"
