"""Speedups that drafts cannot have bought, and times of other sessions: marked, and named fastest nowhere."""

import io
from dataclasses import replace

import pytest
from msgspec import structs

from harness.analysis.cell import ABOVE_BOUND
from harness.analysis.frame import results_frame
from harness.analysis.ranking import IMPOSSIBLE, OTHER_SESSION
from harness.analysis.results import Results
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.records.schema import Block
from harness.report.cell_names import DISTURBED, DISTURBED_NOTE
from harness.report.console import print_summary
from harness.report.first_screen import LEGEND
from harness.report.ranking_notes import CANNOT_BE_TOLD
from harness.report.tables.concurrency import UNDECIDED, concurrency_tables
from harness.report.tables.depth import depth_tables
from harness.report.tables.fastest import NO_DRAFTS, fastest_tables
from harness.report.tables.summary import summary_table
from harness.report.warnings import warnings
from tests.report.test_axis_tables import column
from tests.support.synthetic_cells import (
    analysed,
    baseline_settings,
    cell_record,
    config,
    request_record,
    round_record,
    simulated_cell,
)

NUM_PROMPTS = 6
HALVES = ("first", "second")


def measured(record, slowed, sessions=HALVES):
    """The record with two blocks of three prompts, the steps of each so many times as long, of these sessions."""
    requests, blocks = [], []
    for index, (factor, session) in enumerate(zip(slowed, sessions, strict=True)):
        part = record.requests[3 * index : 3 * index + 3]
        part = [
            replace(item, rounds=tuple(structs.replace(each, share_s=each.share_s * factor) for each in item.rounds))
            for item in part
        ]
        wall_s = sum(each.share_s for item in part for each in item.rounds)
        tokens = sum(item.num_output_tokens for item in part)
        blocks.append(Block(index, session, 0, 10.0 * index, 10.0 * index + wall_s, len(part), tokens, wall_s))
        requests += part
    return replace(record, requests=tuple(requests), blocks=tuple(blocks), wall_s=sum(item.wall_s for item in blocks))


def baseline(*slowed, sessions=HALVES):
    record = simulated_cell(baseline_settings(), [], num_prompts=NUM_PROMPTS, num_rounds=40, spread=0.05)
    return measured(record, slowed, sessions)


def drafted(*slowed, sessions=HALVES, method="probabilistic", depth=1, step_s=0.0115, **changes):
    settings = config(verification__method=method, drafting__num_speculative_tokens=depth, **changes)
    options = {"num_prompts": NUM_PROMPTS, "num_rounds": 24, "spread": 0.05, "step_s": step_s}
    return measured(simulated_cell(settings, [0.68] * depth, **options), slowed, sessions)


def resumed_run():
    """A run that was stopped between its blocks and went on: other work slowed every turn but one of strict's."""
    busy = (2.0, 2.0)
    return analysed(
        baseline(*busy), drafted(1.0, 1.0, method="strict"), *(drafted(*busy, method=each) for each in ("block", "fly"))
    )


def test_a_speedup_above_the_tokens_of_a_forward_is_marked_wherever_it_is_shown():
    """Would catch "fastest: K = 1, 2.9" of a cell that emits 1.7 tokens a forward, as a report once said."""
    cells = resumed_run()
    strict = cells[1]
    length = strict.estimate("tokens_per_forward").value
    assert strict.speedup.value > 1.5 * length and strict.speedup_bound == pytest.approx(length)
    assert [cell.disturbed for cell in cells] == ["", ABOVE_BOUND, "", ""]
    frame = results_frame(cells).set_index("verification")
    assert frame.disturbed.to_list() == ["", ABOVE_BOUND, "", ""]
    assert frame.speedup_bound["strict"] == pytest.approx(length) and frame.speedup_bound[""] == 1
    (line,) = [text for text in warnings(Results((), tuple(cells))) if "can buy" in text]
    assert f"{strict.speedup.value:.2f} > {length:.2f}" in line and "strict" in line and "block" not in line
    table = summary_table(cells)
    marks = [text.endswith(DISTURBED) for text in column(table, "speedup")]
    assert marks == [text == "strict" for text in column(table, "verification")] and DISTURBED_NOTE in table.notes
    stream = io.StringIO()
    print_summary(cells, stream)
    rows, _, _ = stream.getvalue().partition("gained on")
    marked = [line.split()[0] for line in rows.splitlines() if line.endswith(DISTURBED)]
    # a wide table is folded
    assert {*marked} == {"strict"} and LEGEND in " ".join(stream.getvalue().split())
    assert f"(not ranked: {IMPOSSIBLE})" in " ".join(stream.getvalue().split())
    (table,) = fastest_tables(cells)
    assert column(table, "fastest") != ["K = 1, strict, sampled drafts"]
    assert column(table, "not ranked") == [f"K = 1, strict, sampled drafts [2 sessions] ({IMPOSSIBLE})"]
    assert any(note.startswith(f"not ranked, {IMPOSSIBLE}") for note in table.notes)


def test_no_depth_is_best_and_no_drafting_pays_by_an_impossible_speedup():
    """Would catch a best K that was measured while the machine was idle, and "pays" in the table of the concurrency."""
    cells = [
        each
        for size in (1, 8)
        for each in (
            replace(baseline(2.0, 2.0), config=baseline_settings(backend__max_concurrency=size), cell_id=f"none{size}"),
            drafted(1.0, 1.0, depth=1, backend__max_concurrency=size),
            drafted(2.0, 2.0, depth=2, step_s=0.012, backend__max_concurrency=size),
        )
    ]
    best, by_depth = depth_tables(analysed(*cells))
    assert column(best, "best K") == ["2", "2"] and column(best, "not ranked") == [f"1 ({IMPOSSIBLE})"] * 2
    assert column(by_depth, "verdict")[1] == f"not ranked: {IMPOSSIBLE}"
    assert column(by_depth, "throughput / that of the best K")[1] == "n/a"
    (table,) = concurrency_tables(analysed(*cells))
    verdicts = dict(zip(column(table, "K"), column(table, "speculation"), strict=True))
    assert verdicts == {"1": UNDECIDED, "2": "pays"}


@pytest.mark.parametrize(("step_s", "is_ranked"), [(0.0098, True), (0.009, False)], ids=["2 %", "10 %"])
def test_a_speedup_above_its_bound_by_noise_is_marked_and_ranked(step_s, is_ranked):
    """Would catch a drafter that is thrown out of the ranking, and called disturbed, for a tie that fell its way."""
    cells = analysed(baseline(1.0, 1.0), drafted(1.0, 1.0, method="strict", step_s=step_s), drafted(1.0, 1.0))
    assert cells[1].exceeds_bound and cells[1].is_impossible is not is_ranked
    (table,) = fastest_tables(cells)
    name = "strict" if is_ranked else "probabilistic"
    assert column(table, "fastest") == [f"K = 1, {name}, sampled drafts [2 sessions]"]
    (line,) = [text for text in warnings(Results((), tuple(cells))) if "can buy" in text]
    assert ("which is noise of the machine" in line) == is_ranked == ("run again" not in line)


def test_noise_above_the_bound_does_not_pay():
    """Would catch "pays" of a drafter that accepts nothing, whose speedup is 1.02 by noise alone."""
    cells = []
    for size in (1, 8):
        given = {"num_prompts": NUM_PROMPTS, "num_rounds": 40, "spread": 0.0}
        cells.append(simulated_cell(baseline_settings(backend__max_concurrency=size), [], **given))
        cells.append(simulated_cell(config(backend__max_concurrency=size), [0.0], step_s=0.0098, **given))
    found = analysed(*cells)
    assert all(cell.speedup.low > 1 and not cell.is_impossible for cell in found if not cell.is_baseline)
    (table,) = concurrency_tables(found)
    assert column(table, "speculation") == [UNDECIDED] * 2


def test_where_only_plain_decoding_is_left_nothing_is_fastest():
    """Would catch no drafts that win because the machine was busy while they ran."""
    cells = analysed(baseline(3.0, 3.0), *(drafted(1.0, 1.0, method=each) for each in ("strict", "block")))
    (table,) = fastest_tables(cells)
    assert column(table, "fastest") == [CANNOT_BE_TOLD]
    assert any(note.startswith(CANNOT_BE_TOLD) for note in table.notes)


def test_a_round_that_costs_a_plain_forward_is_at_the_bound_and_not_above():
    """Would catch a bound below what drafting can reach: free drafts, of requests one by one."""
    cells = []
    for settings, rates in ((baseline_settings(), []), (config(), [0.9] * 3)):
        requests = simulated_cell(settings, rates, num_prompts=4).requests
        cells.append(cell_record(requests, 0.01 * sum(len(item.rounds) for item in requests), settings))
    _, found = analysed(*cells)
    assert found.speedup.value == pytest.approx(found.speedup_bound) and not found.exceeds_bound


def in_one_batch(lengths, num_tokens, settings):
    """Requests that begin together; each has rounds of so many tokens until it has its own number, a second a step."""
    num_rounds = [total // each for total, each in zip(lengths, num_tokens, strict=True)]
    requests = [
        request_record(
            [
                round_record(each - 1, each - 1, step + 1.0, share_s=1 / sum(other > step for other in num_rounds))
                for step in range(own)
            ],
            f"prompt{row}",
        )
        for row, (own, each) in enumerate(zip(num_rounds, num_tokens, strict=True))
    ]
    return cell_record(requests, float(max(num_rounds)), settings)


def test_a_long_answer_that_drafts_shorten_most_can_buy_more_than_the_mean_tokens_of_a_forward():
    """Would catch a bound that forgets partial batches: the baseline's long answer ran alone for 90 of 100 steps."""
    lengths = [100, 10]
    cells = analysed(in_one_batch(lengths, [1, 1], baseline_settings()), in_one_batch(lengths, [10, 1], config()))
    found = cells[1]
    assert found.estimate("tokens_per_forward").value == 5.5 and found.speedup.value == pytest.approx(10)
    assert found.speedup_bound == pytest.approx(10) and not found.exceeds_bound
    slower = analysed(replace(cells[0].record, wall_s=120.0), found.record)[1]
    assert slower.speedup.value == pytest.approx(12) and slower.exceeds_bound


@pytest.mark.parametrize(
    ("knowledge", "bound"),
    [(Knowledge.requests, 10 / 6), (Knowledge.blocks, 10 / 6), (Knowledge.arrivals, 4)],
    ids=lambda item: getattr(item, "value", ""),
)
def test_a_server_that_tells_no_rounds_has_a_bound_too(knowledge, bound):
    """10 tokens of which 4 were accepted took 6 forwards; where nothing is counted, a forward gave K + 1 at most."""

    def served(num_chunks, step_s, counts, settings):
        arrivals = tuple(Arrival(step_s * (index + 1), 10 // num_chunks) for index in range(num_chunks))
        one = replace(request_record([round_record(0, 0, 1.0)]), rounds=(), output_token_ids=(), arrivals=arrivals)
        requests = [
            replace(one, prompt_id=name, counts=counts if knowledge is Knowledge.requests else None) for name in "ab"
        ]
        wall_s = num_chunks * step_s
        total = replace(counts, **{name: 2 * getattr(counts, name) for name in COUNTED})
        block = Block(0, "one", 0, 0.0, 1.0, 2, 20, wall_s, total if knowledge is Knowledge.blocks else None)
        return cell_record(requests, wall_s, settings, knowledge=knowledge, blocks=(block,))

    plain, counts = served(10, 1.0, DraftCounts(), baseline_settings()), DraftCounts(5, 15, 4)
    for speed, is_impossible in ((0.99 * bound, False), (1.01 * bound, True)):
        _, found = analysed(plain, served(5, 2.0 / speed, counts, config()))
        assert found.speedup.value == pytest.approx(speed) and found.speedup_bound == pytest.approx(bound)
        assert found.exceeds_bound is is_impossible


COUNTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


def test_cells_of_other_sessions_are_not_ranked():
    """Would catch a fastest cell that ran on another day, and one that is compared on prompts of two days."""
    plain = baseline(1.0, 2.0)
    both = drafted(1.0, 2.0, method="block")
    alone = drafted(0.9, 0.9, sessions=("later", "later"), method="strict")
    cells = analysed(plain, both, alone, drafted(1.1, 2.2, method="fly"))
    (table,) = fastest_tables(cells)
    assert column(table, "fastest") == ["K = 1, block, sampled drafts [2 sessions]"]
    assert column(table, "not ranked") == [f"K = 1, strict, sampled drafts ({OTHER_SESSION})"]
    assert any(note.startswith(f"not ranked, {OTHER_SESSION}") for note in table.notes)


def test_the_ranking_is_over_prompts_that_one_session_measured_in_all_cells():
    """Would catch a cell that wins since its second half ran later, on an idle machine: throughputs of all prompts are
    those of two days."""
    plain = baseline(1.0, 1.0)
    steady = drafted(1.0, 1.0, method="block")
    lucky = drafted(1.1, 0.3, method="strict", sessions=("first", "later"))
    cells = analysed(plain, steady, lucky)
    speeds = [cell.estimate("output_tokens_per_s").value for cell in cells]
    assert max(speeds) == speeds[2] and not cells[2].exceeds_bound
    (table,) = fastest_tables(cells)
    assert column(table, "fastest") == ["K = 1, block, sampled drafts [2 sessions]"]
    assert "ranked on 3 of 6 prompts: those that one session measured in all cells." in table.notes
    (line,) = [text for text in warnings(Results((), tuple(cells))) if text.startswith("speedup: over 3 of 6 prompts")]
    assert "strict" in line and "block" not in line


def test_without_a_baseline_of_their_session_cells_are_ranked_among_themselves():
    """Would catch cells that were added later and are not compared at all, and a baseline of another day that wins."""
    later = ("later", "later")
    cells = analysed(
        baseline(0.2, 0.2), drafted(1.0, 1.0, sessions=later), drafted(1.3, 1.3, sessions=later, method="block")
    )
    (table,) = fastest_tables(cells)
    assert column(table, "fastest") == ["K = 1, probabilistic, sampled drafts"]
    assert column(table, "not ranked") == [f"{NO_DRAFTS} [2 sessions] ({OTHER_SESSION})"]
