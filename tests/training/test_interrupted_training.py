"""Signals end a training in order: what was learnt or written is kept, and the same command goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from harness.config.cli.ending import INTERRUPTED, REQUEUE
from harness.training.rows import RowFiles
from tests.support.own_process import ROOT

GIVEN = (
    "backend.device=cpu",
    "length=48",
    "rows_at_once=20",
    "batch_rows=2",
    "draft_vocab_size=64",
    "question_tokens=12",
    "answer_tokens=12",
    "num_unrolled=2",
    "log_seconds=0",
    "checkpoint_seconds=1e9",
)
PROGRAM = (
    "import signal, sys\n"
    # a job in the background of a shell ignores it
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from experiments.__main__ import main\n"
    "if __name__ == '__main__': sys.exit(main(['train-head', *sys.argv[1:]]))\n"
)


@contextmanager
def training(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, with a file for what it writes to standard error."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), *GIVEN, *arguments, f"out={folder / 'out'}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        yield process
        process.kill()


def wait_for(process: subprocess.Popen[str], pattern: str) -> None:
    """Read its lines until one matches."""
    assert process.stdout is not None
    assert any(re.match(pattern, line) for line in process.stdout), "it ended before"


@pytest.mark.parametrize(
    ("number", "code", "processes"),
    [(signal.SIGINT, INTERRUPTED, 1), (signal.SIGTERM, REQUEUE, 2)],
)
def test_an_interrupted_training_is_saved_between_steps(
    number: signal.Signals, code: int, processes: int, tmp_path: Path
) -> None:
    """Would catch steps that are lost since the last checkpoint, and the exit code of a failure."""
    with training(tmp_path, "tokens=960", "steps=300", f"processes={processes}") as process:
        wait_for(process, r"step 2,")
        process.send_signal(number)
        assert process.stdout is not None
        told = process.stdout.read()
        assert process.wait() == code, (tmp_path / "errors").read_text()
    step = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["state"]["index"]
    lines = (tmp_path / "errors").read_text().splitlines()
    assert lines[-1] == f"interrupted at step {step:,}; the same command goes on" and step >= 2
    assert "Traceback" not in "".join(lines) and "done" not in told
    assert json.loads((tmp_path / "out" / "head" / "config.json").read_text())["draft_vocab_size"] == 64
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_an_interrupt_keeps_the_batches_of_text_that_are_whole(tmp_path: Path) -> None:
    with training(tmp_path, "tokens=1000000000") as process:
        wait_for(process, r"text: 1,920 tokens")
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == INTERRUPTED
    rows = RowFiles(tmp_path / "out" / "rows")
    told = (tmp_path / "errors").read_text().splitlines()[-1]
    kept = f"interrupted; the same command goes on, with the {48 * rows.num_rows:,} tokens of text that are whole"
    assert told == kept and rows.num_rows >= 40
    assert len(list(rows.folder.iterdir())) == len(rows.numbers)
