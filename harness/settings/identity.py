"""What determines the result of a cell: the settings it uses, in one form whatever way they were written.

A setting that the cell's drafter or method ignores is put back to its default, so that two cells that differ only
there are one cell. Labels, the output folder, the baseline switch and how intervals are computed determine nothing.
This module does not know where results are kept; `harness.records.files.identity` hashes what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from typing import Any

from harness.settings.cell import (
    BackendConfig,
    CacheDtype,
    CellConfig,
    DrafterConfig,
    DrafterKind,
    DraftingConfig,
    DrawnFrom,
    VerificationConfig,
)
from harness.settings.constraint import ConstraintConfig
from harness.settings.imported import ImportPath
from harness.settings.models import Weights
from kernels.contract import VerificationMethod

METHOD_PARAMETERS = {
    VerificationMethod.typical: ("epsilon", "delta"),
    VerificationMethod.lenient: ("leniency",),
    VerificationMethod.synthetic: ("synthetic_rates", "synthetic_length", "profile"),
}
"""Settings of the section verification that a method uses; methods that are not here use none."""
USED_ONLY_WITH: tuple[tuple[tuple[str, ...], Callable[[CellConfig], bool], str], ...] = (
    (
        ("drafting", "verification"),
        lambda cell: not cell.is_baseline,
        "with a drafter, such as drafter=eagle3",
    ),
    *(
        (
            tuple(f"verification.{name}" for name in names),
            lambda cell, method=method: cell.verification.method is method,
            f"with verification={method.value}",
        )
        for method, names in METHOD_PARAMETERS.items()
    ),
    (
        ("drafting.cache_dtype",),
        lambda cell: cell.has_draft_cache,
        "with sampled or coupled drafts of a drafter that is a model, such as drafter=eagle3",
    ),
    (
        ("drafting.drawn_from",),
        lambda cell: cell.rounds_draft_logits,
        "with a draft-logit cache that rounds, such as drafting.cache_dtype=bfloat16 with backend.dtype=float32",
    ),
    (
        ("drafter.ngram_max", "drafter.ngram_min"),
        lambda cell: cell.drafter.kind is DrafterKind.ngram,
        "with drafter=ngram",
    ),
    (
        ("drafter.preferred",),
        lambda cell: cell.drafter.has_model,
        "with a drafter that is a model, such as drafter=eagle3",
    ),
    (
        ("drafter.path",),
        lambda cell: cell.drafter.has_model and not _follows_target(cell.drafter),
        "with a drafter that is a model, such as drafter=eagle3, other than an MTP layer of random weights",
    ),
    (
        ("drafter.weights",),
        lambda cell: cell.drafter.has_model,
        "with a drafter that is a model, such as drafter=eagle3",
    ),
    (
        ("drafter.shape",),
        lambda cell: cell.drafter.kind is DrafterKind.draft_model,
        "with drafter=draft_model",
    ),
    (
        ("drafter.revision",),
        lambda cell: cell.drafter.has_model and cell.drafter.path is not None,
        "with drafter.path",
    ),
    (("target.revision", "target.trust_remote_code"), lambda cell: cell.target.path is not None, "with target.path"),
    (
        ("workload.split", "workload.column", "workload.subset"),
        lambda cell: cell.workload.dataset is not None,
        "with workload.dataset (workload=hf)",
    ),
    (
        ("constraint.parser", "constraint.kind", "constraint.grammar"),
        lambda cell: cell.constraint.policy is not None,
        "with a policy, such as constraint=mask",
    ),
    (("workload.layout",), lambda cell: cell.workload.path is not None, "with workload.path"),
    (
        ("backend.prompt_tokens_beside_rounds",),
        lambda cell: _may_use_graphs(cell.backend),
        "with backend.graphs=true, which is so by itself on a GPU",
    ),
)
"""Settings, or whole sections, that many cells ignore: the cells that use them, and those cells in words."""
_SUMMARY_SETTINGS = ("baseline", "num_resamples", "confidence")
_PLAYING_SETTINGS = ("num_requests", "num_turns", "prompt_tokens", "request_rate", "too_long")
_MODEL_SETTINGS = ("path", "revision", "weights", "shape")


def normal_form(cell: CellConfig) -> CellConfig:
    """The cell with every setting that its drafter, method, policy or backend ignores put back to the default."""
    if cell.constraint.policy is None:
        cell = replace(cell, constraint=ConstraintConfig())
    if not _may_use_graphs(cell.backend):
        cell = replace(cell, backend=replace(cell.backend, prompt_tokens_beside_rounds=None))
    if cell.is_baseline:
        return replace(cell, drafter=DrafterConfig(), drafting=DraftingConfig(), verification=VerificationConfig())
    return replace(
        cell,
        drafter=_normal_drafter(cell.drafter),
        drafting=_normal_drafting(cell),
        verification=_normal_method(cell.verification),
    )


def without_effect(keys: Iterable[str], cells: Sequence[CellConfig]) -> tuple[str, str] | None:
    """The first of some settings that none of the cells uses, and with what it would be used; None if all are used."""
    for key in keys:
        for names, uses, words in USED_ONLY_WITH:
            named = key in names or key.partition(".")[0] in names
            if named and not any(uses(cell) for cell in cells):
                return key, words
    return None


def determinants(
    cell: CellConfig,
    prompts_fingerprint: str | None = None,
    model_fingerprints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything that determines the result of a cell, as plain JSON values.

    Args:
        cell: the settings, with `device`, `dtype`, `fused` and `graphs` of the backend as a run resolved them.
        prompts_fingerprint: digest of the prompts in their order; without one, the settings that choose them stand in.
        model_fingerprints: digest of the weights of each model that takes part, by role; without them, paths and
            revisions stand in.

    Returns:
        A dict for `harness.records.files.identity`; equal for cells that cannot differ in their result.
    """
    plain = plain_values(asdict(normal_form(cell)))
    drafter, drafting, measurement = plain["drafter"], plain["drafting"], plain["measurement"]
    if model_fingerprints is None:
        models: dict[str, Any] = {
            role: [plain[role][name] for name in _MODEL_SETTINGS] for role in ("target", "drafter")
        }
    else:
        models = dict(model_fingerprints)
    workload = plain["workload"]
    if prompts_fingerprint is not None:
        workload = {name: workload[name] for name in _PLAYING_SETTINGS} | {"prompts": prompts_fingerprint}
    return {
        "models": models,
        "drafter": {name: drafter[name] for name in ("kind", "ngram_max", "ngram_min")},
        "drafting": drafting | {"sampling": cell.draft_sampling.value} if not cell.is_baseline else None,
        "decoding": plain["decoding"],
        # cells of the time before constraints keep their identity
        **({} if cell.constraint.policy is None else {"constraint": plain["constraint"]}),
        "verification": _rule(cell.verification) if not cell.is_baseline else None,
        "workload": workload,
        "backend": _backend(plain["backend"]),
        "measurement": {name: value for name, value in measurement.items() if name not in _SUMMARY_SETTINGS},
        "seed": plain["seed"],
    }


def _backend(plain: dict[str, Any]) -> dict[str, Any]:
    """Cells of the time before prompts had a limit keep their identity."""
    unset = plain["prompt_tokens_beside_rounds"] is None
    return {name: value for name, value in plain.items() if not (unset and name == "prompt_tokens_beside_rounds")}


def _may_use_graphs(backend: BackendConfig) -> bool:
    """Whether its steps have fixed sizes, or will have if a GPU is found."""
    return backend.graphs if backend.graphs is not None else backend.device != "cpu"


def with_rates(verification: VerificationConfig) -> dict[str, Any]:
    """The settings of a method as plain JSON values, with the rates that a named profile stands for."""
    plain: dict[str, Any] = plain_values(asdict(verification))
    if verification.profile is not None:
        plain["synthetic_rates"] = list(verification.profile.rates)
    return plain


def _rule(verification: VerificationConfig) -> dict[str, Any]:
    """What determines the result: the rates, whatever a profile that holds them is called."""
    return {name: value for name, value in with_rates(_normal_method(verification)).items() if name != "profile"}


def _follows_target(drafter: DrafterConfig) -> bool:
    """Whether all sizes of the drafter are the target's."""
    return drafter.kind is DrafterKind.mtp and drafter.weights is Weights.random


def _normal_drafter(drafter: DrafterConfig) -> DrafterConfig:
    default = DrafterConfig()
    if drafter.kind is DrafterKind.ngram:
        return replace(drafter, path=None, preferred=None, revision=None, weights=default.weights, shape=None)
    used = replace(drafter, ngram_max=default.ngram_max, ngram_min=default.ngram_min)
    if drafter.kind is not DrafterKind.draft_model:
        used = replace(used, shape=None)
    return replace(used, path=None, revision=None) if _follows_target(drafter) else used


def _normal_drafting(cell: CellConfig) -> DraftingConfig:
    """What does not round is no cache of another type, but for one that takes more memory."""
    dtype = cell.drafting.cache_dtype
    is_own = not cell.has_draft_cache or dtype.value == cell.backend.dtype
    return replace(
        cell.drafting,
        cache_dtype=CacheDtype.auto if is_own else dtype,
        drawn_from=DrawnFrom.unrounded if cell.draws_unrounded else DrawnFrom.stored,
    )


def _normal_method(verification: VerificationConfig) -> VerificationConfig:
    used = {name: getattr(verification, name) for name in METHOD_PARAMETERS.get(verification.method, ())}
    return VerificationConfig(verification.method, **used)


def plain_values(value: Any) -> Any:
    """Settings as plain JSON values: enums by value, tuples as lists."""
    if isinstance(value, Enum | ImportPath):
        return value.value
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return value
