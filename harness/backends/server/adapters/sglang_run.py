"""SGLang 0.5.23: written from its source, not run against it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from harness.backends.backend import RefusedArm
from harness.backends.server.adapter import Adapter, Evidence, positions_of_constant_depth
from harness.backends.server.reply import MalformedAnswer, Reply
from harness.backends.server.rounds import Steps
from harness.config.drafter import DrafterKind
from harness.config.sampling import SamplingSettings
from harness.records.counts import DraftCounts
from kernels.methods import VerificationMethod

ALGORITHMS = {
    DrafterKind.eagle: "EAGLE",
    DrafterKind.eagle3: "EAGLE3",
    DrafterKind.mtp: "NEXTN",
    DrafterKind.draft_model: "STANDALONE",
    DrafterKind.ngram: "NGRAM",
}
SWITCHES = {
    VerificationMethod.probabilistic: ("speculative_use_rejection_sampling",),
    VerificationMethod.block: ("speculative_use_rejection_sampling", "speculative_use_block_verification"),
}
"""Flags that a method needs; without any, SGLang verifies strictly and by greedy drafts."""
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")


class SglangAdapter(Adapter):
    """One cell on SGLang. Its gauges of acceptance cover the last window only and are not read."""

    version_path = "/server_info"
    info_path = "/server_info"
    tokens_counter = "sglang:generation_tokens_total"

    def speculation(self) -> tuple[str, ...]:
        cell, kind = self.cell, self.cell.drafter.kind
        if cell.is_baseline:
            return ()
        given = ["--speculative-algorithm", ALGORITHMS[DrafterKind(kind.value)]]
        given += ["--speculative-num-steps", str(self.num_tokens), "--speculative-eagle-topk", "1"]
        given += ["--speculative-num-draft-tokens", str(self.num_tokens + 1)]
        if self.drafter and kind is not DrafterKind.mtp:
            given += ["--speculative-draft-model-path", self.drafter]
        if cell.decoding.temperature > 0:
            given += [f"--{name.replace('_', '-')}" for name in self._switches]
        return tuple(given)

    @property
    def _switches(self) -> tuple[str, ...]:
        return SWITCHES.get(VerificationMethod(self.cell.verification.method.value), ())

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        fields = {**self.sampling_fields(sampling, no_top_k=-1), "seed": seed % 2**31, "return_token_ids": True}
        return fields if self.cell.is_baseline else fields | {"return_spec_tokens_details": True}

    def drafts(self, reply: Reply) -> Steps | DraftCounts | None:
        if self.cell.is_baseline:
            return DraftCounts()
        found = reply.parts.get("sglext", {}).get("spec_tokens_details")
        if not found:
            return None
        return drafts_told(found, self.num_tokens)

    def refuse(self, evidence: Evidence) -> None:
        info = evidence.info
        if self.cell.is_baseline:
            algorithm = info.get("speculative_algorithm")
            if algorithm:
                raise RefusedArm(
                    f"expected a baseline without drafts, found speculative_algorithm = {algorithm} in the server's "
                    "/server_info"
                )
            return
        if not info:
            return
        wanted: dict[str, Any] = {"speculative_num_steps": self.num_tokens, "speculative_eagle_topk": 1}
        if self.cell.decoding.temperature > 0:
            every = dict.fromkeys(name for names in SWITCHES.values() for name in names)
            wanted |= {name: name in self._switches for name in every} | dict.fromkeys(THRESHOLDS, 1.0)
        for name, value in wanted.items():
            if name in info and (info[name] or 0) != value:
                raise RefusedArm(
                    f"expected {name} = {value} for verification={self.cell.verification.method.value}, found "
                    f"{info[name]} in the server's /server_info"
                )

    def notes_on_edits(self, edits: Collection[str]) -> tuple[str, ...]:
        found = []
        if "repetition_penalty" in edits:
            found.append("SGLang's repetition penalty counts the output alone, where others count the prompt too")
        if not self.cell.is_baseline and set(edits) - {"logit_bias"}:
            found.append(
                "SGLang gives every position of a draft the penalties of the round's start: its output is not that of "
                "plain decoding with the same settings"
            )
        return tuple(found)

    def doubts(self, evidence: Evidence) -> tuple[str, ...]:
        if "speculative_num_steps" in evidence.info:
            return ()
        return ("the server does not tell its settings: that it verifies by the method of this cell is not confirmed",)


def drafts_told(found: Mapping[str, Any], depth: int) -> DraftCounts:
    """The drafts of an answer by its spec_tokens_details, or by meta_info of the native endpoint.

    Args:
        found: that object.
        depth: K.

    Raises:
        MalformedAnswer: it lacks a field.
    """
    try:
        steps, drafted = found["spec_verify_ct"], found["spec_num_proposed_drafts"]
        accepted = found["spec_num_correct_drafts"]
    except KeyError as error:
        raise MalformedAnswer(f"spec_tokens_details lacks {error}") from error
    histogram = found.get("spec_correct_drafts_histogram")
    by_position = None if not histogram else tuple(sum(histogram[i:]) for i in range(1, len(histogram)))
    return DraftCounts(steps, drafted, accepted, positions_of_constant_depth(steps, drafted, depth), by_position)
