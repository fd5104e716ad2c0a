"""Observes a worker that verifies by the core, and hands the rows of its rounds to a recorder.

It wraps `add_requests` of the worker's model runner (new requests) and `sample` (the tokens that a step emitted, by
whichever sampler), and the core's verification calls it with the rows that it verified. Requests are identified by
vLLM's ids, prompts by a digest of their tokens.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from harness.plugins.recording.content import MAGIC, SUFFIX
from harness.plugins.recording.frames import FrameFile
from harness.plugins.vllm.recorder import Recorder, Step, VerifiedRows
from harness.plugins.vllm.swap import Swap, changed_rows
from harness.plugins.vllm.verification import CoreVerification, Method
from kernels.contract import Draft, Sampling

logger = logging.getLogger("vllm.rejection_lab")
RECORDED = (Method.strict, Method.probabilistic, Method.block)
"""Methods under which drafts can be recorded for replay: lossless ones, whose text follows the target's law."""
DRAFTERS = ("eagle", "eagle3", "mtp", "draft_model", "ngram")
"""vLLM's drafters that our records have a name for."""


class RefusedRecording(RuntimeError):
    """What replay needs cannot be recorded in this worker."""


def refuse(swap: Swap, model_runner: Any, folder: Path) -> None:
    """Refuse a worker whose rounds cannot be recorded; creates the folder.

    Raises:
        RefusedVersion: vLLM's functions are not those that this was written for.
        RefusedRecording: several workers share its requests, its drafter has no name in our records, or the folder
            cannot be written to.
    """
    swap.version.check_recorded()
    parallel = model_runner.parallel_config
    size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if size != 1:
        raise RefusedRecording(f"start_recording: expected a worker that has its requests alone, found {size} of them")
    drafter = model_runner.speculative_config.method
    if drafter not in DRAFTERS:
        raise RefusedRecording(f"start_recording: expected drafts by {', '.join(DRAFTERS)}, found {drafter!r}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedRecording(f"start_recording: expected a folder to write to, found {error}") from error
    if not os.access(folder, os.W_OK):
        raise RefusedRecording(f"start_recording: expected a folder to write to, found {folder}, which is not writable")


class Recording:
    """A recording of a worker, from its start to `stop`."""

    def __init__(
        self, model_runner: Any, swap: Swap, verification: CoreVerification, folder: Path, device: torch.device
    ) -> None:
        """
        Args:
            model_runner: of a worker that `refuse` lets pass.
            swap: the worker's own functions.
            verification: by which the worker verifies.
            folder: for the file.
            device: of the worker.
        """
        self.runner, self.verification = model_runner, verification
        self._sampler = swap.own_sampler
        name = f"{uuid4().hex}{SUFFIX}"
        header = _header(model_runner, swap, verification, device)
        self.recorder = Recorder(FrameFile(folder / name, MAGIC), header, device)
        self._numbers: dict[str, int] = {}
        self._new: list[Mapping[str, Any]] = []
        self._num_seen = 0
        self._rows: VerifiedRows | None = None
        self._add_requests, self._sample = model_runner.add_requests, model_runner.sample
        model_runner.add_requests, model_runner.sample = self.add_requests, self.sample
        verification.on_round = self.keep

    @property
    def path(self) -> Path:
        """Of the file."""
        return self.recorder.file.path

    def stop(self) -> dict[str, Any]:
        """End the recording; the verification stays.

        Returns:
            file, num_rounds, num_requests.

        Raises:
            RuntimeError: not all was recorded; the message says why.
        """
        self.verification.on_round = None
        for name in ("add_requests", "sample"):
            vars(self.runner).pop(name, None)
        self.recorder.close()
        found = self.recorder
        return {"file": str(self.path), "num_rounds": found.num_rounds, "num_requests": found.num_requests}

    def add_requests(self, scheduler_output: Any) -> Any:
        """The model runner's own, and a note of the new requests."""
        found = self._add_requests(scheduler_output)
        try:
            self._note(scheduler_output)
        except Exception as error:
            self.recorder.fail(error)
        return found

    def _note(self, scheduler_output: Any) -> None:
        for request_id in scheduler_output.finished_req_ids:
            self._numbers.pop(request_id, None)
        for item in scheduler_output.scheduled_new_reqs:
            # a request that comes again was preempted: it keeps its number, and readers find lost rounds by position
            if item.sampling_params is not None and item.req_id not in self._numbers:
                self._new.append(self._described(item))
                self._numbers[item.req_id] = self._num_seen
                self._num_seen += 1

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        """The model runner's own, and a step for the recorder."""
        self._rows = None
        output, num_sampled, num_rejected = self._sample(hidden_states, input_batch, grammar_output)
        rows, self._rows = self._rows, None
        if self.recorder.error is None:
            try:
                self.recorder.add(self._step(input_batch, output.sampled_token_ids, num_sampled, rows))
            except Exception as error:
                self.recorder.fail(error)
        return output, num_sampled, num_rejected

    def _step(self, input_batch: Any, token_ids: Tensor, num_sampled: Tensor, rows: VerifiedRows | None) -> Step:
        """The step, with copies of what vLLM overwrites."""
        new, self._new = self._new, []
        first = input_batch.logits_indices[input_batch.cu_num_logits[:-1].long()]
        positions = input_batch.positions[first].long() + 1
        requests = [self._numbers.get(each, -1) for each in input_batch.req_ids]
        step = Step(requests, new, positions, token_ids.clone(), num_sampled.clone(), rows, None)
        if num_sampled.device.type != "cuda":
            return step
        event = torch.cuda.Event()
        event.record()
        return step._replace(computed=event)

    def keep(self, target_logits: Tensor, draft: Draft, sampling: Sampling) -> None:
        """Copy the rows that the core verifies, which vLLM overwrites; called in `sample`."""
        rows = draft.logits
        if rows is not None:
            assert draft.idx_mapping is not None
            rows = rows[draft.idx_mapping]
        self._rows = VerifiedRows(target_logits.clone(), replace(draft, logits=rows, idx_mapping=None), sampling)

    def _described(self, item: Any) -> dict[str, Any]:
        """The entry of a request in the file."""
        params, slot = item.sampling_params, self.runner.req_states.req_id_to_index[item.req_id]
        stops = {params.eos_token_id, *(params.stop_token_ids or ())} - {None}
        # a prompt of embeddings may have no tokens
        prompt = item.prompt_token_ids or []
        states = self._sampler.sampling_states
        return {
            "id": item.req_id,
            "prompt": hashlib.sha256(np.array(prompt, dtype="<i8").tobytes()).hexdigest()[:16],
            "num_prompt_tokens": len(prompt),
            "seed": int(states.seeds.np[slot]),
            "temperature": float(params.temperature),
            "top_k": 0 if params.top_k in (-1, 0) or params.top_k >= states.vocab_size else int(params.top_k),
            "top_p": float(params.top_p),
            "min_p": float(params.min_p),
            "max_tokens": int(params.max_tokens),
            "ignore_eos": bool(params.ignore_eos),
            "stop_token_ids": sorted(stops),
            "submitted_s": time.perf_counter(),
            "cannot": _cannot(item, self._sampler, slot),
        }


def _cannot(item: Any, sampler: Any, slot: int) -> str | None:
    """What a request has that a recording does not hold, so that it cannot be replayed; None if nothing."""
    params = item.sampling_params
    reasons = {
        "a grammar": params.structured_outputs is not None,
        "stop strings": bool(params.stop),
        "an adapter of its own": item.lora_request is not None,
        "a prompt that is not tokens alone": bool(item.mm_features) or item.prompt_embeds is not None,
        "penalties, biases, bad words or a minimum length": any(
            bool(change) for change in changed_rows(sampler, np.array([slot]))
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _header(model_runner: Any, swap: Swap, verification: CoreVerification, device: torch.device) -> dict[str, Any]:
    speculative, model = model_runner.speculative_config, model_runner.model_config
    cache = swap.speculator.draft_logits
    libraries = {"vllm": metadata.version("vllm"), "torch": torch.__version__}
    return {
        "engine": "vllm",
        "libraries": libraries,
        "method": verification.verification.method.value,
        "num_speculative_tokens": int(speculative.num_speculative_tokens),
        "draft_dtype": None if cache is None else str(cache.dtype).removeprefix("torch."),
        "target": str(model.model),
        "drafter": speculative.method,
        "drafter_path": None if speculative.model is None else str(speculative.model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "core": verification.core.name,
        "start_unix_s": time.time(),
    }
