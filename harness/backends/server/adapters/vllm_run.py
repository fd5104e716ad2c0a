"""vLLM, 0.25 to 0.33. vllm.py beside it says what it was run against; all else is written from its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from harness.backends.backend import RefusedArm
from harness.backends.server.adapter import (
    Adapter,
    Evidence,
    counts_of_steps,
    positions_of_constant_depth,
)
from harness.backends.server.chunk_steps import ChunkSteps, steps_of_chunks
from harness.backends.server.counters import Counters
from harness.backends.server.load_result import Answered
from harness.backends.server.random_models import draws_weights
from harness.backends.server.reply import MalformedAnswer, Reply
from harness.backends.server.rounds import Steps
from harness.backends.server.vllm_cpu.start import MENDED
from harness.config.constraint import GrammarConfig, GrammarKind
from harness.config.drafter import DrafterKind
from harness.config.sampling import SamplingSettings
from harness.drafters.ngram import Ngram
from harness.records.counts import DraftCounts, Knowledge
from kernels.methods import VerificationMethod

METHODS = {
    VerificationMethod.greedy: "standard",
    VerificationMethod.probabilistic: "standard",
    VerificationMethod.block: "block",
    VerificationMethod.synthetic: "synthetic",
}
"""Our methods by the names of rejection_sample_method."""
COUNTER = "vllm:spec_decode_num_{}_total"
V1_IN_LOG = re.compile(r"^.*Model Runner V2 .*\bV1\b.*$", re.MULTILINE)
CPU_IN_LOG = "Model Runner V2 requires Triton"
NOT_CONFIRMED = "the server was not started here: that it verifies by the method of this cell could not be confirmed"
BIASED_IN_0_25 = (
    "vLLM 0.25 is known to be biased above temperature 0: sampled drafts share noise with the residual (vLLM issue "
    "47386), and block verification uses the same random numbers over several rounds"
)
V1_DRAFTERS_BEFORE_0_33 = (DrafterKind.ngram, DrafterKind.draft_model)
"""Drafters for which 0.25 takes its V1 runner by itself."""
WAS_MENDED = "vLLM was not as shipped: a kernel was mended at start as in its pull request 55006"
OTHER_BOUNDARY = (
    "what this version of vLLM commits in the round in which reasoning ends was not read: 0.32 masks what follows a "
    "drafted end of reasoning, as constraint=mask says"
)
BEYOND_THE_END = (
    "vLLM's counters count drafts beyond the end of a request: lengths are higher than those of the local engine"
)


class VllmAdapter(Adapter):
    """One cell on vLLM."""

    version_path = "/version"
    tokens_counter = "vllm:generation_tokens_total"
    cache_counters = ("vllm:prefix_cache_hits_total",)
    notes: ClassVar = {knowledge: (BEYOND_THE_END,) for knowledge in (Knowledge.requests, Knowledge.blocks)}

    def speculation(self) -> tuple[str, ...]:
        if self.cell.is_baseline:
            return ()
        return "--speculative-config", json.dumps(self.speculative_config(), separators=(",", ":"))

    def details(self) -> tuple[str, ...]:
        # refused where nothing drafts
        return () if self.cell.is_baseline else ("--per-request-spec-decode-metrics", "detailed")

    def weights(self) -> tuple[str, ...]:
        # what random models write has no text
        return ("--load-format", "dummy", "--skip-tokenizer-init") if draws_weights(self.cell) else ()

    def served_target(self, path: str, folder: Path) -> str:
        # refuses the layer behind the last that its model class knows
        is_whole = self.cell.drafter.kind is DrafterKind.mtp or draws_weights(self.cell)
        if not self.cell.target.is_built_in or is_whole:
            return path
        from harness.models.fingerprint import fingerprint
        from harness.models.mtp import copy_without_mtp

        return str(copy_without_mtp(Path(path), folder / f"target-{fingerprint(Path(path))}"))

    def reasoning(self) -> tuple[str, ...]:
        constraint, known = self.cell.constraint, self.cell.server.traits.reasoning_parsers
        parser = known[constraint.parser] if isinstance(constraint, GrammarConfig) else ""
        return ("--reasoning-parser", parser) if parser else ()

    def grammar_fields(self, grammar: str) -> dict[str, Any]:
        constraint = self.cell.constraint
        is_json = isinstance(constraint, GrammarConfig) and constraint.kind is GrammarKind.json_schema
        return {"structured_outputs": {"json": json.loads(grammar)} if is_json else {"regex": grammar}}

    def speculative_config(self) -> dict[str, Any]:
        """The content of --speculative-config."""
        cell, kind = self.cell, self.cell.drafter.kind
        config: dict[str, Any] = {"method": kind.value, "num_speculative_tokens": self.num_tokens}
        if cell.drafter.has_model:
            config["draft_sample_method"] = "probabilistic" if self.samples_drafts else "greedy"
            if kind is not DrafterKind.mtp:
                config["model"] = self.drafter
        elif isinstance(cell.drafter, Ngram):
            config |= {"prompt_lookup_max": cell.drafter.ngram_max, "prompt_lookup_min": cell.drafter.ngram_min}
        method = VerificationMethod(cell.verification.method.value)
        config["rejection_sample_method"] = METHODS[method]
        if method is VerificationMethod.synthetic:
            config["synthetic_acceptance_rates"] = list(cell.verification.at(self.num_tokens).rule.parameters["rates"])
        return config

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        return {**self.sampling_fields(sampling, no_top_k=-1), "seed": seed, "return_token_ids": True}

    def drafts(self, reply: Reply) -> Steps | DraftCounts | None:
        if self.cell.is_baseline and reply.token_ids:
            return Steps()
        found = reply.parts.get("metrics", {}).get("speculative_decoding")
        if not found:
            return None
        depth = found.get("num_spec_tokens")
        if depth is not None and depth != self.num_tokens:
            raise RefusedArm(f"expected K = {self.num_tokens}, found num_spec_tokens = {depth} in the server's answer")
        return drafts_told(found, self.num_tokens)

    def chunk_steps(self, answered: Sequence[Answered], counts: DraftCounts) -> ChunkSteps | None:
        # sends a chunk a step, but merges steps where its front end falls behind
        return steps_of_chunks(answered, counts, self.num_tokens)

    def counts(self, added: Counters) -> DraftCounts | None:
        return counts_of_steps(added, COUNTER, self.num_tokens)

    def refuse(self, evidence: Evidence) -> None:
        if self.cell.is_baseline:
            return
        version, log = evidence.version or "", evidence.log or ""
        on_cpu = version.startswith("0.32.") and CPU_IN_LOG in log
        if on_cpu and self.cell.verification.method is VerificationMethod.synthetic:
            raise RefusedArm(
                f"expected verification=synthetic, found version {version} on a CPU, whose kernels do not know it: its "
                "engine dies at the first draft ('Synthetic acceptance not supported with CPU sampling'); use a GPU or "
                "another method"
            )
        if self.cell.decoding.temperature > 0 and on_cpu and MENDED not in log:
            raise RefusedArm(
                f"expected sampling at temperature {self.cell.decoding.temperature:g}, found version {version} on a "
                "CPU, which verifies with uninitialised memory there (vLLM issue 55005); use decoding.temperature=0 or "
                "server=vllm_cpu_mended"
            )
        if self.cell.verification.method is not VerificationMethod.block:
            return
        found = self.v1_runner(evidence)
        if found is not None:
            raise RefusedArm(
                "expected verification=block, which vLLM's V1 runner silently replaces by standard, found that this "
                f"runner runs: {found}; use verification=probabilistic or a server with runner V2"
            )

    def v1_runner(self, evidence: Evidence) -> str | None:
        """Why the V1 runner runs, or nothing shows that it does not; None where runner V2 runs."""
        version = evidence.version or ""
        kind = self.cell.drafter.kind
        if "cpu" in version:
            return f"version {version}, a build for CPUs, has no other runner"
        if evidence.log is None:
            return "the server was not started here, and no log shows that runner V2 runs (start it by server.command)"
        in_log = V1_IN_LOG.search(evidence.log)
        if in_log is not None:
            return f"its log says {in_log[0].strip()!r}"
        release = re.match(r"0\.(\d+)", version)
        if release is not None and int(release[1]) < 33 and kind in V1_DRAFTERS_BEFORE_0_33:
            return f"version {version} runs drafter={kind.value} on it"
        return None if release is not None else f"version {version or 'unknown'} cannot be judged"

    def doubts(self, evidence: Evidence) -> tuple[str, ...]:
        has_log, method = evidence.log is not None, self.cell.verification.method
        is_random = self.cell.decoding.temperature > 0 and method is not VerificationMethod.synthetic
        is_random = is_random and (self.samples_drafts or method is VerificationMethod.block)
        is_biased = is_random and (evidence.version or "").startswith("0.25.")
        is_mended = MENDED in (evidence.log or "")
        is_other = isinstance(self.cell.constraint, GrammarConfig) and not (evidence.version or "").startswith("0.32.")
        found = (
            (NOT_CONFIRMED, not has_log),
            (BIASED_IN_0_25, is_biased),
            (WAS_MENDED, is_mended),
            (OTHER_BOUNDARY, is_other),
        )
        return tuple(note for note, holds in found if holds)


def drafts_told(found: Mapping[str, Any], depth: int) -> Steps | DraftCounts:
    """The drafts of an answer by its metrics.speculative_decoding: every step, or counts where it has no more detail.

    Args:
        found: that object.
        depth: K.

    Raises:
        MalformedAnswer: it lacks a field.
    """
    try:
        if found["num_spec_steps"] == 0:
            # no step, so no list of steps, in whatever detail
            return Steps()
        if found.get("per_step_accepted") is not None:
            return Steps(tuple(found["per_step_drafted"]), tuple(found["per_step_accepted"]))
        histogram = found["acceptance_histogram"]
        steps, drafted = found["num_spec_steps"], found["num_draft_tokens"]
        return DraftCounts(
            steps,
            drafted,
            found["num_accepted_draft_tokens"],
            positions_of_constant_depth(steps, drafted, depth),
            tuple(sum(histogram[position:]) for position in range(1, len(histogram))),
        )
    except KeyError as error:
        raise MalformedAnswer(f"metrics.speculative_decoding lacks {error}") from error
