"""Multi-head latent attention (MLA) in its absorbed form: what is cached, and attended to, is one latent per token.

A token's keys and values are two linear maps of one latent c of R numbers, beside a rotated key of P numbers that all
heads share. Instead of expanding every cached latent, the map of the keys is taken into the query, and that of the
values is applied to the attended latent; with W_k [N, R] and W_v [V, R] of a head, the two parts of kv_b_proj:

    query . key_s  =  q_nope . (W_k c_s) + q_rope . k_s  =  [W_k^T q_nope; q_rope] . [c_s; k_s]
    sum_s w_s value_s  =  sum_s w_s W_v c_s  =  W_v (sum_s w_s c_s)

So there is one key head of width R + P, and its values are the first R numbers of its keys. Cached per token and layer:
R + P numbers instead of H (N + P + V); 576 instead of 10,240 for GLM-4.7-Flash.
Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1. It does not know slots: it sees the keys that the cache returned.

Shapes: B rows, T tokens of a row, S keys of a row, H heads, R latent width, P rotated width, N width of a head's
unrotated key, V width of a head's value, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from harness.models.attention import slots_attention


class LatentAttention(nn.Module):
    """Takes the place of a Glm4MoeLiteAttention of transformers, with its weights under the same names."""

    kv_b_proj: nn.Linear

    def __init__(self, attention: Any) -> None:
        """attention: the module whose projections and norms serve from here on."""
        # there since the module was made
        from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as glm

        super().__init__()
        for name, part in attention.named_children():
            self.add_module(name, part)
        config = attention.config
        self.layer_idx: int = attention.layer_idx
        self.scaling: float = attention.scaling
        self.interleaved: bool = config.rope_interleave
        self.rotate: Any = glm.apply_rotary_pos_emb_interleave if self.interleaved else glm.apply_rotary_pos_emb
        self.num_heads: int = config.num_attention_heads
        self.num_key_value_groups = self.num_heads
        """All heads share the one key head."""
        self.latent_dim: int = config.kv_lora_rank
        self.rope_dim: int = config.qk_rope_head_dim
        self.nope_dim: int = config.qk_nope_head_dim
        self.value_dim: int = config.v_head_dim

    def forward(
        self,
        # [B, T, D]
        hidden_states: Tensor,
        # two of [B, T, P]
        position_embeddings: tuple[Tensor, Tensor],
        # [B or 1, 1, T or H * T, S], additive or bool; None is causal over the given tokens alone
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_unused: object,
    ) -> tuple[Tensor, None]:
        """[B, T, D] and no attention weights. Keys go to the cache as [B, 1, T, R + P], values as [B, 1, T, 0]."""
        query, query_rope = self._queries(hidden_states)
        latent, key_rope = self._latents(hidden_states)
        query_rope, key_rope = self.rotate(query_rope, key_rope, *position_embeddings)
        keys = torch.cat((latent, key_rope), dim=-1)
        if past_key_values is not None:
            keys, _ = past_key_values.update(keys, keys[..., :0], self.layer_idx)
        # [H, N + V, R]
        expansion = self.kv_b_proj.weight.unflatten(0, (self.num_heads, self.nope_dim + self.value_dim))
        absorbed = torch.einsum("bhtn,hnr->bhtr", query, expansion[:, : self.nope_dim])
        queries = torch.cat((absorbed, query_rope), dim=-1)
        # [B, T, H, R]
        attended, _ = slots_attention(
            self, queries, keys, keys[..., : self.latent_dim], attention_mask, scaling=self.scaling
        )
        values = torch.einsum("bthr,hvr->bthv", attended, expansion[:, self.nope_dim :])
        output: Any = self.o_proj
        return output(values.flatten(2)), None

    def _queries(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, H, T, N] and [B, H, T, P], not rotated."""
        parts: Any = self
        if hasattr(self, "q_a_proj"):
            states = parts.q_b_proj(parts.q_a_layernorm(parts.q_a_proj(hidden_states)))
        else:
            states = parts.q_proj(hidden_states)
        states = states.unflatten(-1, (self.num_heads, self.nope_dim + self.rope_dim)).transpose(1, 2)
        query, query_rope = states.split((self.nope_dim, self.rope_dim), dim=-1)
        return query, query_rope

    def _latents(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, 1, T, R] and [B, 1, T, P], not rotated."""
        parts: Any = self
        compressed = parts.kv_a_proj_with_mqa(hidden_states).unsqueeze(1)
        latent, key_rope = compressed.split((self.latent_dim, self.rope_dim), dim=-1)
        return parts.kv_a_layernorm(latent), key_rope
