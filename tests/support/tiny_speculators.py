"""Tiny speculators of the package `speculators` with random weights, and the files that record what they compute.

For the scripts record_*_speculators.py alone: it runs in the environment that record_eagle3_speculators.py describes,
and imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import shift_batch
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

VERIFIER = "verifier"
"""Folder of the target that the package looks into."""
NUM_TARGET_LAYERS = 7


def settings(
    algorithm: str, num_tokens: int, sizes: dict[str, Any], layer: dict[str, Any], draft_ids: Tensor
) -> dict[str, Any]:
    """What the configurations of all algorithms have: layers of Llama or, by their model_type, of Qwen3."""
    layer_class = Qwen3Config if layer.get("model_type") == "qwen3" else LlamaConfig
    changes = {name: value for name, value in layer.items() if name != "model_type"}
    return {
        "transformer_layer_config": layer_class(**(sizes | changes), attn_implementation="eager"),
        "draft_vocab_size": draft_ids.numel(),
        "speculators_config": SpeculatorsConfig(
            algorithm=algorithm,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=num_tokens)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=VERIFIER, architectures=["LlamaForCausalLM"]),
        ),
    }


def new_verifier(sizes: dict[str, Any]) -> Any:
    """A target of these sizes for the package to look into."""
    return LlamaForCausalLM(LlamaConfig(**(sizes | {"num_hidden_layers": NUM_TARGET_LAYERS})))


def drawn(name: str, shape: torch.Size) -> Tensor:
    """The same random values for the same name; norms around 1, so that one left out or taken twice shows."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator) * 0.2
    return values + 1 if "norm" in name else values


def draw_weights(model: Any, vocab_size: int, draft_ids: Tensor) -> None:
    """Give a speculator drawn weights and a vocabulary."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(drawn(name, parameter.shape))
    drawable = torch.zeros(vocab_size, dtype=torch.bool)
    drawable[draft_ids] = True
    model.load_vocab_mappings(drawable, draft_ids - torch.arange(draft_ids.numel()))


def read_back(config_class: Any, model_class: Any, folder: Path) -> Any:
    """The speculator of a folder as the package reads it."""
    config = config_class.from_pretrained(folder)
    # a choice that files do not keep; the default wants sequences of a multiple of 128
    config.transformer_layer_config._attn_implementation = "eager"
    return model_class.from_pretrained(folder, config=config).eval()


def new_sequence(vocab_size: int, num_pairs: int, hidden_size: int) -> tuple[Tensor, Tensor]:
    """[T + 1] token ids and [T + 1, 3 H] states of a target."""
    token_ids = torch.randint(1, vocab_size, (num_pairs + 1,), generator=torch.Generator().manual_seed(1))
    return token_ids, torch.randn(num_pairs + 1, 3 * hidden_size, generator=torch.Generator().manual_seed(2))


def inputs_of(token_ids: Tensor, aux_states: Tensor) -> dict[str, Tensor]:
    """The arguments of a model for the pairs of one sequence, a batch of one."""
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
    return {name: tensor[None] for name, tensor in batch.items() if name != "lengths"}


class Recording:
    """The cases of one algorithm; a tensor of one name is the same in all of them, and is stored once."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self._cases: dict[str, Any] = {}

    def add(self, case: str, folder: Path, **more: Any) -> None:
        """A case from the files that the package wrote, at the next row of the outputs."""
        tensors = load_file(folder / "model.safetensors")
        assert all(torch.equal(self._weights.setdefault(name, tensor), tensor) for name, tensor in tensors.items())
        config = json.loads((folder / "config.json").read_text())
        self._cases[case] = {"row": len(self._cases), "config": config, "tensors": sorted(tensors), **more}

    def save(self, folder: Path, runs: dict[str, Tensor]) -> None:
        """Write the three files."""
        folder.mkdir(exist_ok=True)
        save_file(self._weights, folder / "weights.safetensors")
        save_file(runs, folder / "runs.safetensors")
        versions = {name: version(name) for name in ("speculators", "transformers", "torch", "safetensors")}
        text = json.dumps({"versions": versions, "cases": self._cases}, separators=(",", ":"))
        (folder / "cases.json").write_text(text + "\n", encoding="utf-8")


def in_a_new_folder(record: Callable[[], None]) -> None:
    """Record there, so that no path of the machine gets into config.json."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        record()
