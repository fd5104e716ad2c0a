"""Reads what a server says outside of the measured phase: health, version, models, counters."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 30.0


class NoAnswer(Exception):
    """The server gave no answer, or one that is no success."""


class TooSlow(NoAnswer):
    """It gave none in time, and may yet."""


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The client asks without a proxy too."""


def get(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """The body of an answer.

    Raises:
        NoAnswer: there is none, or an error; the message says which.
    """
    try:
        with _DIRECT.open(url, timeout=timeout_s) as answer:
            text: str = answer.read().decode(errors="replace")
            return text
    except urllib.error.HTTPError as error:
        raise NoAnswer(f"status {error.code}") from error
    except (OSError, ValueError) as error:
        is_late = isinstance(getattr(error, "reason", error), TimeoutError)
        raise (TooSlow if is_late else NoAnswer)(str(error)) from error


def get_json(url: str, timeout_s: float = TIMEOUT_S) -> Mapping[str, Any]:
    """The JSON object in the body of an answer.

    Raises:
        NoAnswer: there is none.
    """
    try:
        found = json.loads(get(url, timeout_s))
    except ValueError as error:
        raise NoAnswer(f"no JSON ({error})") from error
    if not isinstance(found, Mapping):
        raise NoAnswer("JSON that is no object")
    return found


def listed_models(url: str, timeout_s: float = TIMEOUT_S) -> Mapping[str, Mapping[str, Any]]:
    """What a server says of each model that it serves, by name.

    Args:
        url: its address, without /v1.
        timeout_s: how long it may take.

    Raises:
        ValueError: no server there lists models.
    """
    try:
        found = get_json(f"{url}/v1/models", timeout_s).get("data") or []
    except NoAnswer as error:
        hint = "; leave /v1 off the address" if url.endswith("/v1") else ""
        raise ValueError(f"expected a server at {url}, found none that lists models ({error}){hint}") from error
    return {str(item.get("id")): item for item in found}


def model_served(url: str, wanted: str | None, timeout_s: float = TIMEOUT_S) -> tuple[str, Mapping[str, Any]]:
    """The name of the model to ask a server for, and what the server says of it.

    Args:
        url: its address, without /v1.
        wanted: name of the model; None is the one that the server lists.
        timeout_s: how long it may take.

    Raises:
        ValueError: it does not answer, or does not have the model.
    """
    try:
        by_name = listed_models(url, timeout_s)
    except ValueError as error:
        raise ValueError(f"server.url: {error}") from error.__cause__
    name = wanted or (next(iter(by_name)) if len(by_name) == 1 else None)
    if name is None or (by_name and name not in by_name):
        raise ValueError(
            f"server.model: expected one that the server at {url} lists ({', '.join(by_name) or 'none'}), "
            f"found {'null' if name is None else name}"
        )
    return name, by_name.get(name, {})
