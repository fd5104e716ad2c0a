"""Drafts that end where a draft row is unsure: the same law, fewer drafts, and no work for what is not drafted."""

import pytest

from kernels.contract import DraftSampling, VerificationMethod
from tests.tiny_engines import tiny_engine, tiny_requests

LEAST = {"eagle": 0.28, "eagle3": 0.32, "draft_model": 0.1}
"""About half of the tiny models' draft rows are less confident."""


def play(kind, least, *, graphs=False, **options):
    """({prompt: output}, [(proposed, accepted)] of every round)."""
    engine = tiny_engine(kind, num_speculative_tokens=4, least_confidence=least, graphs=graphs, **options)
    run = engine.run(tiny_requests(5, 6), lambda answer: None)
    rounds = [(each.num_proposed_tokens, each.num_accepted_tokens) for item in run.requests for each in item.rounds]
    return {item.prompt_id: item.output_token_ids for item in run.requests}, rounds


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of one size"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "draft_model"])
def test_coupled_tokens_are_those_of_full_depth(kind, graphs):
    """Coupled tokens depend on no draft. Would catch a draft that is verified against another row than it is drawn
    from, and a target that reads the wrong columns where fewer are drafted."""
    given = {"draft_sampling": DraftSampling.coupled, "method": VerificationMethod.coupled, "graphs": graphs}
    full, at_full_depth = play(kind, 0.0, **given)
    found, rounds = play(kind, LEAST[kind], **given)
    assert found == full
    assert {proposed for proposed, _ in at_full_depth} <= {0, 4}
    assert len({proposed for proposed, _ in rounds}) > 2, "depths differ"


@pytest.mark.parametrize("method", [VerificationMethod.probabilistic, VerificationMethod.block])
def test_columns_that_are_left_out_change_no_token(method):
    """Would catch a count or a row that belongs to another column."""
    assert play("eagle", LEAST["eagle"], method=method) == play("eagle", LEAST["eagle"], method=method, graphs=True)


def test_what_no_row_drafts_is_not_computed(monkeypatch):
    """Would catch a drafter that goes on behind the end, and a target that reads what was not drafted."""
    engine = tiny_engine("eagle", num_speculative_tokens=4, least_confidence=0.999)
    calls = []
    forward = type(engine.target).forward

    def counted(self, token_ids, *others):
        calls.append(token_ids.shape[1])
        return forward(self, token_ids, *others)

    monkeypatch.setattr(type(engine.target), "forward", counted)
    run = engine.run(tiny_requests(2, 6), lambda answer: None)
    assert all(each.num_proposed_tokens == 0 for item in run.requests for each in item.rounds)
    assert max(calls[1:]) == 2
