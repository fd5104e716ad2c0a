"""The zoo's draft model as if it had a tokenizer of its own."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from harness.models.token_ids import stored_token_ids
from harness.models.zoo import zoo_path


def renumbered(folder: Path, num_lacking: int = 0) -> Path:
    """Write the zoo's draft model with its token ids in reverse; so many of its tokens are none of the target's."""
    for file in zoo_path("draft_model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    ids = stored_token_ids(folder)
    assert ids is not None
    size = len(ids)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    names = {token: size - 1 - number for token, number in tokenizer["model"]["vocab"].items()}
    tokenizer["model"]["vocab"] = {f"none{n}" if n < num_lacking else token: n for token, n in names.items()}
    tokenizer["model"]["merges"] = []
    for added in tokenizer["added_tokens"]:
        added["id"] = size - 1 - added["id"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((folder / name).read_text())
        for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
            if fields.get(key) is not None:
                given = fields[key]
                fields[key] = [size - 1 - n for n in given] if isinstance(given, list) else size - 1 - given
        (folder / name).write_text(json.dumps(fields))
    return folder
