"""At temperature 0 a report says of the answers what they are: the baseline's token by token, or how many are not."""

from dataclasses import replace

import pytest

from harness.analysis.answers import OtherAnswers, other_answers
from harness.analysis.comparison import comparisons_frame
from harness.analysis.frame import results_frame
from harness.analysis.results import Results
from harness.records.counts import Arrival, Knowledge
from harness.report.answer_notes import ARGMAX
from harness.report.entries import same_answers
from harness.report.tables.methods import method_tables, paired_table
from harness.report.warnings import warnings
from tests.support.synthetic_cells import analysed, baseline_settings, cell_record, config, request_record, round_record

pytestmark = pytest.mark.fast

TEXT = (5, 6, 7, 8)
TAIL, HEAD = (5, 6, 7, 9), (4, 6, 7, 8)
"""Answers that part from it at their last token, and at their first."""


def requests(*answers, turns=1):
    """One request for each answer, in conversations of so many turns."""
    found = []
    for number, answer in enumerate(answers):
        prompt, turn = divmod(number, turns)
        rounds = [round_record(0, 0, 0.1), round_record(2, 2, 0.2)]
        found.append(request_record(rounds, f"{prompt}", turn=turn, output_token_ids=answer))
    return found


def baseline(*answers, **changes):
    rounds = tuple(round_record(0, 0, 0.1 * at) for at in range(1, 5))
    plain = [replace(item, rounds=rounds) for item in requests(*answers)]
    return cell_record(plain, 2.0, baseline_settings(decoding__temperature=0.0, dtype="bfloat16"), **changes)


def greedy(method, *answers, **changes):
    settings = {"decoding__temperature": 0.0, "verification__method": method, "dtype": "bfloat16"} | changes
    return cell_record(requests(*answers), 1.0, config(**settings))


def notes_on_argmax(table):
    return [note for note in table.notes if note.startswith(ARGMAX)]


def test_answers_are_compared_by_request():
    """Would catch a later turn, which answers another prompt, that names the place, and unknown tokens called equal."""
    first = cell_record(requests(TEXT, TEXT, TEXT, TEXT, turns=2))
    second = cell_record(requests(TEXT, TEXT, TAIL, HEAD, turns=2))
    assert other_answers(first, first) == (4, 0, None, 0, 16)
    assert other_answers(first, second) == other_answers(second, first) == (4, 2, 4, 1, 12)
    assert other_answers(first, cell_record(requests(TEXT))) == (1, 0, None, 0, 4), "one request of both"
    shorter = replace(requests(TEXT)[0], output_token_ids=TEXT[:2], rounds=(round_record(1, 1, 0.2),))
    assert other_answers(first, cell_record([shorter])) == (1, 1, 3, 1, 3)
    unknown = replace(first.requests[0], rounds=(), output_token_ids=(), arrivals=(Arrival(0.2, 4),))
    served = cell_record([unknown], knowledge=Knowledge.arrivals)
    assert other_answers(served, served) == OtherAnswers(0, 0, None)
    assert [same_answers(*analysed(one, two)) for one, two in ((first, second), (served, served))] == ["2 of 4", "–"]


def test_equal_answers_are_called_the_targets_argmax():
    cells = analysed(baseline(TEXT, HEAD), greedy("strict", TEXT, HEAD), greedy("block", TEXT, HEAD))
    for table in (paired_table(cells), *method_tables(cells)):
        (note,) = notes_on_argmax(table)
        assert note.endswith("all 4 answers that were compared are exactly the baseline's, token by token.")
    assert paired_table(cells).texts[0][paired_table(cells).header.index("other answers")] == "0 of 2"
    assert not any(line.startswith("answers:") for line in warnings(Results((), tuple(cells))))
    assert list(results_frame(cells)["num_other_answers"].fillna(-1)) == [-1, 0, 0]


def test_answers_that_differ_are_counted_wherever_the_argmax_is_named():
    """Would catch "exactly the target's argmax tokens" above texts that are not the same."""
    cells = analysed(baseline(TEXT, TEXT), greedy("strict", TEXT, TAIL), greedy("block", HEAD, TEXT))
    for table in (paired_table(cells), *method_tables(cells)):
        (note,) = notes_on_argmax(table)
        assert "but 2 of 4 answers differ from the baseline's, the first from token 1 on" in note
        assert "bfloat16" in note
        assert "exactly" not in " ".join(table.notes)
    table = paired_table(cells)
    assert table.texts[0][table.header.index("other answers")] == "2 of 2, from token 1 on"
    (line,) = [line for line in warnings(Results((), tuple(cells))) if line.startswith("answers:")]
    assert "2 of 4 answers differ from the baseline's, the first from token 1 on" in line
    columns = ["num_answers_compared", "num_other_answers", "first_other_token"]
    assert results_frame(cells)[columns].iloc[1:].values.tolist() == [[2, 1, 4], [2, 1, 1]]
    assert comparisons_frame(cells)[columns].iloc[0].tolist() == [2, 2, 1]


LONG = tuple(range(1000, 1100))
"""An answer of 100 tokens."""


def parted(place):
    """It, parted from it from a place on."""
    return LONG[:place] + tuple(range(2000, 2100 - place))


@pytest.mark.parametrize(
    ("dtype", "answers", "changes", "is_fault"),
    [
        ("float32", [parted(0)] * 8, {}, True),
        ("float32", [LONG] * 7 + [parted(60)], {}, False),
        ("bfloat16", [parted(40), parted(70)] * 4, {}, False),
        ("bfloat16", [parted(0)] * 8, {}, True),
        ("float32", [parted(0)] * 8, {"target__weights": "random"}, False),
        ("float32", [parted(0)] * 8, {"backend__weight_dtype": "fp8"}, False),
        ("auto", [parted(0)] * 8, {}, False),
    ],
    ids=["a fault", "once", "16 bits", "16 bits, a fault", "random weights", "8 bits", "not known"],
)
def test_what_rounding_does_not_explain_is_called_a_fault(dtype, answers, changes, is_fault):
    """Would catch answers that differ from their first token on, as after a wrong position, laid to rounding."""
    settings = {"dtype": dtype, "decoding__temperature": 0.0, **changes}
    plain = cell_record(one_by_one([LONG] * 8), 2.0, baseline_settings(**settings))
    cells = analysed(plain, cell_record(one_by_one(answers), 1.0, config(verification__method="strict", **settings)))
    (line,) = [line for line in warnings(Results((), tuple(cells))) if line.startswith("answers:")]
    (note,) = notes_on_argmax(paired_table(cells))
    for text in (line, note):
        assert ("rounding does not explain it" in text) == is_fault
        assert ("may round otherwise" in text) == (not is_fault)


def one_by_one(answers):
    """Requests of a round for each token."""
    rounds = [round_record(0, 0, 0.1 * at) for at in range(1, len(LONG) + 1)]
    return [request_record(rounds, f"{place}", output_token_ids=each) for place, each in enumerate(answers)]


@pytest.mark.parametrize(
    "changes",
    [
        {"decoding__temperature": 0.5},
        {"verification__method": "synthetic", "guarantee": "synthetic"},
        {"verification__method": "fly", "guarantee": "lossy"},
        {"constraint__policy": "late", "constraint__parser": "zoo", "constraint__kind": "json_schema"},
    ],
    ids=["sampled", "synthetic", "fly", "late"],
)
def test_methods_that_may_write_another_text_are_not_held_to_it(changes):
    plain = baseline(TEXT)
    cell = greedy("strict", HEAD, **changes)
    plain = replace(plain, config=cell.config | {name: plain.config[name] for name in ("drafter", "drafting")})
    cells = analysed(replace(plain, config=plain.config | {"guarantee": "lossless", "draft_sampling": "greedy"}), cell)
    assert cells[1].baseline is not None
    assert not any(line.startswith("answers:") for line in warnings(Results((), tuple(cells))))
    assert results_frame(cells)["num_answers_compared"].isna().all()


def test_without_a_baseline_the_methods_are_compared_with_each_other():
    cells = analysed(greedy("strict", TEXT), greedy("block", TAIL))
    (note,) = notes_on_argmax(paired_table(cells))
    assert "1 of 1 answers differ from those of another method, the first from token 4 on" in note
    (note,) = notes_on_argmax(paired_table(cells[:1]))
    assert note.endswith("there are no tokens of two to compare.")
