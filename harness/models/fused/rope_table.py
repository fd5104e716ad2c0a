"""Cosines and sines of RoPE by position, computed once, so that a kernel looks them up.

    table[position] = [cos(position * f_0) ... cos(position * f_(D/2-1)), sin(position * f_0) ...] * attention scaling

Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.models.model_types import LENGTH_DEPENDENT_ROPE, of_length


@torch.no_grad()
def rope_table(rotary: Any, num_positions: int, device: torch.device | str) -> Tensor:
    """The table of a rotary module of transformers.

    Args:
        rotary: such as LlamaRotaryEmbedding, on `device`; its frequencies and its attention scaling are taken.
        num_positions: C', positions from 0 on; as many as a slot holds, or more.

    Returns:
        [C', D] float32: D / 2 cosines, then D / 2 sines. D is the part of a head that turns.

    Raises:
        ValueError: the angles follow the longest sequence seen and are no function of the position.
    """
    if rotary.rope_type in LENGTH_DEPENDENT_ROPE:
        raise ValueError(f"{of_length(rotary.rope_type)}; use the layer unfused")
    if torch.device(device).type == "meta":
        return torch.empty(num_positions, 2 * rotary.inv_freq.numel(), dtype=torch.float32, device=device)
    positions = torch.arange(num_positions, device=device)
    cosine, sine = rotary(torch.empty(0, dtype=torch.float32, device=device), positions[None])
    # transformers repeats the angles for the second half of a head.
    half = cosine.shape[-1] // 2
    return torch.cat((cosine[0, :, :half], sine[0, :, :half]), dim=-1)
