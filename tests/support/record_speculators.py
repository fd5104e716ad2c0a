"""Records what the models of the package `speculators` compute, for tests/models/test_speculators.py.

Run in an environment of its own, because the package asks for another transformers than this project:

    python3.11 -m venv ENV
    ENV/bin/pip install speculators==0.9.0 torch==2.13.0 transformers==5.19.0 safetensors==0.8.0
    ENV/bin/python tests/support/record_speculators.py [ALGORITHM ...]

On a machine without a GPU the CPU-only torch serves, without torchvision and torchaudio, which nothing here needs.

Every case is a tiny speculator with random weights. It is written by the package, read back by the package, and run by
the package over one sequence. Cases differ in their configuration; a tensor of one name is the same in all of them, so
that it is stored once. In tests/data/ALGORITHM_speculators lie then:

    weights.safetensors   tensors under the names that the package wrote
    cases.json            for each case its config.json, the tensors in its file, its row in the outputs; and of EAGLE-3
                          the auxiliary layers that the package takes, of DFlash the size of a block
    runs.safetensors      token_ids [T + 1] and aux_states [T + 1, 3 H]; and

    EAGLE-3   over the pairs and then three chained steps from each of them, fed with the tokens of the sequence
              (training-time test): target_embedding [V, H], step_ids [N, T], the token of pair t in step n, features
              [C, N, T, H] entering each step, logits [C, N, T, V_draft]
    P-EAGLE   from each pair a draft of NUM_DEPTHS tokens: anchors and depths [P], the pair that a draft begins at and
              the place in it; logits [C, P, V_draft]
    DFlash    a block at each of ANCHORS, the last known token: anchors [A], target_embedding and target_output [V, H],
              logits [C, A, L, V], zeros beyond the places and draft tokens that a case has

Shapes: T pairs, N steps, C cases, P pairs with the masked ones, A anchors, L places of the longest block, H hidden
size, V target's vocabulary, V_draft tokens that can be drafted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import core as dflash_core
from speculators.models.dflash.config import DFlashSpeculatorConfig
from speculators.models.dflash.core import DFlashDraftModel
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig, shift_batch
from speculators.models.peagle import core as peagle_core
from speculators.models.peagle.config import PEagleSpeculatorConfig
from speculators.models.peagle.core import PEagleDraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

DATA = Path(__file__).resolve().parents[1] / "data"
VERIFIER = "verifier"
"""Folder of the target that the package looks into."""
NUM_TARGET_LAYERS, AUX_LAYERS, MASK_TOKEN_ID = 7, [1, 2, 4], 22
EMBEDDING = "embed_tokens.weight"
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
QWEN3 = {"model_type": "qwen3"}
Case = tuple[dict[str, Any], dict[str, Any]]
"""Fields of the speculator, fields of its layers."""


def drawn(name: str, shape: torch.Size) -> Tensor:
    """The same random values for the same name; norms around 1, so that one left out or taken twice shows."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator) * 0.2
    return values + 1 if "norm" in name else values


def inputs_of(token_ids: Tensor, aux_states: Tensor, *names: str) -> dict[str, Tensor]:
    """Arguments of a model for the pairs of one sequence, a batch of one."""
    num_tokens = token_ids.numel()
    batch = shift_batch(
        {
            "input_ids": token_ids,
            "hidden_states": aux_states,
            "verifier_last_hidden_states": torch.zeros(num_tokens, aux_states.shape[1] // 3),
            "loss_mask": torch.ones(num_tokens),
            "lengths": torch.tensor([num_tokens]),
            "position_ids": torch.arange(num_tokens),
        }
    )
    batch["document_ids"] = torch.zeros(num_tokens - 1, dtype=torch.long)
    return {name: batch[name][None] for name in names}


class Algorithm:
    """Heads of one algorithm: sizes, cases, and how the package makes, reads and runs them."""

    name: str
    config_class: Any
    model_class: Any
    sizes: ClassVar[dict[str, Any]] = {
        "vocab_size": 24,
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 32,
    }
    draft_ids = torch.tensor([0, 2, 3, 5, 8, 13, 14, 17])
    num_pairs: int
    num_drafted: int
    fields: ClassVar[dict[str, Any]]
    cases: ClassVar[dict[str, Case]]

    def config(self, own: dict[str, Any], layer: dict[str, Any]) -> Any:
        """Of a case: layers of Llama or, by their model_type, of Qwen3."""
        layer_class = Qwen3Config if layer.get("model_type") == "qwen3" else LlamaConfig
        changes = {name: value for name, value in layer.items() if name != "model_type"}
        given = {
            "transformer_layer_config": layer_class(**(self.sizes | changes), attn_implementation="eager"),
            "draft_vocab_size": self.draft_ids.numel(),
            "speculators_config": SpeculatorsConfig(
                algorithm=self.name,
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=self.num_drafted)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=VERIFIER, architectures=["LlamaForCausalLM"]),
            ),
        }
        return self.config_class(**(given | self.fields | own))

    def written(self, case: str, folder: Path) -> Any:
        """The speculator of a case with drawn weights and a vocabulary, written and read back."""
        model = self.model_class(self.config(*self.cases[case]))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(drawn(name, parameter.shape))
        if getattr(model, "use_draft_vocab", True):
            drawable = torch.zeros(self.sizes["vocab_size"], dtype=torch.bool)
            drawable[self.draft_ids] = True
            model.load_vocab_mappings(drawable, self.draft_ids - torch.arange(self.draft_ids.numel()))
        model.save_pretrained(folder)
        return self.read(case, folder)

    def read(self, case: str, folder: Path) -> Any:
        config = self.config_class.from_pretrained(folder)
        # a choice that files do not keep; the default wants sequences of a multiple of 128
        config.transformer_layer_config._attn_implementation = "eager"
        return self.model_class.from_pretrained(folder, config=config).eval()

    def inputs(self, verifier: Any) -> dict[str, Tensor]:
        """What is recorded of the target and of the drafts, besides the sequence; may give the target other weights."""
        raise NotImplementedError

    def facts(self, model: Any) -> dict[str, Any]:
        """What cases.json says of a case besides its files."""
        return {}

    def run(self, model: Any, token_ids: Tensor, aux_states: Tensor) -> dict[str, Tensor]:
        """Outputs by name, which are recorded for every case."""
        raise NotImplementedError


class Eagle3(Algorithm):
    name, config_class, model_class = "eagle3", Eagle3SpeculatorConfig, Eagle3DraftModel
    sizes: ClassVar[dict[str, Any]] = {
        "vocab_size": 56,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 64,
    }
    draft_ids = torch.tensor([0, 2, 3, 5, 8, 13, 14, 17, 21, 22, 30, 31, 34, 38, 41, 44, 49, 50, 54, 55])
    num_pairs, num_drafted = 8, 4
    fields: ClassVar[dict[str, Any]] = {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS}
    cases: ClassVar[dict[str, Case]] = {
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
        "layer of Qwen3": ({"norm_before_residual": True}, QWEN3),
    }

    def read(self, case: str, folder: Path) -> Any:
        """An embedding that is missing in the file comes from the target."""
        if case == "the target's embedding":
            tensors = load_file(folder / "model.safetensors")
            del tensors[EMBEDDING]
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        model = super().read(case, folder)
        if case == "the target's embedding":
            # from_pretrained leaves memory uninitialized, and takes the target's embedding only where that is NaN
            model._load_verifier_weights(overwrite_embed_tokens=True)
        assert not [name for name, tensor in model.named_parameters() if tensor.isnan().any()]
        return model

    def inputs(self, verifier: Any) -> dict[str, Tensor]:
        embedding = drawn(VERIFIER, verifier.model.embed_tokens.weight.shape)
        verifier.model.embed_tokens.load_state_dict({"weight": embedding})
        return {"target_embedding": embedding}

    def facts(self, model: Any) -> dict[str, Any]:
        return {"aux_layers": model.target_layer_ids}

    def run(self, model: Any, token_ids: Tensor, aux_states: Tensor) -> dict[str, Tensor]:
        step_ids, features, logits = [], [], []
        hidden_size = self.sizes["hidden_size"]
        hooks = [
            model.embed_tokens.register_forward_pre_hook(lambda _, args: step_ids.append(args[0][0])),
            model.layers[0].register_forward_pre_hook(lambda _, args: features.append(args[0][0, :, hidden_size:])),
            model.lm_head.register_forward_hook(lambda _, args, output: logits.append(output[0])),
        ]
        names = ("hidden_states", "input_ids", "position_ids", "document_ids")
        model(**inputs_of(token_ids, aux_states, *names), ttt_steps=self.num_drafted)
        for hook in hooks:
            hook.remove()
        return {
            "step_ids": torch.stack(step_ids),
            "features": torch.stack(features),
            "logits": torch.stack(logits),
        }


class PEagle(Algorithm):
    name, config_class, model_class = "peagle", PEagleSpeculatorConfig, PEagleDraftModel
    num_pairs, num_drafted = 5, 3
    fields: ClassVar[dict[str, Any]] = {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS, "mask_token_id": MASK_TOKEN_ID}
    cases: ClassVar[dict[str, Case]] = {
        "two layers": ({}, {}),
        "one layer": ({}, {"num_hidden_layers": 1}),
        "norm before residual": ({"norm_before_residual": True}, {}),
        "fc norm": ({"fc_norm": True}, {}),
        "layers of Qwen3": ({"norm_before_fc": True}, QWEN3),
    }

    def every_pair(self) -> tuple[Tensor, Tensor]:
        """[P] the pair that a draft begins at, [P] the place in it, of all drafts within the sequence; none dropped."""
        pairs = [(first, depth) for depth in range(self.num_drafted) for first in range(self.num_pairs - depth)]
        anchors, depths = zip(*pairs, strict=True)
        return torch.tensor(anchors), torch.tensor(depths)

    def inputs(self, verifier: Any) -> dict[str, Tensor]:
        return dict(zip(("anchors", "depths"), self.every_pair(), strict=True))

    def run(self, model: Any, token_ids: Tensor, aux_states: Tensor) -> dict[str, Tensor]:
        logits: list[Tensor] = []
        hook = model.lm_head.register_forward_hook(lambda _, args, output: logits.append(output[0]))
        peagle_core.generate_cod_sample_indices = lambda **_: self.every_pair()
        # its kernels want a GPU
        peagle_core.compute_metrics = lambda **_: (None, {})
        names = ("hidden_states", "input_ids", "document_ids", "loss_mask", "verifier_last_hidden_states")
        model(**inputs_of(token_ids, aux_states, *names), num_depths=self.num_drafted)
        hook.remove()
        return {"logits": logits[0]}


class DFlash(Algorithm):
    name, config_class, model_class = "dflash", DFlashSpeculatorConfig, DFlashDraftModel
    num_pairs, num_drafted = 9, 3
    fields: ClassVar[dict[str, Any]] = {
        "block_size": 4,
        "aux_hidden_state_layer_ids": AUX_LAYERS,
        "mask_token_id": MASK_TOKEN_ID,
    }
    anchors = torch.tensor([1, 2, 6])
    cases: ClassVar[dict[str, Case]] = {
        "two layers": ({}, QWEN3),
        "one layer": ({}, QWEN3 | {"num_hidden_layers": 1}),
        "blocks of three": ({"block_size": 3}, QWEN3),
        "the target's vocabulary": ({"draft_vocab_size": 24}, QWEN3),
        "sizes given as a Llama's": ({}, {"num_hidden_layers": 1}),
    }

    def read(self, case: str, folder: Path) -> Any:
        model = super().read(case, folder)
        model.load_verifier_weights()
        return model

    def inputs(self, verifier: Any) -> dict[str, Tensor]:
        for name, parameter in verifier.named_parameters():
            parameter.copy_(drawn(f"target {name}", parameter.shape))
        embedding, output = verifier.model.embed_tokens.weight, verifier.lm_head.weight
        return {"anchors": self.anchors, "target_embedding": embedding.detach(), "target_output": output.detach()}

    def facts(self, model: Any) -> dict[str, Any]:
        return {"block_size": model.block_size}

    def run(self, model: Any, token_ids: Tensor, aux_states: Tensor) -> dict[str, Tensor]:
        count, num_tokens = len(self.anchors), token_ids.numel()
        dflash_core.select_anchors = lambda *_: (self.anchors, torch.ones(count, dtype=torch.bool))
        _, logits, *_ = model._backbone_forward(
            aux_states[None],
            token_ids[None],
            torch.ones(1, num_tokens),
            torch.zeros(1, num_tokens, self.sizes["hidden_size"]),
            torch.zeros(1, num_tokens, dtype=torch.long),
            max_anchors=count,
        )
        blocks = logits[0].unflatten(0, (count, model.block_size))
        found = torch.zeros(count, self.fields["block_size"], self.sizes["vocab_size"])
        found[:, : blocks.shape[1], : blocks.shape[2]] = blocks
        return {"logits": found}


@torch.no_grad()
def record(algorithm: Algorithm) -> None:
    """Run every case in the current folder, and write the three files."""
    verifier = LlamaForCausalLM(LlamaConfig(**(algorithm.sizes | {"num_hidden_layers": NUM_TARGET_LAYERS})))
    runs = algorithm.inputs(verifier)
    verifier.save_pretrained(VERIFIER)
    count, vocab_size = algorithm.num_pairs + 1, algorithm.sizes["vocab_size"]
    token_ids = torch.randint(1, vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    states = torch.randn(count, 3 * algorithm.sizes["hidden_size"], generator=torch.Generator().manual_seed(2))
    weights: dict[str, Tensor] = {}
    cases: dict[str, Any] = {}
    outputs: list[dict[str, Tensor]] = []
    for row, case in enumerate(algorithm.cases):
        folder = Path(f"{algorithm.name}{row}")
        model = algorithm.written(case, folder)
        outputs.append(algorithm.run(model, token_ids, states))
        tensors = load_file(folder / "model.safetensors")
        assert all(torch.equal(weights.setdefault(name, tensor), tensor) for name, tensor in tensors.items())
        config = json.loads((folder / "config.json").read_text())
        cases[case] = {"row": row, "config": config, "tensors": sorted(tensors), **algorithm.facts(model)}
    of_cases = {name: torch.stack([each[name] for each in outputs]) for name in outputs[0]}
    if "step_ids" in of_cases:
        of_cases["step_ids"] = of_cases["step_ids"][-1]
    versions = {name: version(name) for name in ("speculators", "transformers", "torch", "safetensors")}
    into = DATA / f"{algorithm.name}_speculators"
    into.mkdir(exist_ok=True)
    save_file(weights, into / "weights.safetensors")
    save_file({"token_ids": token_ids, "aux_states": states} | runs | of_cases, into / "runs.safetensors")
    text = json.dumps({"versions": versions, "cases": cases}, separators=(",", ":"))
    (into / "cases.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    # in a new folder, so that no path of the machine gets into config.json
    with tempfile.TemporaryDirectory() as new:
        os.chdir(new)
        for each in (Eagle3(), PEagle(), DFlash()):
            if each.name in (sys.argv[1:] or [each.name]):
                record(each)
