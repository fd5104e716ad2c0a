"""What a reader must know about a report: cells that are missing or were skipped, drift, fallbacks, labels."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.beyond_positions import drafts_beyond
from harness.analysis.cell import CellResult
from harness.analysis.comparison import unlike_baseline
from harness.analysis.depths_taken import never_taken
from harness.analysis.estimates import paired
from harness.analysis.intervals import MIN_PROMPTS
from harness.analysis.loops import num_not_judged
from harness.analysis.results import Results
from harness.analysis.sessions import changed_between
from harness.analysis.speedup_bound import NOISE
from harness.config.depth import depths_name
from harness.config.run import skipped_lines
from harness.records.runs import Run
from harness.report.answer_notes import unlike_baseline_text
from harness.report.cell_names import (
    ASSUMED,
    CONTEXT,
    DISTURBED,
    baseline_name,
    column_name,
    context_texts,
    drafter_name,
    varying,
)
from harness.report.gpu_notes import gpu_notes
from harness.report.loop_notes import LOOPS, is_looping, loop_text, not_judged_text
from harness.report.missing_values import UNKNOWN, masked_text

SHORT = {"num_speculative_tokens": "K", "temperature": "T"}
LOOPS_NAMED = 8
"""As many cells with answers that loop have a line of their own."""
IMPOSSIBLE = ": the machine was busier while the baseline ran; run again. They are named neither fastest nor best"
NOISY = f" by {NOISE:.0%} at most, which is noise of the machine: they are ranked"
"""Ends of the warnings about speedups above their bound: far above it, and within NOISE of it."""
CELLS_NAMED = 6
"""Of those that one warning is about."""
DRIFTS_NAMED = 5
"""As many disturbed cells have a line of their own."""


def warnings(results: Results) -> list[str]:
    """What a reader must know about a report: cells that are missing or were skipped, fallbacks, what was
    assumed of models, labels."""
    # runs that are reported together may have skipped the same
    found = left_out(results.unreadable)
    found += dict.fromkeys(text for run in results.runs for text in _of_run(run))
    done = [cell for cell in results.cells if not cell.record.has_failed]
    without = [cell for cell in done if cell.baseline is None]
    if without:
        found.append(f"{len(without)} cells have no baseline in their run, so no speedup")
    apart = [cell for cell in done if cell.baseline is not None and _share_no_session(cell, cell.baseline)]
    if apart:
        found.append(
            f"{len(apart)} cells were measured in other sessions than their baseline, so no speedup; --fresh measures "
            f"them together ({_names(apart, results.cells)})"
        )
    partly = [(text, cell) for cell in done for text in _over_some_prompts(cell)]
    found += _by_cells("speedup", partly, results.cells)
    few = [cell for cell in done if cell.estimates.num_prompts < 2]
    if few:
        found.append(f"{len(few)} cells have fewer than 2 prompts, so no intervals")
    narrow = [cell for cell in results.cells if 2 <= cell.estimates.num_prompts < MIN_PROMPTS]
    if narrow:
        found.append(f"{len(narrow)} cells have fewer than {MIN_PROMPTS} prompts: their intervals are too narrow")
    found += _above_bound([cell for cell in done if cell.exceeds_bound], results.cells)
    found += _of_drift([cell for cell in done if cell.drift is not None], results.cells)
    not_judged = [(cell.judged_drift.not_judged, cell) for cell in done if cell.judged_drift.not_judged]
    found += _by_cells("drift could not be judged", not_judged, results.cells)
    num_skipped = sum(cell.record.num_skipped_turns for cell in results.cells)
    if num_skipped:
        found.append(f"{num_skipped} turns were left out because they did not fit (sum over cells)")
    failed = [(item.reason, cell) for cell in results.cells for item in cell.record.failures]
    found += _by_cells("failed", failed, results.cells)
    coarse = [cell for cell in done if cell.record.knowledge in UNKNOWN and not cell.is_baseline]
    found += _by_cells("drafts", [(UNKNOWN[cell.record.knowledge], cell) for cell in coarse], results.cells)
    found += _by_cells("depth", [(text, cell) for cell in done for text in _depths_never_taken(cell)], results.cells)
    compared = [(cell, unlike_baseline(cell)) for cell in done]
    unlike = [cell for cell, item in compared if item is not None and item.num_other]
    if unlike:
        found.append(f"answers: {unlike_baseline_text(unlike)} ({_names(unlike, results.cells)})")
    found += _of_loops(done, results.cells)
    masked = [item for item in results.recording.cells if item.num_masked_drafts]
    found += _by_cells("terms", [(masked_text(item), item.cell) for item in masked], results.cells)
    found += _by_cells("positions", [(text, cell) for cell in done for text in _beyond_positions(cell)], results.cells)
    notes = [(text, cell) for cell in results.cells for text in cell.record.fallbacks]
    found += _by_cells("fallback", notes, results.cells)
    assumed = [(text, cell) for cell in results.cells for text in cell.record.assumptions]
    found += _by_cells(ASSUMED, assumed, results.cells)
    found += _by_cells("GPU", [(text, cell) for cell in done for text in gpu_notes(cell)], results.cells)
    # what a method guarantees is a column of every table
    labels = [(text, cell) for cell in done for text in cell["labels"].split("; ")]
    labelled = [(text, cell) for text, cell in labels if text not in ("", cell["guarantee"])]
    return found + _by_cells("label", labelled, results.cells)


def _beyond_positions(cell: CellResult) -> list[str]:
    """Whether drafts began beyond the positions that the drafter's file names."""
    share = drafts_beyond(cell.record)
    if not share > 0:
        return []
    return [
        f"{share:.0%} of the drafts began with more than {cell.record.drafter_positions:,} tokens, the positions that "
        "the drafter's file names (max_position_embeddings): it was not trained for them, and acceptance falls there"
    ]


def _of_loops(cells: Sequence[CellResult], among: Sequence[CellResult]) -> list[str]:
    """Cells some of whose answers loop: each by itself, or in one line where there are many; and what is not known."""
    found = _looping([cell for cell in cells if is_looping(cell)], among)
    part = [cell for cell in cells if any(num_not_judged(cell.record)) and not cell.is_baseline]
    return found + ([f"loops: {not_judged_text(part)} ({_names(part, among)})"] if part else [])


def _looping(cells: Sequence[CellResult], among: Sequence[CellResult]) -> list[str]:
    if len(cells) <= LOOPS_NAMED:
        return [f"loops: {_place(cell, among)}: {loop_text(cell)} (marked {LOOPS})" for cell in cells]
    shares = [cell.estimate("looping_answers").value for cell in cells]
    return [
        f"loops: in each of {len(cells)} cells {min(shares):.0%} to {max(shares):.0%} of the answers loop, which "
        f"inflates acceptance (marked {LOOPS}; looping_answers and *_without_loops in cells.csv)"
    ]


def _above_bound(cells: Sequence[CellResult], among: Sequence[CellResult]) -> list[str]:
    """Cells with speedups above their bound, with the numbers: first those that are impossible."""
    found = []
    for is_impossible, why in ((True, IMPOSSIBLE), (False, NOISY)):
        shown = [
            f"{_place(cell, among)}: {cell.speedup.value:.2f} > {cell.speedup_bound:.2f}"
            for cell in cells
            if cell.is_impossible is is_impossible
        ]
        if shown:
            more = [f"{len(shown) - DRIFTS_NAMED} more"] if len(shown) > DRIFTS_NAMED else []
            found.append(
                f"speedups of {len(shown)} cells are above the most that their tokens per target forward can buy{why} "
                f"(their times are marked {DISTURBED}; speedup_bound in cells.csv; "
                f"{'; '.join([*shown[:DRIFTS_NAMED], *more])})"
            )
    return found


def left_out(unreadable: Sequence[str]) -> list[str]:
    """That files were not used, and why.

    Args:
        unreadable: see `harness.analysis.results.Results`.
    """
    return [f"left out: {text}" for text in unreadable]


def _of_drift(cells: Sequence[CellResult], among: Sequence[CellResult]) -> list[str]:
    """Cells whose blocks differ: each by itself, or in one line where there are many."""
    drifts = [cell.drift for cell in cells if cell.drift is not None]
    remark = "in the time of a forward over the baseline's, more than prompts explain: the machine was busy, or drifts"
    if len(cells) <= DRIFTS_NAMED:
        return [
            f"blocks of {_place(cell, among)} differ by {drift:.0%} {remark}; run again (its times are marked "
            f"{DISTURBED})"
            for cell, drift in zip(cells, drifts, strict=True)
        ]
    return [
        f"blocks of each of {len(cells)} cells differ by {min(drifts):.0%} to {max(drifts):.0%} {remark}; run again "
        f"(their times are marked {DISTURBED}; block_drift in cells.csv)"
    ]


def _of_run(run: Run) -> list[str]:
    """What a run lacks, and whether its cells were measured alike."""
    found = []
    unfinished = run.manifest.get("num_cells", 0) - len(run.cells) - len(run.unreadable)
    if run.missing or unfinished > 0:
        found.append(f"run {run.name} is incomplete: {max(unfinished, len(run.missing))} cells have no record")
    if run.unlisted:
        found.append(
            f"run {run.name}: {len(run.unlisted)} records in its cells/ were left out: they are of other settings than "
            "its last command's"
        )
    skipped = run.manifest.get("skipped", [])
    found += skipped_lines((item.get("cell") or {}, str(item.get("reason"))) for item in skipped)
    changed = changed_between(run.cells)
    if changed:
        found.append(
            f"run {run.name}: its cells were not measured with the same {', '.join(changed)}; --fresh measures all "
            "of them anew"
        )
    return found


def _depths_never_taken(cell: CellResult) -> list[str]:
    """The entries of a table of depths that a cell did not come to, as far as that is known."""
    found = never_taken(cell)
    if found is None or not found.entries:
        return []
    sizes = f"{found.fewest}" if found.fewest == found.most else f"{found.fewest} to {found.most}"
    return [
        f"of drafting.depth={cell.record.config['drafting']['depth']} no step came to {depths_name(found.entries)}: "
        f"{sizes} requests decoded at a time"
    ]


def _share_no_session(cell: CellResult, baseline: CellResult) -> bool:
    """Whether no block of two cells was measured in one session; false where blocks are not known."""
    mine, others = ({*item.record.sessions} for item in (cell, baseline))
    return bool(mine and others) and not mine & others


def _over_some_prompts(cell: CellResult) -> list[str]:
    """On how few of its prompts a cell has a speedup, where the others were measured in two sessions."""
    if cell.baseline is None or cell.is_baseline:
        return []
    num_common, num_paired = (
        paired(cell.baseline.estimates, cell.estimates, in_one_session)[0].num_prompts
        for in_one_session in (False, True)
    )
    if not 0 < num_paired < num_common:
        return []
    return [f"over {num_paired} of {num_common} prompts, those that one session measured in cell and baseline"]


def _place(cell: CellResult, cells: Sequence[CellResult]) -> str:
    """A cell in words, with the settings in which these cells differ."""
    around = [name for name in varying(cells, CONTEXT) if name != "constraint"]
    inner = [f"{SHORT[name]} = {cell[name]:g}" for name in varying(cells, list(SHORT))]
    return ", ".join([_name(cell), *context_texts(cell, around), *inner])


def _by_cells(what: str, items: Sequence[tuple[str, CellResult]], among: Sequence[CellResult]) -> list[str]:
    """One line per text, with the cells it applies to."""
    found: dict[str, dict[str, CellResult]] = {}
    for text, cell in items:
        found.setdefault(text, {})[cell["cell_id"]] = cell
    return [f"{what}: {text} ({_names(list(cells.values()), among)})" for text, cells in found.items()]


def _names(cells: Sequence[CellResult], among: Sequence[CellResult]) -> str:
    """The cells in words, with their engine where several ran; of many the first."""
    drafted = [cell for cell in among if not cell.is_baseline]
    if 1 < len(cells) == len(among):
        return "all cells"
    if 1 < len(cells) == len(drafted) and not any(cell.is_baseline for cell in cells):
        return "all cells with drafts"
    has_several = bool(varying(among, ["engine"]))
    names = list(dict.fromkeys(_name(cell) + f" on {cell['engine']}" * has_several for cell in cells))
    more = [f"{len(names) - CELLS_NAMED} more"] if len(names) > CELLS_NAMED else []
    return "; ".join([*names[:CELLS_NAMED], *more])


def _name(cell: CellResult) -> str:
    """A cell in words, with its policy where it has one."""
    name = baseline_name(cell) if cell.is_baseline else f"{drafter_name(cell)} {column_name(cell)}"
    return f"{name}, constraint {cell['constraint']}" if cell["constraint"] else name
