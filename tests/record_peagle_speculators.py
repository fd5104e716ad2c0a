"""Records what the P-EAGLE model of the package `speculators` computes, for tests/test_peagle_speculators.py.

Run in the environment that tests/record_eagle3_speculators.py describes:

    ENV/bin/python tests/record_peagle_speculators.py

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

import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from record_eagle3_speculators import drawn
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import shift_batch
from speculators.models.peagle import core
from speculators.models.peagle.config import PEagleSpeculatorConfig
from speculators.models.peagle.core import PEagleDraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

RECORDED = Path(__file__).resolve().parent / "data" / "peagle_speculators"
VERIFIER = "verifier"
VOCAB_SIZE, HIDDEN_SIZE, NUM_TARGET_LAYERS, NUM_PAIRS, NUM_DEPTHS, MASK_TOKEN_ID = 24, 16, 7, 5, 3, 22
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


def speculator_config(own: dict[str, Any], layer: dict[str, Any]) -> PEagleSpeculatorConfig:
    """The configuration of one case."""
    layer_class = Qwen3Config if layer.get("model_type") == "qwen3" else LlamaConfig
    changes = {name: value for name, value in layer.items() if name != "model_type"}
    return PEagleSpeculatorConfig(
        transformer_layer_config=layer_class(**(SIZES | changes), attn_implementation="eager"),
        draft_vocab_size=DRAFT_IDS.numel(),
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=NUM_DEPTHS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=VERIFIER, architectures=["LlamaForCausalLM"]),
        ),
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        mask_token_id=MASK_TOKEN_ID,
        **own,
    )


def written(config: PEagleSpeculatorConfig, folder: Path) -> PEagleDraftModel:
    """A speculator with drawn weights and the vocabulary of DRAFT_IDS, written and read back."""
    model = PEagleDraftModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(drawn(name, parameter.shape))
    drawable = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    drawable[DRAFT_IDS] = True
    model.load_vocab_mappings(drawable, DRAFT_IDS - torch.arange(DRAFT_IDS.numel()))
    model.save_pretrained(folder)
    config = PEagleSpeculatorConfig.from_pretrained(folder)
    # a choice that files do not keep; the default wants sequences of a multiple of 128
    config.transformer_layer_config._attn_implementation = "eager"
    return PEagleDraftModel.from_pretrained(folder, config=config).eval()


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
    num_tokens = token_ids.numel()
    batch = shift_batch(
        {
            "input_ids": token_ids,
            "hidden_states": aux_states,
            "verifier_last_hidden_states": torch.zeros(num_tokens, HIDDEN_SIZE),
            "loss_mask": torch.ones(num_tokens),
            "lengths": torch.tensor([num_tokens]),
            "position_ids": torch.arange(num_tokens),
        }
    )
    core.generate_cod_sample_indices = lambda **_: every_pair()
    # its kernels want a GPU
    core.compute_metrics = lambda **_: (None, {})
    model(
        hidden_states=batch["hidden_states"][None],
        input_ids=batch["input_ids"][None],
        document_ids=torch.zeros(1, num_tokens - 1, dtype=torch.long),
        loss_mask=batch["loss_mask"][None],
        verifier_last_hidden_states=batch["verifier_last_hidden_states"][None],
        num_depths=NUM_DEPTHS,
    )
    hook.remove()
    return logits[0]


def record() -> None:
    """Run every case in the current folder, and write the three files."""
    LlamaForCausalLM(LlamaConfig(**(SIZES | {"num_hidden_layers": NUM_TARGET_LAYERS}))).save_pretrained(VERIFIER)
    token_ids = torch.randint(1, VOCAB_SIZE, (NUM_PAIRS + 1,), generator=torch.Generator().manual_seed(1))
    aux_states = torch.randn(NUM_PAIRS + 1, 3 * HIDDEN_SIZE, generator=torch.Generator().manual_seed(2))
    anchors, depths = every_pair()
    weights: dict[str, Tensor] = {}
    cases: dict[str, Any] = {}
    logits = []
    for row, (case, (own, layer)) in enumerate(CASES.items()):
        folder = Path(f"case{row}")
        logits.append(run(written(speculator_config(own, layer), folder), token_ids, aux_states))
        tensors = load_file(folder / "model.safetensors")
        assert all(torch.equal(weights.setdefault(name, tensor), tensor) for name, tensor in tensors.items())
        config = json.loads((folder / "config.json").read_text())
        cases[case] = {"row": row, "config": config, "tensors": sorted(tensors)}
    RECORDED.mkdir(exist_ok=True)
    runs = {"token_ids": token_ids, "aux_states": aux_states, "anchors": anchors, "depths": depths}
    save_file(weights, RECORDED / "weights.safetensors")
    save_file(runs | {"logits": torch.stack(logits)}, RECORDED / "runs.safetensors")
    versions = {name: version(name) for name in ("speculators", "transformers", "torch", "safetensors")}
    text = json.dumps({"versions": versions, "cases": cases}, separators=(",", ":"))
    (RECORDED / "cases.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that no path of the machine gets into config.json
        record()


if __name__ == "__main__":
    main()
