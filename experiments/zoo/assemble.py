"""The finished folder: MTP layer into the target, a check that everything loads, sizes, model card, archive."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from experiments.zoo.card import model_card
from experiments.zoo.metrics import record, recorded
from experiments.zoo.settings import Settings
from harness.models.draft_model import load_draft_model
from harness.models.eagle import load_eagle
from harness.models.eagle3 import load_eagle3
from harness.models.mtp import MtpConfig, MtpHead, load_mtp, save_mtp
from harness.models.packed_weights import pack_folder
from harness.models.peagle import load_peagle
from harness.models.target import load_target
from harness.models.zoo import KINDS

MAX_BYTES = 32_000_000
"""What the built-in models may take in all, before their weights are packed."""
PART_BYTES = 15 << 20
_SHIPPED = (*KINDS, "README.md")
_EVIDENCE = ("metrics", "logs", "samples.txt", "target_samples.txt")


def assemble(settings: Settings) -> None:
    """Put the MTP layer into the target's folder, load every model once, write sizes and the model card."""
    if settings.mtp_path.is_file():
        merge_mtp(settings)
    for path in settings.out.glob("*/*.safetensors"):
        path.chmod(0o644)  # the writer makes them readable by their owner only
    numbers = check(settings)
    record(settings.out, "sizes", numbers)
    (settings.out / "README.md").write_text(model_card(settings, recorded(settings.out)), encoding="utf-8")


def merge_mtp(settings: Settings) -> None:
    """Write the trained MTP layer into the target's safetensors, as public checkpoints have it."""
    target = load_target(settings.target_folder)
    head = MtpHead(MtpConfig.for_target(target), target)
    head.load_state_dict(load_file(settings.mtp_path))
    save_mtp(head, settings.target_folder, torch.bfloat16)


def check(settings: Settings) -> dict[str, Any]:
    """Load what has been trained with the harness's own loaders; parameters and bytes by folder.

    Raises ValueError when a file does not load or leaves something to be assumed, or all together exceed `MAX_BYTES`.
    """
    out = settings.out
    target = load_target(settings.target_folder)
    models: dict[str, Any] = {"target": target}
    if (out / "eagle").is_dir():
        models["eagle"] = load_eagle(out / "eagle", target)
    if (out / "eagle3").is_dir():
        models["eagle3"] = load_eagle3(out / "eagle3", target)
    if (out / "peagle").is_dir():
        models["peagle"] = load_peagle(out / "peagle", target)
    if settings.mtp_path.is_file():
        models["mtp"] = load_mtp(None, target)
    if (out / "draft_model").is_dir():
        models["draft_model"] = load_draft_model(out / "draft_model", target)
    assumed = {name: model.assumptions for name, model in models.items() if model.assumptions}
    if assumed:
        raise ValueError(f"expected files that state everything, found that something is assumed of some: {assumed}")
    num_bytes = {kind: folder_bytes(out / kind) for kind in KINDS if (out / kind).is_dir()}
    total = sum(num_bytes.values())
    if total > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES:,} bytes of models, found {total:,}: {num_bytes}")
    parameters = {name: model.num_parameters for name, model in models.items()}
    return {"num_parameters": parameters, "num_bytes": num_bytes, "num_bytes_total": total}


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pack(settings: Settings, destination: Path, with_sampled: bool) -> None:
    """Write the result as parts of one tar: `cat zoo.tar.* | tar x` restores it.

    with_sampled: the sampled text, the token data and the tokenizer too, so that the heads can be trained elsewhere.
    """
    names = [*_SHIPPED, *_EVIDENCE, "mtp"]
    if with_sampled:
        names += [settings.sampled_path.name]
    archive = settings.out / "zoo.tar"
    with tarfile.open(archive, "w") as tar:
        for name in names:
            if (settings.out / name).exists():
                tar.add(settings.out / name, arcname=name)
    destination.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as stream:
        for index, part in enumerate(iter(lambda: stream.read(PART_BYTES), b"")):
            path = destination / f"zoo.tar.{index:02d}"
            path.write_bytes(part)
            print(f"pack: {path.name} {len(part):,} bytes", flush=True)
    archive.unlink()


def install(out: Path, zoo: Path) -> None:
    """Put the shipped files of a finished run in place of the built-in models, their weights packed."""
    for name in _SHIPPED:
        source = out / name
        if source.is_dir():
            pack_folder(source, zoo / name)
        elif source.is_file():
            zoo.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, zoo / name)
