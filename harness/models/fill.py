"""The weights of a target made on the meta device: read or drawn one after the other, laid out as they will be used."""

from __future__ import annotations

from typing import Any

import torch

from harness.models.checkpoint import WeightSource
from harness.models.expert_weights import put_tensor
from harness.models.fp8_linear import FP8, ScaledRows, quantize, scales_name, use_fp8
from harness.models.fused.fuse import joint_projections, pack, packing_obstacle
from harness.models.memory_layout import MemoryLayout
from harness.models.model_types import DENSE_TYPES


def fill(
    causal_lm: Any,
    checkpoint: WeightSource,
    device: torch.device | str,
    dtype: torch.dtype | None,
    in_fp8: bool = False,
) -> None:
    """Give a model made on the meta device its weights; tied output weights are shared, whether stored or not, and what
    fused layers read as one lies together.

    dtype: of the parameters; a buffer (the router's bias of GLM) keeps the float32 that the model gives it.
    in_fp8: projections of layers are rounded to 8 bits, one after the other.
    Raises ValueError when layers of this type do not run in 8 bits.
    """
    if in_fp8:
        _use_fp8(causal_lm)
    tied = causal_lm.config.tie_word_embeddings
    embedding = causal_lm.model.embed_tokens.weight
    dtype = dtype or checkpoint.take("model.embed_tokens.weight", embedding.shape).dtype
    buffers = dict(causal_lm.named_buffers())
    _pack(causal_lm)
    empty, state, layout = causal_lm.state_dict(), {}, MemoryLayout(device)
    for key, tensor in empty.items():
        if tied and key == "lm_head.weight":
            continue
        if tensor.dtype is FP8:
            scales = scales_name(key)
            state[key], state[scales] = (layout.like(empty[name], empty[name].dtype) for name in (key, scales))
            _put_rounded(checkpoint, key, ScaledRows(state[key], state[scales]), dtype)
        elif key not in state:
            state[key] = layout.like(tensor, tensor.dtype if key in buffers else dtype)
            put_tensor(checkpoint, key, state[key])
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    causal_lm.load_state_dict(state, assign=True)
    if tied:
        causal_lm.lm_head.weight = causal_lm.model.embed_tokens.weight


def _use_fp8(causal_lm: Any) -> None:
    kind = causal_lm.config.model_type
    if kind not in DENSE_TYPES:
        raise ValueError(
            f"backend.weight_dtype=fp8: expected a target of type {' or '.join(DENSE_TYPES)}, found {kind}; "
            "use backend.weight_dtype=auto"
        )
    for layer in causal_lm.model.layers:
        use_fp8(layer)


def _put_rounded(checkpoint: WeightSource, name: str, place: ScaledRows, dtype: torch.dtype) -> None:
    """Write one weight in 8 bits, rounded from the dtype."""
    wide = torch.empty(place.codes.shape, dtype=dtype, device=place.codes.device)
    checkpoint.put(name, wide)
    if not wide.is_meta:
        rounded = quantize(wide)
        place.codes.copy_(rounded.codes)
        place.scales.copy_(rounded.scales)


def _pack(causal_lm: Any) -> None:
    """Lay together what fused layers read as one, where it fits."""
    for layer in causal_lm.model.layers:
        for projections in joint_projections(layer):
            if packing_obstacle(projections) is None:
                pack(projections)
