"""A training run of a head for any target: text, draft vocabulary, steps, checkpoints, the head.

A run that ends early goes on from what its folder holds (harness.training.run_folder). The head is in the layout of
speculators, which the harness loads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.config.schema import SettingsError
from harness.models.aux_layer_ids import default_aux_layers
from harness.models.eagle3 import EMBEDDING, Eagle3Config, Eagle3Head
from harness.models.fingerprint import fingerprint
from harness.models.free_memory import Need, check_fits
from harness.models.head import save_head
from harness.models.target import TargetModel
from harness.runner.progress import SECONDS_BETWEEN_LINES, duration, repeated
from harness.runner.stop_signals import StoppedBySignal
from harness.training.drafter import drafter_of, initialize
from harness.training.interrupts import Held
from harness.training.learner import Learner, TargetStates
from harness.training.losses.loss import Loss
from harness.training.optimizer import adamw
from harness.training.ranks import Ranks
from harness.training.rows import RowFiles, Rows, frequent_tokens
from harness.training.run_folder import (
    CHECKPOINT,
    HEAD,
    LOG,
    ROWS,
    Progress,
    TextBudget,
    check_folder,
    fixed,
    load_checkpoint,
    note_target,
    reason_for_no_text,
    save_checkpoint,
)
from harness.training.sampler import Sampler, Segments
from harness.training.schedule import Schedule
from harness.training.settings import HeadTraining, Output
from harness.training.steps import Batch, Done, steps, warm_up
from harness.training.unrolled import HeadChain

_EXAMPLE_CHARACTERS = 1500
_TO_END = 2.0
"""Seconds that a run keeps to end in."""


@dataclass(frozen=True)
class HeadRun:
    """The work of one process; can be pickled.

    load: the target on this process's device, ready for what it does: whether it writes text. segments: what is given
    of conversations; takes what gets notes on them. start: the head of settings.start, frozen.
    """

    settings: HeadTraining
    seed: int
    load: Callable[[bool], TargetModel]
    segments: Callable[[TargetModel, Callable[[str], None]], Segments]
    began: float
    """Of the run, by time.monotonic()."""
    target: dict[str, str | None]
    """What names the target; a folder has the text of one."""
    start: Callable[[TargetModel], Eagle3Head] | None = None

    def __call__(self, ranks: Ranks) -> None:
        is_written = self.write_text(ranks)
        ranks.wait()
        if self.settings.only_text and is_written:
            return
        if not is_written or self.is_over(ranks):
            if ranks.is_first:
                print("the time of this run is over, and the same command goes on", flush=True)
            return
        self.train(ranks)

    @property
    def seconds_left(self) -> float:
        """Of this run."""
        limit = 60 * self.settings.run_minutes
        return self.began + limit - time.monotonic() if limit > 0 else float("inf")

    def is_over(self, ranks: Ranks, ahead: float = 0.0) -> bool:
        """Whether the time of this run is used up, or will be in so many seconds; all processes agree."""
        return ranks.agree(float(self.seconds_left <= ahead)) > 0

    def write_text(self, ranks: Ranks) -> bool:
        """Let the target write rows until there is what is asked for; False where the time of this run ends first.

        Raises:
            SettingsError: the folder is of another target, or of other settings.
        """
        settings, folder = self.settings, Path(self.settings.out)
        check_folder(settings, self.target)
        note_target(folder, self.target)
        progress, files = Progress.of(settings), RowFiles(folder / ROWS)
        reason = reason_for_no_text(settings)
        budget = (TextBudget.of(folder) or TextBudget()).asking(settings, progress.num_steps > 0)
        # the first process looks before it writes, another one may look later
        found, first = (
            int(ranks.agree(progress.num_tokens)),
            int(ranks.agree(1 + max(files.numbers, default=-1))),
        )
        has_all = ranks.agree(float(reason is not None)) > 0
        tell = partial(print, flush=True) if ranks.is_first else lambda _: None
        if ranks.is_first:
            budget.write(folder)
        if has_all:
            tell(f"text: {found:,} tokens; none is added: {reason}")
            return True
        target = self.load(True)
        for note in target.fallbacks:
            tell(f"note: {note}")
        segments = self.segments(target, tell)
        rows, number = settings.rows_at_once, len(segments.lengths)
        sampler = Sampler(target, segments, target.eos_token_ids, num_rows=rows, length=settings.length)
        temperature = torch.tensor(settings.temperatures, device=target.device).repeat(rows)[:rows]
        always = "" if found else ", the first of them whatever time it takes"
        tell(f"text: {rows:,} rows of {settings.length:,} tokens at once{always}")
        at_once = rows * settings.length * ranks.number
        began = time.monotonic()
        for turn in range(-(-(settings.tokens - found) // at_once)):
            seconds = time.monotonic() - began
            per_turn = seconds / max(1, turn)
            late = turn > 0 and budget.seconds + seconds + per_turn > 60 * settings.generate_minutes
            if ranks.agree(float(late)) > 0:
                break
            if turn and self.is_over(ranks, per_turn):
                return False
            index = first + turn * ranks.number + ranks.rank
            torch.manual_seed(self.seed + 1 + index)
            opening = torch.arange(index * rows, (index + 1) * rows, device=target.device)
            # questions that the target writes begin with the first segment
            starts = opening % number if bool(segments.is_answer.all()) else torch.zeros_like(opening)
            with _telling(sampler, found + turn * at_once) if ranks.is_first else nullcontext():
                sampled = sampler.sample(starts, temperature)
                arrays = sampled.tokens.int(), sampled.is_answer, temperature
                tokens, is_answer, drawn_at = (each.cpu().numpy() for each in arrays)
            files.write(index, Rows(tokens, is_answer, drawn_at))
            if ranks.is_first:
                seconds = time.monotonic() - began
                replace(budget, seconds=budget.seconds + seconds).write(folder)
                done = (turn + 1) * at_once
                share = sampled.is_answer.float().mean().item()
                tell(f"text: {found + done:,} tokens, {done / seconds:,.0f} a second, {share:.0%} of answers")
                if turn == 0:
                    if not found and seconds > 60 * settings.generate_minutes:
                        tell(
                            f"note: the first rows took {duration(seconds)}, more than generate_minutes="
                            f"{settings.generate_minutes:g}; a training needs them"
                        )
                    example = target.tokenizer.decode(sampled.tokens[-1].tolist())
                    tell(f"text, for example:\n{example[:_EXAMPLE_CHARACTERS]}")
        return True

    def train(self, ranks: Ranks) -> None:
        """Train on the rows until the budget, or the time of this run, is used up."""
        Trainer(self, ranks).run()


def _telling(sampler: Sampler, num_before: int) -> AbstractContextManager[None]:
    """Say now and then how far the rows are that are being written; num_before: tokens that were written before."""
    began = time.monotonic()

    def tell() -> None:
        share, seconds = sampler.share_done, duration(time.monotonic() - began)
        print(f"text: {num_before:,} tokens, and {share:.0%} of the rows under way in {seconds}", flush=True)

    return repeated(tell, SECONDS_BETWEEN_LINES)


class _End(Enum):
    """What ends the steps of a run; the first process decides."""

    budget = 0
    run = 1
    signal = 2


class Trainer:
    """The training of a head, in one process."""

    def __init__(self, run: HeadRun, ranks: Ranks) -> None:
        self._run, self._ranks, self.settings = run, ranks, run.settings
        settings, self.folder = self.settings, Path(run.settings.out)
        self.target = run.load(False)
        device = self.target.device
        saved = load_checkpoint(settings)
        rows = RowFiles(self.folder / ROWS).read()
        self._check(rows)
        self.num_repeated = self._repeated(rows)
        self.start: str | None = None
        """Fingerprint of the head to begin with."""
        self.state: dict[str, Any] = {"index": 0, "seconds": 0.0} if saved is None else saved["state"]
        torch.manual_seed(run.seed)
        self.head = self._fresh(rows, saved) if run.start is None else self._begun(run.start(self.target), saved)
        if saved is not None:
            self.head.load_state_dict(dict(self.head.state_dict()) | saved["head"])
        ranks.share(self.head)
        self.loss = loss_of(settings)
        compiles = settings.compile and device.type == "cuda"
        chain = HeadChain(self.head, settings.length, settings.num_unrolled, compiles=compiles)
        self.learner = Learner(
            self.target,
            drafter_of(self.head, chain),
            length=settings.length,
            num_steps=settings.num_unrolled,
            compiles=compiles,
            loss=self.loss,
        )
        self.optimizer = adamw(self.head, settings.learning_rate, 0.01, device)
        if saved is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
        self._tokens = torch.from_numpy(rows.tokens).to(device)
        self._is_answer = torch.from_numpy(rows.is_answer).to(device)
        self._temperature = torch.from_numpy(rows.temperature)
        numbers = torch.arange(settings.num_heldout, len(rows.tokens), device=device)
        # each process keeps the states of other rows, and learns these
        self._learnt = numbers[ranks.rank :: ranks.number] if settings.keep_states else numbers
        self._kept = self._keep_states() if settings.keep_states else None

    def _fresh(self, rows: Rows, saved: dict[str, Any] | None) -> Eagle3Head:
        """A head whose weights are drawn, with the draft tokens of the checkpoint or the most frequent ones."""
        settings, size = self.settings, min(self.settings.draft_vocab_size, self.target.vocab_size)
        if saved is not None and (settings.output is Output.own or len(saved["draft_token_ids"]) == size):
            return fresh_head(self.target, saved["draft_token_ids"], settings)
        held = settings.num_heldout
        learnt = Rows(rows.tokens[held:], rows.is_answer[held:], rows.temperature[held:])
        ids, share = frequent_tokens(learnt, self.target.vocab_size, settings.draft_vocab_size)
        self._tell(f"draft vocabulary: the {len(ids):,} most frequent tokens are {share:.2%} of the answers")
        return fresh_head(self.target, ids, settings)

    def _begun(self, start: Eagle3Head, saved: dict[str, Any] | None) -> Eagle3Head:
        """The head to begin with, to be trained, and what was assumed of its file told.

        Raises:
            SettingsError: its files are not those that the run began with.
        """
        assert start.path is not None, "start is a folder"
        self.start = fingerprint(start.path)
        if saved is not None and saved["start"] != self.start:
            raise SettingsError(
                f"{self.folder / CHECKPOINT}: expected behind start={self.settings.start} the files that this run "
                f"began with, fingerprint {saved['start']}, found {self.start}; or choose another folder (out)"
            )
        for text in start.assumptions:
            self._tell(f"note: start: {text}")
        return trainable(start)

    def _repeated(self, rows: Rows) -> int:
        """Rows held out that are learnt too, which is told: at temperature 0 a prompt has one answer."""
        held = self.settings.num_heldout
        learnt = {row.tobytes() for row in rows.tokens[held:]}
        found = sum(row.tobytes() in learnt for row in rows.tokens[:held])
        if found:
            self._tell(
                f"note: {found} of {held} rows held out are learnt too, token for token, so that acceptance on them is "
                "not that of other text; give more prompts (workload.path)"
            )
        return found

    def _check(self, rows: Rows) -> None:
        settings, found = self.settings, rows.tokens.shape
        least = settings.num_heldout + max(settings.batch_rows, self._ranks.number)
        if found[1] != settings.length or found[0] < least:
            raise ValueError(
                f"{self.folder / ROWS}: expected {least} rows or more of "
                f"{settings.length} tokens ({settings.num_heldout} are held out), found {found[0]} of {found[1]}; let "
                "the target write more (tokens, generate_minutes), or choose another folder (out)"
            )
        if not rows.is_answer[: settings.num_heldout].any():
            raise ValueError(
                f"{self.folder / ROWS}: expected rows with answers, found none in those held out; let rows be longer "
                f"(length, here {settings.length}) or questions shorter (question_tokens)"
            )

    def _keep_states(self) -> TargetStates:
        """What the target says of all rows that this process learns."""
        began, size, number = time.perf_counter(), self.settings.batch_rows, len(self._learnt)
        kept = None
        # all of one shape, for which things are compiled once
        for start in (max(0, min(start, number - size)) for start in range(0, number, size)):
            states = self.learner.states(self._tokens[self._learnt[start : start + size]].long())
            if kept is None:
                need = Need(f"the target's states of {number:,} rows", states.num_bytes * number // size)
                check_fits([need], self.target.device, "Write less text (tokens), or leave keep_states out.")
                kept = states.room(number)
            kept.put(start, states)
        assert kept is not None, "there are rows for a batch"
        self._tell(f"states of {number:,} rows: {kept.num_bytes / 1e9:.2f} GB, {time.perf_counter() - began:.1f} s")
        return kept

    def batch(self, index: int) -> Batch:
        """Rows of a step, which follow from its number alone."""
        seed = hash((self._run.seed, index, self._ranks.rank, self._ranks.number))
        generator = torch.Generator().manual_seed(seed & (2**63 - 1))
        size, device = self.settings.batch_rows, self._tokens.device
        chosen = torch.randint(len(self._learnt), (size,), generator=generator).to(device)
        numbers = self._learnt[chosen]
        states = None if self._kept is None else self._kept.of(chosen)
        return Batch(self._tokens[numbers].long(), self._is_answer[numbers], states)

    def run(self) -> None:
        settings, ranks = self.settings, self._ranks
        began = time.perf_counter()
        warm_up(self.learner, self.batch(0))
        num_parameters = sum(parameter.numel() for parameter in self.head.parameters())
        self._tell(f"{num_parameters:,} parameters, first step {time.perf_counter() - began:.1f} s")
        if ranks.is_first and self.state["index"] == 0:
            self._log(0, 0.0, None, 0.0)
        before = self.state["seconds"]
        schedule = Schedule(
            60 * settings.minutes or before + max(0.0, self._run.seconds_left - _TO_END),
            settings.steps or None,
            num_warmup_steps=50,
            decay_from=0.3,
            peak=settings.learning_rate,
            seconds_before=before,
        )
        held = Held(raises_again=ranks.number == 1)
        with held.caught():
            end = self._make_steps(schedule, held)
            ranks.wait()
        if end is _End.signal and ranks.number == 1:
            assert held.number is not None
            raise StoppedBySignal(held.number, False)
        # of several processes the one that started them has the signal too

    def _make_steps(self, schedule: Schedule, held: Held) -> _End:
        """Make steps until the budget or the time of this run is used up, or a signal came, and save."""
        settings, ranks = self.settings, self._ranks
        first = index = self.state["index"]
        started = logged = saved = time.monotonic()
        end, learnt = _End.budget, self.loss.told(schedule.reached(first))
        for done in steps(
            self.learner,
            self.optimizer,
            schedule,
            self.batch,
            first=first,
            agree=ranks.agree,
            average=ranks.average,
        ):
            index, now = done.num_steps, time.monotonic()
            if learnt != self.loss.told(done.fraction):
                learnt = self.loss.told(done.fraction)
                self._tell(f"step {index}: from here on the loss is {learnt}; earlier values do not compare with it")
            if ranks.is_first and now - logged >= settings.log_seconds and held.number is None:
                per_step = settings.batch_rows * settings.length * ranks.number
                rate = (index - first) * per_step / (now - started)
                self._log(index, done.fraction, done, rate)
                logged = time.monotonic()
            if ranks.is_first and now - saved >= settings.checkpoint_seconds:
                self._save(index, schedule.elapsed, held)
                saved = time.monotonic()
            is_over = self._run.seconds_left <= 0
            now_ends = _End.signal if held.number is not None else _End.run if is_over else _End.budget
            end = _End(int(ranks.agree(float(now_ends.value))))
            if end is not _End.budget:
                break
        if ranks.is_first:
            self._save(index, schedule.elapsed, held)
            if end is not _End.signal:
                self._log(index, schedule.fraction(index), None, 0.0)
                ended = "done" if end is _End.budget else "the time of this run is over, and the same command goes on"
                self._tell(f"{ended}; the head is {self.folder / HEAD}")
        return end

    def _log(self, index: int, fraction: float, done: Done | None, rate: float) -> None:
        loss = None if done is None else round(done.check("head"), 4)
        measured = self.measure()
        words = [f"{name} {values['expected_length']:.2f}" for name, values in measured.items()]
        told = "" if loss is None else f", loss {loss:.3f}, {rate:,.0f} tokens/s"
        # the last step may end behind the budget
        self._tell(
            f"step {index}, {min(1.0, fraction):.1%}{told}; expected length on rows held out: {', '.join(words)}"
        )
        line = {"step": index, "fraction": round(fraction, 4), "loss": loss, "tokens_per_s": round(rate)}
        line |= {"held_out_but_learnt": self.num_repeated, **measured}
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def measure(self) -> dict[str, Any]:
        """Acceptance on the rows held out, by temperature: of 0 and of 1, where there are such."""
        settings, found = self.settings, {}
        for temperature in (0.0, 1.0):
            at = (self._temperature[: settings.num_heldout] == temperature).nonzero().flatten().to(self._tokens.device)
            if len(at):
                drawn = self._tokens[at].long(), self._is_answer[at]
                values = self.learner.measure(*drawn, settings.batch_rows, greedy=temperature == 0)
                found[f"T={temperature:g}"] = values
        return found

    def _save(self, index: int, seconds: float, held: Held) -> None:
        with held.saving():
            self._write(index, seconds)

    def _write(self, index: int, seconds: float) -> None:
        self.state = {"index": index, "seconds": seconds}
        ids = self.head.draft_to_target
        save_checkpoint(
            self.folder,
            {
                "settings": fixed(self.settings),
                "state": self.state,
                "start": self.start,
                "draft_token_ids": torch.arange(self.target.vocab_size) if ids is None else ids.cpu(),
                "head": {name: weight.detach() for name, weight in self.head.named_parameters()},
                "optimizer": self.optimizer.state_dict(),
            },
        )
        write_head(self.head, self.folder / HEAD)

    def _tell(self, text: str) -> None:
        if self._ranks.is_first:
            print(text, flush=True)


def fresh_head(target: TargetModel, draft_token_ids: Tensor, settings: HeadTraining) -> Eagle3Head:
    """A head in float32 to be trained.

    draft_token_ids: [V_draft] int64, ascending.
    """
    # states between layers differ in size by orders of magnitude, from layer to layer and from token to token
    changes: dict[str, Any] = {"fc_norm": True, "norm_before_residual": True}
    # what it has seen, and not what the target has
    changes["max_position_embeddings"] = settings.length
    if settings.intermediate_size:
        changes["intermediate_size"] = settings.intermediate_size
    config = Eagle3Config.for_target(
        target, len(draft_token_ids), aux_layers=_read_layers(target.num_layers), **changes
    )
    head = Eagle3Head(config, target, draft_token_ids=draft_token_ids, own_output=settings.output is Output.own)
    initialize(head)
    return head.float().requires_grad_(True)


def trainable(head: Eagle3Head) -> Eagle3Head:
    """A head of a checkpoint, in float32 to be trained; an embedding of its own stays as it is.

    Its file will name the target that it is trained for here, and not that of the checkpoint.
    """
    head.config = replace(head.config, verifier=head.target.name, rounded_weights=head.target.weights_label)
    head.float()
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(name != EMBEDDING)
    return head


def loss_of(settings: HeadTraining) -> Loss:
    """What is minimised, with those settings that are its own.

    Raises:
        SettingsError: one of another loss is given.
    """
    kind = settings.loss.settings
    names = [field.name for field in fields(kind)]
    found, default = settings.late_cross_entropy, HeadTraining.late_cross_entropy
    if "late_cross_entropy" not in names and found != default:
        raise SettingsError(f"late_cross_entropy: expected none beside loss={settings.loss.value}, found {found}")
    loss: Loss = kind(**{name: getattr(settings, name) for name in names})
    return loss


def _read_layers(num_layers: int) -> tuple[int, ...]:
    """Those that EAGLE-3 heads read by default; of few layers the first, the middle and what leaves the last."""
    usual = default_aux_layers(num_layers)
    return usual if usual == tuple(sorted(set(usual))) else tuple(sorted({0, num_layers // 2, num_layers}))


def write_head(head: Eagle3Head, folder: Path) -> None:
    """Write a head in bfloat16; a file of an earlier one is replaced whole."""
    unfinished = folder.with_name(f".{folder.name}")
    save_head(head, unfinished, torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    for path in unfinished.iterdir():
        path.chmod(0o644)
        path.replace(folder / path.name)
    unfinished.rmdir()
