"""The optimizer steps of a training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.training.learner import Learner, TargetStates
from harness.training.optimizer import autocast, step
from harness.training.schedule import Schedule


class Batch(NamedTuple):
    """Rows of text of one step."""

    token_ids: Tensor
    """[B, L] int64."""
    counted: Tensor | None = None
    """[B, L] bool, as `Learner.loss` takes it."""
    states: TargetStates | None = None
    """The target's, where they are kept."""


class Done(NamedTuple):
    """A step that was made."""

    num_steps: int
    """So far."""
    fraction: float
    """Of the budget, before it."""
    loss: Tensor

    def check(self, name: str) -> float:
        """The loss. Raises ValueError where it is no number."""
        loss = self.loss.item()
        if not math.isfinite(loss):
            raise ValueError(f"{name}: the loss is {loss} at step {self.num_steps}; lower the learning rate")
        return loss


def warm_up(learner: Learner, batch: Batch) -> None:
    """Let everything be compiled that a step needs; no step is made."""
    with autocast(learner.target.device):
        learner.loss(batch.token_ids, 0.0, batch.counted, batch.states).backward()
    learner.drafter.module.zero_grad(set_to_none=True)


def steps(
    learner: Learner,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    batch: Callable[[int], Batch],
    *,
    first: int = 0,
    agree: Callable[[float], float] = float,
    average: Callable[[nn.Module], None] = lambda module: None,
) -> Iterator[Done]:
    """Steps until the budget is used up.

    Args:
        batch: of the step of a number. first: the number of the first one.
        agree, average: what processes that train together do with the fraction of the budget, and with gradients.
    """
    index, module = first, learner.drafter.module
    while (fraction := agree(schedule.fraction(index))) < 1.0:
        rows = batch(index)
        with autocast(learner.target.device):
            loss = learner.loss(rows.token_ids, fraction, rows.counted, rows.states)
        loss.backward()
        average(module)
        step(optimizer, module, schedule.learning_rate(index, fraction))
        index += 1
        yield Done(index, fraction, loss.detach())
