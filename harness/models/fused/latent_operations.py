"""The fused operations of latent attention: the Triton kernels or their plain twins.

As in harness.models.fused.operations, kernels are imported only where they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

from torch import Tensor


class NormLatents(Protocol):
    """See harness.models.fused.norm_latents."""

    def __call__(
        self,
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
    ) -> Tensor | None: ...


class AbsorbQueries(Protocol):
    """See harness.models.fused.absorb_queries."""

    def __call__(
        self, states: Tensor, expansion: Tensor, table: Tensor, starts: Tensor, latent_width: int, interleaved: bool
    ) -> Tensor: ...


class LatentAttend(Protocol):
    """See harness.models.fused.latent_attention."""

    def __call__(
        self, queries: Tensor, keys: Tensor, slots: Tensor, starts: Tensor, latent_width: int, scaling: float
    ) -> Tensor: ...


class ExpandValues(Protocol):
    """See harness.models.fused.expand_values."""

    def __call__(self, attended: Tensor, expansion: Tensor, value_width: int) -> Tensor: ...


@dataclass(frozen=True)
class LatentOperations:
    """One implementation of the operations of latent attention."""

    norm_latents: NormLatents
    absorb_queries: AbsorbQueries
    latent_attention: LatentAttend
    expand_values: ExpandValues


@cache
def latent_operations(name: str) -> LatentOperations:
    """name: of harness.models.fused.operations.Operations, triton or reference; some of the latter wait."""
    if name == "triton":
        from harness.models.fused.absorb_queries import absorb_queries
        from harness.models.fused.expand_values import expand_values
        from harness.models.fused.latent_attention import latent_attention
        from harness.models.fused.norm_latents import norm_latents

        return LatentOperations(norm_latents, absorb_queries, latent_attention, expand_values)

    from harness.models.fused.reference import absorb_queries as absorb
    from harness.models.fused.reference import expand_values as expand
    from harness.models.fused.reference import latent_attention as attend
    from harness.models.fused.reference import norm_latents as norm

    return LatentOperations(norm.norm_latents, absorb.absorb_queries, attend.latent_attention, expand.expand_values)
