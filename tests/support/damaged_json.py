"""A JSON document with one thing changed, for tests of readers: what it then says is read, or refused in one line."""

import copy
import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

VALUES = (None, True, -1, 0, 3.5, 10**30, -(10**400), 1e308, "x", "", "../x", "\ud800", [], [1], {}, {"a": 1}, [[[]]])
"""What takes the place of a value."""
TEXTS = (b"NaN", b"-Infinity", b"1e999", b"1" * 5000, b"[" * 100_000, b'{"a": 1, "a": 2}', b"\xff", b"")
"""The same as bytes, where no value of Python says it."""
HOLE = "a place for bytes"


class Damaged(NamedTuple):
    """A changed document."""

    text: bytes
    place: tuple[str | int, ...]
    """Names and indices that lead to the change; () where bytes of the whole were changed."""
    change: Any
    """What stands there now; None where nothing does, and for bytes."""


def places(value: Any, before: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a document but the document itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, item in items for place in ((*before, name), *places(item, (*before, name)))]


def at_place(document: Any, place: tuple[str | int, ...]) -> Any:
    """The value there."""
    for name in place:
        document = document[name]
    return document


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Damaged:
    """Strategy: the document with a value taken out, another one in its place, or a byte less, more or other."""
    kind = draw(st.sampled_from(["value", "value", "text", "without", "bytes"]))
    if kind == "bytes":
        text = json.dumps(document).encode()
        start = draw(st.integers(0, len(text) - 1))
        stop = draw(st.sampled_from([start, start + 1, len(text)]))
        return Damaged(text[:start] + draw(st.sampled_from([b"", b"\xc3", b",", b"\x00"])) + text[stop:], (), None)
    place, changed = draw(st.sampled_from(places(document))), copy.deepcopy(document)
    parent, name = at_place(changed, place[:-1]), place[-1]
    if kind == "without":
        del parent[name]
        return Damaged(json.dumps(changed).encode(), place, None)
    if kind == "value":
        parent[name] = draw(st.sampled_from(VALUES))
        return Damaged(json.dumps(changed).encode(), place, parent[name])
    parent[name] = HOLE
    return Damaged(
        json.dumps(changed).encode().replace(f'"{HOLE}"'.encode(), draw(st.sampled_from(TEXTS))), place, None
    )
