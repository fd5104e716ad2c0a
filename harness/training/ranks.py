"""Processes that train one head together, each on a device of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn

_TIMEOUT = timedelta(minutes=20)


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

    Args:
        work: can be pickled; gets its place among them, with its GPU chosen where there are some.
    """
    if number == 1:
        work(Ranks(0, 1))
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_joined, (number, str(Path(folder) / "meeting"), work), number)


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
