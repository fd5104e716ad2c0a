"""Convert acceptance numbers of other tools into this project's definitions.

Reads logs, pages of counters, answers and benchmark results of vLLM, SGLang, TensorRT-LLM, llama.cpp, EAGLE,
Spec-Bench, SpecForge, speculators, aiperf and guidellm, tells the format by the content, and prints acceptance rate,
mean acceptance length and acceptance by position as tables/cells.csv defines them. Every number says whether the file
counts it (measured), whether it follows from others (derived, with the formula), or why it cannot be had. Intervals
only where a file has counts by request. --formats lists what is read, by which source, and which formats were not
seen run.

examples:
  rejection-lab convert server.log
  rejection-lab convert --before metrics_before.txt metrics_after.txt
  rejection-lab convert vllm_bench.json sglang_bench.jsonl trtllm_report.json --output converted
  rejection-lab convert --as sglang_log --num-speculative-tokens 3 server.log
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS, WRONG_SETTINGS
from harness.config.schema import SettingsError

STEM = "converted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("convert", __doc__, "FILE...")
    parser.add_argument("files", type=Path, metavar="FILE", nargs="*", help="what another tool wrote")
    form = "PACKAGE.MODULE:CLASS"
    parser.add_argument(
        "--as", dest="format", metavar="NAME", help=f"the format, if the content leaves it open, or {form} of your own"
    )
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="an earlier page of the same counters: the difference is converted"
    )
    depth = "K of the run, where the file does not say it: draft tokens that a draft has at most"
    parser.add_argument("--num-speculative-tokens", type=int, metavar="K", help=depth)
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help=f"also write {STEM}.md, .html, .tex, .csv and .json"
    )
    parser.add_argument("--formats", action="store_true", help="list the formats that are read, and stop")
    return parser.call(_run, arguments, wrong_input=WRONG_SETTINGS)


def _run(options: argparse.Namespace) -> int:
    if options.formats:
        _print_formats()
        return SUCCESS
    depth = options.num_speculative_tokens
    if not options.files:
        raise SettingsError("expected FILE, found none; --formats lists what is read")
    if depth is not None and depth < 1:
        raise SettingsError(f"--num-speculative-tokens: expected 1 or more, found {depth}")
    if options.before is not None and len(options.files) > 1:
        raise SettingsError(f"--before: expected one FILE to compare it with, found {len(options.files)}")
    from harness.backends.foreign.convert import convert
    from harness.report.console import print_document
    from harness.report.converted import converted_document, numbers_content, numbers_csv
    from harness.report.document import write_report
    from harness.report.files import json_text

    runs = [run for path in options.files for run in convert(path, options.format, options.before, depth)]
    document = converted_document(runs)
    print_document(document)
    if options.output is not None:
        beside = {f"{STEM}.csv": numbers_csv(runs), f"{STEM}.json": json_text(numbers_content(runs))}
        say(f"report: {write_report(document, options.output, STEM, beside)[0]}")
    return SUCCESS


def _print_formats() -> None:
    from harness.backends.foreign.formats import FormatKind

    for kind in FormatKind:
        item = kind.named
        print(f"{kind.value}: {item.title}")
        seen = f"run against output of {item.seen}" if item.seen else "not seen run"
        print(f"    by its source, {item.source}; {seen}")


if __name__ == "__main__":
    sys.exit(main())
