"""python -m experiments.agreement: compare the sampling kernels with the reference, decision by decision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.agreement.config import AgreementConfig, read_config
from harness.command_line import FAILED, SUCCESS, CommandParser, exit_code_of

USAGE = """\
usage: python -m experiments.agreement [agreement.setting=VALUE ..] [--debug]

Runs the kernels and the float64 reference on the same inputs with the same random streams, counts the decisions and
tokens on which they differ, and shows for each whether it lies within float32 rounding of its boundary. Then measures
how far the law of a draw is from the softmax. Exits with 1 if a disagreement is not explained or a law is off.

settings:
  agreement.core=auto|triton|reference     auto: Triton on a GPU; Triton on a CPU needs TRITON_INTERPRET=1
  agreement.device=auto|cpu|cuda           auto takes a GPU where there is one
  agreement.methods=strict,block           verification methods; all but greedy unless given
  agreement.dtypes=bfloat16,float32        of the logits; bfloat16, float16 and float32 unless given
  agreement.truncations=none,top-p         none, top-p, top-k, min-p, all; all of these unless given
  agreement.temperatures=0.7,1             0.7 and 1 unless given
  agreement.decisions=N                    at least so many in all, spread over the combinations
  agreement.vocab_size=N, agreement.requests=N, agreement.draft_tokens=N
  agreement.law=true|false                 whether the law of a draw is measured
  agreement.law_vocab_size=N, agreement.law_draws=N
  agreement.seed=N                         of all logits and random streams
  agreement.output=FOLDER                  for report.md and agreement.json; results/runs/agreement unless given

examples:
  python -m experiments.agreement
  python -m experiments.agreement agreement.methods=block agreement.dtypes=bfloat16 agreement.decisions=1e7"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return exit_code_of(lambda: _main(arguments), "--debug" in arguments)


def _main(arguments: Sequence[str]) -> int:
    options, settings = CommandParser().parse(arguments)
    if options.help:
        print(USAGE)
        return SUCCESS
    return run(read_config(settings))


def run(config: AgreementConfig) -> int:
    """Compare, print one line per combination and the verdict, and write the report."""
    from harness.agreement.law_run import measure_laws
    from harness.agreement.report import headline, is_green, law_line, line, write_report
    from harness.agreement.run import compare_cells, tested_core

    results = compare_cells(config, lambda result: print(line(result), flush=True))
    laws = measure_laws(config, lambda result: print(law_line(result), flush=True)) if config.law else []
    page = write_report(config, tested_core(config).name, results, laws, Path(config.output))
    print(headline(results, laws))
    print(f"report: {page}", file=sys.stderr)
    return SUCCESS if is_green(results, laws) else FAILED


if __name__ == "__main__":
    sys.exit(main())
