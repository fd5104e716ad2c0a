"""The entry point `sglang.srt.plugins`, which SGLang calls in each of its processes."""

from __future__ import annotations

import inspect
import os
from importlib import import_module, metadata

from harness.plugins.sglang.chain import OURS, ChainVerification
from kernels.methods import VerificationMethod

ASKED = "REJECTION_LAB_VERIFICATION"
"""Environment variable: strict, probabilistic or block."""
TRY = "REJECTION_LAB_TRY_SGLANG"
"""Environment variable: the version that was only read, to run it all the same."""
READ_VERSION = "0.5.23"
MODULE, FUNCTION = "sglang.kernels.ops.speculative.reject_sampling", "chain_speculative_sampling_triton"
PARAMETERS = (
    "predicts accept_index accept_token_num candidates retrive_index retrive_next_token retrive_next_sibling "
    "uniform_samples uniform_samples_for_final_sampling target_probs draft_probs threshold_single threshold_acc "
    "deterministic block_verification"
)


def register() -> None:
    """Nothing, unless ASKED is set: then chains of sampled drafts are verified by the core.

    SGLang logs an exception of a plug-in and goes on without it, so a refusal ends the process.

    Raises:
        SystemExit: ASKED names no method, or SGLang is not the one that was read and asked for.
    """
    name = os.environ.get(ASKED)
    if not name:
        return
    refusal = _refusal(name)
    if refusal:
        raise SystemExit(f"rejection_lab: {refusal}")
    hooks = import_module("sglang.srt.plugins.hook_registry")
    hooks.HookRegistry.register(
        f"{MODULE}.{FUNCTION}", ChainVerification(VerificationMethod(name)).verify, hooks.HookType.REPLACE
    )


def _refusal(name: str) -> str | None:
    known = [method.value for method in OURS]
    if name not in known:
        return f"{ASKED}: expected {', '.join(known)}, found {name!r}"
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return f"expected SGLang {READ_VERSION}, found none"
    if version != READ_VERSION:
        return f"expected SGLang {READ_VERSION}, found {version}"
    if os.environ.get(TRY) != version:
        return (
            f"the plug-in was written from the source of SGLang {version} and never ran in it; to try it, set "
            f"{TRY}={version} and --speculative-use-rejection-sampling, and compare outputs at temperature 0 with "
            "SGLang's own"
        )
    found = " ".join(inspect.signature(getattr(import_module(MODULE), FUNCTION)).parameters)
    if found != PARAMETERS:
        return f"SGLang {version}: expected {FUNCTION} to take ({PARAMETERS}), found ({found})"
    return None
