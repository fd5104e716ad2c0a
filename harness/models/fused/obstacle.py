"""Whether a decoder layer can be fused, and if not, why: what runs unfused is to be seen, not to be guessed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from harness.models.decoder_layer import LAYER_TYPES, LENGTH_DEPENDENT_ROPE
from harness.models.fused.checks import DTYPES
from harness.models.fused.pack import joint_projections, packing_obstacle
from harness.models.latent_attention import LatentAttention

MAX_WIDTH = 256
"""Width of the largest heads that the kernels are compiled and checked for."""
SILU = ("silu", "swish")
"""Its names in transformers."""


def fusion_obstacle(layer: Any, rotary: Any) -> str | None:
    """Why a layer cannot run through harness.models.fused.layer; None if it can.

    Args:
        layer: a decoder layer of transformers, perhaps with projections or norms of a draft head.
        rotary: the rotary module that turns its queries and keys.

    Returns:
        The first obstacle, as the end of a sentence "the layer runs unfused because ...".
    """
    return next(_obstacles(layer, rotary), None)


def _obstacles(layer: Any, rotary: Any) -> Iterator[str]:
    known = [types.layer for types in LAYER_TYPES.values()]
    if type(layer) not in known:
        yield f"{type(layer).__name__} is not one of {', '.join(kind.__name__ for kind in known)}"
        return
    attention, mlp = layer.self_attn, layer.mlp
    yield from _attention_obstacles(attention, rotary)
    if mlp.config.hidden_act not in SILU:
        yield f"its activation is {mlp.config.hidden_act}, not silu"
    of_attention, of_mlp = joint_projections(layer)
    last = (mlp.shared_experts if hasattr(mlp, "experts") else mlp).down_proj
    for projections in (of_attention, (attention.o_proj,), of_mlp, (last,)):
        obstacle = packing_obstacle(projections)
        if obstacle is not None:
            yield obstacle
    dtypes = {parameter.dtype for parameter in layer.parameters()}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        yield f"its weights are {', '.join(sorted(map(str, dtypes)))}, not all of one of {', '.join(map(str, DTYPES))}"
    if any(parameter.requires_grad for parameter in layer.parameters()):
        yield "its weights are being trained, and the kernels have no backward pass"


def _attention_obstacles(attention: Any, rotary: Any) -> Iterator[str]:
    if isinstance(attention, LatentAttention):
        yield from _latent_obstacles(attention, rotary)
        return
    if getattr(attention, "sliding_window", None) is not None:
        yield f"it attends to a sliding window of {attention.sliding_window} positions"
    width, num_turning = attention.head_dim, 2 * rotary.inv_freq.numel()
    if width < 2 or width & (width - 1) or width > MAX_WIDTH:
        yield f"the width of its heads, {width}, is no power of two up to {MAX_WIDTH}"
    if num_turning != width:
        yield f"its RoPE turns {num_turning} of {width} components of a head"
    yield from _rope_obstacles(rotary)


def _latent_obstacles(attention: LatentAttention, rotary: Any) -> Iterator[str]:
    num_turning = 2 * rotary.inv_freq.numel()
    if num_turning != attention.rope_dim:
        yield f"its RoPE turns {num_turning} of the {attention.rope_dim} components that turn"
    for projection in (attention.q_b_proj,) if hasattr(attention, "q_b_proj") else ():
        obstacle = packing_obstacle((projection,))
        if obstacle is not None:
            yield obstacle
    if type(attention.kv_b_proj) is not nn.Linear or attention.kv_b_proj.bias is not None:
        yield "its expansion of latents is no plain Linear without a bias"
    yield from _rope_obstacles(rotary)


def _rope_obstacles(rotary: Any) -> Iterator[str]:
    if rotary.rope_type in LENGTH_DEPENDENT_ROPE:
        yield f"the angles of its RoPE ({rotary.rope_type}) depend on the longest sequence"
