"""Records what the P-EAGLE model of the package `speculators` computes, for tests/models/test_speculators.py.

Run in the environment that tests/support/record_eagle3_speculators.py describes:

    ENV/bin/python tests/support/record_peagle_speculators.py

Every case is a tiny speculator with random weights, written by the package, read back by the package and run by the
package over one sequence, from each of whose pairs a draft of NUM_DEPTHS tokens begins; none is dropped. A tensor of
one name is the same in all cases. In tests/data/peagle_speculators lie then:

    weights.safetensors   tensors under the names that the package wrote
    cases.json            for each case its config.json, the tensors in its file, and its row in the outputs
    runs.safetensors      token_ids [T + 1], aux_states [T + 1, 3 H], anchors [N] and depths [N]: the pair that a draft
                          begins at and the place in it, logits [C, N, V_draft]

Shapes: T pairs, N pairs with the masked ones, C cases, H hidden size, V_draft tokens that can be drafted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from speculators.models.peagle import core
from speculators.models.peagle.config import PEagleSpeculatorConfig
from speculators.models.peagle.core import PEagleDraftModel
from tiny_speculators import (
    VERIFIER,
    Recording,
    draw_weights,
    in_a_new_folder,
    inputs_of,
    new_sequence,
    new_verifier,
    read_back,
    settings,
)
from torch import Tensor

RECORDED = Path(__file__).resolve().parents[1] / "data" / "peagle_speculators"
VOCAB_SIZE, HIDDEN_SIZE, NUM_PAIRS, NUM_DEPTHS, MASK_TOKEN_ID = 24, 16, 5, 3, 22
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
# case -> fields of the speculator, fields of its layers
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two layers": ({}, {}),
    "one layer": ({}, {"num_hidden_layers": 1}),
    "norm before residual": ({"norm_before_residual": True}, {}),
    "fc norm": ({"fc_norm": True}, {}),
    "layers of Qwen3": ({"norm_before_fc": True}, {"model_type": "qwen3"}),
}


def written(own: dict[str, Any], layer: dict[str, Any], folder: Path) -> PEagleDraftModel:
    """The speculator of one case, written and read back."""
    config = PEagleSpeculatorConfig(
        **settings("peagle", NUM_DEPTHS, SIZES, layer, DRAFT_IDS),
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        mask_token_id=MASK_TOKEN_ID,
        **own,
    )
    model = PEagleDraftModel(config)
    draw_weights(model, VOCAB_SIZE, DRAFT_IDS)
    model.save_pretrained(folder)
    return read_back(PEagleSpeculatorConfig, PEagleDraftModel, folder)


def every_pair() -> tuple[Tensor, Tensor]:
    """[N] the pair that a draft begins at, [N] the place in it, of all drafts within the sequence."""
    pairs = [(first, depth) for depth in range(NUM_DEPTHS) for first in range(NUM_PAIRS - depth)]
    anchors, depths = zip(*pairs, strict=True)
    return torch.tensor(anchors), torch.tensor(depths)


@torch.no_grad()
def run(model: PEagleDraftModel, token_ids: Tensor, aux_states: Tensor) -> Tensor:
    """[N, V_draft] logits of one sequence."""
    logits: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _, args, output: logits.append(output[0]))
    core.generate_cod_sample_indices = lambda **_: every_pair()
    # its kernels want a GPU
    core.compute_metrics = lambda **_: (None, {})
    names = ("hidden_states", "input_ids", "document_ids", "loss_mask", "verifier_last_hidden_states")
    inputs = inputs_of(token_ids, aux_states)
    model(**{name: inputs[name] for name in names}, num_depths=NUM_DEPTHS)
    hook.remove()
    return logits[0]


def record() -> None:
    """Run every case in the current folder, and write the three files."""
    new_verifier(SIZES).save_pretrained(VERIFIER)
    token_ids, aux_states = new_sequence(VOCAB_SIZE, NUM_PAIRS, HIDDEN_SIZE)
    anchors, depths = every_pair()
    recording, logits = Recording(), []
    for row, (case, (own, layer)) in enumerate(CASES.items()):
        folder = Path(f"case{row}")
        logits.append(run(written(own, layer, folder), token_ids, aux_states))
        recording.add(case, folder)
    runs = {"token_ids": token_ids, "aux_states": aux_states, "anchors": anchors, "depths": depths}
    recording.save(RECORDED, runs | {"logits": torch.stack(logits)})


if __name__ == "__main__":
    in_a_new_folder(record)
