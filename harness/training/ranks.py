"""Processes that train one head together, each on a device of its own."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from harness.runner.stop_signals import StopSignals

_TIMEOUT = timedelta(minutes=20)
_POLL_S = 0.5


class Ranks:
    """One process among those that train together; alone it agrees with itself."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank, self.number = rank, number

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def agree(self, value: float) -> float:
        """The value of the first process."""
        if self.number == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(shared, 0)
        return shared.item()

    def share(self, module: nn.Module) -> None:
        """Let all begin with the parameters of the first."""
        if self.number > 1:
            for parameter in module.parameters():
                distributed.broadcast(parameter.data, 0)

    def average(self, module: nn.Module) -> None:
        """Average the gradients, in one message."""
        if self.number == 1:
            return
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(joined)
        joined /= self.number
        parts = joined.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def wait(self) -> None:
        """Until all have come here."""
        if self.number > 1:
            distributed.all_reduce(torch.zeros(1))


Work = Callable[[Ranks], None]


def run_together(number: int, work: Work) -> None:
    """Run something in so many processes; one runs here. What one raises ends all.

    A signal for this process ends the first of several as it is told to, and with it all; Ctrl-C again kills them.

    Args:
        work: can be pickled; gets its place among them, with its GPU chosen where there are some.

    Raises:
        StoppedBySignal: several were ended by a signal.
    """
    if number == 1:
        work(Ranks(0, 1))
        return
    with tempfile.TemporaryDirectory() as folder:
        given = number, str(Path(folder) / "meeting"), work
        signals = StopSignals()
        with signals.caught():
            context = torch.multiprocessing.spawn(_joined, given, number, join=False)
            _join(context, signals)


def _join(context: Any, signals: StopSignals) -> None:
    """Wait for processes, and pass a signal on to the first of them."""
    first, is_told = context.processes[0], False
    try:
        while not context.join(timeout=_POLL_S):
            if signals.first is not None and not is_told:
                is_told = True
                os.kill(first.pid, signal.SIGTERM)
            if signals.is_at_once:
                for process in context.processes:
                    process.kill()
    except (ProcessExitedException, ProcessRaisedException):
        # others cannot go on without the first
        if not is_told or first.exitcode not in (-signal.SIGTERM, -signal.SIGKILL):
            raise


def _joined(rank: int, number: int, meeting: str, work: Work) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // number))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=number, timeout=_TIMEOUT
    )
    try:
        work(Ranks(rank, number))
    finally:
        distributed.destroy_process_group()
