"""python -m experiments.bench_kernels: time the sampling core beside the bytes that it must move."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.arguments import read_plain_settings
from harness.cli.command_line import FAILED, SUCCESS, CommandParser, exit_code_of, plain_settings_help
from harness.kernel_bench.config import PREFIX, BenchConfig

USAGE = """\
usage: python -m experiments.bench_kernels [bench.setting=VALUE ..] [--redraw FOLDER] [--debug]

Times verification and drawing on rows like a language model's: CUDA graph, cold L2, medians and quartiles, beside the
bytes that must move and the read bandwidth measured in the same run. A case is timed only after the core has agreed
with the reference on it; if it does not, nothing is reported. Exits with 1 if a case failed. Needs a GPU.

options:
  --redraw FOLDER  make tables and figure again from the results in a folder, without a GPU
  --debug          a full traceback where otherwise one line says what is wrong
  -h, --help       this text
"""

EXAMPLES = """\
examples:
  python -m experiments.bench_kernels
  python -m experiments.bench_kernels bench.preset=full bench.output=results/kernel_bench_h200
  python -m experiments.bench_kernels bench.preset=smoke bench.device=cpu bench.repeats=3"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return exit_code_of(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = CommandParser()
    parser.add_argument("--redraw", type=Path)
    options, settings = parser.parse(arguments)
    if options.help:
        print("\n".join([USAGE, plain_settings_help(BenchConfig, PREFIX), "", EXAMPLES]))
        return SUCCESS
    if options.redraw is not None:
        report(options.redraw)
        return SUCCESS
    return run(read_plain_settings(BenchConfig, PREFIX, settings))


def run(config: BenchConfig) -> int:
    """Measure, write the results, report them."""
    from harness.kernel_bench.bench import run_bench
    from harness.kernel_bench.records import write_results

    results = run_bench(config, lambda line: print(line, flush=True))
    folder = Path(config.output)
    write_results(results, folder)
    report(folder)
    if results.num_failed:
        print(f"{results.num_failed} measurements failed; the report says why", file=sys.stderr)
    return FAILED if results.num_failed else SUCCESS


def report(folder: Path) -> None:
    """Tables and figure from the results in a folder; prints the goals and names the files."""
    from harness.kernel_bench.records import read_results
    from harness.kernel_bench.report import summary, write_report

    results = read_results(folder)
    paths = write_report(results, folder)
    print(summary(results))
    print(f"report: {', '.join(str(path) for path in paths)}", file=sys.stderr)
    try:
        from harness.kernel_bench.figure import write_figure

        print(f"figure: {write_figure(results, folder)}", file=sys.stderr)
    except ImportError as error:
        print(f"no figure ({error}); where it is installed: bench_kernels --redraw {folder}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
