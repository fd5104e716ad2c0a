"""What determines the result of a cell, and which cells are the same but for some settings.

Labels, the output folder, the baseline switch and how intervals are computed determine nothing. This module does not
know where results are kept; `harness.records.files.identity` hashes what `determinants` returns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.config.cell import CellConfig
from harness.config.models import Confidence, Layers, with_shown_paths
from harness.config.sampling import EDITS
from harness.config.sections import GOODPUT_LIMITS, DecodingConfig
from harness.config.usage import normal_form, without_settings
from harness.config.view import plain_values
from kernels.methods import DraftSampling
from kernels.random.stream_version import COUPLED_STREAM_VERSION

_SUMMARY_SETTINGS = ("baseline", "num_resamples", "confidence", *GOODPUT_LIMITS)
_WAITING_SETTINGS = ("server.start_timeout_s", "server.log_folder", "server.environment")
_PROMPT_SETTINGS = (
    "path",
    "layout",
    "dataset",
    "subset",
    "split",
    "column",
    "files",
    "history",
    "categories",
    "num_prompts",
    "held_out",
    "shuffle",
)
"""Settings of the workload that only choose prompts and their order, for which the prompts' digest stands."""
_LATER_IN_WORKLOAD = ("held_out", "request_rates")
_MODEL_SETTINGS = ("path", "revision", "weights", "shape")
_LATER_IN_DECODING = ("stop", *(item.name for item in EDITS))
"""Settings of decoding that older cells were measured without: left out at their defaults."""


def determinants(
    cell: CellConfig,
    prompts_fingerprint: str | None = None,
    model_fingerprints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything that determines the result of a cell, as plain JSON values.

    Args:
        cell: the settings; `device`, `dtype`, `fused`, `graphs` and `compile` of the backend as a run resolved them.
        prompts_fingerprint: digest of the prompts in their order; without one, the settings that choose them stand in.
        model_fingerprints: digest of the weights of each model that takes part, by role; without them, paths and
            revisions stand in.

    Returns:
        A dict for `harness.records.files.identity`; equal for cells that cannot differ in their result.
    """
    normal = normal_form(cell)
    # what the core takes, however it was written
    plain = plain_values(replace(normal, verification=normal.verification.at(normal.drafting.num_speculative_tokens)))
    models: dict[str, Any] = dict(model_fingerprints or {})
    if model_fingerprints is None:
        models = {role: [plain[role].get(name) for name in _MODEL_SETTINGS] for role in ("target", "drafter")}
    workload = plain["workload"]
    # as those that were measured before there were such
    workload = {name: value for name, value in workload.items() if name not in _LATER_IN_WORKLOAD or value is not None}
    if prompts_fingerprint is not None:
        workload = without_settings(workload, _PROMPT_SETTINGS) | {"prompts": prompts_fingerprint}
    target: dict[str, Any] = {"accept_unknown": accepted} if (accepted := normal.target.accept_unknown) else {}
    if normal.target.layers is Layers.transformers:
        # another order of sums; what runs where is else decided by the files
        target["layers"] = normal.target.layers.value
    drawn = {"sampling": cell.draft_sampling.value}
    if normal.drafting.tree is not None:
        drawn["siblings"] = normal.siblings.value
    drafter = without_settings(plain["drafter"], [*_MODEL_SETTINGS, "preferred"])
    if drafter.get("vocabulary") == "same":
        # as those that were measured before there was another one
        del drafter["vocabulary"]
    if drafter.get("confidence") == Confidence.row.value:
        # the same
        del drafter["confidence"]
    unset = plain_values(DecodingConfig())
    decoding = {
        name: value
        for name, value in plain["decoding"].items()
        if name not in _LATER_IN_DECODING or value != unset[name]
    }
    if not plain["backend"].get("compile"):
        # as those that were measured before there was a choice
        plain["backend"].pop("compile", None)
    if plain["backend"].get("tensor_parallel") == 1:
        del plain["backend"]["tensor_parallel"]
    judged = {"run_code": True} if normal.measurement.run_code else {}
    # cells that draw no coupled noise keep their id
    noise = {"coupled_stream_version": COUPLED_STREAM_VERSION} if _may_draw_coupled_noise(cell) else {}
    return (
        without_settings(plain, ["target", *_WAITING_SETTINGS])
        | noise
        | judged
        # all else of a target is in its weights
        | ({"target": target} if target else {})
        | {
            "models": models,
            "decoding": decoding,
            "drafter": drafter,
            "drafting": None if cell.is_baseline else plain["drafting"] | drawn,
            "verification": None if cell.is_baseline else plain["verification"],
            "workload": workload,
            "measurement": without_settings(plain["measurement"], (*_SUMMARY_SETTINGS, "run_code")),
        }
    )


def _may_draw_coupled_noise(cell: CellConfig) -> bool:
    """Whether the project's core may draw coupled noise: unless all requests are greedy, which prompts decide."""
    decides = cell.verification.traits.decided_by_noise or cell.draft_sampling is DraftSampling.coupled
    return decides and not cell.is_baseline and not cell.is_served


def key_without(config: CellConfig | Mapping[str, Any], *settings: str) -> str:
    """Normal-form text of all settings but some: equal for cells that differ in those at most.

    A model in a cache is what is in its folder, wherever the cache lies.

    Args:
        config: of a cell or of its record.
        settings: sections (`verification`) or settings (`drafting.sampling`) that are left out.
    """
    plain = with_shown_paths(plain_values(config))
    return json.dumps(without_settings(plain, settings), sort_keys=True)
