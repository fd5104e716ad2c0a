"""Answers that loop are found, and acceptance is given without them; ordinary text is not called a loop."""

from dataclasses import replace
from itertools import count, cycle, islice
from math import isnan

import pytest

from harness.analysis.frame import results_frame
from harness.analysis.loops import MIN_TOKENS, WINDOW, is_loop
from harness.analysis.results import Results
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.records.request import FinishReason
from harness.report.first_screen import FirstScreen
from harness.report.loop_notes import LOOPS, LOOPS_NOTE
from harness.report.tables.methods import method_tables, paired_table
from harness.report.tables.summary import summary_table
from harness.report.warnings import warnings
from tests.support.synthetic_cells import analysed, baseline_settings, cell_record, config, request_record, round_record

pytestmark = pytest.mark.fast

TEXT = tuple(range(1000, 1400))
"""No token twice."""


def loop(period, num_tokens=WINDOW):
    return tuple(islice(cycle(range(period)), num_tokens))


def counting(num_tokens=300):
    """A line of 12 tokens again and again, in which a number grows."""
    lines = (token for number in count(5000) for token in (*range(11), number))
    return tuple(islice(lines, num_tokens))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(loop(1), True, id="one token"),
        pytest.param(loop(98), True, id="the longest loop"),
        pytest.param(loop(99), False, id="a longer one"),
        pytest.param(counting(), True, id="a loop that counts"),
        pytest.param(TEXT, False, id="text"),
        pytest.param(TEXT + loop(5, 300), True, id="text that ends in a loop"),
        pytest.param(TEXT[:90] + loop(5, 110), True, id="more than half of the window"),
        pytest.param(TEXT[:110] + loop(5, 90), False, id="less than half of it"),
        pytest.param(loop(5, 300) + TEXT, False, id="a loop that ended"),
        pytest.param(loop(3, MIN_TOKENS), True, id="just long enough"),
        pytest.param(loop(3, MIN_TOKENS - 1), False, id="too short"),
        pytest.param((), False, id="empty"),
    ],
)
def test_a_loop_is_an_answer_half_of_whose_last_4_grams_are_repetitions(answer, expected):
    assert is_loop(answer) is expected


def request(prompt, answer, accepted, **changes):
    """An answer in rounds of 3 drafts that accept so many of them each, the rest in rounds without drafts."""
    num_rounds = len(answer) // (accepted + 1)
    rounds = [round_record(3, accepted, 0.1 * place, share_s=0.1) for place in range(1, num_rounds + 1)]
    rest = len(answer) - num_rounds * (accepted + 1)
    rounds += [round_record(0, 0, 0.1 * (num_rounds + place), share_s=0.1) for place in range(1, rest + 1)]
    return request_record(rounds, prompt, output_token_ids=answer, **changes)


LOOPING = [request("a", loop(4), 3), request("b", TEXT[:200], 0)]
"""50 rounds that accept 3 of 3, and 200 that accept none."""


ENDED = {"finish_reason": FinishReason.eos}


def cell(requests=LOOPING, **changes):
    return cell_record(requests, 1.0, config(**changes))


def test_acceptance_is_given_without_the_answers_that_loop():
    """Would catch looping answers that are taken out of drafts and not of accepted tokens, or of nothing."""
    row = results_frame(analysed(cell())).iloc[0]
    assert row["looping_answers"] == 0.5
    assert row["acceptance_rate"] == 150 / 750 and row["acceptance_rate_without_loops"] == 0
    assert row["full_draft_length"] == 1 + 150 / 250 and row["full_draft_length_without_loops"] == 1
    row = results_frame(analysed(cell([request("a", TEXT[:200], 1), request("b", TEXT[:40], 0, **ENDED)]))).iloc[0]
    assert row["looping_answers"] == 0 and row["acceptance_rate_without_loops"] == row["acceptance_rate"] > 0


def test_a_cell_that_loops_is_marked_and_named():
    """In tables of acceptance, on the first screen and in warnings. Would catch an inflated number without a mark."""
    baseline = cell_record(LOOPING, 1.0, baseline_settings())
    plain = replace(baseline, requests=tuple(request_record([round_record(0, 0, 0.1)], name) for name in "ab"))
    cells = analysed(plain, cell(), cell(verification__method="block"))
    for table in (summary_table(cells), paired_table(cells), *method_tables(cells)):
        assert LOOPS_NOTE in table.notes and any(LOOPS in text for row in table.texts for text in row), table.title
    rate = summary_table(cells).header.index("acceptance rate (%)")
    assert summary_table(cells).texts[1][rate].endswith(LOOPS)
    numbers = "50.0 % of the answers loop (1 of 2); acceptance 0.0 % without them, 20.0 % with; "
    numbers += "acceptance length of full drafts 1.00 without"
    lines = [line for line in warnings(Results((), tuple(cells))) if line.startswith("loops: ")]
    assert len(lines) == 2 and all(numbers in line for line in lines)
    assert sum(numbers in line for line in FirstScreen(tuple(cells), {}).below) == 2


def test_few_loops_among_many_answers_are_told_by_columns_alone():
    requests = [LOOPING[0], *(request(f"{number}", TEXT[:8], 1, **ENDED) for number in range(100))]
    cells = analysed(cell(requests))
    assert 0 < results_frame(cells)["looping_answers"][0] < 0.01
    assert not any(line.startswith("loops") for line in warnings(Results((), tuple(cells))))
    assert LOOPS_NOTE not in summary_table(cells).notes


@pytest.mark.parametrize(
    "changes",
    [
        {"target__weights": "random"},
        {"verification__method": "synthetic", "guarantee": "synthetic"},
    ],
    ids=["random weights", "synthetic"],
)
def test_of_a_text_that_means_nothing_nothing_is_said(changes):
    cells = analysed(cell(**changes))
    names = ["looping_answers", "acceptance_rate_without_loops", "full_draft_length_without_loops"]
    assert results_frame(cells)[names].isna().all(axis=None)
    assert LOOPS_NOTE not in summary_table(cells).notes


def test_answers_that_cannot_be_judged_are_told_and_no_zero():
    """Would catch a cell whose loops are not found for one answer of unknown tokens, and a share of 0 % of answers that
    are cut at 48 tokens and were not judged."""
    told = {"rounds": (), "arrivals": (Arrival(0.2, 200),), "counts": DraftCounts(50, 150, 150)}
    known = [replace(request(f"{number}", loop(4), 3), **told) for number in range(9)]
    unknown = replace(known[0], prompt_id="unknown", output_token_ids=(), counts=DraftCounts(50, 150, 0))
    served = cell_record([*known, unknown], 1.0, config(), knowledge=Knowledge.requests)
    (found,) = analysed(served)
    assert found.estimate("looping_answers").value == 1
    assert isnan(found.estimate("acceptance_rate_without_loops").value)
    lines = [line for line in warnings(Results((), (found,))) if line.startswith("loops: ")]
    assert "100.0 % of the answers that can be judged loop (9 of 9)" in lines[0]
    assert "1 of 10 answers cannot be judged: the tokens of 1 are not known" in lines[1]
    short = cell([request(f"{number}", loop(4, 48), 3) for number in range(10)])
    (found,) = analysed(short)
    names = ["looping_answers", "acceptance_rate_without_loops", "full_draft_length_without_loops"]
    assert results_frame([found])[names].isna().all(axis=None)
    (line,) = [line for line in warnings(Results((), (found,))) if line.startswith("loops: ")]
    assert "10 of 10 answers cannot be judged: 10 were cut below 64 tokens" in line


def test_loops_of_a_server_are_found_where_it_gives_tokens():
    """By the counts of a request where rounds are not known; and no share without tokens."""
    counts = {"a": DraftCounts(50, 150, 150), "b": DraftCounts(200, 600, 0)}
    served = [
        replace(item, rounds=(), arrivals=(Arrival(0.2, 200),), counts=counts[item.prompt_id]) for item in LOOPING
    ]
    (found,) = analysed(cell_record(served, 1.0, config(), knowledge=Knowledge.requests))
    assert found.estimate("looping_answers").value == 0.5
    assert (found.estimate("acceptance_rate").value, found.estimate("acceptance_rate_without_loops").value) == (0.2, 0)
    without = [replace(item, output_token_ids=()) for item in served]
    row = results_frame(analysed(cell_record(without, 1.0, config(), knowledge=Knowledge.requests))).iloc[0]
    assert row[["looping_answers", "acceptance_rate_without_loops"]].isna().all() and row["acceptance_rate"] == 0.2
