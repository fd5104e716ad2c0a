"""The header of a safetensors file: which tensors it holds, of which type and shape, and whether all bytes are there.

    8 bytes   length of the header, little-endian
    header    JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]}; "__metadata__" -> texts
    data      the tensors, one after the other, without holes

Reads the header alone, whatever the size of the file, and needs neither torch nor the library.
Source: the format's description in huggingface/safetensors, whose reader refuses the same files.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from harness.records.strict_json import parse_json, shown

BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}
"""Bits of a number, by the type's name in a header."""
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""Limit of the library's reader."""


class StoredTensor(NamedTuple):
    """A tensor as a header describes it."""

    dtype: str
    """A name in BITS."""
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, by name in the file's order.

    Raises:
        ValueError: the file is none, or not whole; says what is wrong, without the path.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        num_bytes = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if num_bytes < _LENGTH_BYTES or length > min(num_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise ValueError("its first 8 bytes are not the length of a header in it")
        header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"its header is no object, but {shown(header)}")
    header.pop("__metadata__", None)
    placed = sorted((_placed(name, entry) for name, entry in header.items()), key=lambda item: item[1:3])
    end = 0
    for name, begins, ends, _ in placed:
        if begins != end:
            raise ValueError(f"tensor {shown(name)} begins at byte {begins:,} of the data, where {end:,} was expected")
        end = ends
    num_held = num_bytes - _LENGTH_BYTES - length
    if end != num_held:
        raise ValueError(f"its tensors take {end:,} bytes, of which it holds {num_held:,}")
    found = {name: tensor for name, _, _, tensor in placed}
    return {name: found[name] for name in header}


def _placed(name: str, entry: Any) -> tuple[str, int, int, StoredTensor]:
    """A tensor with the first byte of its data and the one after the last."""
    fields = entry if isinstance(entry, dict) else {}
    values: list[Any] = [fields.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = values
    is_known = isinstance(dtype, str) and dtype in BITS
    if not is_known or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {shown(name)} has no known type, shape and place in {shown(entry)}")
    begins, ends = offsets
    if (ends - begins) * 8 != math.prod(shape) * BITS[dtype]:
        raise ValueError(f"tensor {shown(name)}, {dtype} of shape {shape}, does not take {ends - begins:,} bytes")
    return name, begins, ends, StoredTensor(dtype, tuple(shape))


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
