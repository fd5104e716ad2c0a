"""Recorded terms: nothing inconsistent can be built or read, and a file holds exactly what was written."""

from dataclasses import replace

import numpy as np
import pytest

from harness.config.sections import MeasurementConfig
from harness.records import InconsistentRecordError
from harness.records import acceptance_terms as round_terms
from harness.records.acceptance_terms import (
    COLUMNS,
    DraftTerms,
    RequestTerms,
    check_terms_of,
    collect_terms,
    read_terms,
    terms_path,
    write_terms,
)
from harness.records.term_columns import TermColumn
from tests.support.synthetic_cells import cell_record, request_record, round_record

pytestmark = pytest.mark.fast


def draft_terms(round_index, num_draft_tokens, **others):
    """A draft whose values tell its places apart."""
    places = np.arange(1, num_draft_tokens + 1) / 10 + round_index / 100
    return DraftTerms(round_index, {name: places for name in COLUMNS if COLUMNS[name].is_required} | others)


def requests_and_terms():
    """Two requests: full drafts of 3 and 2, one under a grammar's masks, a shortened one; and one without drafts."""
    measured = {"expected": (1.0, 1.0, 1.0)}
    first = [
        round_record(0, 0, 0.1),
        round_record(3, 1, 0.2, **measured),
        round_record(2, 2, 0.3, **measured),
        round_record(3, 0, 0.4),
        round_record(1, 0, 0.5, num_proposed=3),
    ]
    requests = [request_record(first, "a"), request_record([round_record(0, 0, 0.1)], "b")]
    terms = [RequestTerms.of(("b", 0, 0), ()), RequestTerms.of(("a", 0, 0), (draft_terms(1, 3), draft_terms(2, 2)))]
    return requests, terms


def test_terms_are_read_back_as_they_were_written(tmp_path):
    requests, parts = requests_and_terms()
    cell = cell_record(requests)
    terms = collect_terms(cell.cell_id, parts)
    path = write_terms(terms, tmp_path)
    assert path == terms_path(tmp_path, cell.cell_id) and [path] == list(tmp_path.iterdir())
    found = read_terms(path)
    check_terms_of(found, cell)
    assert (found.cell_id, found.keys) == (cell.cell_id, (("a", 0, 0),))
    np.testing.assert_array_equal(found.drafted, [[True, True, True], [True, True, False]])
    np.testing.assert_allclose(found.of_positions("overlap"), [[0.11, 0.21, 0.31], [0.12, 0.22, 0]])
    assert all((found.values[name] == terms.values[name]).all() for name in terms.values)
    assert write_terms(found, tmp_path / "again").read_bytes() == path.read_bytes()


def test_a_named_column_is_all_that_one_more_number_needs(tmp_path, monkeypatch):
    """One of positions and one of whole drafts; a file without them stays readable."""
    more = {
        "spare": TermColumn("of a position", high=9.0, is_required=False),
        "spare_of_draft": TermColumn("of a draft", high=9.0, is_of_draft=True, is_required=False),
    }
    monkeypatch.setattr(round_terms, "COLUMNS", COLUMNS | more)
    monkeypatch.setattr("tests.runner.test_round_terms.COLUMNS", COLUMNS | more)
    drafts = [draft_terms(1, 2, spare=np.array([5.0, 6.0]), spare_of_draft=np.array(7.0)) for _ in range(2)]
    parts = [RequestTerms.of((name, 0, 0), (draft,)) for name, draft in zip("ab", drafts, strict=True)]
    found = read_terms(write_terms(collect_terms("x", parts), tmp_path))
    np.testing.assert_array_equal(found.of_positions("spare"), [[5, 6], [5, 6]])
    np.testing.assert_array_equal(found.values["spare_of_draft"], [7, 7])
    assert read_terms(write_terms(collect_terms("y", [RequestTerms.of(("a", 0, 0), (draft_terms(1, 2),))]), tmp_path))


def test_a_cell_without_full_drafts_has_terms_of_nothing(tmp_path):
    terms = read_terms(write_terms(collect_terms("x", [RequestTerms.of(("a", 0, 0), ())]), tmp_path))
    assert terms.keys == () and terms.num_positions == 0 and terms.of_positions("overlap").shape == (0, 0)


def terms_of_two():
    return collect_terms("x", requests_and_terms()[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"keys": (("a", 0, 0), ("a", 0, 0))}, "twice", id="one request twice"),
        pytest.param({"request": np.array([0, 1])}, "ordered by request", id="a request that is not there"),
        pytest.param({"round_index": np.array([2, 2])}, "each there once", id="one round twice"),
        pytest.param({"round_index": np.array([1])}, "of one length", id="arrays of different lengths"),
        pytest.param({"num_draft_tokens": np.array([3, 0])}, "1 draft token or more", id="a draft of nothing"),
        pytest.param({"num_draft_tokens": np.array([3, 3])}, "expected 6 values", id="too few values"),
        pytest.param({"values": {"overlap": np.zeros(5)}}, "expected the columns", id="columns missing"),
    ],
)
def test_inconsistent_terms_cannot_be_built(changes, message):
    with pytest.raises(InconsistentRecordError, match=message):
        replace(terms_of_two(), **changes)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")], ids=["negative", "above 1", "not a number"])
def test_a_probability_must_be_one(wrong):
    terms = terms_of_two()
    with pytest.raises(InconsistentRecordError, match="overlap: expected finite values in"):
        replace(terms, values={**terms.values, "overlap": np.array([0.1, 0.2, wrong, 0.1, 0.2])})


def test_terms_of_other_drafts_are_refused():
    """Of another cell, of a round under masks, and of fewer drafts than were measured."""
    requests, parts = requests_and_terms()
    cell = cell_record(requests)
    check_terms_of(collect_terms(cell.cell_id, parts), cell)
    with pytest.raises(InconsistentRecordError, match="terms are of cell"):
        check_terms_of(collect_terms("x", parts), cell)
    for drafts in ((draft_terms(1, 3), draft_terms(3, 2)), (draft_terms(1, 3),)):
        with pytest.raises(InconsistentRecordError, match=r"request \('a', 0, 0\), round 2"):
            check_terms_of(collect_terms(cell.cell_id, [RequestTerms.of(("a", 0, 0), drafts)]), cell)


def test_a_damaged_file_is_named(tmp_path):
    path = write_terms(terms_of_two(), tmp_path)
    for content in (path.read_bytes()[:200], b"", b"nothing of the kind"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path.name}: expected terms of version"):
            read_terms(path)


def test_another_version_is_refused(tmp_path, monkeypatch):
    path = write_terms(terms_of_two(), tmp_path)
    monkeypatch.setattr("harness.records.acceptance_terms.TERMS_VERSION", 99)
    with pytest.raises(ValueError, match="terms of version 1, this version reads 99"):
        read_terms(path)


def test_terms_are_not_recorded_without_expected_acceptance():
    with pytest.raises(ValueError, match="round_terms: expected false without"):
        MeasurementConfig(expected_acceptance=False, round_terms=True)
