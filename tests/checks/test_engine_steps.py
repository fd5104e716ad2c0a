"""Ways of running the same steps: whatever is launched ahead, joined or cut into rows, the tokens stay the same."""

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness.checks.profiling.profile import where_a_round_starts
from harness.engine.constraint.parsers.markers import OneToken
from harness.engine.request import Request
from harness.engine.runner import Launched
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.tiny_engines import prompts_of, requests_of, tiny_engine
from tests.support.tiny_models import VOCAB_SIZE, random_target
from tests.support.toy_markov import toy_engine, transitions

WAYS = [dict(zip(("graphs", "overlaps"), way, strict=True)) for way in itertools.product((False, True), repeat=2)]
TARGET, DRAFT = transitions(5, seed=3), transitions(5, seed=4)


def words(way):
    return ("in rows" if way["graphs"] else "in pieces") + (", launched ahead" if way["overlaps"] else "")


def requests(lengths, vocab_size=5):
    return requests_of(prompts_of(lengths, vocab_size))


def summary(run):
    """What must not depend on the way: everything but the times."""
    rounds = {
        (record.prompt_id, record.turn): [
            (item.num_proposed_tokens, item.num_draft_tokens, item.num_accepted_tokens, item.num_output_tokens)
            for item in record.rounds
        ]
        for record in run.requests
    }
    return {(record.prompt_id, record.turn): record.output_token_ids for record in run.requests}, rounds


def engine_of_captured_sizes(constrained):
    return toy_engine(
        TARGET,
        DRAFT,
        VerificationMethod.probabilistic,
        DraftSampling.sampled,
        num_speculative_tokens=2,
        max_new_tokens=9,
        num_slots=3,
        graphs=True,
        constrained=constrained,
    )


@pytest.mark.parametrize("way", WAYS, ids=words)
def test_the_clock_runs_until_the_device_is_idle(way, monkeypatch):
    """Would catch a throughput without the step that was launched in vain, and one that pays for records."""
    spent_s = Counter()
    monkeypatch.setattr("harness.engine.engine.time", SimpleNamespace(perf_counter=lambda: sum(spent_s.values())))
    monkeypatch.setattr(Launched, "wait", lambda launched: spent_s.update(waiting=1))

    class SlowToSearch(OneToken):
        def start(self):
            spent_s.update(records=1)
            return super().start()

    engine = toy_engine(
        TARGET,
        DRAFT,
        VerificationMethod.strict,
        DraftSampling.sampled,
        num_speculative_tokens=2,
        max_new_tokens=9,
        num_slots=3,
        **way,
    )
    asked = [replace(item, parser=SlowToSearch(4)) for item in requests([3, 5, 2])]
    run = engine.run(asked, lambda answer: spent_s.update(answers=1))
    assert run.wall_s == spent_s["waiting"] + spent_s["answers"]
    assert spent_s["answers"] == len(asked) <= spent_s["records"]


@pytest.mark.parametrize("constrained", [False, True], ids=["plain", "constrained"])
def test_memory_that_runs_out_while_steps_are_captured_is_one_clear_error(constrained, monkeypatch):
    engine = engine_of_captured_sizes(constrained)
    runner = engine._runner
    largest = runner.sizes[-1]

    def fail(size):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner, "_capture", fail)
    words = f"a step of 3 slots and {largest.num_prompt_rows} rows of prompts .* Lower backend.max_concurrency"
    with pytest.raises(ValueError, match=words):
        engine.run(requests([3]), lambda record: None)


def test_memory_of_graphs_is_that_of_their_pool(monkeypatch):
    """Would catch the difference of all that torch holds: it falls below 0 where a capture empties torch's cache."""
    runner = engine_of_captured_sizes(False)._runner
    pools = [(0, 0), (0, 3), (0, 3), (0, 4)]
    segments = [{"segment_pool_id": pool, "total_size": 2**number} for number, pool in enumerate(pools)]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert runner._pool_bytes() == 0
    runner._pool = (0, 3)
    assert runner._pool_bytes() == 2 + 4


@pytest.mark.parametrize("constrained", [False, True], ids=["plain", "constrained"])
def test_a_rehearsed_step_leaves_everything_as_it_was(constrained):
    """Would catch a size that, replayed before the clock starts, moves a slot or what the drafter keeps of it."""
    engine = engine_of_captured_sizes(constrained)
    engine.run(requests([1, 4, 2, 7]), lambda record: None)
    state, runner = engine.step.state, engine._runner

    def kept():
        slots = [state.token_ids[: state.spare], state.endings]
        return [item.clone() for item in (*slots, *where_a_round_starts(engine.step))]

    before = kept()
    with torch.inference_mode():
        for size in runner.sizes:
            # as it was captured: no row decides
            rows, _ = runner._new_inputs(size)
            runner._steps[size].inputs.copy_(rows)
            runner._rehearse(runner._steps[size])
            if constrained:
                parts = runner._parts[size]
                parts.given.slots.zero_()
                parts.draft()
                runner._rehearse_masked_drafts(parts)
    assert len(before) > 5 and all(torch.equal(*pair) for pair in zip(before, kept(), strict=True))


@pytest.mark.parametrize("way", WAYS[1:], ids=words)
@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
def test_tokens_and_counts_do_not_depend_on_the_way(way, num_speculative_tokens):
    """Prompts of one token up to several rows, EOS at any place, second turns, more requests than slots."""

    def follow_up(record):
        if record.turn:
            return None
        return Request(record.prompt_id, "toy", 1, 0, record.seed + 1, (0, *record.output_token_ids[:6]))

    runs = []
    for options in (WAYS[0], way):
        engine = toy_engine(
            TARGET,
            DRAFT,
            VerificationMethod.probabilistic,
            DraftSampling.sampled,
            num_speculative_tokens=num_speculative_tokens,
            max_new_tokens=11,
            num_slots=3,
            eos_token_ids=frozenset({2}),
            **options,
        )
        runs.append(summary(engine.run(requests([1, 8, 4, 5, 3, 2, 7]), follow_up)))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == 14 and any(2 in tokens for tokens in runs[0][0].values())


def model_engine(kind, way, fused=False):
    sizes = {"num_speculative_tokens": 3, "capacity": 60, "max_new_tokens": 14}
    method = VerificationMethod.strict if kind == "ngram" else VerificationMethod.block
    return tiny_engine(kind, target=random_target(seed=3), method=method, fused=fused, **sizes, **way)


@pytest.mark.parametrize("way", WAYS[1:], ids=words)
@pytest.mark.parametrize("kind", ["eagle", "mtp", "draft_model", "ngram"])
def test_real_layers_give_the_same_tokens_either_way(kind, way):
    """Would catch a row that writes into another's slot, and a prompt whose pieces do not see each other."""
    asked = requests([9, 1, 17, 6, 30], VOCAB_SIZE)
    once = summary(model_engine(kind, WAYS[0]).run(asked, lambda record: None))
    again = summary(model_engine(kind, way).run(asked, lambda record: None))
    assert once == again


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=words)
@pytest.mark.parametrize("kind", ["eagle", "mtp", "draft_model"])
def test_fused_layers_give_the_same_tokens(kind, way):
    """The fused operations by their plain twins: other sums, which move no draw of these."""
    asked = requests([9, 1, 17, 6, 30], VOCAB_SIZE)
    once = summary(model_engine(kind, WAYS[0]).run(asked, lambda record: None))
    again = summary(model_engine(kind, way, fused=True).run(asked, lambda record: None))
    assert once == again


@pytest.mark.parametrize("way", WAYS, ids=words)
def test_expected_acceptance_is_of_the_step_that_it_is_recorded_with(way):
    engine = toy_engine(
        TARGET,
        TARGET,
        VerificationMethod.probabilistic,
        DraftSampling.sampled,
        num_speculative_tokens=2,
        max_new_tokens=9,
        num_slots=2,
        expected_acceptance=True,
        **way,
    )
    run = engine.run(requests([3, 5, 2]), lambda record: None)
    expected = [item.expected_accepted for record in run.requests for item in record.rounds if item.num_draft_tokens]
    # a perfect drafter: probabilistic verification accepts both, always
    assert expected and all(each is None or each[1] == pytest.approx(2.0) for each in expected)


def test_the_hidden_states_of_a_prompt_do_not_depend_on_its_rows():
    """A prompt cut into rows of one slot, all in one forward, equals the prompt in one piece."""
    target = random_target(seed=1)
    tokens = torch.arange(12) % VOCAB_SIZE
    whole = target.forward(tokens[None], torch.arange(12)[None], None).hidden[0]
    cache, starts = target.new_cache(3, 16), torch.tensor([0, 3, 6, 9])
    positions = starts[:, None] + torch.arange(3)
    view = cache.view(torch.tensor([1, 1, 1, 1]), positions, 16)
    rows = target.forward(tokens.view(4, 3), positions, view).hidden.flatten(0, 1)
    torch.testing.assert_close(rows, whole, rtol=1e-5, atol=1e-5)
