"""The layers of Llama and Qwen3, with the names and parts of transformers' modules, and bit for bit their results.

transformers' modules import its loader, its losses and torch's compiler: more seconds than the rest of a start. These
import torch alone. They attend through slots and know no training, no generation and no checkpoint.

Shapes: B rows, T tokens of a row, H hidden size, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from harness.models.attention import slots_attention


class LlamaRMSNorm(nn.Module):
    """Root mean square norm over the last dimension, in float32."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class Qwen3RMSNorm(LlamaRMSNorm):
    """The same."""


class LlamaRotaryEmbedding(nn.Module):
    """Cosines and sines of RoPE; its type depends on the position alone (`harness.models.decoder_layer`)."""

    inv_freq: Tensor

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.rope_type = config.rope_parameters["rope_type"]
        if self.rope_type == "default":
            dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            # see harness.models.meta
            device = "cpu" if torch.get_default_device().type == "meta" else None
            places = torch.arange(0, dim, 2, dtype=torch.float, device=device) / dim
            frequencies, self.attention_scaling = 1.0 / (config.rope_parameters["rope_theta"] ** places), 1.0
        else:
            frequencies, self.attention_scaling = ROPE_INIT_FUNCTIONS[self.rope_type](config)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    @torch.no_grad()
    def forward(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [B, T] int64 -> cosines and sines [B, T, D], in the dtype of the states."""
        angles = positions[..., None].float() * self.inv_freq.to(device=states.device, dtype=torch.float)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(dtype=states.dtype), sin.to(dtype=states.dtype)


class Qwen3RotaryEmbedding(LlamaRotaryEmbedding):
    """The same."""


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, config: PreTrainedConfig, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act_fn = _activation(config.hidden_act)

    def forward(self, states: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(self.act_fn(self.gate_proj(states)) * self.up_proj(states))


def _activation(name: str) -> Any:
    if name in ("silu", "swish"):
        return nn.SiLU()
    # the rare others are worth its seconds
    from transformers.activations import ACT2FN

    return ACT2FN[name]


class LlamaAttention(nn.Module):
    """Attention of grouped query heads, over the given tokens alone or through slots."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        num_heads, num_key_heads, bias = config.num_attention_heads, config.num_key_value_heads, config.attention_bias
        self.num_key_value_groups = num_heads // num_key_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, num_key_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, num_key_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(num_heads * self.head_dim, config.hidden_size, bias=bias)

    def forward(
        self,
        # [B, T, H]
        hidden_states: Tensor,
        # two of [B, T, D]
        position_embeddings: tuple[Tensor, Tensor],
        # as for slots_attention; None is causal over the given tokens alone
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
    ) -> tuple[Tensor, None]:
        """[B, T, H] and no attention weights."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key = self.of_heads(self.q_proj(hidden_states).view(shape), self.k_proj(hidden_states).view(shape))
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = (turned(heads.transpose(1, 2), *position_embeddings) for heads in (query, key))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attended, _ = slots_attention(self, query, key, value, attention_mask, scaling=self.scaling)
        return self.o_proj(attended.reshape(*hidden_states.shape[:-1], -1)), None

    def of_heads(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, heads, D] each, before they are turned."""
        return query, key


class Qwen3Attention(LlamaAttention):
    """With a norm over each head's queries and keys."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def of_heads(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(query), self.k_norm(key)


def turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys, [B, heads, T, D], turned by the angles of their positions."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


class LlamaDecoderLayer(nn.Module):
    """Attention and a gated MLP, each behind a norm and added to what came in."""

    attention: type[LlamaAttention] = LlamaAttention
    norm: type[LlamaRMSNorm] = LlamaRMSNorm

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = self.attention(config, layer_idx)
        # Qwen3 has no such setting, and no biases there
        self.mlp = GatedMLP(config, bias=getattr(config, "mlp_bias", False))
        self.input_layernorm = self.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = self.norm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        """[B, T, H] -> [B, T, H]; the arguments of the attention."""
        normed = self.input_layernorm(hidden_states)
        states = hidden_states + self.self_attn(normed, position_embeddings, attention_mask, past_key_values)[0]
        return states + self.mlp(self.post_attention_layernorm(states))


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """The same with Qwen3's attention."""

    attention = Qwen3Attention
    norm = Qwen3RMSNorm


class _Body(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: PreTrainedConfig, layer: type[LlamaDecoderLayer], rotary: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList([layer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = layer.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = rotary


class LlamaForCausalLM(nn.Module):
    """The modules of a model, which `harness.models.target` runs."""

    layer: type[LlamaDecoderLayer] = LlamaDecoderLayer

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config, self.layer, LlamaRotaryEmbedding(config))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The same with Qwen3's layers."""

    layer = Qwen3DecoderLayer
