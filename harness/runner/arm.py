"""One cell of a group while it runs: its turns, the parts that they leave, and the record that these make.

This module does not know whose turn it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from harness.backends.backend import Backend, BackendRun, Facts, RefusedArm
from harness.config.backend import BACKEND
from harness.config.cell import CellConfig
from harness.config.guarantee import labels
from harness.config.identity import determinants, plain_values
from harness.records.acceptance_terms import collect_terms, terms_path, write_terms
from harness.records.files import SUFFIX, identity, read_cell, write_cell
from harness.records.gpu_samples import GpuSamples
from harness.records.parts import ConversationKey, Part
from harness.records.provenance import provenance
from harness.records.runs import CELLS
from harness.records.schema import Block, CellRecord
from harness.records.shared_cores import shared_cores
from harness.runner.cell_checkpoint import CellCheckpoint, Note, find_checkpoint
from harness.runner.cell_label import label
from harness.runner.cell_record import record_of, recorded_config
from harness.runner.drift import Drift, drift_of_server
from harness.runner.gpu_watch import own_gpu, watched
from harness.runner.plan.run_plan import Resume
from harness.runner.progress import Progress
from harness.runner.weights_here import sources_here
from harness.workload.conversations import Conversation


class Turn(NamedTuple):
    """One cell's turn at one block of conversations."""

    arm: int
    conversations: Sequence[Conversation]
    block: int
    is_last: bool


@dataclass
class Arm:
    """One cell of a group while it runs."""

    cell: CellConfig
    place: int
    """In the plan."""
    session: str
    """Names this process in the blocks that it runs."""
    num_workers: int = 1
    """Processes on this host that run cells at the same time."""
    backend: Backend | None = None
    """None before it is made, and of a cell that has failed, so that nothing keeps its memory."""
    has_failed: bool = False
    num_told: int = 0
    """Requests that the progress display need not wait for."""
    _checkpoint: CellCheckpoint | None = None
    _is_warm: bool = False
    _accepts_drift: bool = False
    _left_out: list[Turn] = field(default_factory=list)
    """Turns of which earlier sessions have left nothing."""

    def find_checkpoint(self, folder: Path, prompts: str, resume: Resume, note: Note) -> None:
        """Find what earlier sessions left of the cell, before its weights are loaded.

        Args:
            folder: of the run.
            prompts: fingerprint of the prompts.
            resume: what to do with it.
            note: told what the user should know.
        """
        assert self.backend is not None
        self._accepts_drift = resume.accepts_drift
        # a kind of the user's own need not know its weights before
        weights = self.backend.weights() if hasattr(self.backend, "weights") else None
        key = identity(determinants(self.backend.resolved(self.cell), prompts, weights))
        self._checkpoint = find_checkpoint(
            folder, key, self.session, self._provenance(), resume, lambda text: note(f"{label(self.cell)}: {text}")
        )
        self._checkpoint.sources = sources_here(self.cell)
        if self._checkpoint.config is not None:
            self._bring_up_to_date(self._checkpoint.config, folder / CELLS)

    def _bring_up_to_date(self, recorded: Mapping[str, Any], folder: Path) -> None:
        """Write the settings into the record of a finished cell that determine no result and may be others now."""
        config = recorded_config(self.cell, replace(self.cell, backend=BACKEND.of_plain(recorded["backend"])))
        if config != recorded:
            record = read_cell(folder / f"{self.finished_id}{SUFFIX}")
            self.write(replace(record, config=config, labels=labels(self.cell)), folder)

    @property
    def checkpoint(self) -> CellCheckpoint:
        assert self._checkpoint is not None, "it has been looked for"
        return self._checkpoint

    @property
    def finished_id(self) -> str | None:
        """Of the record, where there is one."""
        return None if self._checkpoint is None else self._checkpoint.cell_id

    @property
    def drift(self) -> Drift | None:
        """What earlier sessions measured the cell with that is not the same here, where there is something."""
        return None if self._checkpoint is None else self._checkpoint.drift

    @property
    def goes_on(self) -> bool:
        """Whether there is something left to do."""
        return not self.has_failed and self.finished_id is None

    @property
    def num_kept(self) -> int:
        """Requests of a cell that is not finished which earlier sessions have kept."""
        return 0 if self._checkpoint is None else sum(part.block.num_requests for part in self._checkpoint.earlier)

    def play(self, turn: Turn, progress: Progress) -> None:
        """Run what earlier sessions have left of a turn, and keep what comes of it.

        Args:
            turn: whose conversations to run.
            progress: told every finished request; says whether the run shall end.
        """
        assert self.backend is not None
        played = self.checkpoint.played(turn.block)
        left = [item for item in turn.conversations if _key(item) not in played]
        if not left:
            self._left_out.append(turn)
            return
        # a kind of the user's own need not know of these
        taken = signature(self.backend.generate).parameters
        ends: dict[str, Any] = {"on_round": progress.round_ended} if "on_round" in taken else {}
        if not ends:
            # from here on a signal waits for the end of a request
            progress.round_ended()
        if not self._is_warm:
            self._warm_up(turn, ends, progress)
            if self._starts_anew(progress):
                for each in [*self._left_out, turn]:
                    self.play(each, progress)
                return
        start_unix_s, start_s = time.time(), self.checkpoint.clock_s

        with watched(own_gpu()) as watch:

            def keep(run: BackendRun, call_s: float | None = None) -> None:
                if run.failures and progress.is_stopping:
                    # the signal may have ended the server first
                    if call_s is not None:
                        progress.round_ended()
                    run = _without_failed(run)
                gpu = None if watch is None else watch.samples()
                num_bytes = self.checkpoint.file.num_bytes
                self._keep(run, turn.block, start_unix_s, start_s, None if call_s is None else left, call_s, gpu)
                if self.checkpoint.file.num_bytes > num_bytes:
                    progress.kept()

            keeps: dict[str, Any] = {"keep": keep} if "keep" in taken else {}
            began = time.perf_counter()
            with self._forgetting_what_is_refused(turn.block):
                run = self.backend.generate(left, partial(self._advance, progress), start_s, **keeps, **ends)
            keep(run, time.perf_counter() - began)

    def _advance(self, progress: Progress, num_tokens: int) -> None:
        self.num_told += 1
        progress.advance(1, num_tokens)

    @contextmanager
    def _forgetting_what_is_refused(self, block: int) -> Iterator[None]:
        try:
            yield
        except RefusedArm:
            self.checkpoint.forget_block(block, self.session)
            raise

    def _warm_up(self, turn: Turn, ends: Mapping[str, Any], progress: Progress) -> None:
        """Run a few requests that are not measured, and say what getting ready for them took."""
        assert self.backend is not None
        # a kind of the user's own need not have a warm-up of its own
        warm_up = getattr(self.backend, "warm_up", self.backend.generate)
        warm_up(turn.conversations[: self.cell.measurement.num_warmup_requests], **ends)
        self._is_warm = True
        start_note = getattr(self.backend, "start_note", None)
        if start_note is not None:
            progress.ready(f"{label(self.cell)}: {start_note}")

    def _keep(
        self,
        run: BackendRun,
        block: int,
        start_unix_s: float,
        start_s: float,
        all_played: Sequence[Conversation] | None,
        call_s: float | None,
        gpu: GpuSamples | None,
    ) -> None:
        assert self.backend is not None
        if all_played is None and not run.requests and not run.failures:
            return
        facts = self.backend.facts()
        self._check_weights(facts)
        measured_by = self._provenance(facts.sampling_core, facts.draft_core)
        crowded = shared_cores(self.num_workers, facts.backend.device, measured_by)
        facts = replace(facts, fallbacks=(*facts.fallbacks, *crowded))
        ended = [item.key for item in run.requests]
        ended += [item.request for item in run.failures if item.request is not None]
        last_s = max((item.events[-1].arrival_s for item in run.requests), default=start_s)
        self.checkpoint.keep(
            Part(
                block=Block(
                    index=block,
                    session=self.session,
                    provenance=0,
                    start_unix_s=start_unix_s,
                    # the system's clock may be set back meanwhile
                    end_unix_s=max(start_unix_s, time.time()),
                    num_requests=len(run.requests),
                    num_output_tokens=sum(item.num_output_tokens for item in run.requests),
                    wall_s=run.wall_s,
                    counts=run.counts,
                    reported=run.reported,
                    call_s=call_s,
                    gpu=gpu,
                ),
                is_whole=all_played is not None,
                played=tuple(
                    dict.fromkeys((prompt_id, sample) for prompt_id, _, sample in ended)
                    if all_played is None
                    else map(_key, all_played)
                ),
                clock_s=last_s if all_played is None else start_s + run.wall_s,
                provenance=measured_by,
                facts=plain_values(facts),
                requests=run.requests,
                terms=run.terms,
                failures=run.failures,
                num_skipped_turns=run.num_skipped_turns,
            )
        )

    def _starts_anew(self, progress: Progress) -> bool:
        """Forget what earlier sessions kept if another version of the server measured it, unless that is accepted."""
        if not self.num_kept or not self.cell.is_served:
            return False
        assert self.backend is not None
        here = self._provenance(self.backend.facts().sampling_core)
        differing = drift_of_server(self.checkpoint.provenances, here)
        if differing:
            drift = Drift(differing, self._accepts_drift)
            progress.note(drift.told(label(self.cell)))
            if not drift.is_accepted:
                progress.done_before(-self.num_kept)
                self.num_told -= self.num_kept
                self._checkpoint = self.checkpoint.anew(self.session, drift)
                return True
        return False

    def _check_weights(self, facts: Facts) -> None:
        """Refuse to put together what other weights have done."""
        for part in self.checkpoint.earlier[:1]:
            if part.facts["models"] != facts.models:
                raise ValueError(
                    f"{self.checkpoint.file.path}: expected the weights that this cell began with, "
                    f"{part.facts['models']}, found {dict(facts.models)}; start anew with --fresh"
                )

    def _provenance(self, sampling_core: str | None = None, draft_core: str | None = None) -> dict[str, Any]:
        # threads and GPU are known only then: a cell on a server looks for its parts before anything else imports it
        import_module("torch")
        return provenance(
            sampling_core=sampling_core,
            draft_core=draft_core,
            imported={path: path.source_digest() for path in self.cell.imported.values()},
        )

    def record(self, prompts: str, warnings: Sequence[str]) -> CellRecord:
        """The record of all parts, once the last block is done.

        Args:
            prompts: fingerprint of the prompts.
            warnings: of the run; they go into the record.

        Raises:
            ValueError: the backend refuses it; what was kept is forgotten.
        """
        record = record_of(self.cell, self.checkpoint.parts(), prompts, warnings)
        # a kind of the user's own need not judge its record
        check = getattr(self.backend, "check", None)
        if check is not None:
            try:
                check(record)
            except ValueError:
                self.checkpoint.forget()
                raise
        return record

    def write(self, record: CellRecord, folder: Path) -> None:
        """Write the cell's files to a folder."""
        has_terms = self.cell.measurement.round_terms and not self.cell.is_baseline
        if has_terms and self.finished_id is None:
            # first, so that a record that promises terms has them
            requests = (item for part in self.checkpoint.parts() for item in part.terms)
            write_terms(collect_terms(record.cell_id, requests), folder)
        terms = [terms_path(folder, record.cell_id)] if has_terms else []
        self.checkpoint.finish(record, [*terms, write_cell(record, folder)])


def _without_failed(run: BackendRun) -> BackendRun:
    """What is left without the conversations in which a request failed; they are played again later."""
    keys = {(item.request[0], item.request[2]) for item in run.failures if item.request is not None}
    requests = tuple(item for item in run.requests if (item.prompt_id, item.sample) not in keys)
    terms = tuple(item for item in run.terms if (item.key[0], item.key[2]) not in keys)
    return replace(run, requests=requests, terms=terms, failures=())


def _key(conversation: Conversation) -> ConversationKey:
    return conversation.prompt.prompt_id, conversation.sample
