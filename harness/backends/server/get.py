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


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The client asks without a proxy too."""


def get(url: str) -> str:
    """The body of an answer.

    Raises:
        NoAnswer: there is none, or an error; the message says which.
    """
    try:
        with _DIRECT.open(url, timeout=TIMEOUT_S) as answer:
            text: str = answer.read().decode(errors="replace")
            return text
    except urllib.error.HTTPError as error:
        raise NoAnswer(f"status {error.code}") from error
    except (OSError, ValueError) as error:
        raise NoAnswer(str(error)) from error


def get_json(url: str) -> Mapping[str, Any]:
    """The JSON object in the body of an answer.

    Raises:
        NoAnswer: there is none.
    """
    try:
        found = json.loads(get(url))
    except ValueError as error:
        raise NoAnswer(f"no JSON ({error})") from error
    if not isinstance(found, Mapping):
        raise NoAnswer("JSON that is no object")
    return found


def listed_models(url: str) -> Mapping[str, Mapping[str, Any]]:
    """What a server says of each model that it serves, by name.

    Args:
        url: its address, without /v1.

    Raises:
        ValueError: no server there lists models.
    """
    try:
        found = get_json(f"{url}/v1/models").get("data") or []
    except NoAnswer as error:
        hint = "; leave /v1 off the address" if url.endswith("/v1") else ""
        raise ValueError(f"expected a server at {url}, found none that lists models ({error}){hint}") from error
    return {str(item.get("id")): item for item in found}
