"""Log-probabilities of output tokens: with every verification method those of the row that the token follows."""

from functools import cache

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.engine.token_logprobs import LogprobsSettings
from kernels.contract import DraftSampling, Sampling, VerificationMethod
from kernels.reference.truncation import process
from tests.support.toy_markov import toy_engine, toy_requests, transitions

TARGET, DRAFT = transitions(7, seed=1), transitions(7, seed=2)
SAMPLING = SamplingSettings(0.7, top_p=0.8)
METHODS = [method for method in VerificationMethod if method is not VerificationMethod.synthetic]


def run(method: VerificationMethod, logprobs: LogprobsSettings | None, **options: bool):
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
    return run(method, None, graphs=False)


@pytest.mark.parametrize(
    ("is_processed", "graphs"),
    [(False, False), (True, False), (True, True)],
    ids=["raw", "processed", "processed, as graphs"],
)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
def test_every_method_records_the_row_that_a_token_follows(method, is_processed: bool, graphs: bool):
    """Would catch rows shifted by a draft, cut tokens counted, and -inf written where a method emits a cut token."""
    plain = plain_run(method)
    records = run(method, LogprobsSettings(2, is_processed), graphs=graphs)
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
    found = run(VerificationMethod.block, LogprobsSettings(0, is_processed=False))[0].logprobs
    assert set(found.top_token_ids) == {()} and len(found.token) == len(found.rank) > 1
