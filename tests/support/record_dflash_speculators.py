"""Records what the DFlash model of the package `speculators` computes, for tests/models/test_speculators.py.

Run in the environment that tests/support/record_eagle3_speculators.py describes:

    ENV/bin/python tests/support/record_dflash_speculators.py

Every case is a tiny speculator with random weights, written by the package, read back by the package and run by the
package over one sequence, a block at each of ANCHORS. A tensor of one name is the same in all cases. In
tests/data/dflash_speculators lie then:

    weights.safetensors   tensors under the names that the package wrote
    cases.json            for each case its config.json, the tensors in its file, its row in the outputs, its block size
    runs.safetensors      token_ids [T], aux_states [T, 3 H], target_embedding [V, H] and target_output [V, H] of the
                          target, anchors [A]: the last known token of each block; logits [C, A, L, V], zeros beyond
                          the places and draft tokens that a case has

Shapes: T tokens, A anchors, C cases, L places of the longest block, H hidden size, V vocabulary of the target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from speculators.models.dflash import core
from speculators.models.dflash.config import DFlashSpeculatorConfig
from speculators.models.dflash.core import DFlashDraftModel
from tiny_speculators import (
    VERIFIER,
    Recording,
    draw_weights,
    drawn,
    in_a_new_folder,
    new_sequence,
    new_verifier,
    read_back,
    settings,
)
from torch import Tensor

RECORDED = Path(__file__).resolve().parents[1] / "data" / "dflash_speculators"
VOCAB_SIZE, HIDDEN_SIZE, NUM_TOKENS, BLOCK_SIZE, MASK_TOKEN_ID = 24, 16, 10, 4, 22
ANCHORS = torch.tensor([1, 2, 6])
DRAFT_IDS = torch.tensor([0, 2, 3, 5, 8, 13, 14, 17])
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
QWEN3 = {"model_type": "qwen3"}
# case -> fields of the speculator, fields of its layers
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two layers": ({}, QWEN3),
    "one layer": ({}, QWEN3 | {"num_hidden_layers": 1}),
    "blocks of three": ({"block_size": 3}, QWEN3),
    "the target's vocabulary": ({"draft_vocab_size": VOCAB_SIZE}, QWEN3),
    "sizes given as a Llama's": ({}, {"num_hidden_layers": 1}),
}


def written(own: dict[str, Any], layer: dict[str, Any], folder: Path) -> DFlashDraftModel:
    """The speculator of one case, written and read back, over the target's embedding and output matrix."""
    fields = settings("dflash", BLOCK_SIZE - 1, SIZES, layer, DRAFT_IDS)
    fields |= {"block_size": BLOCK_SIZE, "aux_hidden_state_layer_ids": [1, 2, 4], "mask_token_id": MASK_TOKEN_ID}
    model = DFlashDraftModel(DFlashSpeculatorConfig(**fields | own))
    if model.use_draft_vocab:
        draw_weights(model, VOCAB_SIZE, DRAFT_IDS)
    else:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(drawn(name, parameter.shape))
    model.save_pretrained(folder)
    model = read_back(DFlashSpeculatorConfig, DFlashDraftModel, folder)
    model.load_verifier_weights()
    return model


@torch.no_grad()
def run(model: DFlashDraftModel, token_ids: Tensor, aux_states: Tensor) -> Tensor:
    """[A, L, V] logits of the blocks of one sequence."""
    core.select_anchors = lambda *_: (ANCHORS, torch.ones(len(ANCHORS), dtype=torch.bool))
    num_tokens = token_ids.numel()
    _, logits, *_ = model._backbone_forward(
        aux_states[None],
        token_ids[None],
        torch.ones(1, num_tokens),
        torch.zeros(1, num_tokens, HIDDEN_SIZE),
        torch.zeros(1, num_tokens, dtype=torch.long),
        max_anchors=len(ANCHORS),
    )
    blocks = logits[0].unflatten(0, (len(ANCHORS), model.block_size))
    found = torch.zeros(len(ANCHORS), BLOCK_SIZE, VOCAB_SIZE)
    found[:, : blocks.shape[1], : blocks.shape[2]] = blocks
    return found


def record() -> None:
    """Run every case in the current folder, and write the three files."""
    verifier = new_verifier(SIZES)
    with torch.no_grad():
        for name, parameter in verifier.named_parameters():
            parameter.copy_(drawn(f"target {name}", parameter.shape))
    verifier.save_pretrained(VERIFIER)
    token_ids, aux_states = new_sequence(VOCAB_SIZE, NUM_TOKENS - 1, HIDDEN_SIZE)
    recording, logits = Recording(), []
    for row, (case, (own, layer)) in enumerate(CASES.items()):
        folder = Path(f"case{row}")
        model = written(own, layer, folder)
        assert torch.equal(model.embed_tokens.weight, verifier.model.embed_tokens.weight)
        logits.append(run(model, token_ids, aux_states))
        recording.add(case, folder, block_size=model.block_size)
    runs = {
        "token_ids": token_ids,
        "aux_states": aux_states,
        "anchors": ANCHORS,
        "target_embedding": verifier.model.embed_tokens.weight.detach(),
        "target_output": verifier.lm_head.weight.detach(),
    }
    recording.save(RECORDED, runs | {"logits": torch.stack(logits)})


if __name__ == "__main__":
    in_a_new_folder(record)
