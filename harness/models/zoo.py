"""Where the built-in models lie, which are shipped with the package: small models of our own, and heads that were
trained for public models (paths only)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.models.packed_weights import PACKED, place_of, unpacked

ZOO = Path(__file__).parent / "zoo"
"""Folder of the built-in models, with packed weights; its model card is README.md there."""

HEADS = Path(__file__).parent / "heads"
"""Folder of the heads for public models: HEADS / the name of the target in its Hugging Face id / kind of drafter."""

KINDS = ("target", "eagle", "eagle3", "peagle", "draft_model")
"""Folders of the zoo. The MTP layer lies inside the target's folder, as in public checkpoints."""


def zoo_path(kind: str, *, with_weights: bool = True) -> Path:
    """Folder of a built-in model: target, eagle, eagle3, draft_model, or mtp (which is the target's folder).

    with_weights: False for those who want its sizes or its tokenizer alone; else any reader of checkpoints can be given
    the folder, which lies in the user's cache.
    Raises ValueError for an unknown kind, when the files are not there, and as `unpacked` does.
    """
    folder = "target" if kind == "mtp" else kind
    if folder not in KINDS:
        raise ValueError(f"expected a built-in model among {', '.join((*KINDS, 'mtp'))}, found {kind!r}")
    return _whole(ZOO / folder, kind, ("config.json", PACKED) if with_weights else ("config.json",))


def head_path(target: str, kind: str) -> Path:
    """Folder of the head that is built in for a public target, as `zoo_path` gives it.

    target: Hugging Face id. kind: of drafter, whose `traits.built_in_for` name the target.
    Raises ValueError when the files are not there, and as `unpacked` does.
    """
    return _whole(HEADS / target.rpartition("/")[2] / kind, f"{kind} for {target}", ("config.json", PACKED))


def _whole(path: Path, what: str, wanted: Sequence[str]) -> Path:
    missing = [name for name in wanted if not (path / name).is_file()]
    if missing:
        raise ValueError(
            f"{path}: expected the built-in {what} with {', '.join(missing)}, found none; the package was installed "
            f"without its models: reinstall it"
        )
    return unpacked(path) if PACKED in wanted else path


def is_zoo_target(folder: Path | None) -> bool:
    """Whether a folder is that of the built-in target, with its weights or without."""
    own = ZOO / "target"
    return folder is not None and (folder == own or ((own / PACKED).is_file() and folder == place_of(own)))
