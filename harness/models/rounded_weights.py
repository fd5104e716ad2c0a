"""Checkpoints whose weights were rounded to fewer bits, and how they say so. JSON and headers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config.models import TargetConfig, Weights
from harness.models.checkpoint import CheckpointError
from harness.models.described import described_target
from harness.models.gguf import file_type, gguf_in
from harness.models.model_types import CONVERTED, QUANTIZATION, is_quantized

GGUF = "GGUF"
"""What the label begins with of weights that were rounded, and are written out and multiplied in the dtype of a run."""


def rounded_weights(fields: Mapping[str, Any]) -> str:
    """What the fields of a config.json say of rounded weights, as a label; empty where they are not rounded.

    Args:
        fields: null ones left out or not.
    """
    converted = fields.get(CONVERTED)
    if isinstance(converted, Mapping):
        return _of_gguf(str(converted.get("type")))
    if not is_quantized(fields):
        return ""
    stated = fields[QUANTIZATION]
    if not isinstance(stated, Mapping):
        return "weights quantized in a way that is not named"
    method = str(stated.get("quant_method", "quantized"))
    bits = " and ".join(map(str, sorted(_bits(stated))))
    algorithm = f" {stated['quant_algo']}" if stated.get("quant_algo") else ""
    return f"{method}{algorithm} weights{f', {bits} bits' if bits else ''}"


RANDOM = "random weights"
"""Label of weights that were drawn: none of the model that gives the sizes."""

TRAINED_ON = "rounded_weights"
"""Field beside the target's name in a head's file: the label of the weights that it was trained on, empty if they were
neither rounded nor drawn."""


def trained_weights_told(fields: Mapping[str, Any], label: str) -> tuple[str, ...]:
    """That a head was trained on other weights of its target than those of a run, if its file says on which.

    Args:
        fields: of the head's config.json.
        label: of the run's weights, see `weights_label_here`.

    Raises:
        ValueError: what its file says is no label.
    """
    verifier: Any = fields
    for name in ("speculators_config", "verifier"):
        verifier = verifier.get(name) if isinstance(verifier, Mapping) else None
    stated = verifier.get(TRAINED_ON) if isinstance(verifier, Mapping) else None
    if stated is None or stated == label:
        return ()
    if not isinstance(stated, str):
        raise ValueError(f"expected {TRAINED_ON} of the verifier as text, found {stated!r}")
    trained, here = (each or "weights that are not rounded" for each in (stated, label))
    name = verifier.get("name_or_path") or "its target"
    return (f"its file says that it was trained on {trained} of {name}, and the target has {here}",)


def rounded_weights_here(target: TargetConfig) -> str:
    """The same of a target's files; empty where they are not on this machine, or its weights are random."""
    if target.weights is Weights.random:
        return ""
    try:
        file = None if target.path is None or not Path(target.path).expanduser().exists() else gguf_in(target.path)
        if file is not None:
            return _of_gguf(file_type(file))
    except CheckpointError:
        # who reads the file says what is wrong
        return ""
    described = described_target(target)
    return "" if described is None else rounded_weights(described.fields)


def weights_label_here(target: TargetConfig) -> str:
    """What a target's weights are beside the published ones, as a label, of its settings and files: random, or rounded
    as `rounded_weights_here` has it; empty where they are neither."""
    return RANDOM if target.weights is Weights.random else rounded_weights_here(target)


def _of_gguf(kind: str) -> str:
    return "" if kind in ("F32", "F16", "BF16") else f"{GGUF} {kind} weights"


def _bits(stated: Mapping[str, Any]) -> set[int]:
    """Every number of bits that a quantization names for weights."""
    found = [stated.get(name) for name in ("bits", "w_bit", "nbits")]
    found += [bits for bits in (4, 8) for name in ("load_in_{}bit", "_load_in_{}bit") if stated.get(name.format(bits))]
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        found.append(weights.get("num_bits") if isinstance(weights, Mapping) else None)
    return {bits for bits in found if type(bits) is int}
