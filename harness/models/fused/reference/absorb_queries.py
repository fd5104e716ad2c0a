"""Take the map of the keys into queries, and rotate them. The specification of harness.models.fused.absorb_queries."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fused.reference.norm_latents import rotated


def absorb_queries(
    states: Tensor, expansion: Tensor, table: Tensor, starts: Tensor, latent_width: int, interleaved: bool
) -> Tensor:
    """See harness.models.fused.absorb_queries."""
    num_all, num_heads, query_width = states.shape
    nope_width, num_tokens = query_width - table.shape[1], num_all // len(starts)
    nope, rope = states.split((nope_width, table.shape[1]), dim=-1)
    absorbed = torch.einsum("nhd,hdl->nhl", nope, expansion[:, :nope_width])
    positions = (starts[:, None] + torch.arange(num_tokens, device=starts.device)).flatten()
    turned = rotated(rope, table[positions.clamp_max(len(table) - 1)][:, None], interleaved)
    assert absorbed.shape[-1] == latent_width
    return torch.cat((absorbed, turned), dim=-1).view(len(starts), num_tokens, num_heads, -1)
