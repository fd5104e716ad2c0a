"""Tiny random models, in memory and as checkpoint folders in the public formats, for the tests of harness.models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from harness.models.target import TargetModel

VOCAB_SIZE = 61
NUM_LAYERS = 7

# A float32 forward of these sizes repeated in another order of summation stays within a few units in the last place.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "eos_token_id": 3,
    "bos_token_id": 0,
    # large enough that the layers matter to the output
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def random_causal_lm(kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random Llama (`llama`, `llama3_rope`, `llama_tied`) or Qwen3 (`qwen3`) of transformers, norms included."""
    fields = SIZES | changes
    if kind == "llama3_rope":
        fields |= {"rope_parameters": LLAMA3_ROPE}
    if kind == "llama_tied":
        fields |= {"tie_word_embeddings": True}
    torch.manual_seed(seed)
    causal_lm = Qwen3ForCausalLM(Qwen3Config(**fields)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**fields))
    randomize(causal_lm, seed + 1)
    return causal_lm.eval().requires_grad_(False)


def randomize(module: torch.nn.Module, seed: int) -> None:
    """Random weights everywhere; norms around 1, so that a norm left out or taken twice shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(values + 1 if "norm" in name else values)


def random_target(kind: str = "llama", seed: int = 0, **changes: Any) -> TargetModel:
    """A target in memory, with a tokenizer of one word per token."""
    return TargetModel(random_causal_lm(kind, seed, **changes), word_tokenizer(), name="tiny")


def word_tokenizer(
    num_tokens: int = VOCAB_SIZE, swapped: bool = False, renamed: dict[str, int] | None = None
) -> PreTrainedTokenizerFast:
    """Tokens w0, w1, ...; `swapped` exchanges the ids of w7 and w8, `renamed` gives ids to tokens in their place."""
    ids = {f"w{index}": index for index in range(num_tokens)}
    if swapped:
        ids["w7"], ids["w8"] = ids["w8"], ids["w7"]
    for token, index in (renamed or {}).items():
        ids = {other: number for other, number in ids.items() if number != index} | {token: index}
    words = Tokenizer(models.WordLevel(ids, unk_token="w1"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w5" if num_tokens > 5 else "w3")


def save_target_folder(folder: Path, causal_lm: Any, tokenizer: Any = None) -> Path:
    """Write a target as transformers does."""
    causal_lm.save_pretrained(folder)
    (tokenizer or word_tokenizer()).save_pretrained(folder)
    return folder


def random_tokens(num_rows: int, num_tokens: int, seed: int = 0) -> Tensor:
    """[B, T] int64."""
    return torch.randint(VOCAB_SIZE, (num_rows, num_tokens), generator=torch.Generator().manual_seed(seed))


def positions_from(start: list[int], num_tokens: int) -> Tensor:
    """[B, T] int64, counting up from each row's start."""
    return torch.tensor(start)[:, None] + torch.arange(num_tokens)


def edit_weights(folder: Path, *, drop: str | None = None, put: dict[str, Tensor] | None = None) -> None:
    """Take a tensor out of a folder's model.safetensors, or put some in."""
    tensors = load_file(folder / "model.safetensors")
    if drop is not None:
        del tensors[drop]
    save_file(tensors | (put or {}), folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, drop: tuple[str, ...] = (), **fields: Any) -> None:
    """Change fields of a folder's config.json."""
    path = folder / "config.json"
    data = {name: value for name, value in json.loads(path.read_text()).items() if name not in drop}
    path.write_text(json.dumps(data | fields))
