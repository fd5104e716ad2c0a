"""What the best choice of depths would have reached: at known times and lengths, and against all policies."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from harness.analysis.decode_steps import decode_rounds
from harness.analysis.depth_optimum import depth_families
from harness.analysis.depths_taken import never_taken
from harness.analysis.recorded_terms import Recorded
from harness.analysis.results import Results
from harness.records.acceptance_terms import COLUMNS, DraftTerms, RequestTerms, collect_terms, measured_drafts
from harness.report.cell_names import DEPTHS, label_notes
from harness.report.tables.depth_choice import depth_choice_tables
from harness.report.warnings import warnings
from tests.support.synthetic_cells import analysed, baseline_settings, cell_record, config, request_record, round_record

NUM_PROMPTS, NUM_ROUNDS, LENGTHS = 16, 40, {0: 1, 1: 2, 3: 3}
"""Every round of depth K emits as many tokens."""
STEP_S = {1: {0: 0.010, 1: 0.014, 3: 0.018}, 2: {0: 0.010, 1: 0.016, 3: 0.030}}
"""By the requests that decode: 3 drafts are best for one, 1 for two."""


def cell(depth_of, settings):
    """Prompts in pairs that decode together, the second of them half as long; each pair begins with a prompt's step."""
    requests, now = [], 0.0
    for pair in range(NUM_PROMPTS // 2):
        now += 0.5
        rounds = [[round_record(0, 0, now, share_s=0.25)] for _ in range(2)]
        for place in range(NUM_ROUNDS):
            size = 2 if place < NUM_ROUNDS // 2 else 1
            depth = depth_of[size]
            now += STEP_S[size][depth]
            for mine in rounds[:size]:
                accepted, share_s = LENGTHS[depth] - 1, STEP_S[size][depth] / size
                measured = (1.0, 1.0, 1.0) if depth else None
                mine.append(round_record(depth, accepted, now, share_s=share_s, expected=measured))
        requests += [request_record(mine, f"{2 * pair + place:02}") for place, mine in enumerate(rounds)]
    return cell_record(requests, now, settings)


def fixed(depth, **changes):
    settings = config(drafting__num_speculative_tokens=depth, verification__method="probabilistic", **changes)
    return cell({1: depth, 2: depth}, settings)


def chosen(by_size, text):
    settings = config(drafting__num_speculative_tokens=3, drafting__depth=text, verification__method="probabilistic")
    return cell(by_size, settings)


BASELINE = cell({1: 0, 2: 0}, baseline_settings())


def test_the_optimum_takes_the_best_depth_of_each_batch_size():
    """Would catch steps with prompts among the others, a size that is taken for another, and a depth that is best for
    all sizes together."""
    cells = analysed(BASELINE, fixed(1), fixed(3), chosen({1: 3, 2: 1}, "1:3/2:1"), chosen({1: 1, 2: 3}, "planner"))
    (family,) = depth_families(cells)
    none, one, three, best, worst = (item.share.value for item in family)
    assert best == pytest.approx(1)
    assert none < worst < min(one, three) and max(one, three) < 1
    # 2 requests emit 2 * 2 tokens in 16 ms, one emits 3 in 18 ms
    assert family[3].tokens_per_s.value == pytest.approx((20 * 4 + 20 * 3) / (20 * 0.016 + 20 * 0.018))
    # with one draft a step of two takes 16 ms in 20 steps; its 40 tokens alone would have taken 40 / 3 steps of 18 ms
    assert one == pytest.approx((20 * 0.016 + 40 / 3 * 0.018) / (20 * 0.016 + 20 * 0.014))


def crowded(depth, step_s, settings, begins_together=False):
    """Each step ends a prompt and has two requests decode; or the requests begin together, and then all decode."""
    num_requests, requests = NUM_PROMPTS, []
    for number in range(num_requests):
        first = 0 if begins_together else number
        rounds = [round_record(0, 0, 0.1 + first * step_s, share_s=0.0)]
        for place in (1, 2):
            end = 0.1 + (first + place) * step_s
            rounds.append(
                round_record(depth, LENGTHS[depth] - 1, end, share_s=step_s / (num_requests if begins_together else 2))
            )
        requests.append(request_record(rounds, f"{number:02}"))
    return cell_record(requests, 0.1 + (num_requests + 2) * step_s, settings)


def test_steps_among_prompts_count_although_plain_decoding_has_few():
    """With many requests in flight prompts end in every step, but plain decoding of answers of one length goes in lock
    step. Would catch a comparison of the few steps without prompts, which are those at the end of the run."""
    cells = [crowded(0, 0.010, baseline_settings(), begins_together=True)]
    for depth, step_s in ((1, 0.016), (3, 0.030)):
        settings = config(drafting__num_speculative_tokens=depth, verification__method="probabilistic")
        cells.append(crowded(depth, step_s, settings))
    settings = config(
        drafting__num_speculative_tokens=3, drafting__depth="planner", verification__method="probabilistic"
    )
    cells.append(crowded(3, 0.032, settings))
    (family,) = depth_families(analysed(*cells))
    assert [item.cell.is_baseline for item in family] == [False] * 3
    one, three, planner = family
    # two requests emit 2 tokens each in 16 ms, or 3 in 30 ms
    assert one.share.value == pytest.approx(1, abs=0.01)
    assert three.share.value == pytest.approx((6 / 0.030) / (4 / 0.016), abs=0.01)
    assert planner.share.value == pytest.approx((6 / 0.032) / (4 / 0.016), abs=0.01)


def test_cells_without_a_step_that_reads_no_prompt_are_left_out():
    """Would catch a report that answers of one token end."""
    draw = request_record([round_record(0, 0, 0.5, share_s=0.5)], "00")
    cells = [cell_record([draw], 1.0, item.config) for item in (BASELINE, fixed(1), chosen({1: 1, 2: 1}, "planner"))]
    assert depth_families(analysed(*cells)) == []


def test_steps_that_read_prompts_are_told_from_others():
    """Where a prompt ends, and where a part of one is read: its request takes a share of the step and has no round.
    Would catch times of other steps among those of two decoding requests, and a step's time without its prompts."""
    shares = ((0.5, 0.25), (0.6, 0.05), (0.8, 0.05))
    both = [[round_record(0, 0, end, share_s=share) for end, share in shares] for _ in range(2)]
    both[0].append(round_record(0, 0, 0.9, share_s=0.1))
    requests = [request_record(rounds, name) for rounds, name in zip(both, "ab", strict=True)]
    found = decode_rounds(requests, {"a": 0, "b": 1})
    named = zip(found.prompt, found.size, found.reads_prompts, found.seconds.round(9), strict=True)
    kept = sorted((int(prompt), int(size), bool(reads), float(took)) for prompt, size, reads, took in named)
    expected = [(0, 1, False, 0.1), (0, 2, False, 0.05), (0, 2, True, 0.1), (1, 2, False, 0.05), (1, 2, True, 0.1)]
    assert kept == expected
    assert len(decode_rounds(requests, {"b": 0}).size) == 2


def with_terms(cell, target_prob):
    """A cell of certain drafts whose tokens have these probabilities."""
    parts = []
    for request in cell.record.requests:
        drafts = []
        for index, count in measured_drafts(request):
            values = {name: np.ones(count) for name, column in COLUMNS.items() if column.is_required}
            drafts.append(DraftTerms(index, values | dict.fromkeys(("target_prob", "overlap"), np.array(target_prob))))
        parts.append(RequestTerms.of(request.key, drafts))
    return Recorded(cell, collect_terms(cell.record.cell_id, parts))


def test_rows_bound_every_choice_at_the_times_of_the_run():
    """1, .5 and .25 tokens for a draft: one stops behind the first, or goes on while a draft is worth its time. Would
    catch terms of another cell than the deepest, and times that are not those of the numbers of requests."""
    cells = analysed(BASELINE, fixed(1), fixed(3), chosen({1: 3, 2: 1}, "planner"))
    (family,) = depth_families(cells, [with_terms(cells[1], [0.1]), with_terms(cells[2], [1.0, 0.5, 0.5])])
    rates = {}
    for size, times in STEP_S.items():
        known = np.interp(range(4), sorted(times), [times[depth] for depth in sorted(times)])
        rates[size] = max(size * tokens / seconds for tokens, seconds in zip((1, 2, 2.5, 2.75), known, strict=True))
    item = family[1]
    expected = (20 * 4 + 20 * 2) / (20 * 4 / rates[2] + 20 * 2 / rates[1])
    assert item.by_rows.value == pytest.approx(expected)
    assert np.isnan(depth_families(cells, [with_terms(cells[1], [0.1])])[0][1].by_rows.value)


def test_rows_bound_nothing_where_a_grammar_masked_some():
    """Would catch a bound over the rounds without masks, beside the throughput of all."""
    deepest = fixed(3)
    *others, last = deepest.requests
    masked = replace(last, rounds=tuple(structs.replace(item, expected_accepted=None) for item in last.rounds))
    cells = analysed(BASELINE, fixed(1), replace(deepest, requests=(*others, masked)), chosen({1: 3, 2: 1}, "planner"))
    assert np.isnan(depth_families(cells, [with_terms(cells[2], [1.0, 0.5, 0.5])])[0][1].by_rows.value)


def test_the_interval_of_the_bound_has_the_times_in_it():
    """Every draft is accepted, and steps of some prompts take twice as long. Would catch observed times."""

    def uneven(depth, settings):
        requests, now = [], 0.0
        for prompt in range(NUM_PROMPTS):
            rounds = [round_record(0, 0, now + 0.1, share_s=0.1)]
            now += 0.1
            for _ in range(10):
                share_s = (0.01 + 0.001 * depth) * (1 + prompt % 2)
                now += share_s
                measured = (float(depth),) * 3 if depth else None
                rounds.append(round_record(depth, depth, now, share_s=share_s, expected=measured))
            requests.append(request_record(rounds, f"{prompt:02}"))
        return cell_record(requests, now, settings)

    def at(depth, **changes):
        return config(drafting__num_speculative_tokens=depth, verification__method="probabilistic", **changes)

    cells = analysed(uneven(0, baseline_settings()), uneven(2, at(2)), uneven(2, at(2, drafting__depth="planner")))
    (family,) = depth_families(cells, [with_terms(cells[1], [1.0, 1.0])])
    for item in family:
        assert item.by_rows == pytest.approx(item.by_batch), "two drafts a round, whatever the rows"
        assert item.by_rows.low < 0.95 * item.by_rows.value < 1.05 * item.by_rows.value < item.by_rows.high


def test_the_table_names_every_choice():
    """And is left out where no cell chooses, or what fixed depths are worth is not known."""
    confident = fixed(3, drafting__min_confidence=0.3)
    cells = [BASELINE, fixed(1), fixed(3), chosen({1: 3, 2: 1}, "1:3/2:1"), confident]
    (table,) = depth_choice_tables(analysed(*cells))
    depths = [row[table.header.index("depth")] for row in table.texts]
    assert depths == ["no drafts", "K = 1", "K = 3", "K = 3, 1:3/2:1", "K = 3, confidence 0.3"]
    taken, best = (
        [row[table.header.index(name)] for row in table.texts] for name in ("drafts of a round", "best by batch")
    )
    assert taken == ["0", "1", "3", "1: 67%, 3: 33%", "3"], "a pair has 40 rounds together, and one of them 20 alone"
    assert best == ["1: 67%, 3: 33%"] * 5
    assert depth_choice_tables(analysed(*cells[:3])) == []
    *_, by_batch, by_row = analysed(*cells)
    assert (by_batch["depth"], by_row["depth"]) == ("1:3/2:1", "confidence 0.3")
    assert by_row.drafts == "sampled (confidence 0.3)" and by_row["other_settings"] == ""
    assert DEPTHS in label_notes([by_batch]) and DEPTHS not in label_notes(analysed(*cells[:3]))
    old = config()
    del old["drafting"]["depth"], old["drafting"]["min_confidence"]
    assert analysed(cell({1: 3, 2: 3}, old))[0]["depth"] == "", "records are older than the settings"
    assert depth_choice_tables(analysed(cells[1], cells[3])) == []


def test_entries_of_a_table_that_no_step_came_to_are_named():
    """Would catch a depth that seems to be measured and never was, and a step that ends a prompt counted as a round."""
    tables = {"1:3/2:1": {1: 3, 2: 1}, "1:3/2:1/8:0/32:2": {1: 3, 2: 1}, "planner": {1: 3, 2: 1}}
    cells = analysed(BASELINE, fixed(3), *(chosen(by_size, text) for text, by_size in tables.items()))
    found = [text for text in warnings(Results((), tuple(cells))) if text.startswith("depth: ")]
    assert found == [
        "depth: of drafting.depth=1:3/2:1/8:0/32:2 no step came to 8:0/32:2: 1 to 2 requests decoded at a time "
        "(eagle3 probabilistic, sampled drafts, 1:3/2:1/8:0/32:2)"
    ]
    alone = request_record([round_record(0, 0, 0.5), round_record(1, 1, 0.6)], "00")
    settings = chosen({1: 1, 2: 1}, "1:1/2:3").config
    assert never_taken(analysed(cell_record([alone], 1.0, settings))[0]) == (((2, 3),), 1, 1)
    early = request_record([round_record(0, 0, 0.5)], "00")
    assert never_taken(analysed(cell_record([early], 1.0, settings))[0]) is None
