"""Rounds from the columns of a file, checked column by column, since a run holds millions of rounds.

Only usual rounds are checked so: chains without a cut. `RoundRecord` checks all others and names what is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import chain, repeat
from math import isfinite
from operator import eq, le
from typing import Any

from harness.records.request import EXPECTED_METHODS, ROUNDING, RoundRecord

_SETTERS = {item.name: RoundRecord.__dict__[item.name].__set__ for item in fields(RoundRecord)}
"""Sets a field of a round without its constructor."""
_DEFAULTS = {item.name: item.default for item in fields(RoundRecord) if item.default is not MISSING}
_USUAL = ("num_cut_tokens", "num_held_steps", "path", "num_draft_positions")
"""Columns that hold the default in every usual round."""
_LOOKED_AT = frozenset(
    {
        *("num_proposed_tokens", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens", "cut_reason"),
        *("arrival_s", "share_s", "expected_accepted", "num_free_tokens", "position_bounds"),
        # any value of their type is consistent, if `_USUAL` hold
        *("host_us", "is_whole"),
        *_USUAL,
    }
)
"""Columns that `_are_consistent` covers; with another one `RoundRecord` checks every round."""


def rounds_from_columns(columns: Mapping[str, Sequence[Any]], num_rounds: int) -> tuple[RoundRecord, ...]:
    """The rounds of a request.

    Args:
        columns: field of `RoundRecord` -> [num_rounds] values of its type; fields with a default may be missing.
        num_rounds: length of the columns.

    Raises:
        ValueError: a round is inconsistent; the message begins with its place.
    """
    # the last round of a request is often cut
    num_usual = num_rounds - 1
    usual = {name: column[:num_usual] for name, column in columns.items()}
    if num_usual < 1 or not _are_consistent(usual):
        return _checked(columns, num_rounds)
    last = {name: column[num_usual:] for name, column in columns.items()}
    return _unchecked(usual, num_usual) + _checked(last, 1, num_usual)


def _checked(columns: Mapping[str, Sequence[Any]], num_rounds: int, first_place: int = 0) -> tuple[RoundRecord, ...]:
    found: list[RoundRecord] = []
    try:
        for row in zip(*(columns.get(name) or (_DEFAULTS[name],) * num_rounds for name in _SETTERS), strict=True):
            found.append(RoundRecord(*row))
    except ValueError as error:
        raise ValueError(f"[{first_place + len(found)}]: {error}") from error
    return tuple(found)


def _unchecked(columns: Mapping[str, Sequence[Any]], num_rounds: int) -> tuple[RoundRecord, ...]:
    """Rounds that need no check; fields are set column by column, which is faster than a call for every round."""
    found = tuple(map(object.__new__, repeat(RoundRecord, num_rounds)))
    for name, setter in _SETTERS.items():
        deque(map(setter, found, columns.get(name) or repeat(_DEFAULTS[name])), maxlen=0)
    return found


def _are_consistent(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether all rounds are usual and consistent; False where this module cannot tell."""
    if not columns.keys() <= _LOOKED_AT:
        return False
    if any({*columns[name]} != {_DEFAULTS[name]} for name in _USUAL if name in columns):
        return False
    proposed, drafted = columns["num_proposed_tokens"], columns["num_draft_tokens"]
    accepted, emitted = columns["num_accepted_tokens"], columns["num_output_tokens"]
    shares, free = columns["share_s"], columns.get("num_free_tokens") or (None,)
    return (
        {*columns["cut_reason"]} == {None}
        and min(accepted) >= 0
        and all(map(le, accepted, drafted))
        and all(map(le, drafted, proposed))
        and all(map(eq, emitted, map((1).__add__, accepted)))
        and all(map(isfinite, columns["arrival_s"]))
        and all(map(isfinite, shares))
        and min(shares) >= 0
        and ({*free} == {None} or (None not in free and min(free) >= 0 and all(map(le, free, proposed))))
        and _are_expected(columns.get("expected_accepted") or (), proposed)
        and _are_bounds(columns.get("position_bounds") or (), drafted)
    )


def _are_expected(expected: Sequence[tuple[float, ...] | None], proposed: Sequence[int]) -> bool:
    """Whether the expected counts of every round that has some are in the range of its proposed tokens."""
    rows = [values for values in expected if values is not None]
    if not rows:
        return True
    most = [number + ROUNDING for number, values in zip(proposed, expected, strict=True) if values is not None]
    flat = tuple(chain.from_iterable(rows))
    return (
        {*map(len, rows)} == {len(EXPECTED_METHODS)}
        and all(map(isfinite, flat))
        and min(flat) >= -ROUNDING
        and all(map(le, map(max, rows), most))
    )


def _are_bounds(bounds: Sequence[tuple[float, ...] | None], drafted: Sequence[int]) -> bool:
    """Whether the bounds of every round that has some are shares, one for each token that counts."""
    rows = [values for values in bounds if values is not None]
    if not rows:
        return True
    numbers = [number for number, values in zip(drafted, bounds, strict=True) if values is not None]
    flat = tuple(chain.from_iterable(rows))
    return (
        [*map(len, rows)] == numbers
        and all(map(isfinite, flat))
        and min(flat, default=0) >= 0
        and max(flat, default=0) <= 1 + ROUNDING
    )
