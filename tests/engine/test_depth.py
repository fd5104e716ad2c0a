"""How many tokens are drafted: a table by batch size, and the planner that learns what pays."""

import numpy as np
import pytest

from harness.config.depth import depth_at, depths_name, read_depths
from harness.config.drafting import DraftingConfig
from harness.config.step_times import StepTimes, read_step_times
from harness.engine.depth import DepthByBatch
from harness.engine.planner import PROBE_EVERY, PROBE_STEPS, Planner
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


K = 4
FREE, COSTLY = (1.0,) * (K + 1), tuple(1.0 + depth for depth in range(K + 1))
TIMES = read_step_times("1:10-11-12-13-14/3:10-14-18-22-26", K)


def planner(*rows, accepted=(), rounds=4000):
    """Whose rounds of depth K accepted so many drafts, again and again."""
    made = Planner(K, StepTimes(tuple(1 + 7 * place for place in range(len(rows))), rows))
    for _ in range(rounds // max(1, len(accepted))):
        made.learn(1, K, accepted, 1.0)
    return made


def best_by_hand(times, survival):
    rates = [(1 + sum(survival[:depth])) / times[depth] for depth in range(K + 1)]
    return rates.index(max(rates))


@pytest.mark.parametrize("slope", [0.0, 0.1, 0.2, 0.3, 0.45, 0.7])
def test_it_takes_the_depth_of_most_tokens_per_second(slope):
    """Three of four rounds accept a draft, half of them two, a quarter all. Would catch survival that is taken for the
    conditional rate, and time that is taken for one of another depth."""
    times = tuple(1 + slope * depth for depth in range(K + 1))
    made = planner(times, accepted=(0, 1, 2, 4))
    assert made.survival() == pytest.approx([0.75, 0.5, 0.25, 0.25], abs=0.02)
    assert made.best(1) == best_by_hand(times, (0.75, 0.5, 0.25, 0.25))


def test_times_of_the_batch_decide():
    """Would catch a table that is read at another size."""
    made = planner(FREE, COSTLY, accepted=(4,))
    assert made.best(1) == K and made.best(8) == 0
    assert made.seconds(50, 2) == made.seconds(8, 2) == 3.0 and made.seconds(4, K) == pytest.approx(1 + 4 * 3 / 7)


def test_it_forgets_and_probes():
    """Would catch a planner that stops drafting for good, or that goes on with what drafts were once worth."""
    made = planner((1.0, 1.3, 1.6, 1.9, 2.2), accepted=(4,))
    assert made.best(1) == K
    for _ in range(3000):
        made.learn(1, made.best(1), (0,), 1.0)
    assert made.best(1) == 0
    chosen = [made.choose(1) for _ in range(2 * PROBE_EVERY)]
    assert chosen.count(1) == PROBE_STEPS and chosen.count(0) == 2 * PROBE_EVERY - PROBE_STEPS


def test_steps_correct_what_was_measured_beforehand():
    """The host's part makes drafts cheaper than the calibration says; an interruption says nothing."""
    made = Planner(K)
    made.prepare(lambda depths: StepTimes((1,), (COSTLY,)))
    before = made.best(1)
    for _ in range(200):
        made.learn(1, 0, (), 2.9)
        made.learn(1, 0, (), 500.0)
    assert made.seconds(1, 2) == pytest.approx(3 + 1.9, rel=0.06)
    assert before == 0 and made.best(1) > 0


def test_what_drafts_cost_beside_their_calibration_is_learned_by_depth():
    """Work that grows with the depth and is not in the calibration. Would catch a correction that is the same at every
    depth, which keeps the planner at the deepest one."""
    made = Planner(K, None)
    made.prepare(lambda depths: StepTimes((1,), (FREE,)))
    taken = []
    for _ in range(1600):
        depth = made.choose(1)
        made.learn(1, depth, (min(depth, 1),), 1.0 + 0.4 * depth)
        taken.append(depth)
    assert taken[0] == K and made.seconds(1, 1) == pytest.approx(1.4, rel=0.05)
    assert sum(depth == 1 for depth in taken[800:]) > 0.85 * 800


def test_a_change_of_depth_costs_time_that_no_depth_has():
    """The first step of another graph takes longer. Would catch a planner that learns the time of a depth from its
    probes' first steps, and stays where it is although a neighbour is faster."""
    made = Planner(K, None)
    times = (1.0, 1.2, 1.4, 1.6, 1.8)
    made.prepare(lambda depths: StepTimes((1,), (times,)))
    taken, before = [], None
    for step in range(3000):
        depth = made.choose(1)
        made.learn(1, depth, (min(depth, 2 if step % 2 else 0),), times[depth] + 0.3 * (depth != before))
        before = depth
        taken.append(depth)
    assert made.seconds(1, 1) == pytest.approx(1.2, rel=0.02) and made.seconds(1, 3) == pytest.approx(1.6, rel=0.02)
    assert sum(depth == 2 for depth in taken[500:]) > 0.9 * 2500


def test_steps_of_the_usual_depth_and_its_probes_say_what_others_take():
    """A few early steps of depth 1 were slow, and depth 0 was never taken. Would catch times that are learned for each
    depth alone, and ones that rare depths keep for good."""
    made = Planner(K)
    made.prepare(lambda depths: StepTimes((1,), (FREE,)))
    for _ in range(6):
        made.learn(1, 1, (0,), 1.9)
    for step in range(2000):
        depth = 3 if step % 32 < 28 else 2 + step // 32 % 2 * 2
        made.learn(1, depth, (1,), 1.0 + 0.2 * depth)
    assert [made.seconds(1, depth) for depth in range(K + 1)] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8], abs=0.06)


def test_prompts_that_begin_as_the_depth_falls_do_not_make_shallow_steps_look_slow():
    """As with many requests that begin at once: their first rounds are deep, and no prompt is read before the first of
    them end. Would catch a slope of steps whose prompts are not told apart yet, which would be far below .2 here, so
    that the planner drafts more and more, and learns nothing of other depths."""
    generator = np.random.default_rng(5)
    made = Planner(K)
    made.prepare(lambda depths: StepTimes((1,), (tuple(1 + 0.2 * depth for depth in range(K + 1)),)))
    for step in range(36):
        depth, num_tokens = (4, 0) if step < 30 else (2, int(generator.integers(200, 300)))
        made.learn(1, depth, (1,), 1.0 + 0.2 * depth + 0.004 * num_tokens, num_tokens)
    assert (made.seconds(1, 4) - made.seconds(1, 0)) / 4 == pytest.approx(0.2, abs=0.05)


def test_a_slow_while_is_not_taken_for_the_cost_of_a_draft():
    """Another job slows steps for a while in each stretch of deeper drafts. Would catch a slope between the means of
    all steps of each depth, which would be .4 here; depths 1 and 4, never taken, tell it."""
    made = Planner(K)
    made.prepare(lambda depths: StepTimes((1,), (FREE,)))
    for step in range(4096):
        place = step % 256
        depth, slow = (3, 40 <= place < 100) if place < 128 else (2, False)
        made.learn(1, depth, (1,), (1.0 + 0.2 * depth) * (1.24 if slow else 1))
    assert (made.seconds(1, 4) - made.seconds(1, 1)) / 3 == pytest.approx(0.2, abs=0.04)


@pytest.mark.parametrize("tokens", [(1, 400), (198, 203), (200, 201)], ids=["some", "alike", "same"])
def test_steps_that_read_prompts_are_learned_from_too(tokens):
    """With many requests in flight every step reads prompts, and no two have quite the same size. Would catch a planner
    that learns from other steps alone, or from steps of one size, and stays at the depth of a calibration that is too
    flat; one that takes the time of prompts for that of drafts, which makes deep drafts look cheap; and noise taken for
    the time of a prompt token where their number hardly varies."""
    generator = np.random.default_rng(5)
    made, times = Planner(K), tuple(1 + 0.3 * depth for depth in range(K + 1))
    made.prepare(lambda depths: StepTimes((1,), ((1.0, 1.05, 1.1, 1.15, 1.2),)))
    taken = []
    for step in range(3000):
        num_requests, num_tokens = int(generator.integers(100, 129)), int(generator.integers(*tokens))
        depth = made.choose(num_requests)
        accepted = (min(depth, 3 if step % 2 else 0), min(depth, 1))
        seconds = (times[depth] + 0.01 * num_tokens) * generator.normal(1, 0.02)
        made.learn(num_requests, depth, accepted, seconds, num_tokens)
        taken.append(depth)
    best = best_by_hand(times, (0.75, 0.25, 0.25, 0.0))
    assert taken[0] == K and sum(depth == best for depth in taken[1500:]) > 0.9 * 1500
    if tokens[1] > 2 * tokens[0]:
        assert [made.seconds(110, depth) for depth in (0, 1, 2)] == pytest.approx(times[:3], rel=0.1)


@pytest.mark.parametrize("rates", [(0.8, 0.8, 0.8, 0.8), (0.7, 0.5, 0.3, 0.2), (0.2, 0.2, 0.2, 0.2)], ids=str)
@pytest.mark.parametrize("slope", [0.05, 0.15, 0.4])
def test_it_comes_within_three_percent_of_the_best_depth(rates, slope):
    """800 steps of 8 requests, learning included; drafts of depth i pass at rates[i]. Would catch a planner that is
    late to learn, or pays much for its probes."""
    generator = np.random.default_rng(3)
    times = tuple(1 + slope * depth for depth in range(K + 1))
    made, num_tokens, seconds = Planner(K, StepTimes((8,), (times,))), 0.0, 0.0
    survival = np.cumprod(rates)
    for _ in range(800):
        depth = made.choose(8)
        passes = generator.random((8, K)) < rates
        accepted = np.minimum(passes.cumprod(axis=1).sum(axis=1), depth).tolist()
        made.learn(8, depth, accepted, 1.0)
        num_tokens, seconds = num_tokens + 8 * (1 + survival[:depth].sum()), seconds + times[depth]
    best = max(8 * (1 + survival[:depth].sum()) / times[depth] for depth in range(K + 1))
    assert num_tokens / seconds > 0.97 * best


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
def test_tokens_are_the_target_s_and_runs_repeat(graphs):
    """Coupled tokens depend on no draft, so on no depth."""

    def play(depth):
        given = {"draft_sampling": DraftSampling.coupled, "method": VerificationMethod.coupled, "graphs": graphs}
        engine = tiny_engine("eagle", num_speculative_tokens=K, depth=depth, capacity=60, max_new_tokens=40, **given)
        run = engine.run(tiny_requests(7, 6), lambda answer: None)
        depths = [[each.num_proposed_tokens for each in item.rounds[1:]] for item in run.requests]
        return {item.prompt_id: item.output_token_ids for item in run.requests}, depths

    full, _ = play(None)
    found, depths = play(Planner(K, TIMES))
    assert found == full
    assert (found, depths) == play(Planner(K, TIMES))
    assert len({depth for each in depths for depth in each}) > 2
    measured, _ = play(Planner(K))
    assert measured == full


def test_step_times_are_read_and_named():
    times = read_step_times("1:5-6.25/8:9-1e-3", 1)
    assert times == StepTimes((1, 8), ((0.005, 0.00625), (0.009, 1e-6)))
    assert read_step_times(times.text, 1) == times
    slow = read_step_times("1:5-20000", 1)
    assert read_step_times(slow.text, 1) == slow
    config = DraftingConfig(depth="planner", num_speculative_tokens=1, step_times="1:5.0-6.250/8:9-1e-3")
    assert config.step_times == "1:5-6.25/8:9-0.001" and config.times == times


@pytest.mark.parametrize(
    ("text", "message"),
    [("1:5", "expected 3 times"), ("5-6-7", "REQUESTS:MS-MS"), ("8:1-2-3/1:1-2-3", "grows"), ("1:1-0-3", "above 0")],
)
def test_times_that_fit_no_planner_are_refused(text, message):
    with pytest.raises(ValueError, match=rf"drafting.step_times: .*{message}"):
        DraftingConfig(depth="planner", num_speculative_tokens=2, step_times=text)
