"""What the launchers refuse: shapes, types and layouts that a kernel would silently misread. Never looks at values."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fp8_linear import FP8

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_dtype(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless the kernels compute in this type."""
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} must be bfloat16, float16 or float32, found {tensor.dtype}")


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises ValueError unless a tensor is as given and lies without gaps."""
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be {list(shape)} {dtype} without gaps, found {list(tensor.shape)} {tensor.dtype} with "
            f"strides {tensor.stride()}"
        )


def place_for(out: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Where a result of a shape goes: what is given, or new memory, of the type and device of another tensor.

    Raises ValueError unless a tensor that is given is of that shape and type and lies without gaps.
    """
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    check_tensor("out", out, shape, like.dtype)
    return out


def check_matrix(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises ValueError unless a tensor that a matrix is written to is as given; between its rows there may be gaps."""
    if out.dim() != 2 or out.shape != shape or out.dtype != dtype or out.stride(1) != 1:
        raise ValueError(
            f"out must be {list(shape)} {dtype}, a matrix whose rows have no gaps, found {list(out.shape)} {out.dtype} "
            f"with strides {out.stride()}"
        )


def written(matrix: Tensor, out: Tensor) -> Tensor:
    """`out` with a copy of the matrix. Raises ValueError as check_matrix."""
    check_matrix(out, matrix.shape, matrix.dtype)
    return out.copy_(matrix)


def check_cache(keys: Tensor, values: Tensor, dtype: torch.dtype) -> None:
    """Raises ValueError unless keys and values are [S, Hk, C, D] of one layout, their heads' components together, and
    of a type or rounded to 8 bits.

    D must be a power of two, because tiles of a kernel are.
    """
    if keys.dim() != 4 or values.shape != keys.shape or values.stride() != keys.stride() or keys.stride(-1) != 1:
        raise ValueError(
            f"keys and values must be [S, Hk, C, D] with the same strides, the last 1; found {list(keys.shape)} with "
            f"strides {keys.stride()} and {list(values.shape)} with {values.stride()}"
        )
    if keys.dtype not in (dtype, FP8) or values.dtype != keys.dtype:
        raise ValueError(f"keys and values must be {dtype} or {FP8}, found {keys.dtype} and {values.dtype}")
    width = keys.shape[3]
    if width < 2 or width & (width - 1):
        raise ValueError(f"heads must have a width that is a power of two, found {width}; use the layer unfused")


def check_rows(slots: Tensor, starts: Tensor) -> None:
    """Raises ValueError unless there is one int64 slot and start for each row, and a row at all."""
    if slots.numel() == 0:
        raise ValueError("slots must name one slot at least, found none")
    check_tensor("slots", slots, (slots.numel(),), torch.int64)
    check_tensor("starts", starts, (slots.numel(),), torch.int64)


def check_extras(
    windows: Tensor | None, sinks: Tensor | None, softcap: float | None, shape: tuple[int, int], *, is_tree: bool
) -> None:
    """Raises ValueError unless windows, sinks and a soft cap of attention are of (R, Hq) rows and heads."""
    if windows is not None:
        check_tensor("windows", windows, shape[:1], torch.int64)
        if is_tree:
            raise ValueError("windows must be None for trees, whose nodes lie at other places than their positions")
    if sinks is not None:
        check_dtype("sinks", sinks)
        check_tensor("sinks", sinks, shape[1:], sinks.dtype)
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be above 0, found {softcap}")


def check_latents(keys: Tensor, dtype: torch.dtype) -> None:
    """Raises ValueError unless keys are [S, 1, C, L + P] of a type, the components of a position together."""
    if keys.dim() != 4 or keys.shape[1] != 1 or keys.stride(-1) != 1 or keys.dtype != dtype:
        raise ValueError(
            f"keys must be [S, 1, C, L + P] {dtype} with last stride 1, found {list(keys.shape)} {keys.dtype} with "
            f"strides {keys.stride()}"
        )


def check_joined(
    token_ids: Tensor,
    table: Tensor,
    features: Tensor,
    norms: tuple[tuple[Tensor, float], ...],
    positions: Tensor | None,
) -> None:
    """Raises ValueError unless what join_embedded joins is of one type, of one width, and lies without gaps."""
    num_tokens, hidden_size, dtype = len(token_ids), table.shape[-1], table.dtype
    check_dtype("table", table)
    check_tensor("table", table, (len(table), hidden_size), dtype)
    check_tensor("features", features, (num_tokens, hidden_size), dtype)
    for name, numbers in (("token_ids", token_ids), ("positions", positions)):
        if numbers is not None:
            check_tensor(name, numbers, (num_tokens,), torch.int64)
    for weight, _ in norms:
        check_tensor("weight", weight, (hidden_size,), dtype)


def check_table(table: Tensor, width: int, capacity: int) -> None:
    """Raises ValueError unless a table of rotations has a line for each position of a slot."""
    if table.dim() != 2 or table.shape[0] < capacity:
        raise ValueError(
            f"table must be [C', {width}] with a line for each of {capacity} positions, found {list(table.shape)}; "
            f"make it for the cache's capacity"
        )
    check_tensor("table", table, (table.shape[0], width), torch.float32)
