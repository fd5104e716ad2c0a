"""The versions of vLLM that the plug-in knows, and what it takes for granted of each.

A version is told by what it does, not by its name alone: the parameters of the functions that the plug-in calls or
stands in for must be those that were read. A version that was read but never run is refused like an unknown one, until
REJECTION_LAB_TRY_VLLM names it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from typing import Any

TRY = "REJECTION_LAB_TRY_VLLM"
"""Environment variable: a version that was only read, to run it all the same."""
SAMPLER = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"
GUMBEL = "vllm.v1.worker.gpu.sample.gumbel"
RUNNER = "vllm.v1.worker.gpu.model_runner"
FUNCTIONS = {
    "rejection_sample": (f"{SAMPLER}_utils", "rejection_sample"),
    "rejection_sampler": (SAMPLER, "RejectionSampler.__call__"),
    "apply_sampling_params": ("vllm.v1.worker.gpu.sample.sampler", "Sampler.apply_sampling_params"),
    "propose": (SPECULATOR, "BaseSpeculator.propose"),
    "gumbel_sample": (GUMBEL, "gumbel_sample"),
}
"""What the plug-in calls or stands in for: module and name. The sampler's module imports the first by its name, and
there it is replaced."""
RECORDED = {
    "sample": (RUNNER, "GPUModelRunner.sample"),
    "add_requests": (RUNNER, "GPUModelRunner.add_requests"),
}
"""What a recording wraps; checked when one begins."""
STREAMED = {
    name: ("vllm.v1.engine.output_processor", f"RequestOutputCollector.{name}") for name in ("put", "get", "get_nowait")
}
"""What hands a stream's outputs to the front end; checked where every step is to be sent."""
VERIFIED = (
    "target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping expanded_local_pos "
    "temperature seed num_speculative_steps synthetic_conditional_rates use_fp64 use_block_verification"
)
PROPOSED = (
    "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
    "last_sampled next_prefill_tokens temperature seeds"
)


class RefusedVersion(RuntimeError):
    """vLLM is not one that the plug-in may run in."""


@dataclass(frozen=True)
class Version:
    """What is known of a version."""

    parameters: Mapping[str, str]
    """Names of the parameters of each of FUNCTIONS, in order."""
    was_run: bool
    """False: written from its source."""
    caches_raw_logits: bool
    """The draft cache holds the head's logits as they are, not over the temperature."""
    recorded: Mapping[str, str] = field(default_factory=dict)
    """Names of the parameters of each of RECORDED; empty for a version that recordings were not written for."""

    streamed: Mapping[str, str] = field(default_factory=dict)
    """Names of the parameters of each of STREAMED; empty for a version whose front end was not read."""

    def check_recorded(self) -> None:
        """Raise RefusedVersion unless the rounds of this version can be recorded."""
        if not self.recorded:
            known = ", ".join(name for name, each in VERSIONS.items() if each.recorded)
            raise RefusedVersion(f"start_recording: expected vLLM {known}, found {metadata.version('vllm')}")
        _check(RECORDED, self.recorded)


VERSIONS = {
    "0.25.1": Version(
        {
            "rejection_sample": VERIFIED,
            "rejection_sampler": "self logits input_batch draft_logits",
            "apply_sampling_params": "self logits expanded_idx_mapping idx_mapping_np pos input_ids "
            "expanded_local_pos skip_top_k_top_p",
            "propose": f"{PROPOSED} num_tokens_across_dp dummy_run skip_attn_for_dummy_run mm_inputs is_profile",
            "gumbel_sample": "logits expanded_idx_mapping temperature seed pos apply_temperature "
            "output_processed_logits output_processed_logits_col use_fp64",
        },
        was_run=True,
        caches_raw_logits=False,
        recorded={
            "sample": "self hidden_states input_batch grammar_output",
            "add_requests": "self scheduler_output",
        },
        streamed={"put": "self output", "get": "self", "get_nowait": "self"},
    ),
    "0.33.0": Version(
        {
            "rejection_sample": f"{VERIFIED} contexts watermarking watermarking_skip_mask watermark_key "
            "fly_window_size fly_entropy_threshold fly_entropy_top_k",
            "rejection_sampler": "self logits input_batch draft_logits invalid_drafts",
            "apply_sampling_params": "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids "
            "expanded_local_pos seq_lens_upper_bound_np skip_top_k_top_p",
            "propose": f"{PROPOSED} dp_sync_state dummy_run skip_attn_for_dummy_run mm_inputs is_profile "
            "num_speculative_tokens",
            "gumbel_sample": "logits expanded_idx_mapping temperature seed pos apply_temperature is_drafting "
            "logits_cache logits_cache_col use_fp64 logits_cache_source",
        },
        was_run=False,
        caches_raw_logits=True,
    ),
}


def check_streamed() -> None:
    """Raise RefusedVersion unless the front end of the vLLM of this process is one that was read."""
    name = _installed()
    version = VERSIONS.get(name)
    if version is None or not version.streamed:
        known = ", ".join(name for name, each in VERSIONS.items() if each.streamed)
        raise RefusedVersion(f"a chunk for every step: expected vLLM {known}, found {name}")
    _check(STREAMED, version.streamed)


def checked_version() -> Version:
    """What is known of the vLLM of this process.

    Raises:
        RefusedVersion: it is unknown, was only read, or has other parameters than were read.
    """
    name = _installed()
    version = VERSIONS.get(name)
    if version is None:
        raise RefusedVersion(
            f"expected vLLM {_names()}, found {name}; another version needs its row in signatures.py and a run of "
            "`rejection-lab certify --subject vllm_plugin`"
        )
    if not version.was_run and os.environ.get(TRY) != name:
        raise RefusedVersion(
            f"the plug-in was written from the source of vLLM {name} and never ran in it; to try it, set {TRY}={name}, "
            "then call set_verification with attest=True and compare the outputs at temperature 0 with vLLM's own"
        )
    _check(FUNCTIONS, version.parameters)
    return version


def _check(functions: Mapping[str, tuple[str, str]], parameters: Mapping[str, str]) -> None:
    """Raise RefusedVersion where a function takes other parameters than expected."""
    for function, (module, path) in functions.items():
        found = " ".join(inspect.signature(_resolve(module, path)).parameters)
        if found != parameters[function]:
            raise RefusedVersion(
                f"vLLM {metadata.version('vllm')}: expected {path} to take ({parameters[function]}), found ({found})"
            )


def _installed() -> str:
    try:
        return metadata.version("vllm").partition("+")[0]
    except metadata.PackageNotFoundError:
        raise RefusedVersion(f"expected vLLM {_names()}, found none") from None


def _names() -> str:
    return " or ".join(VERSIONS)


def _resolve(module: str, path: str) -> Callable[..., Any]:
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise RefusedVersion(f"expected {module}.{path}, found {error}") from error
    return found
