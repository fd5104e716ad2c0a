"""Training of the target: next-token cross-entropy on packed rows, and held-out loss by group.

Weights are float32, arithmetic is bfloat16 under autocast on a GPU. The forward is that of
harness.models.target.TargetModel, without a cache. Does not know heads.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.zoo.data import TokenStream, TrainingData
from experiments.zoo.generated import CHAT_GROUP, JSON_GROUP
from experiments.zoo.metrics import record
from experiments.zoo.settings import ModelSize, Settings
from experiments.zoo.tokenizer import END_ID, END_OF_TEXT_ID
from harness.models.target import TargetModel, load_tokenizer
from harness.training.optimizer import LOG_EVERY, adamw, autocast, step
from harness.training.schedule import Schedule

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_NUM_EVALUATIONS = 5
_EVALUATION_ROWS = 16


def llama(size: ModelSize, vocab_size: int, max_positions: int, device: str = "cpu") -> LlamaForCausalLM:
    """A Llama with fresh float32 weights, its residual branches scaled down by depth."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_key_value_heads,
        head_dim=size.head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=[END_ID, END_OF_TEXT_ID],
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                projection.weight.mul_((2 * size.num_layers) ** -0.5)
    nn.Module.to(model, device)
    return model


def add_dropout(model: LlamaForCausalLM, probability: float) -> None:
    """Dropout on both residual branches of every layer, while the model is in training mode."""

    def drop(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        return functional.dropout(output, probability, training=module.training)

    if probability > 0:
        for layer in model.model.layers:
            layer.self_attn.o_proj.register_forward_hook(drop)
            layer.mlp.down_proj.register_forward_hook(drop)


def train_target(settings: Settings, data: TrainingData) -> None:
    """Train the target and write it to `settings.target_folder`, tokenizer included."""
    sizes, device = settings.sizes, settings.device
    torch.manual_seed(settings.seed)
    model = llama(sizes.target, sizes.vocab_size, sizes.target_length, device)
    add_dropout(model, settings.dropout)
    target = TargetModel(model, load_tokenizer(settings.tokenizer_folder), name="zoo")
    positions = torch.arange(sizes.target_length, device=device)[None]

    def loss_of(rows: Tensor) -> Tensor:
        with autocast(device):
            hidden = target.forward(rows[:, :-1], positions, None).hidden
            logits = target.logits(hidden)
        return functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    stream = TokenStream(data.tokens, data.starts, device, settings.seed)
    num_steps, seconds = _optimize(
        settings, target, torch.compile(loss_of) if settings.compile else loss_of, stream, data
    )
    losses = heldout_losses(target, data, settings)
    num_tokens = num_steps * sizes.target_rows * sizes.target_length
    save_causal_lm(model, settings.target_folder, settings.tokenizer_folder)
    record(
        settings.out,
        "target",
        {
            "num_steps": num_steps,
            "num_parameters": target.num_parameters,
            "seconds": round(seconds, 1),
            "num_training_tokens": num_tokens,
            "num_unique_tokens": len(data.tokens),
            "num_passes": round(num_tokens / len(data.tokens), 2),
            "heldout_loss": losses,
            "bits_per_byte": round(losses["corpus"] / math.log(2) / data.bytes_per_token, 3),
        },
    )


def _optimize(
    settings: Settings, target: TargetModel, loss_of: Any, stream: TokenStream, data: TrainingData
) -> tuple[int, float]:
    sizes, model = settings.sizes, target.causal_lm
    optimizer = adamw(model, settings.learning_rate_target, settings.weight_decay, settings.device)
    schedule = Schedule(
        settings.seconds_target,
        settings.steps,
        num_warmup_steps=200,
        decay_from=0.4,
        peak=settings.learning_rate_target,
    )
    tokens_per_step = sizes.target_rows * sizes.target_length
    model.train()
    began = time.perf_counter()
    loss_of(stream.rows(sizes.target_rows, sizes.target_length + 1)).backward()  # compiles; not a step
    optimizer.zero_grad(set_to_none=True)
    print(f"target: {target.num_parameters:,} parameters, first step {time.perf_counter() - began:.1f} s", flush=True)
    index, next_evaluation, last_log = 0, 1 / _NUM_EVALUATIONS, (0, time.perf_counter())
    while (fraction := schedule.fraction(index)) < 1.0:
        loss = loss_of(stream.rows(sizes.target_rows, sizes.target_length + 1))
        loss.backward()
        step(optimizer, model, schedule.learning_rate(index, fraction))
        index += 1
        if index % LOG_EVERY == 0:
            value, now = loss.item(), time.perf_counter()
            rate = (index - last_log[0]) * tokens_per_step / (now - last_log[1])
            last_log = (index, now)
            if not math.isfinite(value):
                raise ValueError(f"target: the loss is {value} at step {index}; lower --learning-rate-target")
            print(f"target: step {index} loss {value:.3f} {rate / 1e3:,.0f}k tokens/s {fraction:.1%}", flush=True)
        if fraction >= next_evaluation:
            next_evaluation += 1 / _NUM_EVALUATIONS
            print(f"target: {fraction:.0%} held out {_shown(heldout_losses(target, data, settings))}", flush=True)
            last_log = (index, time.perf_counter())
    return index, schedule.elapsed


def _shown(losses: dict[str, float]) -> str:
    return " ".join(f"{group} {loss:.3f}" for group, loss in losses.items())


@torch.no_grad()
def heldout_losses(target: TargetModel, data: TrainingData, settings: Settings) -> dict[str, float]:
    """Mean nats per token of each held-out group, and of the whole held-out corpus (generated text left out)."""
    model = target.causal_lm
    was_training = model.training
    model.eval()
    losses, totals = {}, [0.0, 0]
    for group, tokens in data.heldout.items():
        total, count = _group_loss(target, tokens, settings)
        losses[group] = round(total / count, 4)
        if group not in (CHAT_GROUP, JSON_GROUP):
            totals = [totals[0] + total, totals[1] + count]
    model.train(was_training)
    return {"corpus": round(totals[0] / totals[1], 4), **losses}


def _group_loss(target: TargetModel, tokens: NDArray[np.uint16], settings: Settings) -> tuple[float, int]:
    length, device = settings.sizes.target_length, settings.device
    num_rows = max(1, (len(tokens) - 1) // length)
    stream = torch.from_numpy(tokens[: num_rows * length + 1].astype(np.int64)).to(device)
    width = min(length, len(stream) - 1)
    inputs, labels = stream[:-1].view(num_rows, width), stream[1:].view(num_rows, width)
    positions = torch.arange(width, device=device)[None]
    total = torch.zeros((), device=device)
    for rows in range(0, num_rows, _EVALUATION_ROWS):
        part = slice(rows, rows + _EVALUATION_ROWS)
        with autocast(device):
            logits = target.logits(target.forward(inputs[part], positions, None).hidden)
        total += functional.cross_entropy(logits.flatten(0, 1).float(), labels[part].flatten(), reduction="sum")
    return float(total), labels.numel()


def save_causal_lm(model: LlamaForCausalLM, folder: Path, tokenizer_folder: Path) -> None:
    """Write a Llama as a public checkpoint folder in bfloat16; the tied output matrix is not stored twice."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = {key: value for key, value in model.config.to_diff_dict().items() if key != "transformers_version"}
    fields |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    generation = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": [END_ID, END_OF_TEXT_ID], "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_folder / name, folder / name)
