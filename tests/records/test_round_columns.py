"""Rounds that are read by column are those that the constructor makes of each row, and what it refuses is refused."""

from dataclasses import MISSING, fields

import numpy as np
import pytest

from harness.records import round_columns
from harness.records.request import CutReason, RoundRecord
from harness.records.round_columns import rounds_from_columns

pytestmark = pytest.mark.fast

NUM_ROUNDS = 6
ODD = {
    int: (-1, 0, 1, 2, 3, 9),
    float: (-1.0, -1e-7, 0.0, 1e300, float("inf"), float("nan")),
    "expected_accepted": (
        None,
        (0.0, 1.0, 9.0),
        (0.0, float("nan"), 1.0),
        (0.0, 1.0),
        (-1.0, 0.0, 0.0),
        (0.0, 0.0, 3.0),
    ),
    "position_bounds": (None, (0.5,), (0.5, 0.5, 0.5), (2.0, 0.5, 0.5), (0.5, float("nan"), 0.5), (0.0, -0.1, 0.5)),
    "path": (None, (0,), (1, 0)),
    "cut_reason": (None, CutReason.eos, CutReason.grammar),
    "is_whole": (None, True, False),
    "num_free_tokens": (None, 0, 3, 4, -1),
    "num_draft_positions": (None, 0, 2, 9),
}
"""Values that may make a round inconsistent, by field or type."""


def usual_columns(random):
    accepted = random.integers(0, 4, NUM_ROUNDS).tolist()
    columns = {
        "num_proposed_tokens": [3] * NUM_ROUNDS,
        "num_draft_tokens": [3] * NUM_ROUNDS,
        "num_accepted_tokens": accepted,
        "num_output_tokens": [number + 1 for number in accepted],
        "cut_reason": [None] * NUM_ROUNDS,
        "arrival_s": np.cumsum(random.random(NUM_ROUNDS)).tolist(),
        "share_s": random.random(NUM_ROUNDS).tolist(),
        "expected_accepted": [None, *[(0.5, 1.0, 3.0)] * (NUM_ROUNDS - 1)],
        "position_bounds": [None, *[(0.5, 0.5, 1.0)] * (NUM_ROUNDS - 1)],
    }
    for item in fields(RoundRecord):
        if item.name not in columns and random.random() < 0.3:
            columns[item.name] = [item.default] * NUM_ROUNDS
    return columns


def outcome(make):
    try:
        return repr(make())
    except ValueError as error:
        return f"error: {error}"


def one_by_one(columns):
    found = []
    for place in range(NUM_ROUNDS):
        row = {name: values[place] for name, values in columns.items()}
        try:
            found.append(RoundRecord(**row))
        except ValueError as error:
            raise ValueError(f"[{place}]: {error}") from error
    return tuple(found)


def test_columns_give_what_the_constructor_gives(monkeypatch):
    """Would catch an inconsistent round that is read because its column was not looked at, or another round's place."""
    random, built = np.random.default_rng(0), []
    original = round_columns._unchecked
    monkeypatch.setattr(round_columns, "_unchecked", lambda *given: built.append(1) or original(*given))
    num_refused = 0
    for _ in range(3000):
        columns = usual_columns(random)
        for _ in range(random.integers(0, 3)):
            name = str(random.choice([item.name for item in fields(RoundRecord)]))
            default = next(item.default for item in fields(RoundRecord) if item.name == name)
            kind = type(columns["arrival_s" if name in ("arrival_s", "share_s", "host_us") else "num_draft_tokens"][0])
            values = ODD.get(name, ODD[kind])
            column = columns.setdefault(name, [default if default is not MISSING else None] * NUM_ROUNDS)
            column[random.integers(NUM_ROUNDS)] = values[random.integers(len(values))]
        as_tuples = {name: tuple(values) for name, values in columns.items()}
        expected = outcome(lambda columns=columns: one_by_one(columns))
        assert outcome(lambda found=as_tuples: rounds_from_columns(found, NUM_ROUNDS)) == expected
        num_refused += expected.startswith("error")
    assert num_refused > 300 and len(built) > 300
