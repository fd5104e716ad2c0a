"""Computes the terms of a worker's rounds in a thread, beside the steps, and writes them.

A step hands over copies of the rows that it verified. The thread computes the terms on a stream of its own, copies them
to the host and appends them to the file. At most one step is queued: if the thread is slower than the engine, the next
step waits, so that nothing is lost and memory is bounded by the rows of three steps. A frame is written after
ROUNDS_PER_FRAME rounds or FLUSH_S seconds; a process that dies loses the rounds since.

Shapes: R requests of a step, K draft tokens at most, N target rows, V the vocabulary.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.plugins.recording.content import EXPECTED, to_text
from harness.plugins.recording.frames import FrameFile
from kernels.contract import Draft, Sampling
from kernels.reference.acceptance import acceptance_terms, expected_accepted

logger = logging.getLogger("vllm.rejection_lab")
ROUNDS_PER_FRAME = 4096
FLUSH_S = 5.0


class VerifiedRows(NamedTuple):
    """The rows that a step verified; copies, since the engine reuses its buffers."""

    target_logits: Tensor
    """[N, V] as the core read them."""
    draft: Draft
    sampling: Sampling
    """Fields [R], still to be applied to `target_logits`."""


class Step(NamedTuple):
    """The rounds of a step."""

    requests: list[int]
    """[R] number of each request in the file; -1 for one that began before the recording."""
    new_requests: list[Mapping[str, Any]]
    """Descriptions of the requests that get their number in this step, in order."""
    positions: Tensor
    """[R] of the first token that the round may emit."""
    token_ids: Tensor
    """[R, <= K + 1] emitted."""
    num_output_tokens: Tensor
    """[R] 0 for a request whose prompt is not read yet."""
    rows: VerifiedRows | None
    """None where no request had a draft."""
    computed: torch.cuda.Event | None
    """After it the tensors hold their values; None on a CPU."""


@dataclass
class _Frame:
    """The content of the next frame, while it grows."""

    requests: list[Mapping[str, Any]] = field(default_factory=list)
    rounds: dict[str, list[Any]] = field(default_factory=dict)
    terms: dict[str, list[np.ndarray]] = field(default_factory=dict)
    num_unknown: int = 0
    """Rounds of requests that began before the recording."""

    def add(self, terms: Mapping[str, np.ndarray], **round_: Any) -> None:
        for name, value in round_.items():
            self.rounds.setdefault(name, []).append(value)
        for name, values in terms.items():
            self.terms.setdefault(name, []).append(values)

    @property
    def num_rounds(self) -> int:
        return len(self.rounds.get("request", ()))

    @property
    def content(self) -> dict[str, Any]:
        terms = {name: to_text(np.concatenate(values)) for name, values in self.terms.items()}
        return {"requests": self.requests, "rounds": self.rounds, "terms": terms, "num_unknown": self.num_unknown}


class Recorder:
    """One file and the thread that fills it."""

    def __init__(self, file: FrameFile, header: Mapping[str, Any], device: torch.device) -> None:
        """
        Args:
            file: new.
            header: what runs, as plain JSON values.
            device: where the rows are.
        """
        file.append({"header": dict(header)})
        self.file = file
        self.error: Exception | None = None
        """Why the recording has ended early; None while it has not."""
        self.num_rounds = 0
        self.num_requests = 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._steps: queue.Queue[Step | None] = queue.Queue(maxsize=1)
        self._is_closed = False
        self._frame = _Frame()
        self._flushed_s = self._last_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="rejection_lab recorder", daemon=True)
        self._thread.start()

    def add(self, step: Step) -> None:
        """Hand over a step; waits while another one is queued."""
        self._steps.put(step)

    def fail(self, error: Exception) -> None:
        """End the recording early, with a line in the file and the log; the engine runs on."""
        if self.error is None:
            self.error = error
            logger.error("rejection_lab: the recording %s ends early", self.file.path, exc_info=error)

    def close(self) -> None:
        """Write the rounds that are left and the last frame.

        Raises:
            RuntimeError: the recording has ended early; what was written before stays readable.
        """
        self._steps.put(None)
        self._thread.join()
        if self.error is None:
            try:
                self._flush()
                self.file.append({"end": {"num_rounds": self.num_rounds, "num_requests": self.num_requests}})
            except OSError as error:
                self.fail(error)
        if self.error is not None:
            raise RuntimeError(f"{self.file.path}: not all was recorded: {self.error}") from self.error

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                # a thread inherits neither
                stack.enter_context(torch.inference_mode())
                if self._stream is not None:
                    stack.enter_context(torch.cuda.stream(self._stream))
                self._work()
        except Exception as error:
            self.fail(error)
        if self.error is not None:
            with suppress(Exception):
                self._flush()
                self.file.append({"failed": f"{type(self.error).__name__}: {self.error}"})
        # drain the queue, or the engine's next step would block
        while not self._is_closed:
            self._is_closed = self._steps.get() is None

    def _work(self) -> None:
        """Take steps until `close`, or until the recording ends early."""
        while self.error is None:
            try:
                step = self._steps.get(timeout=FLUSH_S)
                if step is None:
                    self._is_closed = True
                    return
                self._take(step)
            except queue.Empty:
                pass
            is_late = time.perf_counter() - self._flushed_s >= FLUSH_S
            if self._frame.num_rounds >= ROUNDS_PER_FRAME or is_late:
                self._flush()

    def _take(self, step: Step) -> None:
        if self._stream is not None and step.computed is not None:
            self._stream.wait_event(step.computed)
        frame = self._frame
        frame.requests += step.new_requests
        self.num_requests += len(step.new_requests)
        columns, drafts, counts = _terms(step)
        positions, num_output = step.positions.tolist(), step.num_output_tokens.tolist()
        token_ids = step.token_ids.tolist()
        now = time.perf_counter()
        share_s, self._last_s = (now - self._last_s) / max(1, len(step.requests)), now
        for row, request in enumerate(step.requests):
            if not num_output[row]:
                continue
            if request < 0:
                frame.num_unknown += 1
                continue
            count = counts[row]
            frame.add(
                {name: np.atleast_1d(column[row])[: None if name == EXPECTED else count] for name, column in
                 columns.items()} if count else {},
                request=request, position=positions[row], draft_token_ids=drafts[row][:count],
                output_token_ids=token_ids[row][: num_output[row]], time_s=now, share_s=share_s,
            )  # fmt: skip
            self.num_rounds += 1

    def _flush(self) -> None:
        frame, self._frame, self._flushed_s = self._frame, _Frame(), time.perf_counter()
        if frame.num_rounds or frame.requests or frame.num_unknown:
            self.file.append(frame.content)


def _terms(step: Step) -> tuple[dict[str, np.ndarray], list[list[int]], list[int]]:
    """(column -> [R, K], EXPECTED -> [R, 3]; draft tokens of each request; their number)."""
    if step.rows is None:
        return {}, [[]] * len(step.requests), [0] * len(step.requests)
    target_logits, draft, sampling = step.rows
    terms = acceptance_terms(target_logits, draft, sampling)
    columns = {**terms._asdict(), EXPECTED: expected_accepted(terms, draft)}
    found = {name: column.cpu().numpy() for name, column in columns.items()}
    return found, draft.token_ids.tolist(), draft.num_draft_tokens.tolist()
