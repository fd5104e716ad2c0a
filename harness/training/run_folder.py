"""The folder of a training run: names of its files, what was asked for when it began, and how far it is.

target.json says whose text it is, text.json how much was asked for and how long writing took, rows/ has the text,
checkpoint.pt weights and optimizer, head/ the head. Each file is whole, or the one before.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.config.schema import SettingsError
from harness.training.rows import RowFiles
from harness.training.settings import HeadTraining, Output

CHECKPOINT, HEAD, LOG, ROWS, TARGET, TEXT = "checkpoint.pt", "head", "log.jsonl", "rows", "target.json", "text.json"
FIXED = (
    "kind",
    "start",
    "length",
    "num_unrolled",
    "draft_vocab_size",
    "output",
    "intermediate_size",
    "loss",
    "late_cross_entropy",
    "temperatures",
    "batch_rows",
)
"""Settings that a run keeps when it goes on; by the last two rows are held out."""


class Progress(NamedTuple):
    """How far a run is, by its folder."""

    num_tokens: int
    """Of text."""
    num_steps: int

    @classmethod
    def of(cls, settings: HeadTraining) -> Progress:
        folder = Path(settings.out)
        content = _checkpoint(folder, maps=True)
        num_steps = 0 if content is None else int(content["state"]["index"])
        return cls(RowFiles(folder / ROWS).num_rows * settings.length, num_steps)


@dataclass(frozen=True)
class TextBudget:
    """The text of a run: what was asked for, and the time that writing it took, of all runs together."""

    tokens: int = 0
    generate_minutes: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(cls, folder: Path) -> TextBudget | None:
        """That of a folder; None without one."""
        path = folder / TEXT
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def write(self, folder: Path) -> None:
        _write_json(folder / TEXT, asdict(self))

    def asking(self, settings: HeadTraining, has_steps: bool) -> TextBudget:
        """This with what is asked for now; of a head in training the most that ever was."""
        tokens, minutes = settings.tokens, settings.generate_minutes
        if has_steps:
            tokens, minutes = max(tokens, self.tokens), max(minutes, self.generate_minutes)
        return replace(self, tokens=tokens, generate_minutes=minutes)


def reason_for_no_text(settings: HeadTraining) -> str | None:
    """Why the target writes nothing more for a run, in words; None where it does.

    What is asked for is written once: time counts in all runs together, and a head in training gets more text only
    where more is asked for than before.
    """
    found, budget = Progress.of(settings), TextBudget.of(Path(settings.out))
    if not found.num_tokens:
        return None
    if found.num_tokens >= settings.tokens:
        return f"all of {settings.tokens:,} tokens are written"
    if found.num_steps and (
        budget is None or (settings.tokens <= budget.tokens and settings.generate_minutes <= budget.generate_minutes)
    ):
        return "the head is in training; ask for more tokens or generate_minutes to add some"
    seconds = 0.0 if budget is None else budget.seconds
    per_batch = seconds * settings.processes * settings.rows_at_once * settings.length / found.num_tokens
    if seconds + per_batch > 60 * settings.generate_minutes:
        return (
            f"writing took {seconds / 60:.1f} minutes, and more of it does not fit into "
            f"generate_minutes={settings.generate_minutes:g}; give more minutes to add some"
        )
    return None


def check_folder(settings: HeadTraining, target: dict[str, str | None]) -> None:
    """Whether a run can go on in its folder; nothing is written.

    Raises:
        SettingsError: the folder is that of another target, or the run was begun with other settings.
    """
    folder = Path(settings.out)
    path = folder / TARGET
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in target if before.get(name) != target[name]]
        if differing:
            began, found = (
                ", ".join(f"target.{name}={each.get(name) or 'null'}" for name in differing)
                for each in (before, target)
            )
            raise SettingsError(
                f"{path}: expected the target that this run began with, {began}, found {found}; or choose another "
                "folder (out)"
            )
    content = _checkpoint(folder, maps=True)
    if content is not None:
        _check_settings(content, settings)


def note_target(folder: Path, target: dict[str, str | None]) -> None:
    """Note whose text a folder holds; every process of a run notes the same."""
    if not (folder / TARGET).is_file():
        _write_json(folder / TARGET, target)


def fixed(settings: HeadTraining) -> dict[str, Any]:
    """What must be the same when a run goes on."""
    values = asdict(settings)
    return {name: value.value if isinstance(value := values[name], Enum) else value for name in FIXED}


def save_checkpoint(folder: Path, content: dict[str, Any]) -> None:
    """Write the checkpoint of a run; it is whole, or the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{CHECKPOINT}"
    torch.save(content, unfinished)
    os.replace(unfinished, folder / CHECKPOINT)


def load_checkpoint(settings: HeadTraining) -> dict[str, Any] | None:
    """The checkpoint of a run; None without one.

    Raises:
        SettingsError: the run was begun with other settings.
    """
    content = _checkpoint(Path(settings.out))
    if content is not None:
        _check_settings(content, settings)
    return content


def _checkpoint(folder: Path, maps: bool = False) -> dict[str, Any] | None:
    """What the checkpoint holds; maps: its tensors stay in the file until they are read."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=maps)
    return content


def _check_settings(content: dict[str, Any], settings: HeadTraining) -> None:
    before, now = content["settings"], fixed(settings)
    differing = [name for name in FIXED if before.get(name) != now[name]]
    if settings.output is Output.target and differing == ["draft_vocab_size"]:
        return  # no weight depends on it
    if differing:
        began, found = (", ".join(f"{name}={each.get(name)}" for name in differing) for each in (before, now))
        raise SettingsError(
            f"{Path(settings.out) / CHECKPOINT}: expected what this run began with, {began}, found {found}; or choose "
            "another folder (out)"
        )


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)
