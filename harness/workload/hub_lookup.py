"""Whether the Hugging Face Hub has a repository: asked once, within seconds, where its libraries try for a minute."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 4.0
"""How long the Hub may take to answer."""
LONGER = "HF_HUB_ETAG_TIMEOUT"
"""The library's own variable; seconds that it takes in place of LIMIT_S."""


def not_on_hub(name: str, revision: str | None = None, *, is_dataset: bool = False) -> str | None:
    """Why a repository cannot be had from the Hub, in a few words; None if it can, as far as can be told.

    Args:
        name: owner/name.
        revision: None is the main branch.
        is_dataset: whether it is one of data, and not of a model.
    """
    answers: queue.Queue[str | None] = queue.Queue()
    limit_s = _limit_s()
    # looking up a host is not bound by any time limit of the libraries
    threading.Thread(target=lambda: answers.put(_asked(name, revision, is_dataset, limit_s)), daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return f"no answer from the Hub within {limit_s:g} s ({LONGER} waits longer)"


def _limit_s() -> float:
    given = os.environ.get(LONGER, "")
    return float(given) if given.replace(".", "", 1).isdecimal() else LIMIT_S


def _asked(name: str, revision: str | None, is_dataset: bool, limit_s: float) -> str | None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        (api.dataset_info if is_dataset else api.model_info)(name, revision=revision, timeout=limit_s)
    except HfHubHTTPError as error:
        # an answer that says no; one that asks for patience is for the libraries, which try again
        status = getattr(error.response, "status_code", None)
        return None if status is None or status >= 500 or status == 429 else _first_line(error)
    except HFValidationError:
        return "neither a folder nor an id of the Hub (owner/name)"
    except Exception as error:
        # of the network libraries any
        return f"the Hub cannot be reached ({_first_line(error)})"
    return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextmanager
def offline() -> Iterator[None]:
    """Have the libraries take what their caches have, and not try to reach the Hub."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
