"""What a server answers to one streamed request, event by event, and the ways in which it may fail to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from harness.records.counts import Arrival

KEPT = ("usage", "metrics", "sglext", "timings")
"""Parts of an event that adapters read: the last of each is kept."""
SPREAD = "the server did not say how many tokens a chunk holds: they were spread evenly over the chunks of a request"
CHUNKS_COUNTED = "the server did not say how many tokens it gave: every chunk was counted as one"


class RequestFailed(Exception):
    """A request without a whole answer; the class says in which way."""


class Overloaded(RequestFailed):
    """The server asked to come back later, by status 429 or 503."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(f"the server answered with status {status}, as often as it was asked")
        self.retry_after_s = retry_after_s


class NoConnection(RequestFailed):
    """Nothing answers at the server's address."""


class ClosedUnanswered(RequestFailed):
    """The connection closed before anything of an answer came."""


class ConnectionLost(RequestFailed):
    """The answer broke off."""


class Stalled(RequestFailed):
    """Nothing came for longer than server.stall_timeout_s."""


class RequestRefused(RequestFailed):
    """The server answered with an error."""


class MalformedAnswer(RequestFailed):
    """An answer that is not in the format of such servers, or contradicts itself."""


class Chunk(NamedTuple):
    """What one event brought."""

    arrival_s: float
    token_ids: tuple[int, ...] | None
    text: str
    num_tokens_so_far: int | None
    """Output tokens of the request up to here, where the server counts along."""
    drafts_so_far: tuple[int, int] | None = None
    """Draft tokens of the request up to here and how many of them were accepted, where the server counts along."""


@dataclass
class Reply:
    """The answer to one request."""

    chunks: list[Chunk] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    parts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last of each part in KEPT."""
    is_done: bool = False
    """Whether the server ended the stream itself."""
    stop_string: str | None = None
    """That ended the answer, where the server tells it."""
    tells_stop: bool = False
    """Whether the server tells it of every answer."""
    end_s: float | None = None
    """When an event without a token said why the answer ended: with it comes an end of sequence that has no text."""

    def take_line(self, line: bytes, arrival_s: float) -> None:
        """Read one line of the stream of events.

        Raises:
            RequestFailed: it is not what such a server sends, or an error.
        """
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = json.loads(data)
            if event.get("error") is not None:
                raise RequestRefused(f"the server sent an error: {_message(event['error'])}")
            self._take(event, arrival_s)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise MalformedAnswer("an event was not a completion chunk in JSON") from error

    def _take(self, event: Mapping[str, Any], arrival_s: float) -> None:
        choice = (event.get("choices") or [{}])[0]
        for name in KEPT:
            part = event.get(name) or choice.get(name)
            if part:
                self.parts[name] = part
        prompt = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if prompt:
            self.prompt_token_ids = tuple(map(int, prompt))
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        texts = (choice.get("text"), reasoning, delta.get("content"))
        text = "".join(str(item) for item in texts if item)
        ids = choice.get("token_ids")
        timings = event.get("timings") or {}
        so_far = (event.get("usage") or {}).get("completion_tokens", timings.get("predicted_n"))
        num_before = (self.chunks[-1].num_tokens_so_far or 0) if self.chunks else 0
        is_end = choice.get("finish_reason") is not None
        # an end of sequence has no text
        if text or ids or (choice and not is_end and so_far is not None and int(so_far) > num_before):
            found = None if ids is None else tuple(map(int, ids))
            num = None if so_far is None else int(so_far)
            self.chunks.append(Chunk(arrival_s, found, text, num, drafts_so_far(timings)))
        elif is_end:
            self.end_s = arrival_s
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        # of vLLM and TensorRT-LLM, and of SGLang; a number is that of a token
        for name in ("stop_reason", "matched_stop"):
            self.tells_stop |= name in choice
            self.stop_string = choice[name] if isinstance(choice.get(name), str) else self.stop_string

    def find_held_ids(self, vocabulary: Callable[[], Mapping[bytes, int]]) -> None:
        """Find the ids of tokens that the server sent no ids of, where that can be.

        Args:
            vocabulary: makes the tokens by their bytes, which takes a while.
        """

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output tokens; empty where the server does not give them."""
        if any(chunk.token_ids is None for chunk in self.chunks):
            return ()
        return tuple(token for chunk in self.chunks for token in chunk.token_ids or ())

    def first_ids(self, number: int) -> tuple[int, ...]:
        """So many output tokens, or as many as the server gives; empty where it does not tell all of them."""
        return self.token_ids[:number]

    @property
    def num_prompt_tokens(self) -> int | None:
        """As the server counts them; None where it does not say."""
        found = self.parts.get("usage", {}).get("prompt_tokens")
        return None if found is None else int(found)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the server says it took from a cache; 0 where it does not say."""
        return int((self.parts.get("usage", {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def arrivals(self) -> tuple[tuple[Arrival, ...], str | None]:
        """When how many output tokens came, and how they were counted where the server does not say exactly.

        Raises:
            MalformedAnswer: the server's own count is another than that of its tokens.
        """
        stated = self.parts.get("usage", {}).get("completion_tokens")
        ids = self.token_ids
        if ids:
            if stated is not None and stated != len(ids):
                raise MalformedAnswer("the token ids of an answer are not as many as its usage says")
            counts = [len(chunk.token_ids or ()) for chunk in self.chunks]
            return _arrivals(self.chunks, counts), None
        so_far = [chunk.num_tokens_so_far for chunk in self.chunks]
        known = [count for count in so_far if count is not None]
        if len(known) == len(so_far) and (stated is None or known[-1:] == [stated]):
            counts = [after - before for before, after in pairwise([0, *known])]
            if min(counts, default=0) < 0:
                raise MalformedAnswer("the usage of an answer counts backwards")
            return _arrivals(self.chunks, counts), None
        if stated is None:
            return _arrivals(self.chunks, [1] * len(self.chunks)), CHUNKS_COUNTED
        num = len(self.chunks)
        if self.finish_reason == "stop" and self.end_s is not None and stated == num + 1:
            return (*_arrivals(self.chunks, [1] * num), Arrival(self.end_s, 1)), None
        ends = [int(stated) * index // max(num, 1) for index in range(num + 1)]
        counts = [after - before for before, after in pairwise(ends)]
        return _arrivals(self.chunks, counts), None if set(counts) <= {1} else SPREAD


def drafts_so_far(timings: Mapping[str, Any]) -> tuple[int, int] | None:
    """What llama.cpp's timings of a chunk count; without draft_n nothing was drafted yet."""
    if "predicted_n" not in timings:
        return None
    return int(timings.get("draft_n") or 0), int(timings.get("draft_n_accepted") or 0)


def _arrivals(chunks: list[Chunk], counts: list[int]) -> tuple[Arrival, ...]:
    pairs = zip(chunks, counts, strict=True)
    return tuple(Arrival(chunk.arrival_s, count) for chunk, count in pairs if count)


def _message(error: Any) -> str:
    """One line of what a server says about an error."""
    text = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(text).split())[:300]


def error_text(body: bytes) -> str:
    """One line of what the body of a refusal says."""
    try:
        content = json.loads(body)
    except ValueError:
        return _message(body.decode(errors="replace"))
    return _message(content.get("error", content) if isinstance(content, Mapping) else content)
