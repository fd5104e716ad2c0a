"""Records: nothing inconsistent can be built."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest

from harness.records import InconsistentRecordError
from harness.records.counts import DraftCounts, Knowledge
from harness.records.files import read_cell, write_cell
from harness.records.request import CutReason, RoundRecord
from harness.records.schema import Failure
from harness.records.token_logprobs import TokenLogprobs
from tests.support.example_records import coarse_cell
from tests.support.synthetic_cells import cell_record, request_record, round_record, row_of

pytestmark = pytest.mark.fast

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
