"""Acceptance and speed by the length of the context, on rounds of known length, and by category."""

import pytest

from harness.analysis.context_length import by_context_length
from harness.analysis.definitions import metric
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.report.tables.prompt_axes import category_tables, context_length_tables
from tests.support.synthetic_cells import analysed, baseline_settings, cell_record, request_record, round_record


def request_from(num_prompt_tokens, prompt_id):
    """Rounds whose contexts are the prompt's tokens and 1, 4 and 5 more; the last draft is shortened."""
    rounds = [round_record(0, 0, 1.0), round_record(3, 2, 2.0), round_record(3, 0, 3.0)]
    rounds.append(round_record(2, 2, 4.0, num_proposed=3))
    return request_record(rounds, prompt_id, num_prompt_tokens=num_prompt_tokens)


def test_a_round_is_counted_by_the_tokens_before_it():
    """Would catch a length that holds the round's own tokens, and drafts shortened by a limit that count in full."""
    (cell,) = analysed(cell_record([request_from(252, "a"), request_from(2000, "b")]))
    classes = by_context_length(cell).values()
    assert [(item.label, item.num_drafts) for item in classes] == [
        ("0 to 255", 1),
        ("256 to 1023", 2),
        ("1024 to 4095", 3),
    ]
    values = [
        [item.estimates.estimate(name).value for name in ("acceptance_rate", "full_draft_length")] for item in classes
    ]
    assert values == [[2 / 3, 3.0], [2 / 5, 1.0], [4 / 8, 2.0]]
    (table,) = context_length_tables([cell])
    place = table.header.index("context (tokens)")
    assert [row[place] for row in table.rows] == ["0 to 255", "256 to 1023", "1024 to 4095"]


def entry(table, row, label):
    return row[table.header.index(label)]


def test_speed_of_a_part_is_that_of_its_own_rounds_beside_the_baseline_s_in_the_same_part():
    """Would catch a speedup over the baseline's other prompts, and time of one class that is counted in another."""

    def cell_of(share_s, num_output, settings):
        """Two prompts of 10 and 2000 tokens; the second takes three times as long per round."""
        requests = []
        for prompt_id, length, factor in (("a", 10, 1), ("b", 2000, 3)):
            depth = num_output - 1
            rounds = [
                round_record(depth, depth, float(number + 1), share_s=share_s * factor, num_output=num_output)
                for number in range(2)
            ]
            requests.append(request_record(rounds, prompt_id, num_prompt_tokens=length, category=f"of {prompt_id}"))
        return cell_record(requests, wall_s=8 * share_s, settings=settings)

    plain = cell_of(0.1, 1, baseline_settings())
    drafting = cell_of(0.2, 4, None)
    _, cell = analysed(plain, drafting)
    assert cell.baseline is not None
    for tables, label in ((context_length_tables, "context (tokens)"), (category_tables, "category")):
        (table,) = tables(list(analysed(plain, drafting)))
        assert [entry(table, row, label) for row in table.rows] in (["0 to 255", "1024 to 4095"], ["of a", "of b"])
        speeds = [entry(table, row, metric("output_tokens_per_s").label).value for row in table.rows]
        speedups = [entry(table, row, metric("speedup").label).value for row in table.rows]
        assert speeds == [pytest.approx(4 / 0.2), pytest.approx(4 / 0.6)] and speedups == [pytest.approx(2)] * 2


def test_one_category_is_no_axis():
    assert not category_tables(analysed(cell_record([request_from(9, "a"), request_from(9, "b")])))


def test_without_rounds_or_in_one_class_there_is_no_table():
    """Would catch zeros in the place of what a server did not tell."""
    counted = request_record(
        [], "a", counts=DraftCounts(1, 3, 2), arrivals=(Arrival(1.0, 3),), output_token_ids=(7,) * 3
    )
    cells = analysed(cell_record([counted], knowledge=Knowledge.requests), cell_record([request_from(9, "a")]))
    assert [len(by_context_length(cell)) for cell in cells] == [0, 1] and not context_length_tables(cells)
