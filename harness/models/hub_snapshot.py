"""The folder in the local Hub cache that a Hugging Face id stands for, told without a download and without torch."""

from __future__ import annotations

from pathlib import Path

_TIMEOUT_S = 10


def hub_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder that loading a checkpoint would use; None where that is not sure.

    Args:
        name: Hugging Face id.
        revision: a commit, branch or tag; None is the main branch. What it stands for today is asked of the Hub, unless
            it is a commit or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if folder.name == revision or constants.HF_HUB_OFFLINE:
            return folder
        commit = HfApi().model_info(name, revision=revision, timeout=_TIMEOUT_S).sha
    except Exception:
        # of its network libraries any; who loads the checkpoint says what is wrong
        return None
    return folder if folder.name == commit else None
