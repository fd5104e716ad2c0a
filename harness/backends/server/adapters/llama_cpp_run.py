"""llama.cpp's server; llama_cpp.py beside it says what it was run against.

It drafts only by --spec-type: a draft model alone (-md) is loaded and never used. Drafts are the drafter's most
probable tokens; the target's own draw verifies them, whatever the temperature, which is `strict`. Its own endpoint is
asked, which gives token ids; its OpenAI-compatible one gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from harness.backends.backend import RefusedArm
from harness.backends.server.adapter import Adapter, Evidence, counts_of_steps
from harness.backends.server.counters import Counters
from harness.backends.server.held_tokens import ids_of_chunks
from harness.backends.server.reply import Chunk, Reply, drafts_so_far
from harness.backends.server.rounds import Steps, Unsplit
from harness.backends.server.step_boundaries import steps_between
from harness.config.sampling import SamplingSettings
from harness.drafters.ngram import Ngram
from harness.models.gguf import gguf_in
from harness.records.counts import DraftCounts

COUNTED = ("draft_n", "draft_n_accepted")
COUNTER = "llamacpp:spec_decode_num_{}_total"
FINISHED = {"limit": "length", "eos": "stop", "word": "stop"}
"""stop_type -> why an answer ended."""
SAMPLERS = ("temperature", "top_k", "top_p", "min_p")
"""In this order, as the local engine, behind `penalties` where there are some; its own default draws after the cuts and
by temperature last."""
CONTEXT_STEP = 256
"""Positions of a slot are a multiple of it."""
UNUSED = 1
"""Position of a slot that it does not fill: an answer is cut before it."""


class CompletionReply(Reply):
    """An answer of /completion with return_tokens and timings_per_token."""

    def _take(self, event: Mapping[str, Any], arrival_s: float) -> None:
        timings = event["timings"]
        self.parts["timings"] = timings
        ids, num = tuple(map(int, event["tokens"])), int(event["tokens_predicted"])
        # the last event has no token of its own; an answer may end within a character
        if ids or num > (self.chunks[-1].num_tokens_so_far or 0 if self.chunks else 0):
            self.chunks.append(Chunk(arrival_s, ids, str(event["content"]), num, drafts_so_far(timings)))
        if event["stop"]:
            self.finish_reason, self.is_done = FINISHED.get(event["stop_type"], event["stop_type"]), True
            self.stop_string = event.get("stopping_word") or None
            self.parts["usage"] = {
                "completion_tokens": event["tokens_predicted"],
                "prompt_tokens": event["tokens_evaluated"],
                "prompt_tokens_details": {"cached_tokens": timings["cache_n"]},
            }

    def find_held_ids(self, vocabulary: Callable[[], Mapping[bytes, int]]) -> None:
        told = [(chunk.token_ids or (), chunk.num_tokens_so_far or 0, chunk.text) for chunk in self.chunks]
        if sum(len(ids) for ids, _, _ in told) == (told[-1][1] if told else 0):
            return
        pairs = zip(self.chunks, ids_of_chunks(told, vocabulary()), strict=True)
        self.chunks = [chunk._replace(token_ids=ids) for chunk, ids in pairs]

    def first_ids(self, number: int) -> tuple[int, ...]:
        found: list[int] = []
        for chunk in self.chunks:
            ids = chunk.token_ids or ()
            if len(found) + len(ids) != chunk.num_tokens_so_far:
                break
            found += ids
        return tuple(found[:number])

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output tokens; empty where some of a character that was not whole yet are not known."""
        ids = super().token_ids
        return ids if len(ids) == self.parts.get("usage", {}).get("completion_tokens", len(ids)) else ()


class LlamaCppAdapter(Adapter):
    """One cell on llama.cpp."""

    completions_path = "/completion"
    reply = CompletionReply
    version_path = "/props"
    info_path = "/props"
    tokens_counter = "llamacpp:tokens_predicted_total"
    cache_counters = ("llamacpp:prompt_tokens_cached_total",)
    # announces keep-alive, and closes after a streamed answer
    keeps_connections: ClassVar[bool] = False
    tells_every_step: ClassVar[bool] = True
    full_depth: ClassVar[str] = "--spec-draft-p-min 0 --spec-draft-n-min 0"
    # a character of four bytes that is not whole
    num_held: ClassVar[int] = 3

    def speculation(self) -> tuple[str, ...]:
        if self.cell.is_baseline:
            return ()
        if isinstance(self.cell.drafter, Ngram):
            option = "--spec-ngram-simple"
            sizes = (f"{option}-size-n", str(self.cell.drafter.ngram_max), f"{option}-size-m", str(self.num_tokens))
            return "--spec-type", "ngram-simple", *sizes, f"{option}-min-hits", "1"
        drafter = str(gguf_in(self.drafter) or self.drafter)
        depth = ("--spec-draft-n-max", str(self.num_tokens), *self.full_depth.split())
        return "-md", drafter, "--spec-type", "draft-simple", *depth

    def served_target(self, path: str, folder: Path) -> str:
        return str(gguf_in(path) or path)

    def slot_length(self, num_tokens: int) -> int:
        return -(-(num_tokens + UNUSED) // CONTEXT_STEP) * CONTEXT_STEP

    def max_length(self, model: Mapping[str, Any]) -> int | None:
        found = (model.get("meta") or {}).get("n_ctx")
        return None if found is None else int(found) - UNUSED

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        fields = self.sampling_fields(sampling, no_top_k=0)
        # its own name for repetition_penalty, of as many last tokens as the context has
        fields["repeat_penalty"] = fields.pop("repetition_penalty")
        samplers = list(SAMPLERS)
        if sampling.biases:
            fields["logit_bias"] = [[token, bias] for token, bias in sampling.biases.items()]
        if sampling.edits.keys() - {"logit_bias"}:
            fields["repeat_last_n"] = -1
            samplers = ["penalties", *SAMPLERS]
        told = {"cache_prompt": False, "timings_per_token": True, "return_tokens": True}
        return {**fields, "samplers": samplers, "seed": seed % 2**31, **told}

    def notes_on_edits(self, edits: Collection[str]) -> tuple[str, ...]:
        if {"presence_penalty", "frequency_penalty"}.isdisjoint(edits):
            return ()
        return (
            "llama.cpp's presence and frequency penalties count the prompt's tokens too, others the output's alone",
        )

    def drafts(self, reply: Reply) -> Steps | DraftCounts | Unsplit | None:
        seen = [(chunk.num_tokens_so_far, chunk.drafts_so_far) for chunk in reply.chunks]
        told = [(num, *drafts) for num, drafts in seen if num is not None and drafts is not None]
        if not told or len(told) < len(seen):
            return None
        depth = self.num_tokens if self.cell.drafter.has_model else None
        steps = steps_between(told, depth, self.cell.decoding.max_new_tokens)
        if steps is None or not reply.token_ids:
            return Unsplit(told[-1][1])
        if not self.cell.is_baseline and max(steps.drafted, default=0) > self.num_tokens:
            raise RefusedArm(
                f"expected K = {self.num_tokens}, found a step with {max(steps.drafted)} draft tokens in the server's "
                "timings (draft_n)"
            )
        return steps

    def counts(self, added: Counters) -> DraftCounts | None:
        return counts_of_steps(added, COUNTER, self.num_tokens)

    def reported(self, replies: Sequence[Reply]) -> dict[str, float]:
        timings = [reply.parts.get("timings", {}) for reply in replies]
        return {name: float(sum(item.get(name, 0) for item in timings)) for name in COUNTED}

    def version_of(self, answer: Mapping[str, Any]) -> str | None:
        found = answer.get("build_info")
        return None if found is None else str(found)

    def refuse(self, evidence: Evidence) -> None:
        slots, wanted = evidence.info.get("total_slots"), self.cell.backend.max_concurrency
        if slots is not None and slots < wanted:
            raise RefusedArm(
                f"expected {wanted} requests in flight (backend.max_concurrency), found total_slots = {slots} in the "
                "server's /props: the others would wait there; start it with --parallel, or ask for fewer"
            )
