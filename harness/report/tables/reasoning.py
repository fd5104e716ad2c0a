"""The table of policies at the end of reasoning: validity, tokens cut, acceptance and speed before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from harness.analysis.cell import CellResult
from harness.analysis.definitions import INTERVALS, PLACES, TIME_INTERVALS, metric
from harness.analysis.estimates import paired_ratio
from harness.config.constraint import PolicyKind
from harness.report.cell_names import (
    CONTEXT,
    drafter_name,
    have_drafters,
    label_notes,
    name_in_line,
    summary_order,
    varying,
)
from harness.report.entries import setting, settings_of
from harness.report.number_format import Number, count, without_width_zero
from harness.report.sections import TableKind
from harness.report.table import NONE, Entry, Table

POLICIES = tuple(item.value for item in PolicyKind)
"""In the order in which they are printed."""
VALID = "answer_valid_rate"
OF_TOKENS = (VALID, "refused_tokens_per_100_requests", "acceptance_rate_in_reasoning", "acceptance_rate_in_answer")
SPEED = ("tokens_per_s_in_reasoning", "tokens_per_s_in_answer")
HOST = tuple(f"host_us_per_round_{place}" for place in PLACES.values())
PATHS = {
    "rounds whole": "boundary_num_whole_rounds",
    "rounds with the host": "boundary_num_guarded_rounds",
    "rounds held": "boundary_num_held_steps",
}
PATHS_NOTE = (
    "rounds whole, with the host, held: of requests under a grammar, rounds of steps that ran as one captured graph, "
    "as without a grammar; those in which the host read the drafts before they were verified; and those that the "
    "device deferred because reasoning might end in them, which emit nothing and run again with the host. All 0 "
    "in older records, which do not count them"
)
OVERHEAD = (
    "speed before and after / that of policy none, paired by prompt; as CUDA graphs all policies run on one engine, so "
    "that the device looks for the end of reasoning under none too"
)
GAPS = (
    "–: the baseline drafts and verifies nothing; a server does not tell its host's time and kinds of rounds; under / "
    "none, the policy none itself, or no cell with it at the same settings. n/a: nothing to divide by, such as no "
    "validated answer, no draft token or no round of that phase."
)


def reasoning_table(cells: Sequence[CellResult]) -> Table | None:
    """One row per cell that looks for the end of reasoning; None when none does."""
    shown = sorted((cell for cell in cells if "boundary_num_judged" in cell.estimates.sums.sums), key=summary_order)
    if not shown:
        return None
    extra = [name for name in varying(shown, CONTEXT) if name != "constraint"]
    header = [*extra, "T", "drafter", "K", "verification", "policy", "finished", "cut by length", "no answer"]
    header += [metric(name).label for name in (*OF_TOKENS, *SPEED)] + ["before / none", "after / none"]
    header += [*(metric(name).label for name in HOST), *PATHS, "labels"]
    rows = []
    for _, group in groupby(sorted(shown, key=_place), key=_place):
        members = sorted(group, key=_policy_rank)
        reference = next((cell for cell in members if cell["constraint"].startswith("none")), None)
        rows += [_row(cell, extra, reference) for cell in members]
    notes = [f"{metric(name).label}: {metric(name).definition}." for name in OF_TOKENS]
    notes += [f"tok/s before, after: {metric(SPEED[0]).definition}.", f"before / none, after / none: {OVERHEAD}."]
    notes += [f"host us/round: {metric(HOST[0]).definition}.", f"{PATHS_NOTE}.", GAPS, INTERVALS, TIME_INTERVALS]
    notes += label_notes(shown)
    return Table("The end of reasoning", tuple(header), tuple(rows), tuple(notes))


def _place(cell: CellResult) -> tuple[str, ...]:
    """Equal for cells that differ in their policy only."""
    names = [name for name in CONTEXT if name != "constraint"]
    settings = [str(cell[name]) for name in [*names, "temperature", "num_speculative_tokens", "verification"]]
    return (*settings, drafter_name(cell), str(cell["draft_sampling"]))


def _policy_rank(cell: CellResult) -> int:
    """Of the built-in policies in order, and then of others."""
    name = cell["constraint"].split(" ", 1)[0]
    return POLICIES.index(name) if name in POLICIES else len(POLICIES)


def _row(cell: CellResult, extra: Sequence[str], reference: CellResult | None) -> tuple[Entry, ...]:
    settings = settings_of(cell, extra)
    settings += [NONE, NONE] if cell.is_baseline else [setting(cell["num_speculative_tokens"]), cell["verification"]]
    counts = [
        count(cell.estimates.total(f"boundary_{name}")) for name in ("num_finished", "num_length_cut", "num_unanswered")
    ]
    values: list[Entry] = [_number(cell, name) for name in (*OF_TOKENS, *SPEED)]
    values += [_ratio_number(reference, cell, name) for name in SPEED]
    if cell.record.config["backend"]["kind"] == "server":
        # records hold zeros there, which nothing was measured for
        values += [NONE] * (len(HOST) + len(PATHS))
    else:
        values += [_number(cell, name) for name in HOST]
        values += [count(cell.estimates.total(name)) for name in PATHS.values()]
    return (*settings, cell["constraint"], *counts, *values, cell["labels"])


def _number(cell: CellResult, name: str) -> Number:
    return Number(*without_width_zero(cell.estimate(name)), style=metric(name).style)


def _ratio_number(reference: CellResult | None, cell: CellResult, name: str) -> Entry:
    """A speed over that of policy none, on the same prompts."""
    if reference is None or reference is cell:
        return NONE
    # what a policy costs before the end of reasoning is a fraction of a percent
    ratio = paired_ratio(reference.estimates, cell.estimates, name)
    return Number(*without_width_zero(ratio), style="overhead")


COUNTS = {"finished": "boundary_num_finished", "cut by length": "boundary_num_length_cut"}
NEVER_ENDED = "no request reached the end of its reasoning, so no answer was validated"
ADVICE = "; raise decoding.max_new_tokens"


def reasoning_lines(cells: Sequence[CellResult]) -> list[str]:
    """A line for each of the cells that looks for the end of reasoning: answers finished, cut, and valid."""
    judged = [cell for cell in cells if "boundary_num_judged" in cell.estimates.sums.sums]
    settings = varying(judged, ("temperature", *CONTEXT))
    return [_line(cell, name_in_line(cell, settings, have_drafters(judged))) for cell in judged]


def _line(cell: CellResult, name: str) -> str:
    counts = [f"{label} {count(cell.estimates.total(key))}" for label, key in COUNTS.items()]
    valid = f"{metric(VALID).label} {_number(cell, VALID)}"
    advice = "" if cell.record.config["constraint"]["parser"] == "never" else ADVICE
    has_ended = any(item.num_reasoning_tokens is not None for item in cell.record.requests)
    notes = [] if has_ended else [NEVER_ENDED + advice]
    return f"answers, {name}: {'; '.join([', '.join([*counts, valid]), *notes])}"


BOUNDARY = TableKind(
    "boundary",
    "The end of reasoning",
    lambda results: [table for table in [reasoning_table(results.cells)] if table is not None],
    is_on_page=True,
)
