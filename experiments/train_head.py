"""Train a draft head for any target, on text that the target writes itself.

The target writes conversations, questions too unless workload.path gives some; a head learns to draft what it would
write, over several steps of a chain. Progress and acceptance on rows held out are printed as it goes, and the head is
written at every checkpoint: drafter.path=OUT/head. Ctrl-C ends a training after the step under way and saves it; the
same command goes on where an earlier run ended, with the text that is there. Acceptance is measured afterwards by
`rejection-lab run`, on other prompts.

Settings are `name=value`: those below, or target, backend.device, backend.dtype, workload and seed as `rejection-lab
run` has them.

examples:
  rejection-lab train-head target.path=FOLDER kind=eagle3 minutes=20 out=build/head backend.dtype=bfloat16
  rejection-lab train-head minutes=1 generate_minutes=0.5 length=128 rows_at_once=64 batch_rows=4 draft_vocab_size=1024
  rejection-lab run target.path=FOLDER drafter=eagle3 drafter.path=build/head/head
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.cell import CellConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import REQUEUE, SUCCESS
from harness.config.cli.settings_help import settings_help
from harness.config.schema import SettingsError, all_settings, did_you_mean, group_options
from harness.runner.stop_signals import StoppedBySignal
from harness.training.settings import BUILT_IN, HeadTraining

if TYPE_CHECKING:
    from harness.config.models import TargetConfig
    from harness.models.eagle3 import Eagle3Head
    from harness.models.target import TargetModel
    from harness.training.run_folder import Progress
    from harness.training.sampler import Segments

SECTIONS = ("target", "backend", "workload", "seed")
BACKEND = ("backend.device", "backend.dtype", "backend.fused")
WORKLOAD = ("workload.path", "workload.layout")
OWN = tuple(field.name for field in fields(HeadTraining))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        "train-head", __doc__, "[setting=VALUE ..]", lambda: settings_help([*SECTIONS[:3], ""], _takes)
    )
    parser.add_settings(HeadTraining, "training")
    given = sys.argv[1:] if arguments is None else arguments
    return parser.call(_run, [_flag(argument) for argument in given])


def _flag(argument: str) -> str:
    """A setting of the training, `minutes=20`, as the flag that the parser knows."""
    name, equals, value = argument.partition("=")
    if not equals or name not in OWN:
        return argument
    if value in ("true", "false") and isinstance(getattr(HeadTraining, name), bool):
        return f"--{name.replace('_', '-')}" if value == "true" else f"--no-{name.replace('_', '-')}"
    return f"--{name.replace('_', '-')}={value}"


def _takes(key: str) -> bool:
    section = key.partition(".")[0]
    return key in (*BACKEND, *WORKLOAD, "seed") or section == "target"


def _run(options: argparse.Namespace) -> int:
    settings: HeadTraining = options.settings
    cell = compose_cell(options.overrides, settings)
    check_questions(cell, settings)
    say("loading PyTorch and the target")
    from harness.runner.cpu_threads import choose_threads

    choose_threads([cell])
    import torch

    from harness.config.device import resolve_device
    from harness.training.interrupts import raised_at_once
    from harness.training.ranks import run_together
    from harness.training.run_folder import Progress, check_folder
    from harness.training.train_head import HeadRun, loss_of

    loss_of(settings)  # before text is written
    check_folder(settings, named(cell.target))
    device = resolve_device(cell.local.device)
    num_devices = torch.cuda.device_count()
    if device.type == "cuda" and settings.processes > num_devices:
        raise SettingsError(f"processes: expected at most {num_devices}, the GPUs here, found {settings.processes}")
    found = Progress.of(settings)
    if found.num_tokens:
        say(f"{settings.out}: goes on with {found.num_tokens:,} tokens of text and {found.num_steps:,} steps")
    if device.type == "cpu":
        _check_on_cpu(cell, settings)
    Path(settings.out).mkdir(parents=True, exist_ok=True)
    loads, given = partial(load, cell), partial(segments, cell, settings)
    start = partial(load_start, cell) if settings.start else None
    work = HeadRun(settings, cell.seed, loads, given, time.monotonic(), named(cell.target), start)
    try:
        with raised_at_once():
            run_together(settings.processes, work)
    except KeyboardInterrupt as stop:
        kept = _interrupted(Progress.of(settings))
        say(kept)
        if isinstance(stop, StoppedBySignal) and not stop.is_key:
            raise SystemExit(REQUEUE) from stop
        stop.args = (kept,)
        raise
    return SUCCESS


def _interrupted(kept: Progress) -> str:
    """What a run that was interrupted has kept, in words."""
    if kept.num_steps:
        return f"interrupted at step {kept.num_steps:,}; the same command goes on"
    text = f", with the {kept.num_tokens:,} tokens of text that are whole" if kept.num_tokens else ""
    return f"interrupted; the same command goes on{text}"


def check_names(arguments: Sequence[str]) -> None:
    """Raise SettingsError for a setting that the command does not take, by name alone."""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        key = name.lstrip("+~")
        if not equals or _takes(key):
            continue
        elsewhere = [*all_settings(), *group_options()]
        hint = did_you_mean(key, [*OWN, *filter(_takes, elsewhere)])
        what = f"{key} is not used here" if key in elsewhere else f"unknown setting {key!r}"
        raise SettingsError(
            f"{what}{hint}; there are {', '.join((*OWN, 'target', *BACKEND, *WORKLOAD, 'seed'))} "
            "(train-head --help says what each means)"
        )


def _check_on_cpu(cell: CellConfig, settings: HeadTraining) -> None:
    """Refuse what a CPU has no room or no time for, and say what takes long; nothing is loaded."""
    import torch

    from harness.backends.local.model_store import target_of
    from harness.config.device import resolve_dtype
    from harness.models.meta import META
    from harness.training.cpu_time import check_on_cpu, matrix_rate

    target = target_of(cell.target, META, resolve_dtype(cell.local.dtype, torch.device("cpu")))
    start = load_start(cell, target) if settings.start else None
    note = check_on_cpu(settings, target, target.dtype, matrix_rate(target.dtype), start)
    if note is not None:
        say(f"note: {note}")


def compose_cell(overrides: Sequence[str], settings: HeadTraining) -> CellConfig:
    """The cell whose target is trained for, with the head to begin with as its drafter.

    Raises:
        SettingsError: for wrong settings, a sweep, settings that mean nothing here, or a head that cannot be read.
    """
    from harness.runner.plan.compose import compose_plan
    from harness.runner.plan.overrides import read_overrides

    check_names(overrides)
    for key, item in read_overrides(overrides).items():
        if item.is_sweep:
            raise SettingsError(f"{key}: expected one value, found {len(item.values)}; a run trains one head")
    drafter = [f"drafter={settings.kind.value if settings.start else 'none'}", "measurement.baseline=false"]
    if settings.start not in ("", BUILT_IN):
        drafter.append(f"drafter.path={settings.start}")
    try:
        cell = compose_plan([*overrides, *drafter]).cells[0]
    except SettingsError as error:
        raise SettingsError(str(error).replace("drafter.path", "start")) from error
    check_positions(cell, settings)
    return cell


def check_positions(cell: CellConfig, settings: HeadTraining) -> None:
    """Raise SettingsError where rows are longer than the positions of the head to begin with."""
    from harness.models.described import described_folder
    from harness.models.zoo import zoo_path

    if not settings.start:
        return
    path = cell.drafter.path
    described = described_folder(zoo_path(settings.kind.value) if path is None else Path(path))
    # a file need not name them
    most = 0 if described is None else described.num_positions
    if 0 < most < settings.length:
        raise SettingsError(
            f"length: expected at most {most}, the positions of start={settings.start}, found {settings.length}"
        )


def named(target: TargetConfig) -> dict[str, str | None]:
    """What names a target, wherever the command is called from."""
    path = target.path
    if path is not None and Path(path).expanduser().exists():
        path = str(Path(path).expanduser().resolve())
    return {"path": path, "revision": target.revision, "weights": target.weights.value, "shape": target.shape}


def load(cell: CellConfig, writes_text: bool) -> TargetModel:
    """The target of a cell, on this process's device; to write text with its layers fused, as the engine has them."""
    from harness.backends.local.model_store import Models, Wish
    from harness.config.device import resolve_device, resolve_dtype

    device = resolve_device(cell.local.device)
    fusion = Wish.of(cell.local.fused, device) if writes_text else Wish.no
    return Models(cell.target, device, resolve_dtype(cell.local.dtype, device), fusion).target


def load_start(cell: CellConfig, target: TargetModel) -> Eagle3Head:
    """The head of a cell, frozen.

    Raises:
        ValueError: its files do not fit the kind or the target.
    """
    from harness.drafters.registry import load_head
    from harness.models.eagle3 import Eagle3Head

    loaded = load_head(cell.drafter, target)
    assert loaded is not None and isinstance(loaded.head, Eagle3Head)
    return loaded.head


def check_questions(cell: CellConfig, settings: HeadTraining) -> None:
    """Raise SettingsError for settings of questions that the target writes, where files give the questions."""
    for name in ("question_tokens", "question_temperature"):
        found = getattr(settings, name)
        if cell.workload.paths and found != getattr(HeadTraining, name):
            raise SettingsError(f"{name}: expected none beside workload.path, which gives the questions, found {found}")


def segments(cell: CellConfig, settings: HeadTraining, target: TargetModel, tell: Callable[[str], None]) -> Segments:
    """What is given of the conversations: prompts of the workload's files, or what lies around questions.

    tell: takes notes on what of the files is not used.
    """
    from harness.config.models import require
    from harness.config.workload import History
    from harness.training.chat_segments import given_prompts, self_written
    from harness.workload.chat import encode_prompt
    from harness.workload.prompt_files import read_files

    if not cell.workload.paths:
        return self_written(
            target.tokenizer,
            target.eos_token_ids,
            temperature=settings.question_temperature,
            question_tokens=settings.question_tokens,
            answer_tokens=settings.answer_tokens,
        )
    prompts = read_files(cell.workload.paths, cell.workload.layout, History.generated)
    encoded = [encode_prompt(target.tokenizer, prompt, []).token_ids for prompt in prompts]
    most = settings.length // 2
    kept = [ids for ids in encoded if len(ids) <= most]
    require(bool(kept), "workload.path", f"prompts of at most {most} tokens, half a row", "none")
    left_out = len(encoded) - len(kept)
    if left_out:
        tell(f"note: {left_out} of {len(encoded)} prompts are left out, of more than {most} tokens, half a row")
    later = sum(len(prompt.turns) > 1 for prompt in prompts)
    if later:
        tell(f"note: of {later} of {len(prompts)} conversations only the first turn is asked")
    end_id = min(target.eos_token_ids)
    return given_prompts(kept, stride=settings.rows_at_once, answer_tokens=settings.answer_tokens, end_id=end_id)


if __name__ == "__main__":
    sys.exit(main())
