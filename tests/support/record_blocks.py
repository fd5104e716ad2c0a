"""Records what the public code of DSpark and DFlash2 heads computes, for tests/models/test_recorded_blocks.py.

    git clone https://github.com/deepseek-ai/DeepSpec
    pip install --no-deps --target DFLASH dflash==0.1.0
    PYTHONPATH=DeepSpec:DFLASH .venv/bin/python tests/support/record_blocks.py

Every case is a tiny head with random weights over one context, whose block is drafted at temperature 1. It is written
by the public code. In tests/data/blocks lie then:

    weights.safetensors   tensors under the names that were written, each with its shape behind it
    cases.json            for each case its config.json and its tensors; the versions of the packages
    runs.safetensors      of all cases token_ids [T + 1], aux_states [T, 3 H], target_embedding, target_output [V, H];
                          CASE/token_ids [K] drawn, CASE/probabilities [K, V] what each was drawn from;
                          CASE/confidence [K] what a confidence head predicts of each

Shapes: T tokens of the context, behind which the last known token lies; H hidden size, V vocabulary, K draft tokens.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from deepspec.modeling.dspark.qwen3.modeling import Qwen3DSparkModel
from dflash.model import DFlash2DraftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3Config

RECORDED = Path(__file__).resolve().parents[1] / "data" / "blocks"
NUM_CONTEXT, BLOCK_SIZE, MASK_TOKEN_ID, VOCAB_SIZE, HIDDEN_SIZE = 9, 5, 22, 24, 16
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "num_target_layers": 7,
    "tie_word_embeddings": False,
}
TARGET_LAYER_IDS = [0, 2, 4]
DSPARK = {
    "target_layer_ids": TARGET_LAYER_IDS,
    "mask_token_id": MASK_TOKEN_ID,
    "block_size": BLOCK_SIZE,
    "num_anchors": 4,
}
CONFIDENCE = {"enable_confidence_head": True, "confidence_head_with_markov": True}
OF_STATES = {"enable_confidence_head": True, "confidence_head_with_markov": False}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}
FULL = ["full_attention", "full_attention"]
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 7}
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "dspark vanilla": (Qwen3DSparkModel, {"markov_rank": 6, "markov_head_type": "vanilla", **CONFIDENCE}),
    "dspark gated": (Qwen3DSparkModel, {"markov_rank": 6, "markov_head_type": "gated", **OF_STATES}),
    "dspark rnn": (Qwen3DSparkModel, {"markov_rank": 6, "markov_head_type": "rnn", "enable_confidence_head": False}),
    "dspark without": (Qwen3DSparkModel, {"markov_rank": 0, "enable_confidence_head": False}),
    "dflash2 plain": (DFlash2DraftModel, {"layer_types": FULL, "dflash_config": SELECTOR}),
    "dflash2 three taps": (
        DFlash2DraftModel,
        {"layer_types": FULL, "dflash_config": SELECTOR | {"conv_kernel_size": 3, "conv_group_size": 1}},
    ),
    "dflash2 windows": (DFlash2DraftModel, {"dflash_config": SELECTOR, **WINDOWS}),
}


def drawn(name: str, shape: torch.Size) -> Tensor:
    """The same random values for the same name; norms around 1."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * 0.4
    return values + 1 if "norm" in name else values


def made(kind: type[Any], fields: dict[str, Any], embedding: Tensor, output: Tensor) -> Any:
    """A head with drawn weights; of DSpark the embedding and the output matrix are the target's, as training keeps
    them."""
    if kind is Qwen3DSparkModel:
        config = Qwen3Config(**SIZES, **DSPARK, **fields, layer_types=FULL, architectures=["Qwen3DSparkModel"])
    else:
        own = {"block_size": BLOCK_SIZE, "mask_token_id": MASK_TOKEN_ID, "target_layer_ids": TARGET_LAYER_IDS}
        nested = fields["dflash_config"] | own
        config = Qwen3Config(**SIZES, **(fields | {"dflash_config": nested}), is_causal=False)
        config.architectures = ["DFlash2DraftModel"]
    config._attn_implementation = "sdpa"
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        parameter.copy_(drawn(name, parameter.shape))
    if kind is Qwen3DSparkModel:
        model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(output)
    return model


def run(model: Any, block: Tensor, states: Tensor, embedding: Tensor, output: Tensor) -> dict[str, Tensor]:
    """[K] drawn tokens, [K, V] what they were drawn from, and [K] what a confidence head predicts of them."""
    positions, noise = torch.arange(NUM_CONTEXT + BLOCK_SIZE)[None], embedding[block][None]
    torch.manual_seed(3)
    if isinstance(model, Qwen3DSparkModel):
        hidden = model._forward_backbone(
            position_ids=positions, noise_embedding=noise, target_hidden_states=states[None], is_causal=False
        )
        token_ids, rows = model.sample_draft_tokens(
            model.compute_logits(hidden), first_prev_token_ids=block[:1], temperature=1.0, hidden_states=hidden
        )
        found = {"token_ids": token_ids[0], "probabilities": rows[0].softmax(-1)}
        before = torch.cat((block[:1], token_ids[0, :-1]))[None]
        predicted = model.predict_confidence_step(hidden, prev_token_ids=before)
        return found if predicted is None else found | {"confidence": predicted[0].sigmoid()}
    head = nn.Linear(HIDDEN_SIZE, VOCAB_SIZE, bias=False)
    head.weight.copy_(output)
    hidden = model(position_ids=positions, noise_embedding=noise, target_hidden=states[None])[:, 1:]
    token_ids, candidates, probabilities = model.propose(hidden, block[:1], head, 1.0)
    found = torch.zeros(1, BLOCK_SIZE - 1, VOCAB_SIZE).scatter(2, candidates, probabilities)
    return {"token_ids": token_ids[0], "probabilities": found[0]}


@torch.no_grad()
def main() -> None:
    embedding, output = (
        drawn("target embedding", torch.Size((VOCAB_SIZE, HIDDEN_SIZE))) * 3,
        drawn("target output", torch.Size((VOCAB_SIZE, HIDDEN_SIZE))),
    )
    token_ids = torch.randint(1, VOCAB_SIZE, (NUM_CONTEXT + 1,), generator=torch.Generator().manual_seed(1))
    states = torch.randn(NUM_CONTEXT, 3 * HIDDEN_SIZE, generator=torch.Generator().manual_seed(2))
    block = torch.full((BLOCK_SIZE,), MASK_TOKEN_ID)
    block[0] = token_ids[-1]
    runs = {"token_ids": token_ids, "aux_states": states, "target_embedding": embedding, "target_output": output}
    weights: dict[str, Tensor] = {}
    cases: dict[str, Any] = {}
    for case, (kind, fields) in CASES.items():
        model = made(kind, fields, embedding, output)
        runs |= {f"{case}/{name}": value for name, value in run(model, block, states, embedding, output).items()}
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            stored = load_file(Path(folder) / "model.safetensors")
            config = json.loads((Path(folder) / "config.json").read_text())
        # the release has the codebooks without that ending, and its loader adds it
        names = {name: name.removesuffix(".weight") if "codebook" in name else name for name in stored}
        keys = {f"{names[name]} {'x'.join(map(str, tensor.shape))}": tensor for name, tensor in stored.items()}
        assert all(torch.equal(weights.setdefault(key, tensor), tensor) for key, tensor in keys.items())
        cases[case] = {"config": config, "tensors": sorted(keys)}
    RECORDED.mkdir(exist_ok=True)
    save_file(weights, RECORDED / "weights.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in runs.items()}, RECORDED / "runs.safetensors")
    versions = {name: version(name) for name in ("transformers", "torch", "safetensors")}
    text = json.dumps({"versions": versions, "cases": cases}, separators=(",", ":"))
    (RECORDED / "cases.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
