"""A server as it is asked here: its address, model and adapter, one request, and what its counters say of drafts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from harness.backends.server.adapter import Adapter
from harness.backends.server.client import Client, connected
from harness.backends.server.counters import Counters, CountersReset, read_counters, settled_counters
from harness.backends.server.get import NoAnswer, get_json, listed_models
from harness.checks.server_certification.config import CertifyServerConfig
from harness.checks.server_certification.known_model import Tokens
from harness.config.backend import Server
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sampling import SamplingSettings
from harness.config.sections import DecodingConfig
from harness.config.server import server_of
from harness.records import InconsistentRecordError
from harness.records.counts import DraftCounts

STALL_TIMEOUT_S = 120.0


class Served:
    """One server with an OpenAI-compatible interface."""

    def __init__(self, url: str, config: CertifyServerConfig) -> None:
        """Raises ValueError if no server answers there, or it does not have the model."""
        server = server_of(config.engine, url=url, stall_timeout_s=STALL_TIMEOUT_S)
        cell = CellConfig(
            drafter=drafter_of(DrafterKind.none),
            decoding=DecodingConfig(ignore_eos=True),
            backend=Server(),
            server=server,
        )
        self.url = str(server.url)
        self._adapter: Adapter = server.adapter(cell, "")
        self._sends_seeds = config.seeds
        self.model = self._listed(config.model)
        self.version: str | None = None
        with suppress(NoAnswer):
            if self._adapter.version_path is not None:
                self.version = self._adapter.version_of(get_json(self.url + self._adapter.version_path))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Asks it; to be entered within a running event loop."""
        adapter = self._adapter
        async with connected(STALL_TIMEOUT_S, are_kept=adapter.keeps_connections) as connections:
            yield Client(
                connections,
                self.url + adapter.completions_path,
                time.perf_counter,
                num_retries=3,
                stall_timeout_s=STALL_TIMEOUT_S,
                new_reply=adapter.reply,
            )

    def _listed(self, wanted: str) -> str:
        names = list(listed_models(self.url))
        name = wanted or (names[0] if len(names) == 1 else "")
        if name not in names:
            listed = ", ".join(names) or "none"
            raise ValueError(f"--model: expected one that the server lists ({listed}), found {name or 'none given'}")
        return name

    def body(self, prompt: Tokens, sampling: SamplingSettings, num_tokens: int, seed: int) -> Mapping[str, Any]:
        """A request. seed: of 63 bits."""
        fields = self._adapter.request_fields(sampling, seed)
        if not self._sends_seeds:
            del fields["seed"]
        return {
            "model": self.model,
            "prompt": list(prompt),
            # of which the first are those that were asked for
            "max_tokens": num_tokens + self._adapter.num_held,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }

    def counters(self) -> Counters | None:
        """What the server counts; None where it counts nothing."""
        return read_counters(self.url, self._adapter.metrics_path)

    def drafts_since(self, before: Counters | None) -> DraftCounts | None:
        """Drafts since a reading; None where its counters do not tell of them."""
        if before is None:
            return None
        try:
            return self._adapter.counts(settled_counters(self.url, self._adapter.metrics_path).since(before))
        except (CountersReset, InconsistentRecordError):
            return None
