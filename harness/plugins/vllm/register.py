"""The entry point `vllm.general_plugins`, which vLLM calls in each of its processes before anything else."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from harness.plugins.vllm.chunks import send_every_step
from harness.plugins.vllm.signatures import RUNNER, check_streamed, checked_version
from harness.plugins.vllm.worker import NAMES, WorkerExtension

ASKED = "REJECTION_LAB_VERIFICATION"
"""Environment variable: the verification that every worker has from its first request on."""
CHUNKS = "REJECTION_LAB_CHUNKS"
"""Environment variable: `steps` has the front end send every step of a stream as a chunk."""


def register() -> None:
    """Nothing, unless ASKED is set: then every worker gets that verification at the end of its warm-up; or CHUNKS.

    May be called several times in a process, as vLLM does.

    Raises:
        ValueError: ASKED names no verification, or CHUNKS no way to send chunks.
        RefusedVersion: vLLM is not one that the plug-in may run in.
    """
    chunks = os.environ.get(CHUNKS)
    if chunks not in (None, "", "steps"):
        raise ValueError(f"{CHUNKS}: expected steps, found {chunks!r}")
    if chunks:
        check_streamed()
        send_every_step()
    name = os.environ.get(ASKED)
    if not name:
        return
    if name not in NAMES:
        raise ValueError(f"{ASKED}: expected {', '.join(NAMES)}, found {name!r}")
    checked_version()
    runner = import_module(RUNNER).GPUModelRunner
    load = runner.load_model
    if getattr(load, "is_rejection_lab", False):
        return

    def load_model(self: Any, *arguments: Any, **named: Any) -> Any:
        loaded = load(self, *arguments, **named)
        worker = WorkerExtension()
        worker.model_runner, worker.device = self, self.device
        worker.set_verification(name)
        return loaded

    load_model.is_rejection_lab = True  # type: ignore[attr-defined]
    runner.load_model = load_model
