"""Depth as a setting and by batch size: drafts of a round, tokens that no draft may move, and no work in vain."""

import pytest

from harness.config.depth import depth_at, depths_name, read_depths
from harness.config.drafting import DraftingConfig
from harness.engine.depth import DepthByBatch
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.tiny_engines import NUM_SLOTS, tiny_engine, tiny_requests

FEWER, MIXED = ((1, 4), (2, 2), (3, 0)), ((1, 4), (2, 0), (3, 2))
"""Of the second, prompts are read beside rounds that draft."""


def play(kind, table, **options):
    """({prompt: output}, [(proposed, accepted)] of every round but the prefill's)."""
    engine = tiny_engine(kind, num_speculative_tokens=4, depth=table and DepthByBatch(table), **options)
    run = engine.run(tiny_requests(7, 6), lambda answer: None)
    rounds = [(each.num_proposed_tokens, each.num_accepted_tokens) for item in run.requests for each in item.rounds[1:]]
    return {item.prompt_id: item.output_token_ids for item in run.requests}, rounds


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "peagle", "dflash", "draft_model"])
def test_coupled_tokens_are_those_of_full_depth(kind, graphs):
    """Coupled tokens depend on no draft. Would catch a token that is read at another place where depths differ."""
    given = {"draft_sampling": DraftSampling.coupled, "method": VerificationMethod.coupled, "graphs": graphs}
    full, _ = play(kind, None, **given)
    found, rounds = play(kind, FEWER, **given)
    assert found == full
    assert {proposed for proposed, _ in rounds} == {0, 4}


@pytest.mark.parametrize("method", [VerificationMethod.probabilistic, VerificationMethod.block])
@pytest.mark.parametrize("least", [0.0, 0.28], ids=["alone", "and by confidence"])
def test_steps_of_fixed_sizes_follow_the_same_table(method, least):
    """Would catch rows of prompts that lie elsewhere where rounds draft fewer, and a graph of another depth."""
    given = {"method": method, "min_confidence": least}
    found, rounds = play("eagle", MIXED, **given)
    assert (found, rounds) == play("eagle", MIXED, graphs=True, **given)
    assert ({1} <= {proposed for proposed, _ in rounds}) == (least > 0), "confidence ends rounds of 2 early"


def test_a_step_computes_what_its_table_says(monkeypatch):
    """Would catch a target that reads K tokens whatever is drafted, and graphs of depths that no batch has."""
    engine = tiny_engine("eagle", num_speculative_tokens=4, depth=DepthByBatch(FEWER), graphs=True)
    engine._runner.prepare()
    alone = [(size.num_slots, size.depth) for size in engine._runner.sizes if not size.num_prompt_rows]
    assert alone == [(1, 4), (2, 2), (2, 4), (NUM_SLOTS, 0), (NUM_SLOTS, 2), (NUM_SLOTS, 4)]
    engine, widths = tiny_engine("eagle", num_speculative_tokens=4, depth=DepthByBatch(FEWER)), []
    forward = type(engine.target).forward

    def counted(self, token_ids, *others):
        widths.append(token_ids.shape)
        return forward(self, token_ids, *others)

    monkeypatch.setattr(type(engine.target), "forward", counted)
    engine.run(tiny_requests(7, 6), lambda answer: None)
    assert {shape for shape in widths if shape[1] < 6} == {(1, 5), (3, 1)}


def test_a_table_is_read_and_named():
    table = read_depths("1:4/3:4/8:2/32:0", 32)
    assert depths_name(table) == "1:4/8:2/32:0"
    assert [depth_at(table, size) for size in (1, 7, 8, 31, 32, 500)] == [4, 4, 2, 2, 0, 0]
    config = DraftingConfig(depth="1:3/2:5", num_speculative_tokens=9)
    assert config.num_speculative_tokens == 5 and config.depths == ((1, 3), (2, 5))


def test_one_axis_names_every_depth():
    """A fixed depth and one by confidence are the cells that they were; would catch a second id of the same cell."""
    assert DraftingConfig(depth="3") == DraftingConfig(num_speculative_tokens=3)
    assert DraftingConfig(depth="confidence:0.3") == DraftingConfig(min_confidence=0.3)
    assert DraftingConfig(depth="planner", num_speculative_tokens=6).num_speculative_tokens == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4/2", "REQUESTS:DRAFTS"),
        ("33", "0 to 32 drafts, found 33"),
        ("confidence:1.5", "between 0 and 1, found 'confidence:1.5'$"),
        ("2:4/8:0", "begins with 1"),
        ("1:4/8:2/8:0", "grows"),
        ("1:33/8:0", "0 to 32 drafts, found 33"),
        ("1:4/8:4", "4 alone is that for all"),
    ],
)
def test_a_table_that_says_nothing_is_refused(text, message):
    with pytest.raises(ValueError, match=rf"drafting.depth: .*{message}"):
        DraftingConfig(depth=text)
