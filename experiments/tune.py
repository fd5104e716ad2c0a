"""Find the best draft depth for each batch size, as a schedule for this engine, vLLM and SGLang.

From measured acceptance and times of a round: a run with cells over depths and concurrency, of this engine or of a
server (PATH; several are one where they differ in concurrency); or two files of measurements of another tool
(--acceptance, --round-times: CSV with a header or JSON, an array of objects; columns below). For each batch size the
best depth, what the others lose beside it with an interval over prompts, and which are statistically indistinguishable.
Writes tuned.md (.html, .tex), depth.txt, vllm.json, sglang.json.

--measure does all of it with this engine: measures on half of the prompts, and holds the schedule against the fixed
depths on the others, at so many requests in flight (--loads) and at Poisson arrivals whose rate moves between these, in
turns, --repeats times. --check takes such runs that are there.

acceptance: position (1, 2, ..), drafted and accepted (rounds), or rate; optional prompt, depth, temperature, workload
round times: batch_size, depth (0 is plain decoding), round_ms; repeats as further lines; optional temperature, workload

examples:
  rejection-lab tune best_depth
  rejection-lab tune --acceptance acceptance.csv --round-times times.csv --output tuned
  rejection-lab tune --measure zoo_tuned drafter=eagle3 decoding.temperature=1
  rejection-lab tune zoo_tuned_measured_1 zoo_tuned_measured_8 --check zoo_tuned_at_8 --check zoo_tuned_moving
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.cli.arguments import whole_number
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS, WRONG_SETTINGS
from harness.config.cli.settings_help import settings_help
from harness.config.schema import SettingsError, group_options
from harness.records.runs import RUNS, named

if TYPE_CHECKING:
    from harness.analysis.results import Results
    from harness.analysis.tuning.from_runs import Measured
    from harness.report.tuning import Tuned


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        "tune", __doc__, "[PATH .. | setting=value ..]", lambda: settings_help([*group_options(), ""])
    )
    parser.add_argument("--acceptance", type=Path, metavar="FILE", help="acceptance by position")
    parser.add_argument("--round-times", type=Path, metavar="FILE", help="round times by batch size and depth")
    parser.add_argument("--measure", metavar="NAME", help="measure and check; runs are NAME_measured_8, NAME_at_8, ..")
    held_out = "a run with the schedule and fixed depths on held-out load; may be given several times"
    parser.add_argument("--check", type=named, action="append", default=[], metavar="RUN", help=held_out)
    parser.add_argument("--loads", type=_numbers, default=(1, 8, 32), metavar="A,B", help="in flight (default: 1,8,32)")
    at_least = partial(whole_number, least=1)
    parser.add_argument("--repeats", type=at_least, default=5, metavar="N", help="of each load (default: %(default)s)")
    requests = "of a slot in a repeat, of a single slot twice as many (default: %(default)s)"
    parser.add_argument("--requests", type=at_least, default=20, metavar="N", help=requests)
    parser.add_argument("--fresh", action="store_true", help="with --measure: run every cell again")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to write (default: tuned/ of the run's)")
    return parser.call(_run, arguments, wrong_input=WRONG_SETTINGS)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(whole_number(part, least=1) for part in text.split(","))


def _run(options: argparse.Namespace) -> int:
    files = [path for path in (options.acceptance, options.round_times) if path is not None]
    if options.measure is not None:
        if files or options.check:
            raise SettingsError("--measure: expected no --acceptance, --round-times or --check beside it")
        found, folder = _measured_here(options)
    elif files:
        if len(files) != 2 or options.overrides or options.check:
            raise SettingsError("expected --acceptance and --round-times together, and no run or --check beside them")
        found, folder = _given(*files), Path("tuned")
    else:
        if not options.overrides:
            raise SettingsError("expected PATH, --acceptance and --round-times, or --measure NAME, found none of them")
        paths = [named(path) for path in options.overrides]
        found, folder = _of_runs(paths, options.check), paths[0] / "tuned"
    _write(found, options.output or folder, options.command)
    return SUCCESS


def _measured_here(options: argparse.Namespace) -> tuple[list[Tuned], Path]:
    from harness.checks.tune_depth import Loads, check, check_before, check_overrides, measure
    from harness.report.tuning import tuned_of

    loads = Loads(options.loads, options.repeats, options.requests)
    check_overrides(options.overrides)
    check_before(options.measure, options.overrides, loads)
    folders = measure(options.measure, options.overrides, loads, options.fresh)
    measured = _measured(folders)
    if len(measured) > 1:
        raise SettingsError(f"--measure: expected one temperature, drafter and workload, found {len(measured)} of them")
    held_out = check(options.measure, options.overrides, loads, measured[0], options.fresh)
    return [tuned_of(measured[0], held_out)], RUNS / f"{options.measure}_tuned"


def _of_runs(paths: Sequence[Path], checks: Sequence[Path]) -> list[Tuned]:
    from harness.analysis.tuning.held_out import check_apart, held_out_of
    from harness.analysis.tuning.schedule import Schedule
    from harness.report.tuning import tuned_of

    measured = _measured(paths)
    if checks and len(measured) > 1:
        raise SettingsError(f"--check: expected a run of one temperature, drafter and workload, found {len(measured)}")
    cells = [cell for check in checks for cell in _results(check).cells]
    held_out = held_out_of(cells, Schedule(measured[0].rates).text) if checks else []
    check_apart(measured[0].cells, held_out)
    return [tuned_of(each, held_out) for each in measured]


def _given(acceptance: Path, round_times: Path) -> list[Tuned]:
    from harness.analysis.tuning.from_files import read_measurements
    from harness.report.tuning import tuned_of

    return [tuned_of(each) for each in read_measurements(acceptance, round_times)]


def _measured(paths: Sequence[Path]) -> list[Measured]:
    from harness.analysis.tuning.from_runs import measured_of

    return measured_of([cell for path in paths for cell in _results(path).cells], across_runs=len(paths) > 1)


def _results(path: Path) -> Results:
    from harness.analysis.results import read_results

    results = read_results(path)
    say(*(f"note: {line}" for line in results.unreadable))
    return results


def _write(found: Sequence[Tuned], folder: Path, command: str) -> None:
    from harness.report.tuning import print_tuned, write_tuned

    for tuned in found:
        print_tuned(tuned)
    say(f"tuned: {', '.join(map(str, write_tuned(found, folder, command)))}")


if __name__ == "__main__":
    sys.exit(main())
