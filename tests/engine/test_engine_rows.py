"""Rows of a batch, log-probabilities of its tokens, and sampling parameters that its requests bring."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.token_logprobs import LogprobsSettings
from harness.models.target import TargetModel
from kernels.contract import Draft, DraftSampling, RowStats, Sampling, VerificationMethod
from kernels.core import Core, reference_core
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import verify
from tests.support.tiny_engines import KINDS, NUM_SLOTS, tiny_engine, tiny_requests
from tests.support.toy_markov import outputs, toy_engine, toy_requests, transitions

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


TARGET, DRAFT = transitions(7, seed=1), transitions(7, seed=2)
SAMPLING = SamplingSettings(0.7, top_p=0.8)
METHODS = [method for method in VerificationMethod if method is not VerificationMethod.synthetic]


def run_of_engine_logprobs(method: VerificationMethod, logprobs: LogprobsSettings | None, **options: bool):
    is_greedy = method is VerificationMethod.greedy
    shares_noise = method in (VerificationMethod.coupled, VerificationMethod.pr35461)
    engine = toy_engine(
        TARGET,
        DRAFT,
        method,
        DraftSampling.coupled if shares_noise else DraftSampling.sampled,
        num_speculative_tokens=3,
        max_new_tokens=11,
        num_slots=2,
        sampling=SamplingSettings(0.0) if is_greedy else SAMPLING,
        eos_token_ids=frozenset({6}),
        logprobs=logprobs,
        **options,
    )
    return engine.run(toy_requests(5), lambda answer: None).requests


def rows_before(token_ids: tuple[int, ...], is_processed: bool, is_greedy: bool) -> torch.Tensor:
    """[N, V] float64 log-probabilities of the row that each token was drawn from."""
    logits = TARGET.log()[[0, *token_ids[:-1]]]
    if not is_processed:
        return torch.log_softmax(logits.double(), dim=1)
    ones = torch.ones(len(logits))
    temperature = 0.0 if is_greedy else SAMPLING.temperature
    top_p = 1.0 if is_greedy else SAMPLING.top_p
    return process(logits, Sampling(ones * temperature, ones.long() * 0, ones * top_p, ones * 0))


@cache
def plain_run(method: VerificationMethod):
    return run_of_engine_logprobs(method, None, graphs=False)


@pytest.mark.parametrize(
    ("is_processed", "graphs"),
    [(False, False), (True, False), (True, True)],
    ids=["raw", "processed", "processed, as graphs"],
)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
def test_every_method_records_the_row_that_a_token_follows(method, is_processed: bool, graphs: bool):
    """Would catch rows shifted by a draft, cut tokens counted, and -inf written where a method emits a cut token."""
    plain = plain_run(method)
    records = run_of_engine_logprobs(method, LogprobsSettings(2, is_processed), graphs=graphs)
    for record, without in zip(records, plain, strict=True):
        assert record.output_token_ids == without.output_token_ids and without.logprobs is None
        found, is_greedy = record.logprobs, method is VerificationMethod.greedy
        expected = rows_before(record.output_token_ids, is_processed, is_greedy)
        for place, token_id in enumerate(record.output_token_ids):
            logprob = float(expected[place, token_id])
            assert found.token[place] == (None if logprob == -torch.inf else pytest.approx(logprob, abs=1e-5))
            assert found.rank[place] == 1 + int((expected[place] > logprob).sum())
            best = expected[place].sort(descending=True)
            num_best = min(2, int((best.values > -torch.inf).sum()))
            assert found.top_token_ids[place] == tuple(best.indices[:num_best].tolist())
            assert found.top[place] == pytest.approx(best.values[:num_best].tolist(), abs=1e-5)


def test_the_token_alone_may_be_asked_for():
    """Would catch n = 0 taken for nothing requested."""
    found = run_of_engine_logprobs(VerificationMethod.block, LogprobsSettings(0, is_processed=False))[0].logprobs
    assert set(found.top_token_ids) == {()} and len(found.token) == len(found.rank) > 1


OWN = (
    None,
    SamplingSettings(0.0),
    SamplingSettings(1.3),
    SamplingSettings(1.0, top_k=4),
    None,
    SamplingSettings(0.9, top_p=0.7, min_p=0.05),
    SamplingSettings(0.5),
)
"""More than there are slots, so that a slot is filled again with other parameters."""


def requests_of_request_sampling() -> list[Request]:
    asked = tiny_requests(len(OWN), num_tokens=5)
    return [replace(request, sampling=own) for request, own in zip(asked, OWN, strict=True)]


@cache
def tokens_alone(kind: str, graphs: bool) -> dict[str, tuple[int, ...]]:
    """Each request by itself, in an engine whose own parameters are those of the request."""
    found = {}
    for request in requests_of_request_sampling():
        options = {} if request.sampling is None else {"sampling": request.sampling}
        found |= outputs(tiny_engine(kind, graphs=graphs, **options), [replace(request, sampling=None)])
    return found


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "as graphs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_in_a_mixed_batch_gets_the_tokens_it_gets_alone(kind: str, graphs: bool):
    """Would catch parameters of the slot's last request, of the default or of a neighbour, in drafts or target."""
    together = outputs(tiny_engine(kind, graphs=graphs, is_mixed=True), requests_of_request_sampling())
    assert together == tokens_alone(kind, False)
    assert len(set(together.values())) > 1


def test_a_request_alone_gets_the_same_tokens_in_steps_of_fixed_sizes():
    assert tokens_alone("eagle3", True) == tokens_alone("eagle3", False)


def test_the_next_request_of_a_slot_takes_the_default_again():
    """Would catch parameters that stay behind; the record says which requests had their own."""
    engine = tiny_engine("eagle", is_mixed=True)
    asked = tiny_requests(1, num_tokens=5)
    before = outputs(engine, asked)
    changed = engine.run([replace(asked[0], sampling=SamplingSettings(1.3, top_k=2))], lambda answer: None).requests[0]
    assert changed.output_token_ids != before[asked[0].prompt_id]
    assert changed.sampling == {"temperature": 1.3, "top_k": 2, "top_p": 1.0, "min_p": 0.0}
    again = engine.run(asked, lambda answer: None).requests[0]
    assert again.output_token_ids == before[asked[0].prompt_id] and again.sampling is None


def test_an_engine_for_plain_requests_refuses_one_that_cuts():
    """Would catch truncation ignored on a GPU, whose kernels were promised that nothing is cut."""
    asked = [replace(request, sampling=SamplingSettings(top_k=3)) for request in tiny_requests(1, num_tokens=5)]
    with pytest.raises(ValueError, match="truncates"):
        tiny_engine("none").run(asked, lambda answer: None)


@pytest.mark.parametrize("method", [VerificationMethod.coupled, VerificationMethod.block])
def test_other_draws_take_the_parameters_of_the_request_too(method: VerificationMethod):
    sampling = DraftSampling.coupled if method is VerificationMethod.coupled else DraftSampling.sampled
    asked = requests_of_request_sampling()
    together = outputs(tiny_engine("eagle3", draft_sampling=sampling, method=method, is_mixed=True), asked)
    request = asked[5]
    engine = tiny_engine("eagle3", draft_sampling=sampling, method=method, sampling=request.sampling)
    assert together[request.prompt_id] == outputs(engine, [replace(request, sampling=None)])[request.prompt_id]


SETTINGS = SamplingSettings(temperature=0.8, top_p=0.9, min_p=0.01)


def engine_of(sampling: DraftSampling, core: Core | None = None) -> Engine:
    return toy_engine(
        transitions(9, seed=1),
        transitions(9, seed=2),
        VerificationMethod.probabilistic if sampling is not DraftSampling.coupled else VerificationMethod.strict,
        sampling,
        num_speculative_tokens=3,
        max_new_tokens=7,
        num_slots=4,
        sampling=SETTINGS,
        draft_ids=torch.tensor([0, 2, 3, 5, 8]),
        core=core,
    )


def drafts_of(draft_sampling: DraftSampling) -> list[tuple[Draft, Sampling]]:
    """What verification is given in a run of nine requests on four slots, without the prefills."""
    seen = []

    def spy(target_logits, draft, sampling, verification, streams, *, mask):
        stats = draft.row_stats
        if stats is not None:
            stats = RowStats(stats.maximum.clone(), stats.normalizer.clone(), stats.threshold.clone())
        logits = None if draft.logits is None else draft.logits.clone()
        if draft.token_ids.shape[1]:
            seen.append((replace(draft, logits=logits, row_stats=stats), sampling))
        return verify(target_logits, draft, sampling, verification, streams, mask=mask)

    engine = engine_of(draft_sampling, replace(reference_core(), verify=spy))
    engine.run(toy_requests(9), lambda record: None)
    return seen


def test_statistics_give_the_probabilities_of_the_cached_rows():
    drafts = drafts_of(DraftSampling.sampled)
    assert any(0 in draft.num_draft_tokens for draft, _ in drafts), "prompts that end beside rounds draft nothing"
    temperature = torch.tensor(SETTINGS.temperature, dtype=torch.float32).double()
    for draft, sampling in drafts:
        stats, slots = draft.row_stats, (draft.num_draft_tokens > 0).nonzero()[:, 0]
        assert draft.logits is not None and stats is not None
        decoding = sampling_rows(sampling, slots)
        for position in range(3):
            logits = draft.logits[slots, position]
            distance = (logits.double() - stats.maximum[slots, position, None].double()) / temperature
            found = distance.exp() / stats.normalizer[slots, position, None]
            found = torch.where(logits >= stats.threshold[slots, position, None], found, 0.0)
            torch.testing.assert_close(found, process(logits, decoding).exp(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("sampling", [DraftSampling.greedy, DraftSampling.coupled], ids=lambda item: item.value)
def test_draws_that_leave_no_statistics_pass_none_on(sampling: DraftSampling):
    assert all(draft.row_stats is None for draft, _ in drafts_of(sampling))
    assert engine_of(sampling).drafter.logit_cache_bytes == (0 if sampling is DraftSampling.greedy else 4 * 3 * 5 * 4)


@pytest.mark.parametrize(
    ("settings", "truncates"),
    [
        (SamplingSettings(0.7), False),
        (SamplingSettings(0.0, top_k=5), False),
        (SamplingSettings(top_k=5), True),
        (SamplingSettings(top_p=0.9), True),
        (SamplingSettings(min_p=0.1), True),
    ],
    ids=["plain", "greedy", "top-k", "top-p", "min-p"],
)
def test_settings_that_cut_nothing_promise_it(settings: SamplingSettings, truncates: bool):
    assert settings.truncates is truncates
