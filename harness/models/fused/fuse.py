"""Make decoder layers ready for the fused operations: all of a model, or none, with the reason.

A layer without an obstacle is packed: the projections of the same input (queries, keys and values, of latent attention
those to the latents; gate and up of an MLP) share one weight. Each parameter becomes a view of its rows, so that the
layer as it was, its state_dict() and whatever writes into a parameter still work, and nothing is held twice. Whether
parameters are packed is read from where they lie: moving or copying a layer gives each parameter memory of its own, and
no joint weight is left behind that goes stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.models.decoder_layer import LAYER_NAMES, is_of
from harness.models.fp8_linear import FP8, Fp8Linear
from harness.models.fused.checks import DTYPES
from harness.models.latent_attention import LatentAttention
from harness.models.model_types import LENGTH_DEPENDENT_ROPE

MAX_WIDTH = 256
"""Width of the largest heads that the kernels are compiled and checked for."""
OTHER_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Of layers that norm elsewhere (Gemma, Olmo2); heads may have other modules beside, which they compute themselves."""
SILU = ("silu", "swish")
"""Its names in transformers."""


def fuse_layers(layers: Iterable[Any], rotary: Any) -> str | None:
    """Pack the layers of a model; returns why one of them cannot be fused, and packs none then.

    Args:
        layers: decoder layers of transformers.
        rotary: the rotary module that turns their queries and keys.
    """
    layers = list(layers)
    for layer in layers:
        obstacle = fusion_obstacle(layer, rotary)
        if obstacle is not None:
            return obstacle
    for layer in layers:
        pack_layer(layer)
    return None


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
    if not any(is_of(layer, model_type, name) for model_type, name in LAYER_NAMES.items()):
        kind = type(layer)
        known = " or ".join(LAYER_NAMES.values())
        yield f"{kind.__module__}.{kind.__qualname__} is no {known} of ours or of transformers"
        return
    yield from (f"it has {name}, which fused layers do not compute" for name in OTHER_NORMS if hasattr(layer, name))
    if getattr(layer, "residual_multiplier", 1) != 1:
        yield f"its residuals have a scale of {layer.residual_multiplier}"
    attention, mlp = layer.self_attn, layer.mlp
    joint = joint_projections(layer)
    if len(joint) < 2:
        yield "its attention or MLP lacks projections that fused layers compute, such as the gate of an MLP"
        return
    yield from _attention_obstacles(attention, rotary)
    if mlp.config.hidden_act not in SILU:
        yield f"its activation is {mlp.config.hidden_act}, not silu"
    of_attention, of_mlp = joint
    last = (mlp.shared_experts if hasattr(mlp, "experts") else mlp).down_proj
    for projections in (of_attention, (attention.o_proj,), of_mlp, (last,)):
        obstacle = packing_obstacle(projections)
        if obstacle is not None:
            yield obstacle
    dtypes = {parameter.dtype for parameter in layer.parameters()} - {FP8}
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
    if hasattr(attention, "q_norm") and attention.q_norm.weight.numel() != width:
        yield f"its norms of queries are over {attention.q_norm.weight.numel()} numbers, not the {width} of a head"
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


def query_key_value(attention: Any) -> tuple[Any, Any, Any]:
    """The projections that an attention module applies to its input."""
    return attention.q_proj, attention.k_proj, attention.v_proj


def latent_projections(attention: Any) -> tuple[Any, Any]:
    """The projections that latent attention applies to its input; queries may have no latent."""
    queries = attention.q_a_proj if hasattr(attention, "q_a_proj") else attention.q_proj
    return queries, attention.kv_a_proj_with_mqa


def gate_and_up(mlp: Any) -> tuple[Any, Any]:
    """The projections that a gated MLP applies to its input."""
    return mlp.gate_proj, mlp.up_proj


def joint_projections(layer: Any) -> list[tuple[Any, ...]]:
    """The projections of a decoder layer that share a weight: of its attention, and of its MLP or shared experts.

    Where the layer lacks one of them, as an MLP without a gate does, it has nothing to join there.
    """
    attention, mlp = layer.self_attn, layer.mlp
    mlp = mlp.shared_experts if hasattr(mlp, "experts") else mlp
    found: list[tuple[Any, ...]] = []
    if hasattr(attention, "kv_a_proj_with_mqa"):
        found.append(latent_projections(attention))
    elif all(hasattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")):
        found.append(query_key_value(attention))
    if all(hasattr(mlp, name) for name in ("gate_proj", "up_proj")):
        found.append(gate_and_up(mlp))
    return found


def pack_layer(layer: Any) -> None:
    """Pack a decoder layer of transformers, in place; nothing happens where that is done already.

    Raises ValueError when projections do not fit each other; see packing_obstacle.
    """
    for projections in joint_projections(layer):
        pack(projections)


def pack(projections: Sequence[Any]) -> None:
    """Lay weights of projections together, their biases, their scales; raises ValueError when they do not fit."""
    obstacle = packing_obstacle(projections)
    if obstacle is not None:
        raise ValueError(f"expected projections that fit one weight, found that {obstacle}; use the layer unfused")
    for parts in _parts(projections):
        if parts is not None:
            _lay_together(parts)


def packing_obstacle(projections: Sequence[Any]) -> str | None:
    """Why projections cannot share one weight; None if they can."""
    kinds = {type(projection) for projection in projections}
    if kinds not in ({nn.Linear}, {Fp8Linear}):
        others = {kind.__name__ for kind in kinds} - {nn.Linear.__name__}
        return f"a projection is no plain Linear but {', '.join(sorted(others))}"
    layouts = {(item.in_features, item.weight.dtype, item.weight.device) for item in projections}
    if len(layouts) > 1:
        return f"projections differ in input size, type or device: {sorted(map(str, layouts))}"
    if len({projection.bias is None for projection in projections}) > 1:
        return "some projections have a bias and some have none"
    return None


class Packed(NamedTuple):
    """What the fused operations take of projections."""

    weight: Tensor
    """[sum of output sizes, input size]."""
    bias: Tensor | None
    """[sum of output sizes]."""
    scales: Tensor | None
    """[sum of output sizes] float32, where the weight takes 8 bits."""

    def rows_from(self, first: int) -> Packed:
        """Without the outputs before one of them."""
        bias, scales = (None if part is None else part[first:] for part in (self.bias, self.scales))
        return Packed(self.weight[first:], bias, scales)


def packed(projections: Sequence[Any]) -> Packed:
    """The joint weight, bias and scales of packed projections, as views; a single one is always packed.

    Raises:
        ValueError: they are not packed, or not any longer.
    """
    weights, biases, scales = _parts(projections)
    bias, scale = (None if parts is None else _joined(parts) for parts in (biases, scales))
    return Packed(_joined(weights), bias, scale)


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    joint = parameters[0].detach() if len(parameters) == 1 else _joint(parameters)
    if joint is None:
        raise ValueError(
            "expected projections whose weights lie together, found them apart; call pack_layer() after the layer has "
            "been loaded, copied or moved"
        )
    return joint


def _parts(projections: Sequence[Any]) -> tuple[list[Tensor], list[Tensor] | None, list[Tensor] | None]:
    """Weights, biases and scales of projections; None for what they do not have."""
    first = projections[0]
    return (
        [projection.weight for projection in projections],
        None if first.bias is None else [projection.bias for projection in projections],
        [projection.scales for projection in projections] if isinstance(first, Fp8Linear) else None,
    )


# A parameter is an ordinary tensor, which cannot become a view of one made in inference mode.
@torch.inference_mode(False)
@torch.no_grad()
def _lay_together(parameters: Sequence[Tensor]) -> None:
    if _joint(parameters) is not None:
        return
    first, num_rows = parameters[0], sum(len(parameter) for parameter in parameters)
    # torch joins tensors of the meta device in Python, with its compiler imported for it
    if first.is_meta:
        joint = first.new_empty((num_rows, *first.shape[1:]))
    else:
        joint = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, rows in zip(parameters, joint.split([len(item) for item in parameters]), strict=True):
        parameter.data = rows


def _joint(parameters: Sequence[Tensor]) -> Tensor | None:
    """What parameters are rows of, if they lie one after the other in the same memory."""
    first = parameters[0]
    expected = first.storage_offset()
    for parameter in parameters:
        shared = parameter.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not shared or parameter.storage_offset() != expected or not parameter.is_contiguous():
            return None
        expected += parameter.numel()
    num_rows = sum(len(parameter) for parameter in parameters)
    return first.detach().as_strided((num_rows, *first.shape[1:]), first.stride(), first.storage_offset())
