"""Tiny random GLM checkpoints as published ones are: shards with an index, experts one by one, an MTP layer inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM

from harness.models.checkpoint import INDEX, SINGLE
from tests.support.tiny_models import VOCAB_SIZE, randomize, word_tokenizer

NUM_LAYERS = 3
MTP_PREFIX = f"model.layers.{NUM_LAYERS}."

# Taking the expansion of keys and values out of attention reorders about ten sums of up to 60 terms in each of three
# layers: 30 x sqrt(60) x 2^-24 = 1.4e-5 of the terms, which come to a few units. A mistake is four orders larger.
TOLERANCE = {"rtol": 1e-5, "atol": 3e-5}

# Every width is another number, so that one taken for another shows.
CONFIG: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "intermediate_size": 40,
    "moe_intermediate_size": 16,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "q_lora_rank": 18,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.8,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "rms_norm_eps": 1e-5,
    "eos_token_id": [3],
    "bos_token_id": 0,
    "tie_word_embeddings": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "as published": {},
    "two dense layers": {"first_k_dense_replace": 2},
    "groups of experts": {"n_group": 2, "topk_group": 1},
    "two shared experts": {"n_shared_experts": 2},
    "queries without a latent": {"q_lora_rank": None},
    "halves rotated": {"rope_interleave": False},
    "tied": {"tie_word_embeddings": True},
}


def glm_fields(kind: str = "as published", **changes: Any) -> dict[str, Any]:
    """The content of config.json."""
    return CONFIG | KINDS[kind] | changes


def random_glm(kind: str = "as published", seed: int = 0, **changes: Any) -> Any:
    """A random Glm4MoeLite of transformers, norms and router biases included, which runs expert by expert."""
    fields = glm_fields(kind, **changes)
    dense, num_layers = fields["first_k_dense_replace"], fields["num_hidden_layers"]
    kinds = ["dense"] * dense + ["sparse"] * (num_layers - dense)
    names = fields.keys() - {"architectures", "model_type", "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": fields["rope_theta"]}
    config = Glm4MoeLiteConfig(**{name: fields[name] for name in names}, rope_parameters=rope, mlp_layer_types=kinds)
    config._experts_implementation = "eager"
    causal_lm = Glm4MoeLiteForCausalLM(config)
    randomize(causal_lm, seed + 1)
    randomize_biases(causal_lm, seed + 2)
    return causal_lm.eval().requires_grad_(False)


def randomize_biases(module: torch.nn.Module, seed: int) -> None:
    """Router biases as large as the differences of scores, so that one left out changes the choice of experts."""
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in module.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)


def one_by_one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of transformers under the names of published checkpoints."""
    stored = {}
    for name, tensor in tensors.items():
        base = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if not base.endswith("mlp.experts."):
            stored[name] = tensor
        elif name.endswith("down_proj"):
            stored |= {f"{base}{index}.down_proj.weight": expert for index, expert in enumerate(tensor)}
        else:
            size = tensor.shape[1] // 2
            for index, expert in enumerate(tensor):
                stored[f"{base}{index}.gate_proj.weight"] = expert[:size]
                stored[f"{base}{index}.up_proj.weight"] = expert[size:]
    return {name: tensor.clone() for name, tensor in stored.items()}


def mtp_tensors(config: Any, seed: int = 5) -> dict[str, Tensor]:
    """A random MTP layer under its published names."""
    hidden, vocab, heads = config.hidden_size, config.vocab_size, config.num_attention_heads
    inner, num_experts, latent = config.moe_intermediate_size, config.n_routed_experts, config.kv_lora_rank
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    listed: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab, hidden),
        "enorm.weight": (hidden,),
        "hnorm.weight": (hidden,),
        "eh_proj.weight": (hidden, 2 * hidden),
        "shared_head.norm.weight": (hidden,),
        "shared_head.head.weight": (vocab, hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_a_proj.weight": (config.q_lora_rank, hidden),
        "self_attn.q_a_layernorm.weight": (config.q_lora_rank,),
        "self_attn.q_b_proj.weight": (heads * key, config.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (latent + config.qk_rope_head_dim, hidden),
        "self_attn.kv_a_layernorm.weight": (latent,),
        "self_attn.kv_b_proj.weight": (heads * (config.qk_nope_head_dim + config.v_head_dim), latent),
        "self_attn.o_proj.weight": (hidden, heads * config.v_head_dim),
        "mlp.gate.weight": (num_experts, hidden),
        "mlp.gate.e_score_correction_bias": (num_experts,),
    }
    widths = {f"experts.{index}": inner for index in range(num_experts)}
    for owner, width in (widths | {"shared_experts": inner * config.n_shared_experts}).items():
        listed |= {f"mlp.{owner}.{name}_proj.weight": (width, hidden) for name in ("gate", "up")}
        listed[f"mlp.{owner}.down_proj.weight"] = (hidden, width)
    generator = torch.Generator().manual_seed(seed)
    values = {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in listed.items()}
    return {MTP_PREFIX + name: tensor + ("norm" in name) for name, tensor in values.items()}


def save_glm_folder(
    folder: Path, causal_lm: Any, mtp: dict[str, Tensor] | None = None, *, num_shards: int = 3, **changes: Any
) -> Path:
    """Write a folder as published ones are; `changes` are fields of config.json. mtp: None leaves the layer out."""
    folder.mkdir(exist_ok=True)
    tensors = one_by_one(causal_lm.state_dict()) | (mtp or {})
    if causal_lm.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    written = (CONFIG.keys() - {"architectures", "rope_theta"}) | {"n_group", "topk_group", "rope_interleave"}
    fields = CONFIG | {name: getattr(causal_lm.config, name) for name in written}
    (folder / "config.json").write_text(json.dumps(fields | changes))
    word_tokenizer().save_pretrained(folder)
    if num_shards == 1:
        save_file(tensors, folder / SINGLE)
    else:
        save_shards(folder, tensors, num_shards)
    return folder


def save_shards(folder: Path, tensors: dict[str, Tensor], num_shards: int = 3) -> None:
    """Spread tensors over shards, so that the experts of one layer lie in several."""
    files = [f"model-{1 + index:05d}-of-{num_shards:05d}.safetensors" for index in range(num_shards)]
    placed = {name: files[index % num_shards] for index, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in tensors if placed[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def edit_shards(folder: Path, *, drop: str | None = None, put: dict[str, Tensor] | None = None) -> None:
    """Take a tensor out of a folder's shards, or put some in."""
    tensors = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    if drop is not None:
        del tensors[drop]
    save_shards(folder, tensors | (put or {}))
