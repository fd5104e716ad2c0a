"""Show where the time of one round of the local engine goes, beside its lower bound.

Splits one round of the engine into draft, target, verify, extend (the drafter's part after verification), commit and
host, and compares it with its roofline: the weights and cached keys and values that it must read, at the read bandwidth
measured in the same run, or its arithmetic at the matrix rate measured there, whichever takes longer. Takes the
settings of `rejection-lab run` that are listed below; a sweep gives several rows, and the autoregressive baseline is
added by itself. Every slot (backend.max_concurrency) decodes. Writes round_profile.md and round_profile.json to the
run's folder. On a CPU it shows that everything runs, and measures nothing, with few tokens and repeats by default.

examples:
  rejection-lab profile experiment=throughput_llama3_8b
  rejection-lab profile experiment=throughput_llama3_8b backend.max_concurrency=1,16,64 --length 1024
  rejection-lab profile drafter=eagle3,mtp backend.device=cpu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from harness.config.cli.arguments import whole_number
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS
from harness.config.cli.settings_help import OVERRIDES, settings_help
from harness.config.device import asks_for_gpu
from harness.config.schema import SettingsError, group_options
from harness.runner.plan.run_plan import RunPlan, cell_table, made_folder

GIVEN_BY_LENGTH = (
    "decoding.max_new_tokens",
    "decoding.ignore_eos",
    "workload.num_requests",
    "workload.num_turns",
    "workload.prompt_tokens",
    "workload.request_rate",
    "workload.too_long",
)
"""Settings that a profile sets by itself: a prompt of one length for each slot."""
RANKS = "backend.tensor_parallel"
REFUSED = {
    "backend.prompt_tokens_beside_rounds": ": no prompt is read beside the rounds that are timed",
    RANKS: ": pieces of a round are timed on one rank; rejection-lab bench-ranks times whole rounds",
}
WhyRefused: TypeAlias = Callable[[str], str | None]
LENGTH, NUM_REPEATS = 256, 50
LENGTH_ON_A_CPU, NUM_REPEATS_ON_A_CPU = 32, 3
"""Defaults where nothing is measured, which show in seconds that everything runs."""
OF_REPORTS = ("title", "shows", "does_not_show", "reference", "output.tracking")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        "profile", __doc__, OVERRIDES, lambda: settings_help([*filter(takes, group_options()), "output", ""], takes)
    )
    at_least_2 = partial(whole_number, least=2)
    of_slot = f"tokens in each slot (default: {LENGTH}; {LENGTH_ON_A_CPU} where all cells are on a CPU)"
    parser.add_argument("--length", type=at_least_2, metavar="N", help=of_slot)
    of_piece = f"timed repeats of each piece (default: {NUM_REPEATS}; {NUM_REPEATS_ON_A_CPU} where all are on a CPU)"
    parser.add_argument("--repeats", type=at_least_2, metavar="N", help=of_piece)
    parser.add_argument("--list", "--dry-run", action="store_true", help="print the cells and stop")
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    plan = compose(options.overrides, options.command)
    if options.list:
        print(cell_table(plan.cells))
        return SUCCESS
    return run(plan, options.length, options.repeats)


def compose(overrides: Sequence[str], command: str, why_refused: WhyRefused | None = None) -> RunPlan:
    """The cells that are asked for; raises SettingsError for wrong settings, or settings that mean nothing here.

    why_refused: None takes `why_not_used`.
    """
    from harness.runner.plan.compose import compose_plan
    from harness.runner.plan.overrides import read_overrides

    for key in read_overrides(overrides):
        reason = (why_refused or why_not_used)(key)
        if reason is not None:
            raise SettingsError(f"{key} is not used here{reason}")
    return compose_plan(overrides, command)


def takes(key: str) -> bool:
    """Whether a profile has a use for a setting."""
    return why_not_used(key) is None


def why_not_used(key: str) -> str | None:
    """Why a profile refuses a setting, to follow what says so; None for one that it takes."""
    if key in GIVEN_BY_LENGTH:
        return ": every slot gets a prompt of one length (--length)"
    if key in REFUSED:
        return REFUSED[key]
    if key in OF_REPORTS:
        return ": it is about the reports of rejection-lab run"
    if key.partition(".")[0] == "launcher":
        return ": a profile is measured on this host"
    if key.startswith("measurement.") and key != "measurement.baseline":
        return "; of measurement only measurement.baseline is"
    return None


def run(plan: RunPlan, length: int | None, num_repeats: int | None) -> int:
    """Profile the cells of a plan; what is finished is written at once.

    Args:
        plan: the cells.
        length, num_repeats: as the options of the command; None takes the default of the cells' devices.
    """
    for values, reason in plan.skipped:
        say(f"skipped {' '.join(f'{key}={value}' for key, value in values.items())}: {reason}")
    with made_folder(plan.folder):
        say("loading PyTorch and the models")
        measures = any(asks_for_gpu(cell.backend.device) for cell in plan.cells)
        if length is None:
            length = LENGTH if measures else LENGTH_ON_A_CPU
        if num_repeats is None:
            num_repeats = NUM_REPEATS if measures else NUM_REPEATS_ON_A_CPU
        say(f"{len(plan.cells)} cells, {length} tokens in each slot, {num_repeats} repeats of each piece")
        from harness.checks.profiling.cells import CellProfile, profile_cells
        from harness.checks.profiling.report import RoundResults, line, write_results

        finished: list[CellProfile] = []
        for done in profile_cells(plan.cells, length, num_repeats):
            finished.append(done)
            print(line(done, len(plan.cells)), flush=True)
            paths = write_results(RoundResults(plan, length, num_repeats, tuple(finished)), plan.folder)
    say(f"report: {', '.join(map(str, paths))}")
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
