"""Records: nothing inconsistent can be built, what is written is read back exactly, and no part of a file is seen."""

import csv
import gzip
import json
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.metrics import load_results
from harness.records import InconsistentRecordError
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.records.files import UnwritableError, identity, read_cell, write_atomically, write_cell
from harness.records.request import CutReason, RoundRecord
from harness.records.schema import SCHEMA_VERSION, Block, Failure
from harness.records.token_logprobs import TokenLogprobs
from tests.synthetic_cells import cell_record, request_record, round_record, row_of

SCHEMA_2 = Path(__file__).parent / "data" / "schema2"

ROUND = {
    "num_proposed_tokens": 4,
    "num_draft_tokens": 3,
    "num_accepted_tokens": 2,
    "num_output_tokens": 3,
    "cut_reason": None,
    "arrival_s": 1.0,
    "share_s": 0.1,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"num_accepted_tokens": 4}, "accepted <= drafted", id="more accepted than drafted"),
        pytest.param({"num_draft_tokens": 5}, "drafted <= proposed", id="more evidence than was proposed"),
        pytest.param({"num_accepted_tokens": -1}, "0 <= accepted", id="negative count"),
        pytest.param({"num_output_tokens": 2}, "need 3 output tokens", id="bonus token counted as accepted"),
        pytest.param({"num_output_tokens": 5}, "without a cut", id="more tokens than a round can emit"),
        pytest.param({"arrival_s": float("nan")}, "finite", id="arrival is not a number"),
        pytest.param({"share_s": -0.1}, "share_s >= 0", id="negative share of time"),
        pytest.param({"expected_accepted": (1.0, 2.0)}, "3 values", id="a method's expectation is missing"),
        pytest.param({"expected_accepted": (1.0, 2.0, 4.1)}, r"\[0, 4\]", id="expects more than was proposed"),
        pytest.param({"num_held_steps": -1, "is_whole": False}, "num_held_steps", id="a negative number of deferrals"),
        pytest.param({"num_held_steps": 1, "is_whole": True}, "num_held_steps", id="deferred, then without the host"),
        pytest.param({"num_held_steps": 1}, "num_held_steps", id="deferred without a constraint"),
        pytest.param({"path": (0,)}, "path", id="a path shorter than what was accepted"),
        pytest.param({"path": (2, 1)}, "path", id="a path that turns back"),
        pytest.param({"path": (0, 4)}, "path", id="a path outside the tree"),
        pytest.param({"num_draft_positions": 5}, "num_draft_positions", id="more depths than draft tokens"),
    ],
)
def test_inconsistent_rounds_are_refused(changes, message):
    RoundRecord(**ROUND)
    with pytest.raises(InconsistentRecordError, match=message):
        RoundRecord(**(ROUND | changes))


def test_a_cut_round_may_emit_less_than_it_verified():
    """Would catch a rule that refuses an EOS which takes the place of the bonus token, or a cut before any draft."""
    assert round_record(2, 2, 1.0, num_output=3, num_proposed=3, cut=CutReason.eos).num_accepted_tokens == 2
    assert round_record(0, 0, 1.0, num_output=1, num_proposed=4, cut=CutReason.eos).num_draft_tokens == 0


def test_a_round_that_was_not_cut_may_count_less_than_it_proposed():
    """Would catch a rule that wants a cut wherever K_r < K: a drafted EOS that was rejected cuts nothing.

    Nor does the length limit where a rejection comes first.
    """
    for num_draft, num_accepted in ((0, 0), (1, 0), (1, 1), (3, 2)):
        record = round_record(num_draft, num_accepted, 1.0, num_proposed=4)
        assert record.cut_reason is None and record.num_output_tokens == num_accepted + 1


@pytest.mark.parametrize(
    ("rounds", "changes", "message"),
    [
        pytest.param([], {}, "no rounds", id="no rounds"),
        pytest.param([(0, 0, 1.0)], {"output_token_ids": (1, 2)}, "emitted 1 tokens", id="tokens of no round"),
        pytest.param([(0, 0, 2.0), (1, 1, 1.0)], {}, "back in time", id="arrivals out of order"),
        pytest.param([(0, 0, 1.0)], {"submitted_s": 1.5}, "back in time", id="answered before it was asked"),
    ],
)
def test_inconsistent_requests_are_refused(rounds, changes, message):
    with pytest.raises(InconsistentRecordError, match=message):
        request_record([round_record(*item) for item in rounds], **changes)


def test_nothing_follows_the_round_that_eos_or_the_length_cut():
    for reason in (CutReason.eos, CutReason.length):
        with pytest.raises(InconsistentRecordError, match="must be the last"):
            request_record([round_record(1, 1, 1.0, cut=reason), round_record(1, 0, 2.0)])
    request_record([round_record(1, 0, 1.0, cut=CutReason.grammar), round_record(1, 0, 2.0)])


def test_inconsistent_cells_are_refused():
    request = request_record([round_record(0, 0, 1.0)])
    with pytest.raises(InconsistentRecordError, match="recorded twice"):
        cell_record([request, request])
    with pytest.raises(InconsistentRecordError, match="took time"):
        cell_record([request], wall_s=0.0)
    with pytest.raises(InconsistentRecordError, match="schema 0"):
        cell_record([request], schema_version=0)
    with pytest.raises(InconsistentRecordError, match="draft_logit_cache_bytes"):
        cell_record([request], draft_logit_cache_bytes=-1)
    with pytest.raises(InconsistentRecordError, match="target_cache_bytes"):
        cell_record([request], target_cache_bytes=-1)


HELD = {"is_whole": False, "num_held_steps": 2}


def example_cell():
    """A cell with a cut, a missing expectation, the path of a tree and every optional field of rounds."""
    rounds = [
        round_record(0, 0, 0.1),
        round_record(3, 2, 0.1 + 0.2, expected=(1 / 3, 0.5, 2.0), path=(0, 2), num_draft_positions=2),
        round_record(1, 1, 0.7, num_proposed=3, cut=CutReason.eos),
    ]
    constrained = [
        round_record(0, 0, 0.1, num_free_tokens=0, host_us=1 / 3, is_whole=True),
        round_record(2, 1, 0.7, num_free_tokens=1, num_cut_tokens=1, cut=CutReason.grammar, **HELD),
    ]
    asked = replace(
        request_record(rounds[:1], turn=3),
        sampling={"temperature": 0.7, "top_k": 5, "top_p": 1.0, "min_p": 0.0},
        logprobs=TokenLogprobs((None,), (3,), ((1, 0),), ((-0.1, -2.5),)),
    )
    return cell_record(
        [request_record(rounds), request_record(rounds, turn=1), request_record(constrained, turn=2), asked],
        wall_s=1 / 3,
        fallbacks=("no chat template",),
        labels=("lossy",),
        num_skipped_turns=2,
        target_cache_bytes=2**20,
        drafter_cache_bytes=2**18,
        graph_bytes=2**17,
    )


def test_round_trip_is_exact(tmp_path):
    """Would catch floats rounded on the way, tuples that come back as lists, and lost optional fields."""
    cell = example_cell()
    path = write_cell(cell, tmp_path)
    assert path.name == f"{cell.cell_id}.json.gz"
    assert read_cell(path) == cell


def coarse_cell(**changes):
    """A cell of two sessions on a server that counts drafts by request, or by block, and lost a request."""
    counts = DraftCounts(2, 6, 3, (2, 2, 2), (2, 1, 0))
    arrivals = (Arrival(0.1, 1), Arrival(1 / 3, 4))
    requests = [
        replace(request_record([round_record(0, 0, 0.1)], turn=turn), rounds=(), output_token_ids=(), arrivals=arrivals)
        for turn in range(2)
    ]
    blocks = [
        Block(place, f"session{place}", place, 1e9 + place, 1e9 + place + 1, 1, 5, 0.5, counts, {"steps_total": 2.0})
        for place in range(2)
    ]
    fields = {
        "knowledge": Knowledge.requests,
        "blocks": tuple(blocks),
        "more_provenances": ({"gpu": "another"},),
        "failures": (Failure("OSError", "gone", "Traceback", {"timeout_s": 60}, ("b", 0, 0)),),
        "graph_bytes": None,
    }
    return cell_record([replace(item, counts=counts) for item in requests], **(fields | changes))


@pytest.mark.parametrize("knowledge", list(Knowledge)[1:], ids=lambda item: item.value)
def test_round_trip_of_what_a_server_tells(tmp_path, knowledge):
    cell = coarse_cell(knowledge=knowledge)
    assert read_cell(write_cell(cell, tmp_path)) == cell


def test_a_cell_may_be_a_failure_without_requests(tmp_path):
    """Would catch a failed cell that cannot be written, read or shown."""
    failed = cell_record([], 0.0, failures=(Failure("RuntimeError", "out of memory"),))
    assert read_cell(write_cell(failed, tmp_path)) == failed
    row = row_of(failed)
    assert row["labels"] == "failed" and row["num_requests"] == 0 and math.isnan(row["output_tokens_per_s"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"knowledge": Knowledge.rounds}, "expected rounds", id="rounds that are not there"),
        pytest.param({"blocks": ()}, None, id="no blocks, as in schema 2"),
        pytest.param({"blocks": coarse_cell().blocks[:1]}, "blocks: expected 2 requests", id="a block is missing"),
        pytest.param({"more_provenances": ()}, "provenances", id="a block of an unknown provenance"),
    ],
)
def test_a_coarse_cell_is_consistent(changes, message):
    with nullcontext() if message is None else pytest.raises(InconsistentRecordError, match=message):
        coarse_cell(**changes)


LOGPROBS = {"token": (-0.5, None), "rank": (1, 3), "top_token_ids": ((1,), ()), "top": ((-0.5,), ())}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DraftCounts(1, 2, 3), "accepted"),
        (lambda: DraftCounts(-1, 2, 1), "-1 drafts"),
        (lambda: DraftCounts(0, 0, -1), "-1 accepted"),
        (lambda: DraftCounts(2, 6, 3, num_accepted_tokens_per_pos=(1, 2)), "add up to 3"),
        (lambda: DraftCounts(2, 6, 3, num_accepted_tokens_per_pos=(4, -1)), "0 or more"),
        (lambda: DraftCounts(2, 4, 3, (2, 2), (3, 0)), "accepted <= drafted by position"),
        (lambda: request_record([]), "no rounds and no arrivals"),
        (lambda: request_record([round_record(0, 0, 0.1)], counts=DraftCounts()), "no counts beside rounds"),
        (lambda: replace(coarse_cell().blocks[0], wall_s=-1.0), "wall_s"),
        (lambda: replace(coarse_cell().blocks[0], wall_s=math.inf), "wall_s"),
        (lambda: replace(coarse_cell().blocks[0], end_unix_s=0.0), "not before the start"),
        (lambda: replace(coarse_cell().blocks[0], num_output_tokens=-1), "num_output_tokens"),
        (lambda: coarse_cell(knowledge=Knowledge.blocks, blocks=()), "expected blocks with counts"),
        (lambda: TokenLogprobs(**LOGPROBS | {"rank": (1,)}), "each column"),
        (lambda: TokenLogprobs(**LOGPROBS | {"top": ((), ())}), "a value for each id"),
        (lambda: TokenLogprobs(**LOGPROBS | {"token": (0.1, None)}), "0 or less"),
        (lambda: TokenLogprobs(**LOGPROBS | {"top": ((math.nan,), ())}), "0 or less"),
        (lambda: TokenLogprobs(**LOGPROBS | {"rank": (0, 1)}), "1 or more"),
    ],
)
def test_counts_blocks_and_logprobs_do_not_contradict_themselves(build, message):
    TokenLogprobs(**LOGPROBS)
    with pytest.raises(InconsistentRecordError, match=message):
        build()


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
        pytest.param(lose_column, "expected the columns", id="a column is missing"),
        pytest.param(accept_too_much, "accepted <= drafted", id="contradicts itself"),
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


def test_identity_ignores_the_order_of_keys_only():
    assert identity({"a": 1, "b": {"c": 2, "d": 3}}) == identity({"b": {"d": 3, "c": 2}, "a": 1})
    assert identity({"a": 1}) != identity({"a": 2})
    assert identity({"a": [1, 2]}) != identity({"a": [2, 1]})
    with pytest.raises(ValueError, match="JSON"):
        identity({"a": float("nan")})
