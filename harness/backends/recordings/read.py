"""Reads the recordings in a folder: settings, requests and their rounds. Knows no cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from harness.config.drafter import DrafterKind
from harness.config.drafting import CacheDtype
from harness.plugins.recording.content import EXPECTED, MAGIC, SUFFIX, from_text
from harness.plugins.recording.frames import DamagedFramesError, read_frames
from harness.records.acceptance_terms import COLUMNS, Floats
from harness.records.request import EXPECTED_METHODS
from harness.records.strict_json import Int64, at, shown, typed
from kernels.methods import VerificationMethod

_LAST_UNIX_S = 253_402_300_799
"""The last second of the year 9999."""


@dataclass(frozen=True)
class Header:
    """What ran, as `harness.plugins.vllm.recording` describes it."""

    engine: str
    libraries: Mapping[str, str]
    method: VerificationMethod
    num_speculative_tokens: Int64
    draft_dtype: CacheDtype | None
    """None: drafts are the drafter's best tokens."""
    target: str
    drafter: DrafterKind
    drafter_path: str | None
    dtype: str
    device: str
    gpu: str | None
    core: str
    start_unix_s: float

    def __post_init__(self) -> None:
        """Check what no settings class checks."""
        if self.engine != "vllm" or "vllm" not in self.libraries:
            raise ValueError(f"expected vllm and its version, found engine {shown(self.engine)}")
        if not 0 <= self.start_unix_s <= _LAST_UNIX_S:
            raise ValueError(f"start_unix_s: expected a time, found {self.start_unix_s:g}")


@dataclass(frozen=True)
class About:
    """A request, as it is described there."""

    id: str
    prompt: str
    """Digest of its tokens."""
    num_prompt_tokens: Int64
    seed: Int64
    temperature: float
    top_k: Int64
    top_p: float
    min_p: float
    max_tokens: Int64
    ignore_eos: bool
    stop_token_ids: tuple[Int64, ...]
    submitted_s: float
    """On the clock of the rounds."""
    cannot: str | None
    """Why its rounds cannot be replayed."""


@dataclass(frozen=True)
class _Rounds:
    """The rounds of a frame by column; their meaning is that of `RecordedRound`."""

    request: tuple[Int64, ...] = ()
    position: tuple[Int64, ...] = ()
    draft_token_ids: tuple[tuple[Int64, ...], ...] = ()
    output_token_ids: tuple[tuple[Int64, ...], ...] = ()
    time_s: tuple[float, ...] = ()
    share_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check that the columns are of one length."""
        sizes = {item.name: len(getattr(self, item.name)) for item in fields(self)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"expected columns of one length, found {sizes}")
        if not all(self.output_token_ids):
            raise ValueError("expected a token of every round at least, found none")


@dataclass(frozen=True)
class _Frame:
    """A frame between the first and the last."""

    requests: tuple[About, ...]
    rounds: _Rounds
    terms: Mapping[str, str]
    num_unknown: Int64


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

    about: About
    rounds: list[RecordedRound] = field(default_factory=list)
    """In the order in which they ran."""


@dataclass(frozen=True, eq=False)
class RecordingFile:
    """What one worker recorded."""

    path: Path
    header: Header
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
        header = at("header", typed, Header, _entry(contents[0], "header"))
        requests: list[RecordedRequest] = []
        num_unknown, failure = 0, None
        is_ended = len(contents) > 1 and "end" in contents[-1]
        for number, content in enumerate(contents[1 : -1 if is_ended else None], start=2):
            if "failed" in content:
                failure = str(_entry(content, "failed"))
                continue
            frame = at(f"frame {number}", typed, _Frame, content)
            requests += map(RecordedRequest, frame.requests)
            num_unknown += frame.num_unknown
            at(f"frame {number}", _add_rounds, requests, frame)
        if is_ended:
            found = {"num_rounds": sum(len(item.rounds) for item in requests), "num_requests": len(requests)}
            if found != contents[-1]["end"]:
                raise DamagedFramesError(f"expected {contents[-1]['end']}, found {found}")
        return RecordingFile(path, header, tuple(requests), num_unknown, is_ended, failure, len(data) - place)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a recording as it was written; {error}") from error


def _entry(content: Any, name: str) -> Any:
    """The value of a frame that holds one."""
    if not isinstance(content, dict) or list(content) != [name]:
        raise DamagedFramesError(f"expected {name}, found {shown(content)}")
    return content[name]


def _add_rounds(requests: list[RecordedRequest], frame: _Frame) -> None:
    """Append the rounds of a frame to their requests."""
    columns = {name: at(name, from_text, text) for name, text in frame.terms.items()}
    expected = columns.pop(EXPECTED, np.empty(0)).reshape(-1, len(EXPECTED_METHODS)).tolist()
    rounds = frame.rounds
    num_drafted = sum(map(len, rounds.draft_token_ids))
    num_drafts = sum(map(bool, rounds.draft_token_ids))
    missing = [name for name, column in COLUMNS.items() if column.is_required and name not in columns]
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or (num_drafts and missing):
        found = f"none named {missing[0]}" if not unknown else f"one named {shown(unknown[0])}"
        raise DamagedFramesError(f"terms: expected those that records have, found {found}")
    sizes = {len(values) for values in columns.values()}
    if sizes - {num_drafted} or num_drafts != len(expected):
        raise DamagedFramesError(f"expected terms of {num_drafted} draft tokens in {num_drafts} drafts, found {sizes}")
    place, of_drafts = 0, iter(expected)
    for index, request in enumerate(rounds.request):
        if not 0 <= request < len(requests):
            raise DamagedFramesError(f"expected rounds of {len(requests)} requests, found one of request {request}")
        drafted = rounds.draft_token_ids[index]
        end, of_methods = place + len(drafted), None
        if drafted:
            strict, probabilistic, block = next(of_drafts)
            of_methods = strict, probabilistic, block
        requests[request].rounds.append(
            RecordedRound(
                position=rounds.position[index],
                draft_token_ids=drafted,
                output_token_ids=rounds.output_token_ids[index],
                time_s=rounds.time_s[index],
                share_s=rounds.share_s[index],
                terms={name: values[place:end] for name, values in columns.items()} if drafted else {},
                expected_accepted=of_methods,
            )
        )
        place = end
