"""Outlines: models on the meta device of torch, with shapes and dtypes but without memory.

They are loaded as the models themselves are, with the same checks; what these will take can be counted on them before
anything is made. A `target` on the meta device is an outline, and so is every head made for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

META = torch.device("meta")


def on_meta(device: torch.device) -> AbstractContextManager[object]:
    """Modules made inside take no memory where they are for an outline, and are made as ever for any other device."""
    return META if device == META else nullcontext()
