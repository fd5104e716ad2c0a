"""Attention of rows to the latents of their slots. The specification of harness.models.fused.latent_attention."""

from __future__ import annotations

from torch import Tensor

from harness.models.fused.reference.slot_attention import slot_attention


def latent_attention(
    queries: Tensor, keys: Tensor, slots: Tensor, starts: Tensor, latent_width: int, scaling: float
) -> Tensor:
    """See harness.models.fused.latent_attention. Waits for the device to learn the longest row."""
    # values as wide as keys, of which the first part is what is asked for
    attended = slot_attention(queries, keys, keys, slots, starts, scaling)
    return attended.view(queries.shape)[..., :latent_width].contiguous()
