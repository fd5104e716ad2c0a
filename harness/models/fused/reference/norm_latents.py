"""Normalize latents, rotate and store the shared key. The specification of harness.models.fused.norm_latents."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fused.checks import check_rows
from harness.models.fused.reference.add_rms_norm import add_rms_norm


def norm_latents(
    joint: Tensor,
    query_norm: Tensor | None,
    query_eps: float,
    latent_norm: Tensor,
    latent_eps: float,
    table: Tensor,
    keys: Tensor,
    slots: Tensor,
    starts: Tensor,
    interleaved: bool,
) -> Tensor | None:
    """See harness.models.fused.norm_latents. Waits for the device to leave out positions beyond the capacity."""
    check_rows(slots, starts)
    (capacity, key_width), latent_width = keys.shape[2:], len(latent_norm)
    num_tokens = len(joint) // len(slots)
    query, latent, key = joint.split((joint.shape[1] - key_width, latent_width, key_width - latent_width), dim=-1)
    positions = (starts[:, None] + torch.arange(num_tokens, device=starts.device)).flatten()
    stored = positions < capacity
    row_slots = slots.repeat_interleave(num_tokens)[stored]
    turned = rotated(key, table[positions.clamp_max(len(table) - 1)], interleaved)
    normed = add_rms_norm(latent, None, latent_norm, latent_eps)[0]
    keys[row_slots, 0, positions[stored]] = torch.cat((normed, turned), dim=-1)[stored]
    return None if query_norm is None else add_rms_norm(query, None, query_norm, query_eps)[0]


def rotated(
    # [..., P]
    vectors: Tensor,
    # [..., P] float32
    angles: Tensor,
    interleaved: bool,
) -> Tensor:
    """[..., P], the first of all pairs, then the second; rounded once."""
    wide = vectors.float()
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    cosine, sine = angles.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(vectors.dtype)
