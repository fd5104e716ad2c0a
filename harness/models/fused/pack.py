"""One weight for projections of the same input: queries, keys and values of an attention, gate and up of an MLP.

Of latent attention these are the projections to the latents of queries, and of keys and values.

The joint weight takes the place of the separate ones: each parameter becomes a view of its rows, so that the layer as
it was, its state_dict() and whatever writes into a parameter go on working, and nothing is held twice. Whether
parameters are packed is read from where they lie and kept nowhere, so that moving or copying a layer, which gives each
parameter memory of its own again, cannot leave a joint weight behind that nobody updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def query_key_value(attention: Any) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """The projections that an attention module applies to its input."""
    return attention.q_proj, attention.k_proj, attention.v_proj


def latent_projections(attention: Any) -> tuple[nn.Linear, nn.Linear]:
    """The projections that latent attention applies to its input; queries may have no latent."""
    queries = attention.q_a_proj if hasattr(attention, "q_a_proj") else attention.q_proj
    return queries, attention.kv_a_proj_with_mqa


def gate_and_up(mlp: Any) -> tuple[nn.Linear, nn.Linear]:
    """The projections that a gated MLP applies to its input."""
    return mlp.gate_proj, mlp.up_proj


def joint_projections(layer: Any) -> tuple[tuple[nn.Linear, ...], tuple[nn.Linear, ...]]:
    """The projections of a decoder layer that share a weight: of its attention, and of its MLP or shared experts."""
    attention, mlp = layer.self_attn, layer.mlp
    is_latent = hasattr(attention, "kv_a_proj_with_mqa")
    of_attention = latent_projections(attention) if is_latent else query_key_value(attention)
    return of_attention, gate_and_up(mlp.shared_experts if hasattr(mlp, "experts") else mlp)


def pack_layer(layer: Any) -> None:
    """Pack a decoder layer of transformers, in place; nothing happens where that is done already.

    Raises ValueError when projections do not fit each other; see packing_obstacle.
    """
    for projections in joint_projections(layer):
        pack(projections)


def pack(projections: Sequence[nn.Linear]) -> None:
    """Lay the weights of projections together, and their biases; raises ValueError when they do not fit."""
    obstacle = packing_obstacle(projections)
    if obstacle is not None:
        raise ValueError(f"expected projections that fit one weight, found that {obstacle}; use the layer unfused")
    _lay_together([projection.weight for projection in projections])
    if projections[0].bias is not None:
        _lay_together([projection.bias for projection in projections])


def packing_obstacle(projections: Sequence[Any]) -> str | None:
    """Why projections cannot share one weight; None if they can."""
    if any(type(projection) is not nn.Linear for projection in projections):
        kinds = {type(projection).__name__ for projection in projections} - {nn.Linear.__name__}
        return f"a projection is no plain Linear but {', '.join(sorted(kinds))}"
    layouts = {(item.in_features, item.weight.dtype, item.weight.device) for item in projections}
    if len(layouts) > 1:
        return f"projections differ in input size, type or device: {sorted(map(str, layouts))}"
    if len({projection.bias is None for projection in projections}) > 1:
        return "some projections have a bias and some have none"
    return None


def packed(projections: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """The joint weight and bias of packed projections, as views.

    Returns:
        Weight [sum of output sizes, input size]; bias [sum of output sizes], or None.

    Raises:
        ValueError: they are not packed, or not any longer.
    """
    weight, bias = _joint([projection.weight for projection in projections]), None
    if projections[0].bias is not None:
        bias = _joint([projection.bias for projection in projections])
    if weight is None or (projections[0].bias is not None and bias is None):
        raise ValueError(
            "expected projections whose weights lie together, found them apart; call pack_layer() after the layer has "
            "been loaded, copied or moved"
        )
    return weight, bias


# A parameter is an ordinary tensor, which cannot become a view of one made in inference mode.
@torch.inference_mode(False)
@torch.no_grad()
def _lay_together(parameters: Sequence[Tensor]) -> None:
    if _joint(parameters) is not None:
        return
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
