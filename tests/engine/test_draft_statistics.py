"""A chain drafter keeps the statistics of the rows it drew from beside them, where verification finds both."""

from dataclasses import replace

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.engine.engine import Engine
from kernels.contract import Draft, DraftSampling, RowStats, Sampling, VerificationMethod
from kernels.core import Core, reference_core
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import verify
from tests.support.toy_markov import toy_engine, toy_requests, transitions

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
