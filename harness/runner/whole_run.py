"""A run from its plan to its report, with progress on standard error; the entry for notebooks.

Heavy imports are made where they are needed, so that wrong settings are reported before PyTorch is loaded.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from harness.config.cli.command_line import say
from harness.config.cli.ending import FAILED, REQUEUE, SUCCESS
from harness.config.run import skipped_lines
from harness.records.files import UnwritableError, remove_partial
from harness.records.finished import CHECKPOINTS
from harness.records.run_status import read_status
from harness.records.runs import MANIFEST, read_manifest
from harness.runner.check_plan import check_plan
from harness.runner.lease import leased
from harness.runner.plan.run_plan import Resume, RunPlan, made_folder
from harness.runner.progress import SECONDS_BETWEEN_LINES, progress_on, repeated, telling
from harness.runner.stop_signals import StoppedBySignal
from harness.runner.supervisor import Supervisor

if TYPE_CHECKING:
    import pandas as pd

    from harness.analysis.results import Results


def run(*overrides: str, fresh: bool = False, accept_drift: bool = False, retry_failed: bool = False) -> pd.DataFrame:
    """Run what the overrides ask for, as `rejection-lab run` does: same checks, records, progress and report.

    With launcher=local the cells run in this process.

    Args:
        overrides: such as `drafter=mtp` and `decoding.temperature=0,1`; several values are a sweep.
        fresh, accept_drift, retry_failed: as the options of the command.

    Returns:
        One row per cell, as `harness.analysis.load_results` reads them from the folder of the run.

    Raises:
        SettingsError: for wrong settings, before anything is loaded.
        ValueError: a data set does not fit, or all cells failed and an earlier run is in the folder. A cell that failed
            is a row without numbers, labelled so.
    """
    from harness.analysis import load_results
    from harness.runner.plan.compose import compose_plan
    from harness.runner.plan.unnamed import resumed

    # of tqdm, which libraries import; the progress here needs no widgets
    warnings.filterwarnings("ignore", "IProgress not found")
    plan = resumed(compose_plan(overrides), Resume(fresh, accept_drift, retry_failed))
    run_and_report(plan, lambda results: None, in_this_process=not plan.launcher.is_remote)
    return load_results(plan.folder)


def run_and_report(plan: RunPlan, show: Callable[[Results], None], *, in_this_process: bool = False) -> int:
    """Run the cells of a plan, write their records and report, and tell about them on standard error.

    Args:
        plan: the cells.
        show: gets the results when the report is written; also those that were finished before an interruption.
        in_this_process: see `run_here`.

    Returns:
        The exit code: FAILED if a cell or a request failed, a file could not be read back, or results could not be
        sent.

    Raises:
        ValueError: no cell has results, and those of an earlier run are kept in the folder.
        SettingsError: another process works in the folder, or something is wrong with the plan (`check_plan`).
        SystemExit: with REQUEUE, after SIGTERM or SIGUSR1.
    """
    say(*skipped_lines(plan.skipped))
    check_plan(plan)
    goes_on = plan.is_unnamed and plan.folder.is_dir()
    with made_folder(plan.folder), leased(plan.folder):
        remove_partial(plan.folder)
        say(f"{plan.title}: {len(plan.cells)} cells, results in {plan.folder}", plan.shows)
        say("this is the last run of the same settings; --fresh or name=... begins another" if goes_on else "")
        say(plan.does_not_show and f"What this does not show: {plan.does_not_show}", *plan.told_at_start)
        finished: list[str] = []
        try:
            (run_here if in_this_process else run_plan)(plan, finished)
        except (Exception, KeyboardInterrupt) as error:
            kept = f"{'interrupted' if isinstance(error, KeyboardInterrupt) else 'stopped'}: {_kept(plan, finished)}"
            say(kept)
            if isinstance(error, KeyboardInterrupt):
                error.args = error.args or (kept,)
            if isinstance(error, StoppedBySignal) and not error.is_key:
                raise SystemExit(REQUEUE) from error
            is_at_once = isinstance(error, StoppedBySignal) and error.is_at_once
            if not is_at_once and _lists(plan.folder, finished):
                try:
                    write_report(plan.folder, show, plan.folder)
                except (ValueError, UnwritableError) as failure:
                    # what ended the run is told too
                    say(f"no report: {failure}")
            raise
        if finished and not _lists(plan.folder, finished):
            raise ValueError(
                f"expected a cell with results, found that all {len(finished)} failed; {plan.folder} keeps the results "
                "and the report of an earlier run, --retry-failed runs the cells again"
            )
        try:
            results = write_report(plan.folder, show, plan.folder)
        except KeyboardInterrupt as error:
            error.args = ("interrupted before the report was written: all cells are kept; the same command writes it",)
            say(*error.args)
            raise
        except Exception:
            say(f"no report, all cells are kept: rejection-lab report {plan.folder} writes it from them")
            raise
        is_sent = _send(results, plan)
    num_failed = sum(cell.record.has_failed for cell in results.cells)
    failed = f"{num_failed} of {len(plan.cells)} cells failed; the report says why, --retry-failed runs them again"
    say(failed if num_failed else "")
    num_partly = sum(cell.record.num_failed_requests > 0 and not cell.record.has_failed for cell in results.cells)
    say(f"requests failed in {num_partly} cells; --retry-failed runs them again" if num_partly else "")
    return FAILED if num_failed or num_partly or results.unreadable or not is_sent else SUCCESS


def _send(results: Results, plan: RunPlan) -> bool:
    """Send the results to the tracker that is asked for; False, and why, if it does not take them."""
    if plan.tracking is None:
        return True
    from harness.report.trackers.tracker import tracker_of
    from harness.report.tracking import send_results

    try:
        where = send_results(results, tracker_of(plan.tracking), plan.folder)
        say(f"sent to {plan.tracking.value}: {where}")
    except Exception as error:
        # of its libraries any; the results are on disk
        say(f"not sent to {plan.tracking.value}: {' '.join(str(error).split())}; the same command sends them")
        return False
    return True


def run_plan(plan: RunPlan, finished: list[str]) -> None:
    """Run the cells in worker processes with a progress display, and list those that are finished."""
    progress = progress_on(sys.stderr)
    # this process has nothing to do while workers import and load
    Thread(target=_import_report, name=IMPORTS, daemon=True).start()
    try:
        Supervisor(plan, progress, finished).run()
    finally:
        progress.finish()


IMPORTS = "imports of the report"
"""Name of the thread that makes them."""


def _import_report() -> None:
    """Import what a report is made with; an error comes again where it is made."""
    with suppress(Exception):
        for name in ("matplotlib.backends.backend_agg", "PIL.Image", "scipy.special", *_REPORT):
            import_module(name)
        from harness.report.figures.kinds import figure_kinds
        from harness.report.sections import table_kinds

        table_kinds()
        figure_kinds()


_REPORT = ("harness.analysis.cell", "harness.report.write", "harness.report.figures.write", "harness.report.console")


def run_here(plan: RunPlan, finished: list[str]) -> None:
    """The same in this process, for notebooks: a debugger works, and an interruption stops at once."""
    from harness.runner.cpu_threads import choose_threads

    choose_threads(plan.cells)
    from harness.runner.run_cells import run_cells

    progress = progress_on(sys.stderr)
    try:
        with repeated(progress.tick, SECONDS_BETWEEN_LINES):
            run_cells(plan, plan.folder, progress, finished)
    finally:
        progress.finish()


def write_report(
    path: Path, show: Callable[[Results], None], output: Path, formats: Sequence[str] = ("png",), *, html: bool = False
) -> Results:
    """Write the report of the records at a path to a folder, show the results, and tell where it is; returns them."""
    from harness.analysis.results import read_results
    from harness.report.warnings import warnings
    from harness.report.write import write_results

    with telling("reading records"):
        results = read_results(path)
    with telling("writing the report"):
        page, *others = write_results(results, output, formats, html=html)
        show(results)
        notes = warnings(results)
    say(*(f"note: {line}" for line in notes))
    say(f"report: {page} (and {len(others)} files beside it, in tables/ and figures/)")
    return results


def _kept(plan: RunPlan, finished: Sequence[str]) -> str:
    """What there is of a run that did not come to its end."""
    if finished:
        status = None
        with suppress(ValueError):
            status = read_status(plan.folder)
        num_failed = 0 if status is None or status.pid != os.getpid() else status.num_failed
        failed = f", {num_failed} failed" if num_failed else ""
        num_done = f"{len(finished) - num_failed} of {len(plan.cells)}"
        return f"{num_done} cells were finished{failed}; finished cells are kept in {plan.folder}"
    if (plan.folder / MANIFEST).is_file():
        return f"no cell was finished; {plan.folder} still holds the results of an earlier run"
    if (plan.folder / CHECKPOINTS).is_dir():
        return "no cell was finished, nothing to report; the same command goes on with what was done"
    return "no cell was finished, nothing to report"


def _lists(folder: Path, finished: Sequence[str]) -> bool:
    """Whether the folder's manifest is this run's; stopped while it was written, it may be an older one."""
    with suppress(ValueError):
        return bool(finished) and set(finished) <= set(read_manifest(folder).get("cells", ()))
    return False
