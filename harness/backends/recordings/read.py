"""Reads the recordings in a folder: settings, requests and their rounds. Knows no cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.plugins.recording.content import EXPECTED, MAGIC, SUFFIX, from_text
from harness.plugins.recording.frames import DamagedFramesError, read_frames
from harness.records.acceptance_terms import Floats
from harness.records.request import EXPECTED_METHODS


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """One round of a request, as the worker saw it."""

    position: int
    """Of the first token that it may emit; 0 is the first token of the prompt."""
    draft_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    """Accepted draft tokens, then one more."""
    time_s: float
    """When it was recorded, on a clock of the worker."""
    share_s: float
    """Time since the step before, divided by the requests of the step."""
    terms: Mapping[str, Floats]
    """Column -> [draft tokens]; empty without drafts."""
    expected_accepted: tuple[float, float, float] | None
    """Of EXPECTED_METHODS; None without drafts."""


@dataclass(eq=False)
class RecordedRequest:
    """One request."""

    about: Mapping[str, Any]
    """Its entry in the file, as `harness.plugins.vllm.recording` writes it."""
    rounds: list[RecordedRound] = field(default_factory=list)
    """In the order in which they ran."""


@dataclass(frozen=True, eq=False)
class RecordingFile:
    """What one worker recorded."""

    path: Path
    header: Mapping[str, Any]
    requests: tuple[RecordedRequest, ...]
    num_unknown: int
    """Rounds of requests that began before it."""
    is_ended: bool
    """False: the worker died, still runs, or could record no more."""
    failure: str | None
    """Why it could record no more; None unless it said so."""
    num_torn: int
    """Bytes at the end that were not written whole."""


def recordings_at(path: Path) -> list[Path]:
    """The recordings in a folder; none if the path is no folder."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else []


def read_recording(path: Path) -> RecordingFile | None:
    """Read a file; None if it ends before its first frame does.

    Raises:
        ValueError: it is damaged; the message names the file and the place.
    """
    data = path.read_bytes()
    try:
        contents, place, _ = read_frames(data, MAGIC)
        if not contents:
            return None
        first, *frames = contents
        requests: list[RecordedRequest] = []
        num_unknown, failure = 0, None
        is_ended = bool(frames) and "end" in frames[-1]
        for frame in frames[:-1] if is_ended else frames:
            if "failed" in frame:
                failure = str(frame["failed"])
                continue
            requests += map(RecordedRequest, frame["requests"])
            num_unknown += frame["num_unknown"]
            _add_rounds(requests, frame)
        if is_ended:
            found = {"num_rounds": sum(len(item.rounds) for item in requests), "num_requests": len(requests)}
            if found != frames[-1]["end"]:
                raise DamagedFramesError(f"expected {frames[-1]['end']}, found {found}")
        num_torn = len(data) - place
        return RecordingFile(path, first["header"], tuple(requests), num_unknown, is_ended, failure, num_torn)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: expected a recording as it was written, found {text}") from error


def _add_rounds(requests: list[RecordedRequest], frame: Mapping[str, Any]) -> None:
    """Append the rounds of a frame to their requests."""
    columns = {name: from_text(text) for name, text in frame["terms"].items()}
    expected = columns.pop(EXPECTED, np.empty(0)).reshape(-1, len(EXPECTED_METHODS)).tolist()
    rounds, place, num_drafts = frame["rounds"], 0, 0
    for index, request in enumerate(rounds.get("request", ())):
        drafted, of_methods = tuple(rounds["draft_token_ids"][index]), None
        end = place + len(drafted)
        if drafted:
            strict, probabilistic, block = expected[num_drafts]
            of_methods = strict, probabilistic, block
        requests[request].rounds.append(
            RecordedRound(
                position=rounds["position"][index],
                draft_token_ids=drafted,
                output_token_ids=tuple(rounds["output_token_ids"][index]),
                time_s=rounds["time_s"][index],
                share_s=rounds["share_s"][index],
                terms={name: values[place:end] for name, values in columns.items()} if drafted else {},
                expected_accepted=of_methods,
            )
        )
        place, num_drafts = end, num_drafts + bool(drafted)
    sizes = {len(values) for values in columns.values()}
    if sizes - {place} or num_drafts != len(expected):
        raise DamagedFramesError(f"expected terms of {place} draft tokens in {num_drafts} drafts, found {sizes}")
