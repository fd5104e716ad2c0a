"""Training of the drafters against the frozen target: EAGLE, EAGLE-3, MTP, a draft model and P-EAGLE.

Text is mostly sampled from the target, the rest is corpus; the target's states and logits are computed on the fly.
First the drafter learns the target's distribution at every step of the chain (soft cross-entropy), then the expected
number of accepted draft tokens is raised directly, which is a weighted total-variation distance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments.zoo.data import TokenStream, TrainingData
from experiments.zoo.drafters import KINDS, make_drafter
from experiments.zoo.metrics import record
from experiments.zoo.sampling import GIVEN, load_sampled, load_trained
from experiments.zoo.schedule import Schedule
from experiments.zoo.settings import Settings
from experiments.zoo.target_training import LOG_EVERY, adamw, autocast, step
from experiments.zoo.unrolled import StepTerms, accepted, step_terms
from harness.models.target import TargetOutput

_SWITCH_AT = 0.55
"""Share of the budget after which the objective changes to the expected number of accepted tokens."""
_STEP_DISCOUNT = 0.8
_FEATURE_WEIGHT = 0.1
_LATE_CROSS_ENTROPY = 0.05
_EVALUATION_ROWS = 32


class HeadTrainer:
    """The loop of one drafter."""

    def __init__(self, kind: str, settings: Settings, data: TrainingData) -> None:
        self.kind, self.settings = kind, settings
        torch.manual_seed(settings.seed + 2 + KINDS.index(kind))
        self.target = load_trained(settings)
        self.drafter = make_drafter(kind, settings, self.target, data)
        rows = torch.from_numpy(load_sampled(settings).astype(np.int32)).to(settings.device)
        num_heldout = settings.sizes.num_heldout_rows
        self._sampled, self._heldout = rows[:-num_heldout], rows[-num_heldout:]
        self._corpus = TokenStream(data.tokens, data.starts, settings.device, settings.seed + 3)
        self._generator = torch.Generator(settings.device).manual_seed(settings.seed + 4)
        self._positions = torch.arange(settings.sizes.sample_length, device=settings.device)[None]
        self._to_draft = self._target_to_draft()
        compiled: Callable[[Any], Any] = torch.compile if settings.compile else lambda function: function
        self._target_states, self._terms = compiled(self._run_target), compiled(self._run_terms)

    def _target_to_draft(self) -> Tensor:
        ids, size = self.drafter.draft_to_target, self.settings.sizes.vocab_size
        if ids is None:
            return torch.arange(size, device=self.settings.device)
        table = torch.full((size,), -1, dtype=torch.int64, device=self.settings.device)
        table[ids] = torch.arange(len(ids), device=self.settings.device)
        return table

    def _run_target(self, token_ids: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor]:
        output = self.target.forward(token_ids, self._positions, None, self.drafter.aux_layers)
        logits = self.target.logits(output.hidden)
        lse = logits.float().logsumexp(-1)
        if self.drafter.draft_to_target is not None:
            logits = logits.index_select(-1, self.drafter.draft_to_target)
        return output.hidden, output.aux, logits, lse

    def _run_terms(self, hidden: Tensor, target_logits: Tensor, target_lse: Tensor, draft_ids: Tensor) -> StepTerms:
        return step_terms(self.drafter.logits(hidden), target_logits, target_lse, draft_ids)

    def batch(self) -> Tensor:
        """[rows, length] int64: sampled rows first, then rows of the corpus."""
        sizes = self.settings.sizes
        num_sampled = round(sizes.head_rows * sizes.sampled_share)
        index = torch.randint(
            len(self._sampled), (num_sampled,), device=self._sampled.device, generator=self._generator
        )
        corpus = self._corpus.rows(sizes.head_rows - num_sampled, sizes.sample_length)
        return torch.cat([self._sampled[index].long() % GIVEN, corpus])

    def terms(self, token_ids: Tensor) -> tuple[list[StepTerms], Tensor]:
        """Terms of every step, and the distance between the chain's features and the target's (0 where not learnt)."""
        drafter, size = self.drafter, self.drafter.num_pairs
        with torch.no_grad():
            hidden, aux, logits, lse = self._target_states(token_ids)
        states = drafter.chain(token_ids, drafter.features(TargetOutput(hidden, aux)))
        terms, distance = [], hidden.new_zeros((), dtype=torch.float32)
        padded = functional.pad(token_ids, (0, 1))  # the last step's next token is never looked at
        for index, state in enumerate(states.hidden):
            at = slice(1 + index, 1 + index + size)
            draft_ids = self._to_draft[padded[:, 2 + index : 2 + index + size]]
            terms.append(self._terms(state, logits[:, at], lse[:, at], draft_ids))
            if drafter.learns_features:
                distance = distance + functional.smooth_l1_loss(states.features[index].float(), hidden[:, at].float())
        return terms, distance

    def loss(self, token_ids: Tensor, fraction: float) -> Tensor:
        """The objective at a point of the budget."""
        terms, distance = self.terms(token_ids)
        discounted = [_STEP_DISCOUNT**index * term.cross_entropy.mean() for index, term in enumerate(terms)]
        entropy = torch.stack(discounted).sum()
        if fraction < _SWITCH_AT:
            return entropy + _FEATURE_WEIGHT * distance
        return _LATE_CROSS_ENTROPY * entropy - torch.stack(accepted(terms)).mean(dim=(1, 2)).sum()

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
        with autocast(settings.device):
            self.loss(self.batch(), 0.0).backward()  # compiles; not a step
        self.measure(_EVALUATION_ROWS)
        optimizer.zero_grad(set_to_none=True)
        num_parameters = sum(parameter.numel() for parameter in self.drafter.module.parameters())
        print(f"{self.kind}: {num_parameters:,} parameters, first step {time.perf_counter() - began:.1f} s", flush=True)
        index, last_log = 0, (0, time.perf_counter())
        while (fraction := schedule.fraction(index)) < 1.0:
            with autocast(settings.device):
                loss = self.loss(self.batch(), fraction)
            loss.backward()
            step(optimizer, self.drafter.module, schedule.learning_rate(index, fraction))
            index += 1
            if index % (4 * LOG_EVERY) == 0:
                last_log = self._log(index, loss.item(), fraction, last_log)
        self._finish(index, num_parameters, schedule.elapsed, index * sizes.head_rows * sizes.sample_length)

    def _log(self, index: int, loss: float, fraction: float, last_log: tuple[int, float]) -> tuple[int, float]:
        if not math.isfinite(loss):
            raise ValueError(f"{self.kind}: the loss is {loss} at step {index}; lower --learning-rate-head")
        sizes, now = self.settings.sizes, time.perf_counter()
        rate = (index - last_log[0]) * sizes.head_rows * sizes.sample_length / (now - last_log[1])
        measured = self.measure(_EVALUATION_ROWS)
        print(
            f"{self.kind}: step {index} loss {loss:.3f} {rate / 1e3:,.0f}k tokens/s {fraction:.1%}, "
            f"overlap {measured['overlap']}, acceptance length {measured['acceptance_length']}",
            flush=True,
        )
        return index, time.perf_counter()

    def _finish(self, num_steps: int, num_parameters: int, seconds: float, num_tokens: int) -> None:
        module = self.drafter.module
        with torch.no_grad():
            for parameter in module.parameters():  # measured as stored
                parameter.copy_(parameter.to(torch.bfloat16))
        self.drafter.save()
        measured = self.measure(len(self._heldout))
        values = {"num_parameters": num_parameters, "num_steps": num_steps, "num_training_tokens": num_tokens}
        record(self.settings.out, self.kind, {**values, "seconds": round(seconds, 1), **measured})

    @torch.no_grad()
    def measure(self, num_rows: int) -> dict[str, Any]:
        """Overlap by step and acceptance length at T = 1 on held-out sampled rows, where K + 1 drawn tokens follow."""
        size, num_steps = self.drafter.num_pairs, self.settings.sizes.num_unrolled
        sums = torch.zeros(2, num_steps, dtype=torch.float64, device=self.settings.device)
        count = torch.zeros((), dtype=torch.float64, device=self.settings.device)
        rows = self.settings.sizes.head_rows  # the shape that is compiled; a remainder is left out
        for start in range(0, max(1, min(num_rows, len(self._heldout)) - rows + 1), rows):
            stored = self._heldout[start : start + rows]
            with autocast(self.settings.device):
                terms, _ = self.terms(stored.long() % GIVEN)
            drawn = (stored < GIVEN).unfold(1, num_steps, 1)[:, 2 : 2 + size].all(-1)
            drawn = functional.pad(drawn, (0, size - drawn.shape[1]))
            count += drawn.sum()
            for index, (term, chance) in enumerate(zip(terms, accepted(terms), strict=True)):
                sums[0, index] += (term.overlap * drawn).sum()
                sums[1, index] += (chance * drawn).sum()
        overlap, reached = (sums / count).tolist()
        return {
            "overlap": [round(value, 4) for value in overlap],
            "acceptance_by_position": [round(value, 4) for value in reached],
            "acceptance_length": round(1 + sum(reached), 4),
        }


def train_drafter(kind: str, settings: Settings, data: TrainingData) -> None:
    """Train one drafter and write it."""
    HeadTrainer(kind, settings, data).train()
