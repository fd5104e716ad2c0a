"""python -m experiments.profile_round: where the time of one round of the local engine goes, beside its floor."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from harness.cli.command_line import SUCCESS, CommandParser, exit_code_of, settings_help
from harness.compose.run_plan import RunPlan, cell_table, made_folder
from harness.settings.schema import SettingsError, group_options

USAGE = """\
usage: python -m experiments.profile_round [experiment=NAME] [group=OPTION] [setting=VALUE] [--length N] [--repeats N]

Splits one round of the engine into draft, target, verify, extend (the drafter's part after verification), commit and
host, and compares it with its floor: the weights and cached keys and values that it must read, at the read bandwidth
measured in the same run, or its arithmetic at the matrix rate measured there, whichever takes longer. Takes the
settings of experiments.run that are listed below; a sweep gives several rows, and the autoregressive baseline is
added by itself. Every slot (backend.max_concurrency) decodes. Writes round_profile.md and round_profile.json to the
run's folder. On a CPU it shows that everything runs, and measures nothing.

options:
  --length N         tokens in each slot, at least 2; 256 unless given
  --repeats N        timed repeats of each piece, at least 2; 50 unless given
  --list, --dry-run  print the cells and stop
  --debug            a full traceback where otherwise one line says what is wrong
  -h, --help         this text
"""

EXAMPLES = """\
examples:
  python -m experiments.profile_round experiment=throughput_llama3_8b
  python -m experiments.profile_round experiment=throughput_llama3_8b backend.max_concurrency=1,16,64 --length 1024
  python -m experiments.profile_round drafter=eagle3,mtp backend.device=cpu --length 32 --repeats 3"""

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
OF_REPORTS = ("title", "shows", "does_not_show", "reference")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return exit_code_of(_main, arguments)


def _main(arguments: Sequence[str]) -> int:
    parser = CommandParser()
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--list", "--dry-run", action="store_true")
    options, overrides = parser.parse(arguments)
    if options.help:
        print("\n".join([USAGE, settings_help([*group_options(), "output", ""], takes), "", EXAMPLES]))
        return SUCCESS
    for name in ("length", "repeats"):
        if getattr(options, name) < 2:
            raise SettingsError(f"--{name}: expected 2 or more, found {getattr(options, name)}")
    plan = compose(overrides, shlex.join(["python", "-m", "experiments.profile_round", *arguments]))
    if options.list:
        print(cell_table(plan.cells))
        return SUCCESS
    return run(plan, options.length, options.repeats)


def compose(overrides: Sequence[str], command: str) -> RunPlan:
    """The cells that are asked for; raises SettingsError for wrong settings, or settings that mean nothing here."""
    from harness.compose.compose import compose_plan
    from harness.compose.overrides import read_overrides

    for key in read_overrides(overrides):
        reason = why_not_used(key)
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
    if key == "backend.prompt_tokens_beside_rounds":
        return ": no prompt is read beside the rounds that are timed"
    if key in OF_REPORTS:
        return ": it is about the reports of experiments.run"
    if key.startswith("measurement.") and key != "measurement.baseline":
        return "; of measurement only measurement.baseline is"
    return None


def run(plan: RunPlan, length: int, num_repeats: int) -> int:
    """Profile the cells of a plan; what is finished is written at once."""
    from harness.profiling.cells import CellProfile, profile_cells
    from harness.profiling.report import RoundResults, line, write_results

    for values, reason in plan.skipped:
        print(f"skipped {' '.join(f'{key}={value}' for key, value in values.items())}: {reason}", file=sys.stderr)
    finished: list[CellProfile] = []
    with made_folder(plan.folder):
        for done in profile_cells(plan.cells, length, num_repeats):
            finished.append(done)
            print(line(done, len(plan.cells)), flush=True)
            paths = write_results(RoundResults(plan, length, num_repeats, tuple(finished)), plan.folder)
    print(f"report: {', '.join(map(str, paths))}", file=sys.stderr)
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
