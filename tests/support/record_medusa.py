"""Records what the heads of the original Medusa code compute, for tests/models/test_models_medusa.py.

    git clone https://github.com/FasterDecoding/Medusa
    .venv/bin/python tests/support/record_medusa.py Medusa/medusa/model/medusa_model.py

The code around it needs an old transformers, so that the class ResBlock alone is taken from the file; heads are put
together of it as `MedusaModel.__init__` there does. In tests/data/medusa lie then:

    weights.safetensors   the state_dict of two heads of two blocks, as the code saves them
    runs.safetensors      hidden [5, H], logits [heads, 5, V]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

RECORDED = Path(__file__).resolve().parents[1] / "data" / "medusa"
HIDDEN_SIZE, VOCAB_SIZE, NUM_HEADS, NUM_LAYERS = 24, 61, 2, 2


def res_block(source: Path) -> type[nn.Module]:
    """The class of a block, from the file that is named."""
    tree = ast.parse(source.read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ResBlock")
    names: dict[str, object] = {"nn": nn, "torch": torch}
    exec(compile(ast.Module([found], []), str(source), "exec"), names)
    kind = names["ResBlock"]
    assert isinstance(kind, type)
    return kind


def main(source: Path) -> None:
    block = res_block(source)
    torch.manual_seed(3)
    heads = nn.ModuleList(
        nn.Sequential(*([block(HIDDEN_SIZE)] * NUM_LAYERS), nn.Linear(HIDDEN_SIZE, VOCAB_SIZE, bias=False))
        for _ in range(NUM_HEADS)
    )
    for parameter in heads.parameters():
        nn.init.normal_(parameter, std=0.4)
    hidden = torch.randn(5, HIDDEN_SIZE)
    with torch.inference_mode():
        logits = torch.stack([head(hidden) for head in heads])
    RECORDED.mkdir(exist_ok=True)
    weights = {name: tensor.detach().clone() for name, tensor in heads.state_dict().items()}
    save_file(weights, RECORDED / "weights.safetensors", metadata={"format": "pt"})
    save_file({"hidden": hidden, "logits": logits.clone()}, RECORDED / "runs.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
