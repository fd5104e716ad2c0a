"""Steps without CUDA graphs compute the rows of the running requests, and little beside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.engine.request import Limits, Request
from harness.models.target import TargetModel
from tests.support.tiny_engines import KINDS, NUM_SLOTS, tiny_engine

ENDS = frozenset(range(0, 60, 5))


def requests(lengths):
    return [
        Request(
            f"p{index}", "tiny", 0, 0, 7 * index + 1, tuple((3 * index + place) % 50 + 1 for place in range(length))
        )
        for index, length in enumerate(lengths)
    ]


def run(kind, asked):
    engine = tiny_engine(kind)
    engine.settings = replace(engine.settings, limits=Limits(12, ENDS))
    return {record.prompt_id: record for record in engine.run(asked, lambda answer: None).requests}


@pytest.fixture
def num_read(monkeypatch):
    """Tokens of each forward of a target."""
    found, forward = [], TargetModel.forward

    def counting(self, token_ids, *arguments):
        found.append(token_ids.numel())
        return forward(self, token_ids, *arguments)

    monkeypatch.setattr(TargetModel, "forward", counting)
    return found


def alone(kind):
    """Records of requests that ran alone, in ascending order of their rounds: in that order they leave gaps."""
    records = [(request, run(kind, [request])[request.prompt_id]) for request in requests([6] * NUM_SLOTS)]
    records.sort(key=lambda pair: len(pair[1].rounds))
    assert len(records[0][1].rounds) < len(records[-1][1].rounds)
    return records


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "draft_model"])
def test_a_slot_whose_request_ended_costs_no_rows(kind, num_read):
    records = alone(kind)
    num_read.clear()
    run(kind, [request for request, _ in records])
    width = 1 if kind == "none" else 3
    # the first round is the end of the prompt
    expected = sum(6 + width * (len(record.rounds) - 1) for _, record in records)
    # prompt lookup does not always find K tokens, and columns that no request drafts are not read
    assert sum(num_read) < expected if kind == "ngram" else sum(num_read) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_moves_to_another_slot_goes_on_as_if_it_had_not(kind):
    records = alone(kind)
    together = run(kind, [request for request, _ in records])
    for request, expected in records:
        found = together[request.prompt_id]
        assert found.output_token_ids == expected.output_token_ids
        accepted = [[item.num_accepted_tokens for item in record.rounds] for record in (found, expected)]
        assert accepted[0] == accepted[1]


def test_short_prompts_are_not_padded_to_a_long_one(num_read):
    run("none", requests([2, 14, 2]))
    assert num_read[:2] == [4, 14]
