"""A round split into its phases: what is timed is a round of the engine, and the engine is left as it was."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

from harness.checks.profiling import profile as profile_module
from harness.checks.profiling.profile import (
    Phases,
    output_tokens_needed,
    prefill_slots,
    profile_round,
    round_time,
    where_a_round_starts,
)
from harness.checks.timing.clock import WallClock, clock_for
from harness.engine import engine as engine_module
from harness.engine.decided_row import RowLayout
from harness.engine.request import Limits
from harness.engine.rounds import rounds_of
from harness.engine.runner import EagerRunner
from tests.support.tiny_engines import KINDS, NUM_SLOTS, tiny_engine, tiny_requests
from tests.support.tiny_models import random_target

NUM_PROMPT = 9
LAYOUTS = pytest.mark.parametrize("graphs", [False, True], ids=["in pieces", "in rows"])
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def answers(engine, num_requests=4):
    run = engine.run(tiny_requests(num_requests, NUM_PROMPT), lambda record: None)
    return {record.prompt_id: record.output_token_ids for record in run.requests}


@LAYOUTS
@EVERY_KIND
def test_filled_slots_go_on_with_the_round_that_the_engine_would_play(kind, graphs):
    """Would catch prompts read wrongly, a drafter whose chain starts elsewhere, and inputs of another length."""
    requests = tiny_requests(NUM_SLOTS, NUM_PROMPT)
    records = tiny_engine(kind, graphs=graphs).run(requests, lambda record: None).requests
    step = tiny_engine(kind, graphs=graphs).step
    inputs = prefill_slots(step, requests)
    assert step.state.lengths.tolist() == [NUM_PROMPT + 1] * NUM_SLOTS
    rounds = rounds_of(step(inputs).decided.tolist(), RowLayout.of(step.num_speculative_tokens), range(NUM_SLOTS))
    for record in records:
        slot = int(record.prompt_id)
        first, *others = record.output_token_ids[: 1 + record.rounds[1].num_output_tokens]
        assert int(step.state.token_ids[slot, NUM_PROMPT]) == first
        assert rounds[slot].emitted == others
        assert len(rounds[slot].draft_ids) == record.rounds[1].num_proposed_tokens


@LAYOUTS
@EVERY_KIND
def test_an_engine_goes_on_to_the_same_tokens_after_a_profile(kind, graphs):
    engine = tiny_engine(kind, graphs=graphs)
    expected = answers(engine)
    profile = profile_round(engine, tiny_requests(2, NUM_PROMPT), WallClock(2), num_rounds=2)
    assert answers(engine) == expected
    assert (profile.num_slots, profile.length) == (2, NUM_PROMPT + 1)
    assert all(getattr(profile.phases, item.name).min_us > 0 for item in fields(Phases))
    assert profile.host_us == max(0.0, profile.round.median_us - profile.step.median_us)
    assert 0 <= profile.mean_accepted <= profile.num_speculative_tokens and profile.num_invalid == 0


class StateClock(WallClock):
    """Looks, before and after each repeat, at what the next round would start from."""

    def __init__(self, step):
        super().__init__(3)
        self.step, self.moved = step, []

    def time(self, work, in_graph=False):
        before = [tensor.clone() for tensor in where_a_round_starts(self.step)]
        timing = super().time(work, in_graph)
        self.moved.append(not all(map(torch.equal, before, where_a_round_starts(self.step))))
        return timing


@EVERY_KIND
def test_every_repeat_of_a_step_starts_from_the_same_state(kind):
    """Only the drafter's part after verification moves it, and that reads nothing of what it moves."""
    engine = tiny_engine(kind)
    clock = StateClock(engine.step)
    profile_round(engine, tiny_requests(NUM_SLOTS, NUM_PROMPT), clock, num_rounds=2)
    draft, target, verify, extend, commit, step, put_back = clock.moved
    assert not any((draft, target, verify, commit, step, put_back))
    assert extend == (kind in ("eagle", "eagle3", "mtp", "peagle"))


@pytest.mark.parametrize("overlaps", [False, True], ids=["one after another", "launched ahead"])
def test_the_time_of_a_round_is_of_those_in_which_all_requests_decode(overlaps, monkeypatch):
    """Every forward takes a second; a step that reads prompts too has two, and prompts fill several steps."""
    engine = tiny_engine("none", overlaps=overlaps)
    seconds, forward = [0.0], engine.target.forward

    def second_long(*inputs):
        seconds[0] += 1.0
        return forward(*inputs)

    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(engine.target, "forward", second_long)
    monkeypatch.setattr(EagerRunner, "max_prefill_tokens", 10)
    monkeypatch.setattr(profile_module, "MAX_PREFILL_TOKENS", 5)
    found = round_time(engine, tiny_requests(NUM_SLOTS, NUM_PROMPT), num_rounds=3)
    assert found.num_repeats == 3
    assert (found.min_us, found.median_us, found.upper_us) == (1e6, 1e6, 1e6)


def test_the_rounds_of_the_running_engine_lie_around_the_length(monkeypatch):
    """Would catch a host's share that holds the reading of more keys and values than the timed step reads."""
    engine = tiny_engine("none", max_new_tokens=20)
    read, run = [], engine.run

    def watched(requests, follow_up):
        read.append({len(request.token_ids) for request in requests})
        return run(requests, follow_up)

    monkeypatch.setattr(engine, "run", watched)
    round_time(engine, tiny_requests(NUM_SLOTS, NUM_PROMPT), num_rounds=8)
    # a token a round: half of eight rounds before the length, half after
    assert read == [{NUM_PROMPT}, {NUM_PROMPT - 4}]


@pytest.mark.parametrize(
    ("options", "requests", "message"),
    [
        ({}, [*tiny_requests(1, 5), *tiny_requests(1, 6)], r"prompts of one length, found \[5, 6\]"),
        ({"max_new_tokens": 9}, tiny_requests(2, 5), "for 10 tokens or more, found 3 slots, 9 tokens"),
        ({}, tiny_requests(4, 5), "an engine of 4 slots or more .* found 3 slots"),
    ],
    ids=["lengths", "output", "slots"],
)
def test_what_cannot_be_profiled_is_refused(options, requests, message):
    with pytest.raises(ValueError, match=message):
        profile_round(tiny_engine("eagle", **options), requests, WallClock(2), num_rounds=2)


def test_an_engine_whose_requests_may_end_early_is_refused():
    engine = tiny_engine("none")
    engine.settings = replace(engine.settings, limits=Limits(40, frozenset({3})))
    with pytest.raises(ValueError, match="1 tokens that end a sequence"):
        profile_round(engine, tiny_requests(2, 5), WallClock(2), num_rounds=2)


def test_more_prompts_ask_for_more_output():
    assert output_tokens_needed(2, 10, 3, 32) == 1 + 4 * 33
    assert output_tokens_needed(512, 256, 3, 32) == 1 + 4 * (32 + 1 + 68)


@pytest.mark.gpu
@LAYOUTS
def test_on_a_gpu_every_piece_is_a_graph(graphs):
    device = torch.device("cuda", torch.cuda.current_device())
    target = random_target(seed=3)
    target.causal_lm.to(device)
    engine = tiny_engine("eagle3", target=target, graphs=graphs)
    profile = profile_round(engine, tiny_requests(2, NUM_PROMPT), clock_for(device, 5, "read"), num_rounds=2)
    assert all(getattr(profile.phases, item.name).in_graph for item in fields(Phases))
    assert profile.step.in_graph and profile.step.min_us > 0
