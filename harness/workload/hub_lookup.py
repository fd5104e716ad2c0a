"""Whether the Hugging Face Hub has a repository: asked once, within seconds, where its libraries try for a minute."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LIMIT_S = 2.5
"""How long the Hub may take to answer."""
LONGER = "HF_HUB_ETAG_TIMEOUT"
"""The library's own variable; seconds that it takes in place of LIMIT_S."""


class Repository(NamedTuple):
    """What the Hub is asked for."""

    name: str
    """owner/name."""
    revision: str | None = None
    """None is the main branch."""
    is_dataset: bool = False
    """Whether it is one of data, and not of a model."""


def not_on_hub(name: str, revision: str | None = None, *, is_dataset: bool = False) -> str | None:
    """Why a repository cannot be had from the Hub, in a few words; None if it can, as far as can be told. Arguments as
    of `Repository`."""
    asked = Repository(name, revision, is_dataset)
    questions = _current.get()
    return (_Questions() if questions is None else questions).answer(asked)


@contextmanager
def asked_at_once(repositories: Iterable[Repository]) -> Iterator[None]:
    """Ask for several repositories at the same time; `not_on_hub` takes these answers until the end.

    Until then a Hub that was silent is not asked for others either: waits do not add up.
    """
    questions = _Questions()
    for repository in dict.fromkeys(repositories):
        questions.ask(repository)
    token = _current.set(questions)
    try:
        yield
    finally:
        _current.reset(token)


class _Questions:
    """What the Hub was asked, and whether it answers at all."""

    def __init__(self) -> None:
        self._answers: dict[Repository, tuple[float, queue.Queue[str | None]]] = {}
        """When each was asked, and where its answer comes."""
        self._silence: str | None = None

    def ask(self, repository: Repository) -> None:
        from huggingface_hub import HfApi

        answers: queue.Queue[str | None] = queue.Queue()
        api, limit_s = HfApi(), _limit_s()
        self._answers[repository] = time.monotonic(), answers
        # looking up a host is not bound by any time limit of the libraries
        ask = threading.Thread(target=lambda: answers.put(_asked(api, repository, limit_s)), daemon=True)
        ask.start()

    def answer(self, repository: Repository) -> str | None:
        if repository not in self._answers:
            if self._silence is not None:
                return self._silence
            self.ask(repository)
        began, answers = self._answers[repository]
        limit_s = _limit_s()
        try:
            found = answers.get(timeout=max(0.0, began + limit_s - time.monotonic()))
        except queue.Empty:
            self._silence = f"no answer from the Hub within {limit_s:g} s ({LONGER} waits longer)"
            found = self._silence
        answers.put(found)
        return found


_current: ContextVar[_Questions | None] = ContextVar("_current", default=None)


def _limit_s() -> float:
    given = os.environ.get(LONGER, "")
    return float(given) if given.replace(".", "", 1).isdecimal() else LIMIT_S


def _asked(api: HfApi, repository: Repository, limit_s: float) -> str | None:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name, revision, is_dataset = repository
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
