"""Acceptance by the length of the context, on rounds of known length."""

from harness.analysis.context_length import by_context_length
from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.report.tables.context_length import context_length_tables
from tests.support.synthetic_cells import analysed, cell_record, request_record, round_record


def request_from(num_prompt_tokens, prompt_id):
    """Rounds whose contexts are the prompt's tokens and 1, 4 and 5 more; the last draft is shortened."""
    rounds = [round_record(0, 0, 1.0), round_record(3, 2, 2.0), round_record(3, 0, 3.0)]
    rounds.append(round_record(2, 2, 4.0, num_proposed=3))
    return request_record(rounds, prompt_id, num_prompt_tokens=num_prompt_tokens)


def test_a_round_is_counted_by_the_tokens_before_it():
    """Would catch a length that holds the round's own tokens, and drafts shortened by a limit that count in full."""
    (cell,) = analysed(cell_record([request_from(252, "a"), request_from(2000, "b")]))
    classes = by_context_length(cell)
    assert [(item.first, item.after, item.num_drafts) for item in classes] == [
        (0, 256, 1),
        (256, 1024, 2),
        (1024, 4096, 3),
    ]
    values = [
        [item.estimates.estimate(name).value for name in ("acceptance_rate", "full_draft_length")] for item in classes
    ]
    assert values == [[2 / 3, 3.0], [2 / 5, 1.0], [4 / 8, 2.0]]
    (table,) = context_length_tables([cell])
    place = table.header.index("context (tokens)")
    assert [row[place] for row in table.rows] == ["0 to 255", "256 to 1023", "1024 to 4095"]


def test_without_rounds_or_in_one_class_there_is_no_table():
    """Would catch zeros in the place of what a server did not tell."""
    counted = request_record(
        [], "a", counts=DraftCounts(1, 3, 2), arrivals=(Arrival(1.0, 3),), output_token_ids=(7,) * 3
    )
    cells = analysed(cell_record([counted], knowledge=Knowledge.requests), cell_record([request_from(9, "a")]))
    assert [len(by_context_length(cell)) for cell in cells] == [0, 1] and not context_length_tables(cells)
