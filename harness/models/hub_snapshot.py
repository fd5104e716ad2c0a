"""The folder in the local Hub cache that a Hugging Face id stands for, told without a download and without torch."""

from __future__ import annotations

from pathlib import Path

_TIMEOUT_S = 10


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder of a Hugging Face id in the local Hub cache, which may be older than the Hub's; None without one."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None


def hub_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder that loading a checkpoint would use; None where that is not sure.

    Args:
        name: Hugging Face id.
        revision: a commit, branch or tag; None is the main branch. What it stands for today is asked of the Hub, unless
            it is a commit or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import HfApi, constants

    folder = cached_snapshot(name, revision)
    if folder is None or folder.name == revision or constants.HF_HUB_OFFLINE:
        return folder
    try:
        commit = HfApi().model_info(name, revision=revision, timeout=_TIMEOUT_S).sha
    except Exception:
        # of its network libraries any; who loads the checkpoint says what is wrong
        return None
    return folder if folder.name == commit else None
