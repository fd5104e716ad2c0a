"""What a cell did in one go: a block, or the conversations of one that had ended when it was written; as JSON and back.

This module knows records; it does not know when parts are written or where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.plugins.recording.content import from_text, to_text
from harness.records.acceptance_terms import RequestTerms
from harness.records.counts import added
from harness.records.files import (
    block_from_json,
    failure_from_json,
    plain_json,
    request_from_json,
    request_to_json,
)
from harness.records.request import RequestRecord
from harness.records.schema import Block, Failure
from harness.records.strict_json import typed

ConversationKey = tuple[str, int]
"""Prompt and copy."""


@dataclass(frozen=True)
class Part:
    """What a cell did in one go."""

    block: Block
    """Its `provenance` is 0: that of the part."""
    is_whole: bool
    """Whether the session has done all that it had to do of the block; its times and counts are then those of all that
    the session did of it, and what earlier parts hold may be missing."""
    played: tuple[ConversationKey, ...]
    """Conversations that have ended."""
    clock_s: float
    """What the records' clock showed at the end."""
    provenance: Mapping[str, Any]
    facts: Mapping[str, Any]
    """What the backend had found out of the cell."""
    requests: tuple[RequestRecord, ...] = ()
    terms: tuple[RequestTerms, ...] = ()
    failures: tuple[Failure, ...] = ()
    num_skipped_turns: int = 0

    @property
    def outline(self) -> Part:
        """Without the requests and their terms."""
        return replace(self, requests=(), terms=())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "block": plain_json(self.block),
            "is_whole": self.is_whole,
            "played": [list(key) for key in self.played],
            "clock_s": self.clock_s,
            "provenance": dict(self.provenance),
            "facts": dict(self.facts),
            "requests": [request_to_json(item) for item in self.requests],
            "terms": [_terms_to_json(item) for item in self.terms],
            "failures": [plain_json(item) for item in self.failures],
            "num_skipped_turns": self.num_skipped_turns,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        """From plain JSON values.

        Raises:
            ValueError: they are not those of a part.
        """
        try:
            return cls(
                block=block_from_json(data["block"]),
                is_whole=typed(bool, data["is_whole"]),
                played=tuple(typed(ConversationKey, item) for item in data["played"]),
                clock_s=typed(float, data["clock_s"]),
                provenance=typed(Mapping[str, Any], data["provenance"]),
                facts=typed(Mapping[str, Any], data["facts"]),
                requests=tuple(request_from_json(dict(item)) for item in data["requests"]),
                terms=tuple(_terms_from_json(item) for item in data["terms"]),
                failures=tuple(failure_from_json(item) for item in data["failures"]),
                num_skipped_turns=typed(int, data["num_skipped_turns"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"expected a part of a cell, found {type(error).__name__}: {error}") from error


def settled(parts: Iterable[Part]) -> list[Part]:
    """One part for each block and session, in the order of the blocks."""
    found: dict[tuple[int, str], list[Part]] = {}
    for part in parts:
        found.setdefault((part.block.index, part.block.session), []).append(part)
    return sorted(map(_joined, found.values()), key=lambda part: part.block.index)


def _joined(parts: Sequence[Part]) -> Part:
    """The parts of one block and session as one; what several hold is taken once."""
    last = parts[-1]
    # the whole one has measured what those before it have; without it they add up
    measured = parts[-1:] if last.is_whole else parts
    counts = [part.block.counts for part in measured if part.block.counts is not None]
    requests = {item.key: item for part in parts for item in part.requests}
    failures: list[Failure] = []
    for item in (item for part in parts for item in part.failures):
        failures += [] if item in failures else [item]
    block = replace(
        last.block,
        start_unix_s=parts[0].block.start_unix_s,
        end_unix_s=max(part.block.end_unix_s for part in parts),
        num_requests=len(requests),
        num_output_tokens=sum(item.num_output_tokens for item in requests.values()),
        wall_s=sum(part.block.wall_s for part in measured),
        counts=added(counts) if counts else None,
    )
    return replace(
        last,
        block=block,
        played=tuple(dict.fromkeys(key for part in parts for key in part.played)),
        requests=tuple(requests.values()),
        terms=tuple({item.key: item for part in parts for item in part.terms}.values()),
        failures=tuple(failures),
        num_skipped_turns=sum(part.num_skipped_turns for part in measured),
    )


def _terms_to_json(terms: RequestTerms) -> dict[str, Any]:
    values = {name: to_text(column) for name, column in terms.values.items()}
    counts = {name: getattr(terms, name).tolist() for name in ("round_index", "num_draft_tokens")}
    return {"key": list(terms.key), **counts, "values": values}


def _terms_from_json(data: Mapping[str, Any]) -> RequestTerms:
    prompt_id, turn, sample = data["key"]
    return RequestTerms(
        (prompt_id, turn, sample),
        np.array(data["round_index"], dtype=np.int64),
        np.array(data["num_draft_tokens"], dtype=np.int64),
        {name: from_text(text) for name, text in data["values"].items()},
    )
