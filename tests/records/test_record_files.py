"""Files of records: what is written is read back exactly, no part of a file is seen, and errors name the file."""

import csv
import gzip
import json
import os
from pathlib import Path

import pytest

from harness.analysis import load_results
from harness.records.counts import Knowledge
from harness.records.files import UnwritableError, identity, read_cell, write_atomically, write_cell
from harness.records.schema import SCHEMA_VERSION
from tests.support.example_records import coarse_cell, example_cell

pytestmark = pytest.mark.fast

SCHEMA_2 = Path(__file__).parents[1] / "data" / "schema2"


def test_round_trip_is_exact(tmp_path):
    """Would catch floats rounded on the way, tuples that come back as lists, and lost optional fields."""
    cell = example_cell()
    path = write_cell(cell, tmp_path)
    assert path.name == f"{cell.cell_id}.json.gz"
    assert read_cell(path) == cell


@pytest.mark.parametrize("knowledge", list(Knowledge)[1:], ids=lambda item: item.value)
def test_round_trip_of_what_a_server_tells(tmp_path, knowledge):
    cell = coarse_cell(knowledge=knowledge)
    assert read_cell(write_cell(cell, tmp_path)) == cell


def test_records_of_schema_2_keep_ids_and_every_value():
    """Would catch a column of older records that changes with the schema; made with the version that wrote them."""
    with gzip.open(SCHEMA_2 / "expected.csv.gz", "rt", encoding="utf-8") as stream:
        expected = list(csv.DictReader(stream))
    found = list(csv.DictReader(load_results(SCHEMA_2).to_csv(index=False).splitlines()))
    assert len(found) == len(expected) == 2
    for row, old in zip(found, expected, strict=True):
        for name in old:
            if name.endswith(("_low", "_high")) and old[name]:
                # the quantile of Student's t widens intervals; it was ours then, and is SciPy's now
                assert float(row[name]) == pytest.approx(float(old[name]), rel=1e-6), name
            else:
                assert row[name] == old[name], name


def test_the_same_record_is_the_same_file(tmp_path):
    """Would catch the time of writing inside the compressed file."""
    first, second = (write_cell(example_cell(), tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "cell.json.gz"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UnwritableError, match=r"cell\.json\.gz: .*disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def altered(cell, tmp_path, change):
    """The file of a cell whose JSON was changed by hand."""
    path = write_cell(cell, tmp_path)
    data = json.loads(gzip.decompress(path.read_bytes()))
    change(data)
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


def lose_schema(data):
    data["schema_version"] = 0
    del data["config"]


def lose_column(data):
    del data["requests"][0]["rounds"]["share_s"]


def lose_caches(data):
    data["schema_version"] = 2
    del data["target_cache_bytes"], data["drafter_cache_bytes"], data["graph_bytes"]


def lose_paths(data):
    for request in data["requests"]:
        for name in ("is_whole", "num_held_steps"):
            request["rounds"].pop(name, None)


def accept_too_much(data):
    data["requests"][0]["rounds"]["num_accepted_tokens"][1] = 9


def test_a_record_from_before_caches_were_counted_is_read(tmp_path):
    cell = read_cell(altered(example_cell(), tmp_path, lose_caches))
    assert (cell.target_cache_bytes, cell.drafter_cache_bytes, cell.graph_bytes) == (0, 0, 0)


def test_a_record_from_before_paths_were_counted_is_read(tmp_path):
    cell = example_cell()
    read = read_cell(altered(cell, tmp_path, lose_paths))
    rounds = [item for request in read.requests for item in request.rounds]
    assert {(item.is_whole, item.num_held_steps) for item in rounds} == {(None, 0)}
    # and nothing else is lost
    assert [item.host_us for item in rounds] == [item.host_us for each in cell.requests for item in each.rounds]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lose_schema, f"has schema 0, this version reads .*{SCHEMA_VERSION}", id="other schema, other fields"
        ),
        pytest.param(lose_column, "expected share_s", id="a column is missing"),
        pytest.param(accept_too_much, r"requests\[0\]: rounds: \[1\]: .*accepted <= drafted", id="contradicts itself"),
        pytest.param(lambda data: data.pop("wall_s"), "wall_s", id="a field is missing"),
    ],
)
def test_errors_of_a_file_name_it_and_what_is_wrong(tmp_path, change, message):
    path = altered(example_cell(), tmp_path, change)
    with pytest.raises(ValueError, match=message) as error:
        read_cell(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not gzip", id="not compressed"),
        pytest.param(gzip.compress(b"[1]"), id="a list"),
        pytest.param(gzip.compress(b'"text"'), id="a string"),
        pytest.param(gzip.compress(b"{"), id="half a document"),
        pytest.param(gzip.compress(bytes(1000))[:20], id="half a file"),
        pytest.param(gzip.compress(os.urandom(64))[:10] + b"\xff" * 40, id="damaged stream"),
    ],
)
def test_a_corrupt_file_is_a_value_error_with_its_path(tmp_path, content):
    path = tmp_path / "cell.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cell\.json\.gz"):
        read_cell(path)


def test_a_damaged_file_says_what_to_do(tmp_path):
    """Would catch the bare words of a library, which name neither the damage nor a remedy."""
    path = write_cell(example_cell(), tmp_path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:40] + bytes([whole[40] ^ 255]) + whole[41:], b"not gzip"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"found a damaged one \(.+\); bring it back, or give the command"):
            read_cell(path)


def test_identity_ignores_the_order_of_keys_only():
    assert identity({"a": 1, "b": {"c": 2, "d": 3}}) == identity({"b": {"d": 3, "c": 2}, "a": 1})
    assert identity({"a": 1}) != identity({"a": 2})
    assert identity({"a": [1, 2]}) != identity({"a": [2, 1]})
    with pytest.raises(ValueError, match="JSON"):
        identity({"a": float("nan")})
