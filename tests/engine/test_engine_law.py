"""The engine end to end on a toy Markov pair: the joint law of the output over several rounds is exactly the target's.

Would catch: a stream shared between purposes, rounds or slots; a residual at the wrong position; a draft row of the
wrong slot; drafts verified against other values than they were drawn from; tokens lost or doubled at a commit.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.drafters.ngram_run import NgramDrafter
from harness.drafters.suffix_run import SuffixDrafter
from harness.engine.depth import DepthByBatch
from harness.engine.engine import Engine
from harness.records.request import EXPECTED_METHODS
from kernels.contract import DraftSampling, Sampling, VerificationMethod
from kernels.core import Core, reference_core
from kernels.reference.truncation import process
from kernels.reference.verify import verify
from tests.support.toy_markov import exact_law, fits, outputs, toy_engine, toy_requests, transitions

NUM_REQUESTS = 10_000
"""With as many the p-values of the controls below are 1.2e-11 (shared noise), below 1e-300 (lossy) and 8e-30 (uniforms
used again), far below the level of a false alarm; `harness.checks.certification` simulates millions."""
NUM_TOKENS = 4
FALSE_ALARM = 1e-6
"""Probability that one of these tests fails by chance; every seed is fixed, so a pass stays a pass."""

# A pair on which shared noise shows: it cannot where the residual holds a single token.
TARGET, DRAFT = transitions(3, seed=12), transitions(3, seed=19)

WIDE_TARGET, WIDE_DRAFT = transitions(4, seed=12), transitions(4, seed=19)

LOSSLESS = [
    (VerificationMethod.strict, DraftSampling.sampled),
    (VerificationMethod.strict, DraftSampling.greedy),
    (VerificationMethod.strict, DraftSampling.coupled),
    (VerificationMethod.coupled, DraftSampling.coupled),
    (VerificationMethod.coupled, DraftSampling.greedy),
    (VerificationMethod.probabilistic, DraftSampling.sampled),
    (VerificationMethod.probabilistic, DraftSampling.greedy),
    (VerificationMethod.block, DraftSampling.sampled),
    (VerificationMethod.block, DraftSampling.greedy),
]


def fit(sequences: Iterable[tuple[int, ...]], target: torch.Tensor, length: int) -> float:
    """p-value of the chi-square test that sequences follow a Markov target."""
    return fits(sequences, exact_law(target, length))


def engine_of(method: VerificationMethod, sampling: DraftSampling, core: Core | None = None) -> Engine:
    return toy_engine(
        TARGET, DRAFT, method, sampling, num_speculative_tokens=3, max_new_tokens=NUM_TOKENS, num_slots=1500, core=core
    )


def p_value(engine: Engine) -> float:
    return fit(outputs(engine, toy_requests(NUM_REQUESTS)).values(), TARGET, NUM_TOKENS)


@pytest.mark.parametrize(("method", "sampling"), LOSSLESS, ids=lambda item: item.value)
def test_law_of_the_first_tokens_is_the_targets(method, sampling):
    assert p_value(engine_of(method, sampling)) > FALSE_ALARM


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
@pytest.mark.parametrize(
    ("method", "sampling"),
    [case for case in LOSSLESS if case[1] is not DraftSampling.greedy],
    ids=lambda item: item.value,
)
def test_law_is_the_targets_with_draft_rows_that_see_no_draft(method, sampling, graphs):
    """Rows of one forward, the second and later ones far from the target's. Would catch a draft that is drawn from
    another row than is verified."""
    given = {"num_speculative_tokens": 3, "max_new_tokens": NUM_TOKENS, "num_slots": 1500, "graphs": graphs}
    assert p_value(toy_engine(TARGET, DRAFT, method, sampling, parallel=True, **given)) > FALSE_ALARM


class DepthByAccepted(DepthByBatch):
    """Makes the most of what it may know: how many drafts all rounds have accepted so far decides every depth."""

    num_accepted = num_steps = 0

    def choices(self, num_requests):
        return range(4)

    def choose(self, num_requests):
        # a step without drafts accepts none, and must not be the last word
        self.num_steps += 1
        return (self.num_accepted + self.num_steps) % 4

    def learn(self, num_requests, depth, num_accepted, seconds, num_prompt_tokens):
        self.num_accepted += sum(num_accepted)


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
@pytest.mark.parametrize("method", [VerificationMethod.probabilistic, VerificationMethod.block])
def test_law_is_the_targets_whatever_earlier_rounds_make_of_the_depth(method, graphs):
    """Would catch a depth that follows from the step's own drafts, and drafts that are cut behind their draw."""
    given = {"num_speculative_tokens": 3, "max_new_tokens": NUM_TOKENS, "num_slots": 400, "graphs": graphs}
    depth = DepthByAccepted(())
    engine = toy_engine(TARGET, DRAFT, method, DraftSampling.sampled, depth=depth, **given)
    assert p_value(engine) > FALSE_ALARM and depth.num_accepted > NUM_REQUESTS / 4


@pytest.mark.parametrize(
    ("method", "sampling"),
    [(VerificationMethod.pr35461, DraftSampling.coupled), (VerificationMethod.typical, DraftSampling.sampled)],
    ids=["noise shared between draft, acceptance and residual", "a lossy method"],
)
def test_the_same_statistic_rejects_what_is_biased(method, sampling):
    assert p_value(engine_of(method, sampling)) < FALSE_ALARM


def test_the_same_statistic_rejects_acceptance_uniforms_used_again_in_the_next_round():
    """A broken copy of the engine whose rounds all read the streams of round 0: only several rounds can show it."""

    def verify_round_zero(target_logits, draft, sampling, verification, streams, *, mask):
        first = replace(streams, rounds=torch.zeros_like(streams.rounds))
        return verify(target_logits, draft, sampling, verification, first, mask=mask)

    core = replace(reference_core(), verify=verify_round_zero)
    assert p_value(engine_of(VerificationMethod.block, DraftSampling.sampled, core)) < FALSE_ALARM


@pytest.mark.parametrize("method", [VerificationMethod.probabilistic, VerificationMethod.coupled])
def test_output_does_not_depend_on_the_number_of_slots(method):
    """Random numbers are functions of the request alone: the same tokens whatever shares the batch."""
    sampling = DraftSampling.coupled if method is VerificationMethod.coupled else DraftSampling.sampled
    results = [
        outputs(
            toy_engine(TARGET, DRAFT, method, sampling, num_speculative_tokens=3, max_new_tokens=9, num_slots=slots),
            toy_requests(20),
        )
        for slots in (1, 7, 20)
    ]
    assert results[0] == results[1] == results[2]


def test_coupled_output_does_not_depend_on_the_drafter():
    """Drafter-invariance: the drafter, its depth, and having one at all change no token."""
    results = [
        outputs(
            toy_engine(
                TARGET,
                draft,
                VerificationMethod.coupled,
                DraftSampling.coupled,
                num_speculative_tokens=num_tokens,
                max_new_tokens=12,
                num_slots=16,
            ),
            toy_requests(60),
        )
        for draft, num_tokens in ((DRAFT, 3), (TARGET, 2), (DRAFT, 0))
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("method", "sampling", "drafter"),
    [
        (VerificationMethod.strict, DraftSampling.sampled, "chain"),
        (VerificationMethod.probabilistic, DraftSampling.sampled, "chain"),
        (VerificationMethod.block, DraftSampling.sampled, "chain"),
        (VerificationMethod.coupled, DraftSampling.coupled, "chain"),
        (VerificationMethod.block, DraftSampling.greedy, "ngram"),
        (VerificationMethod.coupled, DraftSampling.greedy, "ngram"),
        (VerificationMethod.block, DraftSampling.greedy, "suffix"),
        (VerificationMethod.probabilistic, DraftSampling.greedy, "suffix of all"),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_law_with_truncation_and_a_smaller_draft_vocabulary(method, sampling, drafter):
    """The draft vocabulary misses a token, the distribution is truncated, n-gram drafts have ragged lengths, those of a
    suffix lengths that depend on the text."""
    drafters = {"ngram": NgramDrafter(2, 1), "suffix": SuffixDrafter(1, 1.0)}
    drafters["suffix of all"] = SuffixDrafter(1, 1.0, history=10_000)
    settings = SamplingSettings(temperature=0.8, top_p=0.85, min_p=0.02)
    engine = toy_engine(
        WIDE_TARGET,
        WIDE_DRAFT,
        method,
        sampling,
        num_speculative_tokens=3,
        max_new_tokens=NUM_TOKENS,
        num_slots=1000,
        sampling=settings,
        draft_ids=torch.tensor([0, 2, 3]),
        drafter=drafters.get(drafter),
    )
    rows = Sampling.same_for_all(len(WIDE_TARGET), settings.temperature, 0, settings.top_p, settings.min_p)
    processed = process(WIDE_TARGET.log(), rows).exp()
    requests = toy_requests(5000, prompt=(1, 0, 2, 3, 1, 0))
    assert fit(outputs(engine, requests).values(), processed, NUM_TOKENS) > FALSE_ALARM


def expecting_engine(method, **others):
    """Sampled drafts of three tokens, and what their acceptance is expected to be."""
    sizes = {"num_speculative_tokens": 3, "max_new_tokens": 12, "num_slots": 500}
    return toy_engine(
        WIDE_TARGET, WIDE_DRAFT, method, DraftSampling.sampled, **sizes, expected_acceptance=True, **others
    )


@pytest.mark.parametrize(
    "method", [VerificationMethod.strict, VerificationMethod.probabilistic, VerificationMethod.block]
)
def test_expected_acceptance_is_the_mean_of_the_accepted(method):
    """With an EOS and a length limit. Would catch evidence whose counting depends on the outcome."""
    engine = expecting_engine(method, eos_token_ids=frozenset({1}))
    run = engine.run(toy_requests(6000), lambda record: None)
    rounds = [item for record in run.requests for item in record.rounds if item.expected_accepted is not None]
    index = EXPECTED_METHODS.index(method.value)
    excess = torch.tensor([item.num_accepted_tokens - item.expected_accepted[index] for item in rounds])
    standard_error = excess.std() / len(rounds) ** 0.5
    assert len(rounds) > 5000
    assert abs(excess.mean()) < 5 * standard_error


@pytest.mark.parametrize(
    ("method", "reaches"), [(VerificationMethod.strict, False), (VerificationMethod.probabilistic, True)]
)
def test_the_bound_of_a_position_is_what_probabilistic_verification_accepts_there(method, reaches):
    """And more than strict does. Would catch a bound of the next position, and rounds that did not get there."""
    engine = expecting_engine(method)
    run = engine.run(toy_requests(3000), lambda record: None)
    rounds = [item for record in run.requests for item in record.rounds]
    assert all((item.position_bounds is None) == (item.num_proposed_tokens == 0) for item in rounds)
    for place in range(3):
        reached = [item for item in rounds if item.num_draft_tokens > place <= item.num_accepted_tokens]
        excess = torch.tensor([(item.num_accepted_tokens > place) - item.position_bounds[place] for item in reached])
        standard_error = excess.std() / len(reached) ** 0.5
        assert len(reached) > 500
        assert abs(excess.mean()) < 5 * standard_error if reaches else excess.mean() < -5 * standard_error
