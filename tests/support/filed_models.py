"""Tiny models of every kind, filed as folders in every layout, and how each is loaded or accounted for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from harness.models.accounting import OF_DRAFTER, OF_TARGET, Accepted, Settled, head_account, model_account
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.head import save_head
from harness.models.head_fits import NAMES
from harness.models.target import load_target
from tests.support.tiny_heads import DRAFT_IDS, LOADERS, make_head
from tests.support.tiny_models import random_causal_lm, random_target, save_target_folder

NOWHERE = Path("nowhere")
HEADS = ("eagle", "eagle3", "peagle", "dflash", "dspark", "dflash2")
"""Kinds with files of their own."""
ORIGINAL = tuple(f"{kind} original" for kind in HEADS if kind != "eagle")
"""Of which a layout came before that of speculators."""
OF_ROWS = {
    "dflash": (),
    "dspark": ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"),
    "dflash2": ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
}


def file_models(root: Path) -> None:
    """Write a target and a head of every kind that fits it, as folders by name."""
    target = random_target()
    save_target_folder(root / "target", random_causal_lm())
    for kind in HEADS:
        save_head(make_head(kind, target, DRAFT_IDS if kind == "eagle3" else None), root / kind)
    for into in ORIGINAL:
        name = into.split()[0]
        shutil.copytree(root / name, root / into)
        as_original(root / into, name)


def as_original(folder: Path, kind: str) -> None:
    """Rewrite the config.json of a head of speculators in the layout that came first."""
    data = json.loads((folder / "config.json").read_text())
    own = {"draft_vocab_size": data["draft_vocab_size"]}
    if kind in BLOCK_HEADS:
        layers = [index - 1 for index in data["aux_hidden_state_layer_ids"]]
        inner = {"mask_token_id": data["mask_token_id"], "target_layer_ids": layers}
        inner |= {name: data[name] for name in OF_ROWS[kind]}
        own = {"dflash_config": inner, "block_size": data["block_size"], "architectures": [f"{NAMES[kind]}DraftModel"]}
    if kind == "peagle":
        own |= {"ptd_token_id": data["mask_token_id"]}
    (folder / "config.json").write_text(json.dumps(data["transformer_layer_config"] | own))


ROLES = ("target", "draft model", *HEADS, *ORIGINAL)


def load(role: str, folder: Path, *names: str) -> Any:
    """Load a folder as what it is, with what is vouched for."""
    if role == "target":
        return load_target(folder, accepted=Accepted("target", names))
    accepted = Accepted("drafter", names)
    if role == "draft model":
        return load_target(folder, accepted=accepted)
    return LOADERS[role.split(maxsplit=1)[0]](folder, random_target(), accepted=accepted)


def folder_of(role: str) -> str:
    return "target" if role == "draft model" else role


def put(folder: Path, file: str, within: str | None, name: str, value: object) -> None:
    """Write a field into a file of a folder, or into an object in it."""
    path = folder / file
    data = json.loads(path.read_text()) if path.is_file() else {}
    (data if within is None else data.setdefault(within, {}))[name] = value
    path.write_text(json.dumps(data))


def account(role: str, fields: dict[str, Any], accepted: Accepted = OF_DRAFTER) -> Settled:
    """Account for fields alone."""
    if role in ("target", "draft model"):
        return model_account(NOWHERE, fields, OF_TARGET if role == "target" else accepted).settled()
    return head_account(role.split(maxsplit=1)[0], NOWHERE, fields, accepted).settled()
