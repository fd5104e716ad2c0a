"""Refuse cells that come to the same on the machine at hand, where a device or graphs were left open.

Settings that no machine can tell apart are merged when a plan is made (harness.compose.run_plan); this is what is left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from harness.backends.model_store import resolve_device, resolve_dtype
from harness.settings.cell import CellConfig
from harness.settings.identity import key_without, plain_values
from harness.settings.usage import normal_form


def refuse_repeated(cells: Sequence[CellConfig]) -> None:
    """Raise ValueError where two cells of a plan are one here: the second record would take the place of the first."""
    first: dict[str, CellConfig] = {}
    for cell in cells:
        device = resolve_device(cell.backend.device)
        other = first.setdefault(key_without(_found(cell, device)), cell)
        if other is not cell:
            raise ValueError(
                f"two cells differ in {' and '.join(_differences(other, cell))} only, which makes no difference on "
                f"{device.type} with the rest of the settings, so that they are one; give one value, or what makes it "
                "count (python -m experiments.run --help)"
            )


def _differences(one: CellConfig, other: CellConfig) -> list[str]:
    """Every setting in which two cells differ, with both values."""
    first, second = plain_values(asdict(one)), plain_values(asdict(other))
    return [
        f"{section}.{name} ({json.dumps(value)}, {json.dumps(second[section][name])})"
        for section, values in first.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if value != second[section][name]
    ]


def _found(cell: CellConfig, device: torch.device) -> CellConfig:
    """The cell with what was left open of its backend, as far as it is known without its models."""
    backend, dtype = cell.backend, resolve_dtype(cell.backend.dtype, device)
    graphs = device.type == "cuda" if backend.graphs is None else backend.graphs
    name = backend.dtype if dtype is None else str(dtype).removeprefix("torch.")
    return normal_form(replace(cell, backend=replace(backend, device=device.type, dtype=name, graphs=graphs)))
