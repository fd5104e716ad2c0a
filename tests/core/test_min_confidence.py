"""Drafts that end where a draft row is unsure: the same law, fewer drafts, and no work for what is not drafted."""

import pytest

from kernels.contract import DraftSampling, VerificationMethod
from tests.support.tiny_engines import tiny_engine, tiny_requests

MIN_CONFIDENCE = {"eagle": 0.28, "eagle3": 0.32, "peagle": 0.3, "dflash": 0.1, "draft_model": 0.1}
"""About half of the tiny models' draft rows are less confident."""


def play(kind, min_confidence, *, graphs=False, **options):
    """({prompt: output}, [(proposed, accepted)] of every round)."""
    engine = tiny_engine(kind, num_speculative_tokens=4, min_confidence=min_confidence, graphs=graphs, **options)
    run = engine.run(tiny_requests(5, 6), lambda answer: None)
    rounds = [(each.num_proposed_tokens, each.num_accepted_tokens) for item in run.requests for each in item.rounds]
    return {item.prompt_id: item.output_token_ids for item in run.requests}, rounds


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of one size"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "peagle", "dflash", "draft_model"])
def test_coupled_tokens_are_those_of_full_depth(kind, graphs):
    """Coupled tokens depend on no draft. Would catch a draft that is verified against another row than it is drawn
    from, and a target that reads the wrong columns where fewer are drafted."""
    given = {"draft_sampling": DraftSampling.coupled, "method": VerificationMethod.coupled, "graphs": graphs}
    full, at_full_depth = play(kind, 0.0, **given)
    found, rounds = play(kind, MIN_CONFIDENCE[kind], **given)
    assert found == full
    assert {proposed for proposed, _ in at_full_depth} <= {0, 4}
    assert len({proposed for proposed, _ in rounds}) > 2, "depths differ"


@pytest.mark.parametrize("method", [VerificationMethod.probabilistic, VerificationMethod.block])
def test_columns_that_are_left_out_change_no_token(method):
    """Would catch a count or a row that belongs to another column."""
    ragged, padded = (play("eagle", MIN_CONFIDENCE["eagle"], method=method, graphs=graphs) for graphs in (False, True))
    assert ragged == padded


def test_what_no_row_drafts_is_not_computed(monkeypatch):
    """Would catch a drafter that goes on after all rows have ended, and a target that reads columns without drafts."""
    engine = tiny_engine("eagle", num_speculative_tokens=4, min_confidence=0.999)
    widths, drafted = [], []
    forward, head = type(engine.target).forward, engine.drafter.head

    def counted(self, token_ids, *others):
        widths.append(token_ids.shape[1])
        return forward(self, token_ids, *others)

    def counted_logits(hidden, out=None, logits=head.logits):
        drafted.append(len(hidden))
        return logits(hidden, out)

    monkeypatch.setattr(type(engine.target), "forward", counted)
    monkeypatch.setattr(head, "logits", counted_logits)
    run = engine.run(tiny_requests(2, 6), lambda answer: None)
    assert all(each.num_proposed_tokens == 0 for item in run.requests for each in item.rounds)
    # after the prefill: the last token and the one column that every draft has
    assert max(widths[1:]) == 2
    assert len(drafted) == len(widths) - 1, "one draft row a round"
