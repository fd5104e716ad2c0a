"""Time the sampling core beside the bytes that it must move.

Times verification and drawing on rows like a language model's: CUDA graph, cold L2, medians and quartiles, beside the
bytes that must move and the read bandwidth measured in the same run. A case is timed only after the core has agreed
with the reference on it; if it does not, nothing is reported. Exits with 1 if a case failed. Needs a GPU.

examples:
  rejection-lab bench
  rejection-lab bench --preset full --output results/kernel_bench_h200
  rejection-lab bench --preset smoke --device cpu --repeats 3
  rejection-lab bench --case "probabilistic R=16 K=3 V=128256 bfloat16 T=0.7 acceptance=mid" --no-peers
  rejection-lab bench --history results/kernel_bench_h200/history.csv --against 1b04aa4
  rejection-lab bench --redraw FOLDER --history results/kernel_bench_h200/history.csv --against 1b04aa4
  rejection-lab bench --preset full --list
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.checks.kernel_bench.config import BenchConfig
from harness.checks.kernel_bench.records import KernelResults
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("bench", __doc__)
    again = "make tables and figure again from the results in a folder, without a GPU"
    parser.add_argument("--redraw", type=Path, metavar="FOLDER", help=again)
    slower = (
        "name the cases that take longer than at this commit of --history by more than their scatter, and those that "
        "one side lacks; exits with 1 if any is slower. Times of one model of GPU are compared"
    )
    parser.add_argument("--against", default="", metavar="COMMIT", help=slower)
    parser.add_argument("--list", action="store_true", help="print the names of the preset's cases and measure nothing")
    parser.add_settings(BenchConfig, "bench")
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.list:
        from harness.checks.kernel_bench.cases import chosen_cases

        print(*[case.name for case in chosen_cases(options.settings)], sep="\n")
        return SUCCESS
    if options.redraw is None:
        return run(options.settings, options.against)
    return redraw(options.redraw, options.settings, options.against)


def run(config: BenchConfig, against: str = "") -> int:
    """Measure, write the results, report them; compare them with those of a commit."""
    _check_history(config, against)
    say("loading PyTorch and the kernels; each is compiled on first use")
    from harness.checks.kernel_bench.bench import device_name, run_bench
    from harness.checks.kernel_bench.history import commit_in, read_history
    from harness.checks.kernel_bench.records import write_results

    if against:
        commit_in(read_history(Path(config.history)), against, device_name(config))
    results = run_bench(config, lambda line: print(line, flush=True))
    folder = Path(config.output)
    write_results(results, folder)
    report(folder)
    if results.num_failed:
        say(f"{results.num_failed} measurements failed; the report says why")
    slower = compare(results, config, against) if config.history else []
    return FAILED if results.num_failed or slower else SUCCESS


def redraw(folder: Path, config: BenchConfig, against: str = "") -> int:
    """Report the results in a folder again; compare them with those of a commit."""
    from harness.checks.kernel_bench.records import read_results

    _check_history(config, against)
    report(folder)
    return FAILED if config.history and compare(read_results(folder), config, against) else SUCCESS


def _check_history(config: BenchConfig, against: str) -> None:
    if against and not config.history:
        raise ValueError("--against: expected --history FILE beside it, found none")


def compare(results: KernelResults, config: BenchConfig, against: str) -> list[str]:
    """Write the results into the history; prints and returns what is slower than at the commit, if one is given."""
    from harness.checks.kernel_bench.history import add_to_history, commit_in, compared, lines_of, read_history

    path, now = Path(config.history), lines_of(results)
    if not against:
        add_to_history(results, path)
        return []
    history = read_history(path)
    commit = commit_in(history, against, results.machine.device)
    found = compared(commit, now, history, {each.case.name for each in results.measurements})
    add_to_history(results, path)
    for line in (*(f"slower: {each}" for each in found.slower), *found.missing):
        print(line)
    say(f"{len(found.slower)} of {found.num_compared} cases are slower than at {commit}")
    return found.slower


def report(folder: Path) -> None:
    """Tables and figure from the results in a folder; prints what was measured and names the files."""
    from harness.checks.kernel_bench.records import read_results
    from harness.checks.kernel_bench.report import summary, write

    results = read_results(folder)
    paths = write(results, folder)
    print(summary(results))
    say(f"report: {', '.join(str(path) for path in paths)}")
    try:
        from harness.checks.kernel_bench.figure import write_figure

        say(f"figure: {write_figure(results, folder)}")
    except ImportError as error:
        say(f"no figure ({error}); where it is installed: rejection-lab bench --redraw {folder}")


if __name__ == "__main__":
    sys.exit(main())
