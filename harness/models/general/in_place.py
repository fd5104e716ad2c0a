"""Attention of transformers' layers over keys and values where the cache has them, instead of over a copy of the slots.

It takes the place of masks and copies in forwards of chains over whole slots, where every mask of a model is causal,
with or without a window. In the place of a mask goes [2, 1, 1, B] int64, slot and first position of each row, which
modeling code hands on as it is, or [3, 1, 1, B], with the places that a query sees at most; `GeneralView.update`
returns all slots.

Shapes: B rows, T tokens of a row, H query heads, K key heads, D width of a head, S slots, C capacity of a slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from harness.models.general import custom_ops

if TYPE_CHECKING:
    from harness.models.general.cache import GeneralCache
    from harness.models.general.network import Network

DEVICES = frozenset(("cuda", "meta"))
"""Where it takes less time than copies."""
MAX_WIDTH = 256
"""Of a head that the kernel was measured with."""


class NotInPlaceError(TypeError):
    """A layer attends by what attention in place does not compute."""


def is_rows_in_place(mask: object) -> bool:
    """Whether it stands for a mask of a forward in place."""
    return isinstance(mask, Tensor) and mask.dtype is torch.int64 and mask.dim() == 4


def attend_in_place(
    # [B, H, T, D]
    query: Tensor,
    # [S, K, C, D]
    keys: Tensor,
    # [S, K, C, D]
    values: Tensor,
    # [2 or 3, 1, 1, B] int64
    rows: Tensor,
    scaling: float | None,
    # [H]
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """[B, T, H, D].

    Raises:
        NotInPlaceError: the heads have a width that the kernel does not take.
    """
    num_rows, num_heads, num_tokens, width = query.shape
    if keys.shape != values.shape or keys.shape[-1] != width or width & (width - 1) or not 2 <= width <= MAX_WIDTH:
        raise NotInPlaceError(
            f"expected heads of one width that is a power of two up to {MAX_WIDTH}, found {width}, keys of "
            f"{keys.shape[-1]} and values of {values.shape[-1]}"
        )
    queries, slots, starts = query.transpose(1, 2).contiguous(), rows[0, 0, 0], rows[1, 0, 0]
    windows = rows[2, 0, 0] if len(rows) == 3 else None
    scale = width**-0.5 if scaling is None else scaling
    if keys.shape[2] == 1:
        own_key, own_value = (
            kept.index_select(0, slots).repeat_interleave(num_heads // keys.shape[1], dim=1) for kept in (keys, values)
        )
        attended = own_value.transpose(1, 2).expand(-1, num_tokens, -1, -1)
        if sinks is not None:
            products = (query * own_key).sum(-1) * scale
            products = products if softcap is None else torch.tanh(products / softcap) * softcap
            share = torch.sigmoid(products - sinks[:, None]).transpose(1, 2)[..., None]
            attended = (attended * share).to(queries.dtype)
    else:
        is_compiling = torch.compiler.is_compiling()
        attend = torch.ops.rejection_lab_layers.slot_attention if is_compiling else custom_ops.slot_attention
        attended = attend(queries, keys, values, slots, starts, scale, windows, sinks, softcap)
    return attended.reshape(num_rows, num_tokens, num_heads, width)


def window_of(mask_function: Callable[..., Any]) -> int | None:
    """Keys that a query sees at most by a mask function of transformers; None for all up to its own.

    Raises:
        NotInPlaceError: it asks for something else.
    """
    if mask_function is causal_mask_function:
        return None
    # sliding_window_causal_mask_function: both of a window's bound and the causal one
    parts = _held(mask_function, "and_masks").get("mask_functions", ())
    others = [part for part in parts if part is not causal_mask_function]
    if len(parts) == 2 and len(others) == 1:
        window = _held(others[0], "sliding_window_overlay").get("sliding_window")
        if isinstance(window, int):
            return window
    raise NotInPlaceError(f"expected causal masks, with or without a window, found {mask_function.__qualname__}")


def _held(function: Callable[..., Any], maker: str) -> dict[str, Any]:
    """What a function that a function of that name of transformers made holds, by name; nothing of others."""
    if not function.__qualname__.startswith(f"{maker}.<locals>"):
        return {}
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def obstacle_in_place(network: Network, cache: GeneralCache) -> str | None:
    """Why the layers of a network cannot attend in place, by one token; None if they can.

    cache: of one slot of one place.
    """
    if network.has_own_attention:
        return "its attention is code of its own"
    zero = torch.zeros(1, 1, dtype=torch.int64, device=cache.slot_ids.device)
    cache.is_in_place = True
    view = cache.view(slice(0, 1), zero, 1)
    try:
        network.run(zero, zero, view)
    except NotInPlaceError as error:
        return str(error)
    finally:
        cache.is_in_place = False
    return None
