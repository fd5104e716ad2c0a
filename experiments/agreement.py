"""python -m experiments.agreement: compare the sampling kernels with the reference, decision by decision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.agreement.config import PREFIX, AgreementConfig
from harness.cli.command import PlainCommand
from harness.cli.command_line import FAILED, SUCCESS

USAGE = """\
usage: python -m experiments.agreement [agreement.setting=VALUE ..] [--debug]

Runs the kernels and the float64 reference on the same inputs with the same random streams, counts the decisions and
tokens on which they differ, and shows for each whether it lies within float32 rounding of its boundary. Then measures
how far the law of a draw is from the softmax. Exits with 1 if a disagreement is not explained, if there
are too many of them, or if a law is off. Needs a GPU; on a CPU say what is compared with agreement.core.
"""

EXAMPLES = """\
examples:
  python -m experiments.agreement
  python -m experiments.agreement agreement.methods=block agreement.dtypes=bfloat16 agreement.decisions=1e7
  TRITON_INTERPRET=1 python -m experiments.agreement agreement.core=triton agreement.methods=block \\
    agreement.dtypes=float32 agreement.truncations=none agreement.temperatures=1 agreement.vocab_size=1000 \\
    agreement.requests=16 agreement.decisions=100 agreement.law=false"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return PlainCommand(AgreementConfig, PREFIX, USAGE, EXAMPLES).call(run, arguments)


def run(config: AgreementConfig) -> int:
    """Compare, print one line per combination and the verdict, and write the report."""
    from harness.agreement.law_run import measure_laws
    from harness.agreement.report import headline, is_green, law_line, line, write_report
    from harness.agreement.run import cells_of, compare_cells, tested_core

    core_name = tested_core(config).name
    print(f"comparing core {core_name} in {len(cells_of(config))} combinations", file=sys.stderr, flush=True)
    results = compare_cells(config, lambda result: print(line(result), flush=True))
    laws = measure_laws(config, lambda result: print(law_line(result), flush=True)) if config.law else []
    page = write_report(config, core_name, results, laws, Path(config.output))
    print(headline(core_name, results, laws))
    print(f"report: {page}", file=sys.stderr)
    return SUCCESS if is_green(results, laws) else FAILED


if __name__ == "__main__":
    sys.exit(main())
