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
from harness.records.files import plain_json, request_from_json, request_to_json
from harness.records.request import RequestRecord
from harness.records.schema import Block, Failure
from harness.records.strict_json import Int64, at_each, typed

ConversationKey = tuple[str, Int64]
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
    num_skipped_turns: Int64 = 0

    @property
    def outline(self) -> Part:
        """Without the requests and their terms."""
        return replace(self, requests=(), terms=())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain: dict[str, Any] = plain_json(self.outline)
        requests = [request_to_json(item) for item in self.requests]
        return plain | {"requests": requests, "terms": [_terms_to_json(item) for item in self.terms]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        """From plain JSON values, which are used up.

        Raises:
            ValueError: they are not those of a part.
        """
        plain = typed(dict[str, Any], data)
        for name, read in (("requests", request_from_json), ("terms", _terms_from_json)):
            plain[name] = at_each(name, read, plain.get(name, []))
        part: Part = typed(cls, plain)
        return part


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


@dataclass(frozen=True)
class _PlainTerms:
    """The terms of a request as they are written; columns keep every bit as text."""

    key: tuple[str, Int64, Int64]
    round_index: tuple[Int64, ...]
    num_draft_tokens: tuple[Int64, ...]
    values: Mapping[str, str]


def _terms_to_json(terms: RequestTerms) -> dict[str, Any]:
    values = {name: to_text(column) for name, column in terms.values.items()}
    plain: dict[str, Any] = plain_json(
        _PlainTerms(terms.key, tuple(terms.round_index.tolist()), tuple(terms.num_draft_tokens.tolist()), values)
    )
    return plain


def _terms_from_json(data: Any) -> RequestTerms:
    plain: _PlainTerms = typed(_PlainTerms, data)
    return RequestTerms(
        plain.key,
        np.array(plain.round_index, dtype=np.int64),
        np.array(plain.num_draft_tokens, dtype=np.int64),
        {name: from_text(text) for name, text in plain.values.items()},
    )
