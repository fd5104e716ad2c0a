"""Compare the sampling kernels with the reference, decision by decision.

Runs the kernels and the float64 reference on the same inputs with the same random streams, counts the decisions and
tokens on which they differ, and shows for each whether it lies within float32 rounding of its boundary. Then measures
how far the law of a draw is from the softmax. With --fuzz it compares random calls instead, sound and misused ones.
Exits with 1 if a disagreement is not explained, if there are too many of them, or if a law is off. Needs a GPU; on a
CPU, --core says what is compared.

examples:
  rejection-lab agreement
  rejection-lab agreement --methods block --dtypes bfloat16 --decisions 1e7
  rejection-lab agreement --fuzz --fuzz-cases 1e4 --seed 1
  TRITON_INTERPRET=1 rejection-lab agreement --core triton --methods block --dtypes float32 --truncations none \\
    --temperatures 1 --vocab-size 1000 --requests 16 --decisions 100 --no-law
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.checks.agreement.config import AgreementConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("agreement", __doc__)
    parser.add_settings(AgreementConfig, "agreement")
    return parser.call(lambda options: run(options.settings), arguments)


def run(config: AgreementConfig) -> int:
    """Compare, print one line per combination and the verdict, and write the report."""
    say("loading PyTorch and the kernels")
    from harness.checks.agreement.law_run import measure_laws
    from harness.checks.agreement.report import headline, is_green, law_line, line, write
    from harness.checks.agreement.run import cases_of, compare_cases, tested_core

    core_name = tested_core(config).name
    if config.fuzz:
        return _fuzz(config)
    say(f"comparing core {core_name} in {len(cases_of(config))} cases; kernels are compiled on first use")
    results = compare_cases(config, lambda result: print(line(result), flush=True))
    laws = measure_laws(config, lambda result: print(law_line(result), flush=True)) if config.law else []
    page = write(config, core_name, results, laws, Path(config.output))
    print(headline(core_name, results, laws))
    say(f"report: {page}")
    return SUCCESS if is_green(results, laws) else FAILED


def _fuzz(config: AgreementConfig) -> int:
    from harness.checks.agreement.fuzz import run_fuzz
    from harness.checks.agreement.report import fuzz_line, is_green, write
    from harness.checks.agreement.run import device_of, tested_core

    core = tested_core(config)
    say(f"comparing core {core.name} in {config.fuzz_cases:,} random cases; kernels are compiled on first use")
    found = run_fuzz(config, core, device_of(config), lambda text: print(text, flush=True))
    page = write(config, core.name, [], [], Path(config.output), found)
    print(fuzz_line(found))
    say(f"report: {page}")
    return SUCCESS if is_green([], [], found) else FAILED


if __name__ == "__main__":
    sys.exit(main())
