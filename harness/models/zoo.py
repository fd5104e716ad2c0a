"""Where the built-in models lie: small models of our own, shipped with the package (paths only)."""

from __future__ import annotations

from pathlib import Path

ZOO = Path(__file__).parent / "zoo"
"""Folder of the built-in models; its model card is README.md there."""

KINDS = ("target", "eagle", "eagle3", "peagle", "draft_model")
"""Folders of the zoo. The MTP layer lies inside the target's folder, as in public checkpoints."""


def zoo_path(kind: str, *, with_weights: bool = True) -> Path:
    """Folder of a built-in model: target, eagle, eagle3, draft_model, or mtp (which is the target's folder).

    with_weights: False for those who want its sizes or its tokenizer alone.
    Raises ValueError for an unknown kind and when the files are not there.
    """
    folder = "target" if kind == "mtp" else kind
    if folder not in KINDS:
        raise ValueError(f"expected a built-in model among {', '.join((*KINDS, 'mtp'))}, found {kind!r}")
    path = ZOO / folder
    wanted = ("config.json", "model.safetensors") if with_weights else ("config.json",)
    missing = [name for name in wanted if not (path / name).is_file()]
    if missing:
        raise ValueError(
            f"{path}: expected the built-in {kind} with {', '.join(missing)}, found none; the package was installed "
            f"without its models: reinstall it, or train them with `python -m experiments.train_zoo`"
        )
    return path
