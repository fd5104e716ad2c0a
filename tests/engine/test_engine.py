"""The engine's bookkeeping on a toy Markov pair: slots, lengths, EOS, turns, records."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness.engine import engine as engine_module
from harness.engine import measure_drafts, to_records
from harness.engine.request import Request
from harness.engine.runner import Launched
from harness.engine.scheduler import Scheduler
from harness.records.request import FinishReason, RequestRecord, RoundRecord
from kernels.contract import DraftSampling, Guarantee, VerificationMethod
from kernels.reference.acceptance import acceptance_terms
from tests.support.toy_markov import outputs, toy_engine, toy_requests, transitions

TARGET, DRAFT = transitions(5, seed=3), transitions(5, seed=4)
ENDED = [VerificationMethod.probabilistic, VerificationMethod.fly]
"""The second may accept a token for the sake of others that the end cuts off."""
LOSSLESS = [method for method in VerificationMethod if method.traits.guarantee is Guarantee.lossless]


def engine(method=VerificationMethod.probabilistic, **changes):
    sampling = DraftSampling.coupled if method is VerificationMethod.coupled else DraftSampling.sampled
    settings = {"num_speculative_tokens": 3, "max_new_tokens": 8, "num_slots": 4} | changes
    return toy_engine(TARGET, DRAFT, method, sampling, **settings)


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda item: item.value)
def test_at_temperature_zero_every_method_emits_the_argmax_path(method):
    produced = outputs(engine(method, temperature=0.0, max_new_tokens=11), toy_requests(6))
    expected, token = [], 0
    for _ in range(11):
        token = int(TARGET[token].argmax())
        expected.append(token)
    assert set(produced.values()) == {tuple(expected)}


@pytest.mark.parametrize("method", ENDED, ids=lambda item: item.value)
def test_every_request_ends_at_its_length_and_says_so(method):
    run = engine(method, max_new_tokens=7).run(toy_requests(9), lambda record: None)
    assert len(run.requests) == 9
    for record in run.requests:
        assert len(record.output_token_ids) == 7
        assert record.finish_reason is FinishReason.length
        assert record.rounds[0].num_proposed_tokens == 0 and record.rounds[0].num_output_tokens == 1


@pytest.mark.parametrize("method", ENDED, ids=lambda item: item.value)
def test_eos_ends_a_request_and_nothing_follows_it(method):
    run = engine(method, max_new_tokens=30, eos_token_ids=frozenset({2})).run(toy_requests(40), lambda record: None)
    ended = [record for record in run.requests if record.finish_reason is FinishReason.eos]
    assert ended, "the toy chain reaches token 2 within 30 tokens"
    for record in run.requests:
        assert 2 not in record.output_token_ids[:-1]
        assert (record.output_token_ids[-1] == 2) == (record.finish_reason is FinishReason.eos)


def test_a_finished_slot_is_refilled_at_once():
    scheduler = Scheduler(2, toy_requests(3))
    first = scheduler.admit(0.0)
    assert [item.slot for item in first] == [0, 1] and not scheduler.admit(0.0)
    scheduler.release(first[0], None)
    assert [item.slot for item in scheduler.admit(1.0)] == [0]


def test_a_follow_up_runs_next_and_is_recorded_as_its_own_request():
    def follow_up(record):
        if record.turn:
            return None
        return Request(record.prompt_id, "toy", 1, 0, record.seed + 1, (0, *record.output_token_ids))

    run = engine(max_new_tokens=4, num_slots=2).run(toy_requests(3), follow_up)
    assert sorted((record.prompt_id, record.turn) for record in run.requests) == [
        (str(index), turn) for index in range(3) for turn in range(2)
    ]
    assert all(record.num_prompt_tokens == (5 if record.turn else 1) for record in run.requests)


def test_records_are_made_when_the_clock_has_stopped(monkeypatch):
    """Would catch the end of a request that stalls the next round of all others, most where all end at once, and
    rounds that take longer because they are recorded."""
    made, while_running = [], []

    def record(**fields):
        made.append(fields["prompt_id"])
        return RequestRecord(**fields)

    def round_record(*fields):
        made.append("round")
        return RoundRecord(*fields)

    monkeypatch.setattr(to_records, "RequestRecord", record)
    monkeypatch.setattr(to_records, "RoundRecord", round_record)
    run = engine(max_new_tokens=4, num_slots=2).run(toy_requests(3), lambda answer: while_running.append(len(made)))
    assert while_running == [0, 0, 0]
    assert sorted(name for name in made if name != "round") == sorted(item.prompt_id for item in run.requests)
    assert made.count("round") == sum(len(item.rounds) for item in run.requests)


class Clock:
    """Stands still but for the target's forwards, one second each, and what a test adds."""

    def __init__(self, monkeypatch, subject) -> None:
        self.seconds = 0.0
        forward = subject.target.forward
        monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: self.seconds))
        monkeypatch.setattr(subject.target, "forward", lambda *inputs: self.after(1.0, forward(*inputs)))

    def after(self, seconds, result):
        self.seconds += seconds
        return result


def test_time_shares_add_up_to_the_wall_time(monkeypatch):
    """Would catch an engine step whose duration is counted once for every request in it, or not at all."""
    subject = engine(num_slots=4)
    Clock(monkeypatch, subject)
    run = subject.run(toy_requests(10), lambda record: None)
    shares = sum(item.share_s for record in run.requests for item in record.rounds)
    assert run.wall_s > 0 and shares == pytest.approx(run.wall_s)
    assert all(record.rounds[-1].arrival_s <= run.wall_s for record in run.requests)


def test_the_clock_stands_still_for_what_only_the_measurement_needs(monkeypatch):
    """Would catch a step's measuring counted as decoding."""
    runs = []
    for expected in (False, True):
        subject = engine(expected_acceptance=expected)
        clock = Clock(monkeypatch, subject)
        monkeypatch.setattr(
            measure_drafts, "acceptance_terms", lambda *a, now=clock, **k: now.after(50.0, acceptance_terms(*a, **k))
        )
        runs.append(subject.run(toy_requests(6), lambda record: None))
    assert runs[0].wall_s == runs[1].wall_s
    assert any(item.expected_accepted for record in runs[1].requests for item in record.rounds)


def test_every_step_that_was_launched_is_waited_for(monkeypatch):
    """Would catch the last one, launched before an end of sequence was seen, in the time of whatever runs next."""
    subject, launched, waited = engine(overlaps=True, eos_token_ids=frozenset({0, 1})), [], []
    launch = subject._runner.launch

    def wait(step):
        waited.append(step)

    monkeypatch.setattr(subject._runner, "launch", lambda plan: launched.append(plan) or launch(plan))
    monkeypatch.setattr(Launched, "wait", wait)
    run = subject.run(toy_requests(3), lambda record: None)
    assert {record.finish_reason for record in run.requests} == {FinishReason.eos}
    assert len(waited) == len(launched) > max(len(record.rounds) for record in run.requests)


def test_requests_that_arrive_one_by_one_wait_for_their_time_and_count_from_it(monkeypatch):
    """Would catch latencies that leave out the waiting, and a clock that idles at a request's expense."""
    subject = engine(num_slots=1, max_new_tokens=3, num_speculative_tokens=1)
    clock = Clock(monkeypatch, subject)
    monkeypatch.setattr(engine_module.time, "sleep", lambda seconds: clock.after(seconds, None), raising=False)
    arrivals = (0.0, 0.5, 100.0)
    asked = [replace(item, arrival_s=at) for item, at in zip(toy_requests(3), arrivals, strict=True)]
    run = subject.run(asked, lambda record: None)
    assert [record.submitted_s for record in run.requests] == list(arrivals)
    first, second, third = ([item.arrival_s for item in record.rounds] for record in run.requests)
    assert second[0] > first[-1], "one slot: the second request waits for the first to end"
    assert 100.0 < third[0] < 110.0 and run.wall_s > 100.0
    assert all(item.share_s < 10.0 for record in run.requests for item in record.rounds)


def test_a_row_of_nan_is_counted_and_does_not_stop_the_run():
    broken = TARGET.clone()
    broken[3] = float("nan")
    run = toy_engine(
        broken,
        DRAFT,
        VerificationMethod.probabilistic,
        DraftSampling.sampled,
        num_speculative_tokens=2,
        max_new_tokens=20,
        num_slots=4,
    ).run(toy_requests(4), lambda record: None)
    assert len(run.requests) == 4 and run.num_invalid > 0
    assert all(0 <= token < 5 for record in run.requests for token in record.output_token_ids)


@pytest.mark.parametrize("drafting", [DraftSampling.greedy, DraftSampling.coupled])
def test_a_drafter_of_nan_is_no_drafter_that_is_never_right(drafting):
    """Would catch drafts that are verified without their rows: token 0 of a broken row was a draft like any other."""
    broken = DRAFT.clone()
    broken[3] = float("nan")
    subject = toy_engine(
        TARGET, broken, VerificationMethod.strict, drafting, num_speculative_tokens=2, max_new_tokens=20, num_slots=4
    )
    with pytest.raises(ValueError, match="finite logits of the drafter, found a row without a distribution"):
        subject.run(toy_requests(4), lambda record: None)


def test_same_seed_same_tokens_and_another_seed_others():
    once, again = outputs(engine(), toy_requests(8)), outputs(engine(), toy_requests(8))
    other = outputs(engine(), toy_requests(8, first_seed=1000))
    assert once == again and once != other


def test_a_perfect_drafter_is_always_accepted():
    run = toy_engine(
        TARGET,
        TARGET,
        VerificationMethod.block,
        DraftSampling.sampled,
        num_speculative_tokens=3,
        max_new_tokens=9,
        num_slots=4,
    ).run(toy_requests(5), lambda record: None)
    for record in run.requests:
        assert [item.num_output_tokens for item in record.rounds] == [1, 4, 4]
        assert torch.tensor([item.num_accepted_tokens for item in record.rounds]).tolist() == [0, 3, 3]


def test_an_engine_that_waits_for_an_arrival_can_be_stopped(monkeypatch):
    """Would catch a run that its scheduler kills because it slept until the next request."""
    slept = []
    monkeypatch.setattr(engine_module.time, "sleep", slept.append)

    class Stop(BaseException):
        pass

    def on_round():
        if len(slept) == 3:
            raise Stop

    with pytest.raises(Stop):
        engine(num_slots=1, max_new_tokens=3, num_speculative_tokens=1).run(
            [replace(toy_requests(1)[0], arrival_s=3600.0)], lambda answer: None, on_round=on_round
        )
    assert max(slept) <= engine_module.LOOK_S
