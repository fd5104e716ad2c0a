"""Records what the reference EAGLE-3 model of the package `speculators` computes, for
tests/models/test_speculators.py.

Run in an environment of its own, because the package asks for an older transformers than this project:

    python3.11 -m venv ENV
    ENV/bin/pip install speculators==0.9.0 torch==2.13.0 transformers==5.19.0 safetensors==0.8.0
    ENV/bin/python tests/support/record_eagle3_speculators.py

On a machine without a GPU the CPU-only torch serves, without torchvision and torchaudio, which nothing here needs.

Every case is a tiny speculator with random weights. It is written by the package, read back by the package, and run by
the package: over the pairs of one sequence and then three chained steps from each of them, fed with the tokens of the
sequence (training-time test). Cases differ in their configuration; a tensor of one name is the same in all of them, so
that it is stored once. In tests/data/eagle3_speculators lie then:

    weights.safetensors   tensors under the names that the package wrote
    cases.json            for each case its config.json, the tensors in its file, the auxiliary layers that the package
                          takes, and its row in the outputs
    runs.safetensors      token_ids [T + 1], aux_states [T + 1, 3 H], target_embedding [V, H], step_ids [N, T]: the
                          token of pair t in step n, features [C, N, T, H] entering each step, logits [C, N, T, V_draft]

Shapes: T pairs, N steps, C cases, H hidden size, V target's vocabulary, V_draft tokens that can be drafted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from tiny_speculators import (
    VERIFIER,
    Recording,
    draw_weights,
    drawn,
    in_a_new_folder,
    inputs_of,
    new_sequence,
    new_verifier,
    read_back,
    settings,
)
from torch import Tensor

RECORDED = Path(__file__).resolve().parents[1] / "data" / "eagle3_speculators"
EMBEDDING = "embed_tokens.weight"
VOCAB_SIZE, HIDDEN_SIZE, NUM_PAIRS, NUM_STEPS = 56, 32, 8, 4
DRAFT_IDS = torch.tensor([0, 2, 3, 5, 8, 13, 14, 17, 21, 22, 30, 31, 34, 38, 41, 44, 49, 50, 54, 55])
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 44,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
AUX_LAYERS = [1, 2, 4]
# case -> fields of the speculator, fields of its layer
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "norm before residual": ({"norm_before_residual": True}, {}),
    "norm before fc": ({"norm_before_fc": True}, {}),
    "fc norm": ({"fc_norm": True}, {}),
    "norm output": ({"norm_output": True}, {}),
    "three norms": ({"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}, {}),
    "default layers": ({"eagle_aux_hidden_state_layer_ids": None}, {}),
    "the target's embedding": ({}, {}),
    "scaled RoPE": ({}, {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 1e-5}),
    "biases": ({}, {"attention_bias": True, "mlp_bias": True}),
    "layer of Qwen3": ({"norm_before_residual": True}, {"model_type": "qwen3"}),
}
WITHOUT_EMBEDDING = "the target's embedding"


def new_speculator(own: dict[str, Any], layer: dict[str, Any]) -> Eagle3DraftModel:
    """The speculator of one case."""
    aux_layers = {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS}
    config = Eagle3SpeculatorConfig(**settings("eagle3", NUM_STEPS, SIZES, layer, DRAFT_IDS), **(aux_layers | own))
    model = Eagle3DraftModel(config)
    draw_weights(model, VOCAB_SIZE, DRAFT_IDS)
    return model


def save_verifier() -> Tensor:
    """Write a target for the package to look into; returns its embedding [V, H]."""
    verifier = new_verifier(SIZES)
    embedding = drawn(VERIFIER, verifier.model.embed_tokens.weight.shape)
    verifier.model.embed_tokens.load_state_dict({"weight": embedding})
    verifier.save_pretrained(VERIFIER)
    return embedding


def read(folder: Path) -> Eagle3DraftModel:
    """The speculator of a folder; an embedding that is missing there comes from the target."""
    model = read_back(Eagle3SpeculatorConfig, Eagle3DraftModel, folder)
    if EMBEDDING not in load_file(folder / "model.safetensors"):
        # from_pretrained leaves memory uninitialized, and takes the target's embedding only where that is NaN
        model._load_verifier_weights(overwrite_embed_tokens=True)
    assert not [name for name, tensor in model.named_parameters() if tensor.isnan().any()]
    return model


@torch.no_grad()
def run(model: Eagle3DraftModel, token_ids: Tensor, aux_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """step_ids [N, T], features [N, T, H] and logits [N, T, V_draft] of one sequence."""
    step_ids, features, logits = [], [], []
    hooks = [
        model.embed_tokens.register_forward_pre_hook(lambda _, args: step_ids.append(args[0][0])),
        model.layers[0].register_forward_pre_hook(lambda _, args: features.append(args[0][0, :, HIDDEN_SIZE:])),
        model.lm_head.register_forward_hook(lambda _, args, output: logits.append(output[0])),
    ]
    inputs = inputs_of(token_ids, aux_states)
    names = ("hidden_states", "input_ids", "position_ids", "document_ids")
    model(**{name: inputs[name] for name in names}, ttt_steps=NUM_STEPS)
    for hook in hooks:
        hook.remove()
    return torch.stack(step_ids), torch.stack(features), torch.stack(logits)


def record() -> None:
    """Run every case in the current folder, and write the three files."""
    token_ids, aux_states = new_sequence(VOCAB_SIZE, NUM_PAIRS, HIDDEN_SIZE)
    runs = {"token_ids": token_ids, "aux_states": aux_states, "target_embedding": save_verifier()}
    recording, features, logits = Recording(), [], []
    for row, (case, (own, layer)) in enumerate(CASES.items()):
        folder = Path(f"case{row}")
        new_speculator(own, layer).save_pretrained(folder)
        if case == WITHOUT_EMBEDDING:
            tensors = load_file(folder / "model.safetensors")
            del tensors[EMBEDDING]
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        model = read(folder)
        runs["step_ids"], case_features, case_logits = run(model, token_ids, aux_states)
        features.append(case_features)
        logits.append(case_logits)
        recording.add(case, folder, aux_layers=model.target_layer_ids)
    recording.save(RECORDED, runs | {"features": torch.stack(features), "logits": torch.stack(logits)})


if __name__ == "__main__":
    in_a_new_folder(record)
