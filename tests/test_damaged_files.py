"""Files that a run leaves, with one thing changed: what they say is read, or refused in one line that names them."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings

from harness.metrics.cell import read_results
from harness.metrics.frame import results_frame
from harness.records.files import read_cell, write_cell
from harness.records.strict_json import parse_json, typed
from harness.report.page import run_page
from tests.damaged_json import at_place, damaged
from tests.synthetic_cells import simulated_run
from tests.test_records import coarse_cell, example_cell

often = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_or_refused(read, *names):
    """What `read` returns; None where it refuses with a line that holds one of the names."""
    try:
        return read()
    except ValueError as error:
        message = str(error)
        assert any(name in message for name in names) and "\n" not in message and len(message) < 600, message
    return None


def json_of(cell, folder):
    return json.loads(gzip.decompress(write_cell(cell, folder).read_bytes()))


@pytest.mark.parametrize("cell", [example_cell(), coarse_cell()], ids=["rounds", "counts"])
def test_a_damaged_record_is_read_as_it_stands_or_refused(cell, tmp_path):
    """Would catch a wrong type that becomes a number, a traceback of a reader, and a value that is lost."""
    document, path = json_of(cell, tmp_path / "whole"), tmp_path / "damaged.json.gz"

    @often
    @given(damaged(document))
    def check(found):
        path.write_bytes(gzip.compress(found.text, compresslevel=1))
        record = read_or_refused(lambda: read_cell(path), str(path))
        if record is not None:
            # what is empty or 0 may be left out as a default
            if found.change:
                assert at_place(json_of(record, tmp_path / "again"), found.place) == found.change
            read_or_refused(lambda: results_frame(read_results(path).cells), str(path), f"cell {record.cell_id}")

    check()


def test_a_damaged_manifest_is_read_or_refused(tmp_path):
    """Would catch a list of cells that is none, and a text in the place of a count that a report calculates with."""
    folder = simulated_run(tmp_path / "run", methods=("strict",), temperatures=(1.0,), num_prompts=2)
    path = folder / "run.json"

    @often
    @given(damaged(json.loads(path.read_text())))
    def check(found):
        path.write_bytes(found.text)
        read_or_refused(lambda: run_page(read_results(folder), (), ()), str(folder))

    check()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": NaN}', "NaN"),
        (b"[1e999]", "float64"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "'c' again"),
        (b"[" * 100_000, "nested"),
        (b'"\xff"', "UTF-8"),
        (b'"\\ud800"', "UTF-8"),
        (b"[1, 2", "delimiter"),
    ],
)
def test_json_that_may_mean_several_things_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, True, "whole number"),
        (int, 1.0, "whole number"),
        (int, 2**63, "64 bits"),
        (float, "1", "finite number"),
        (float, 10**400, "finite number"),
        (bool, 1, "true or false"),
        (tuple[int, ...], [1, 2, None], r"\[2\]: expected a whole number"),
        (tuple[int | None, ...], [1, None, "x"], r"\[2\]: expected a whole number"),
        (tuple[float, float], [1.0], "2 values"),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_stands(hint, value, message):
    with pytest.raises(ValueError, match=message):
        typed(hint, value)
