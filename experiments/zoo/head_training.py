"""Training of the zoo's drafters against its frozen target: EAGLE, EAGLE-3, MTP, a draft model and P-EAGLE.

Text is mostly sampled from the target, the rest is corpus. What is learnt from it is harness.training.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.zoo.data import TokenStream, TrainingData
from experiments.zoo.drafters import KINDS, make_drafter
from experiments.zoo.metrics import record
from experiments.zoo.sampling import GIVEN, load_sampled, load_trained
from experiments.zoo.settings import Settings
from harness.training.learner import Learner
from harness.training.losses.kl_then_acceptance import KLThenAcceptance
from harness.training.optimizer import LOG_EVERY, adamw
from harness.training.schedule import Schedule
from harness.training.settings import HeadTraining
from harness.training.steps import Batch, Done, steps, warm_up

_EVALUATION_ROWS = 32


class HeadTrainer:
    """The training of one drafter."""

    def __init__(self, kind: str, settings: Settings, data: TrainingData) -> None:
        self.kind, self.settings = kind, settings
        torch.manual_seed(settings.seed + 2 + KINDS.index(kind))
        target, sizes = load_trained(settings), settings.sizes
        self.drafter, self._save = make_drafter(kind, settings, target, data)
        rows = torch.from_numpy(load_sampled(settings).astype(np.int32)).to(settings.device)
        self._sampled, self._heldout = rows[: -sizes.num_heldout_rows], rows[-sizes.num_heldout_rows :]
        self._corpus = TokenStream(data.tokens, data.starts, settings.device, settings.seed + 3)
        self._generator = torch.Generator(settings.device).manual_seed(settings.seed + 4)
        self.learner = Learner(
            target,
            self.drafter,
            length=sizes.sample_length,
            num_steps=sizes.num_unrolled,
            compiles=settings.compile,
            loss=KLThenAcceptance(HeadTraining.late_cross_entropy),
        )

    def batch(self) -> Tensor:
        """[rows, length] int64: sampled rows first, then rows of the corpus."""
        sizes = self.settings.sizes
        num_sampled = round(sizes.head_rows * sizes.sampled_share)
        index = torch.randint(
            len(self._sampled), (num_sampled,), device=self._sampled.device, generator=self._generator
        )
        corpus = self._corpus.rows(sizes.head_rows - num_sampled, sizes.sample_length)
        return torch.cat([self._sampled[index].long() % GIVEN, corpus])

    def train(self) -> None:
        """Train, measure on held-out sampled rows with the weights as they are stored, and save."""
        settings, sizes = self.settings, self.settings.sizes
        optimizer = adamw(self.drafter.module, settings.learning_rate_head, 0.01, settings.device)
        schedule = Schedule(
            settings.seconds_head,
            settings.steps,
            num_warmup_steps=100,
            decay_from=0.5,
            peak=settings.learning_rate_head,
        )
        began = time.perf_counter()
        warm_up(self.learner, Batch(self.batch()))
        self.measure(_EVALUATION_ROWS)
        num_parameters = sum(parameter.numel() for parameter in self.drafter.module.parameters())
        print(f"{self.kind}: {num_parameters:,} parameters, first step {time.perf_counter() - began:.1f} s", flush=True)
        index, last_log = 0, (0, time.perf_counter())
        for done in steps(self.learner, optimizer, schedule, lambda _: Batch(self.batch())):
            index = done.num_steps
            if index % (4 * LOG_EVERY) == 0:
                last_log = self._log(done, last_log)
        self._finish(index, num_parameters, schedule.elapsed, index * sizes.head_rows * sizes.sample_length)

    def _log(self, done: Done, last_log: tuple[int, float]) -> tuple[int, float]:
        sizes, loss, now = self.settings.sizes, done.check(self.kind), time.perf_counter()
        rate = (done.num_steps - last_log[0]) * sizes.head_rows * sizes.sample_length / (now - last_log[1])
        measured = self.measure(_EVALUATION_ROWS)
        print(
            f"{self.kind}: step {done.num_steps} loss {loss:.3f} {rate / 1e3:,.0f}k tokens/s {done.fraction:.1%}, "
            f"overlap {measured['overlap']}, expected length {measured['expected_length']}",
            flush=True,
        )
        return done.num_steps, time.perf_counter()

    def _finish(self, num_steps: int, num_parameters: int, seconds: float, num_tokens: int) -> None:
        module = self.drafter.module
        with torch.no_grad():
            for parameter in module.parameters():  # measured as stored
                parameter.copy_(parameter.to(torch.bfloat16))
        self._save()
        measured = self.measure(len(self._heldout))
        values = {"num_parameters": num_parameters, "num_steps": num_steps, "num_training_tokens": num_tokens}
        record(self.settings.out, self.kind, {**values, "seconds": round(seconds, 1), **measured})

    def measure(self, num_rows: int) -> dict[str, Any]:
        """Overlap by step and expected length at T = 1 on held-out sampled rows, where K + 1 drawn tokens follow."""
        stored = self._heldout[:num_rows]
        return self.learner.measure(stored.long() % GIVEN, stored < GIVEN, self.settings.sizes.head_rows)


def train_drafter(kind: str, settings: Settings, data: TrainingData) -> None:
    """Train one drafter and write it."""
    HeadTrainer(kind, settings, data).train()
