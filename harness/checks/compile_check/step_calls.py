"""The steps of engines whose kernels are compiled, as a run captures them: shipped shapes with their heads.

They run on the meta device, where nothing is computed, by the way that the engine itself takes to have its kernels
compiled ahead. This module does not know for which GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import prod

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.checks.compile_check.compiled import Launch, RecordedLaunch
from harness.runner.groups import groups_of
from harness.runner.plan.compose import compose_plan

_COMMON = {
    "backend.device": "cpu",
    "backend.graphs": "true",
    "backend.fused": "true",
    "backend.dtype": "bfloat16",
    "backend.max_concurrency": "16",
    "workload.num_requests": "4",
}
_POINTER = re.compile(r"\*\w+")
"""The type of a tensor in a signature."""
_LLAMA = "target=llama3_8b drafter.weights=random"
_GLM = "target=glm47_flash drafter=mtp drafter.weights=random drafting.num_speculative_tokens=3"
_ZOO = "target=zoo drafter.weights=random"

EVERY_TARGET: dict[str, str] = {
    "Llama-3-8B, EAGLE": f"{_LLAMA} drafter=eagle drafting.num_speculative_tokens=3",
    "GLM-4.7-Flash, MTP": _GLM,
    "Llama-3-8B, weights of 8 bits": (
        f"{_LLAMA} drafter=eagle drafting.num_speculative_tokens=3 backend.weight_dtype=fp8"
    ),
    "built-in, draft model": f"{_ZOO} drafter=draft_model",
}
"""Settings of a run, by what its steps are called: what is compiled for every GPU, of each kind of variant the largest
(`largest_of_each_kind`)."""
EVERY_CHANGE = EVERY_TARGET | {
    "Llama-3-8B, dynamic trees": f"{_LLAMA} drafter=eagle3 verification=recursive drafting.tree=dynamic:8-4-3",
    "Llama-3-8B, weights and caches of 8 bits": (
        f"{_LLAMA} drafter=eagle drafting.num_speculative_tokens=3 backend.weight_dtype=fp8 backend.kv_cache_dtype=fp8"
    ),
    "Qwen3-8B, EAGLE-3, log-probabilities": (
        "target=qwen3_8b drafter=eagle3 drafter.weights=random drafting.num_speculative_tokens=5 verification=block "
        "decoding.logprobs=5"
    ),
}
"""What every change compiles, likewise."""
STEPS = EVERY_CHANGE | {
    "Llama-3-8B, EAGLE-3, 128 requests": (
        f"{_LLAMA} drafter=eagle3 drafting.num_speculative_tokens=3 backend.max_concurrency=128 decoding.top_p=0.9"
    ),
    "Llama-3-8B, 8 drafts, 1 request": (
        f"{_LLAMA} drafter=eagle drafting.num_speculative_tokens=8 backend.max_concurrency=1"
    ),
    "Llama-3-8B, trees, 64 requests": (
        f"{_LLAMA} drafter=eagle verification=recursive drafting.tree=4-1-2-1-1 backend.max_concurrency=64"
    ),
    "Llama-3-8B, Medusa": f"{_LLAMA} drafter=medusa drafting.num_speculative_tokens=3",
    "Llama-3-8B, float16": f"{_LLAMA} drafter=eagle drafting.num_speculative_tokens=3 backend.dtype=float16",
    "Llama-3-8B, float32": f"{_LLAMA} drafter=eagle drafting.num_speculative_tokens=3 backend.dtype=float32",
    "Llama-3-70B, EAGLE": (
        "target=llama3_70b target.path=null target.shape=llama3_70b target.weights=random drafter=eagle "
        "drafter.weights=random drafting.num_speculative_tokens=3"
    ),
    "Qwen3-8B, DFlash": "target=qwen3_8b drafter=dflash drafter.weights=random",
    "Qwen3-8B, P-EAGLE": "target=qwen3_8b drafter=peagle drafter.weights=random drafting.num_speculative_tokens=5",
    "GLM-4.7-Flash, MTP, 64 requests": f"{_GLM} backend.max_concurrency=64",
    "built-in, policies of grammars": (
        f"{_ZOO} drafter=eagle3 workload=reasoning_json constraint=mask,commit,late decoding.max_new_tokens=64"
    ),
    "built-in, coupled drafts": f"{_ZOO} drafter=eagle verification=coupled",
}
"""What is compiled for the first target when everything is."""


def steps(of: dict[str, str]) -> Iterator[Launch]:
    """The steps of every cell of some runs, baselines among them.

    Raises:
        SettingsError: there is no such run.
    """
    for name, words in of.items():
        settings = _COMMON | dict(word.split("=", 1) for word in words.split())
        for group in groups_of(compose_plan([f"{key}={value}" for key, value in settings.items()]).cells):
            store = ModelStore()
            for cell in group.cells:
                backend = LocalBackend(cell, store)
                backend.fit_slots(group.played)
                end = ", no drafts" if cell.is_baseline else ""
                yield f"{name}{end}", backend.engine_of_cell.rehearse_on_meta


def largest_of_each_kind(launches: Iterable[RecordedLaunch]) -> list[RecordedLaunch]:
    """Of variants of a kernel with one register limit, number of warps and types, that with the largest tiles and
    then most tensors, which needs most registers."""
    found: dict[tuple[object, ...], RecordedLaunch] = {}
    for launch in launches:
        variant = launch.variant
        types = frozenset(_POINTER.findall(str(variant.signature)))
        options = [variant.options.get(name) for name in ("num_warps", "num_stages", "maxnreg")]
        kind = (launch.target, variant.kernel, *options, types)
        found[kind] = max(found.get(kind, launch), launch, key=_size)
    return list(found.values())


def _size(launch: RecordedLaunch) -> tuple[int, int]:
    """The product of all sizes that a variant is compiled for; the number of its tensors."""
    sizes = (value for value in launch.variant.constants.values() if isinstance(value, int) and value > 1)
    return prod(sizes), len(_POINTER.findall(str(launch.variant.signature)))
