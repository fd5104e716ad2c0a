"""What other engines hand over: drafts drawn with a sampling of their own, and placeholders among them."""

from dataclasses import replace

import pytest
import torch

from kernels.contract import Draft, RowStats, Sampling, Streams, TokenMask, Verification, VerificationMethod
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose
from kernels.reference.acceptance import acceptance_terms
from kernels.reference.draw import draw
from kernels.reference.multi_draft_terms import multi_draft_terms
from kernels.reference.output_tv import draft_tv, output_tv
from kernels.reference.truncation import process
from kernels.reference.verify import verify
from kernels.verify import verify as verify_on_device
from tests.support.kernel_rounds import assert_same_verdict

Method = VerificationMethod
R, K, V = 8, 3, 29
METHODS = [Method.strict, Method.probabilistic, Method.block]


def sampling_of(temperatures, top_k=0, top_p=1.0):
    each = torch.tensor(temperatures)[torch.arange(R) % len(temperatures)]
    return Sampling(each, torch.full((R,), top_k), torch.full((R,), top_p), torch.zeros(R), top_k > 0 or top_p < 1)


def round_of(own, seed=0):
    """(target rows, draft drawn with `own`, streams); the drafter is off by a third of its logits' size."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(R, K + 1, V, generator=generator) * 2
    cache = (target[:, :-1] + 0.6 * torch.randn(R, K, V, generator=generator)).contiguous()
    streams = Streams(torch.arange(R) * 977 + seed, torch.arange(R) + 3, torch.full((R,), 2))
    token_ids = torch.stack(
        [
            draw(cache[:, i], own, replace(streams, positions=streams.positions + i), Purpose.draft).token_ids
            for i in range(K)
        ],
        dim=1,
    )
    return target.flatten(0, 1), Draft(token_ids, torch.full((R,), K), cache, sampling=own), streams


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_are_processed_already_give_the_same_tokens(method):
    """Target rows cut and over the temperature, draft rows raw: what vLLM 0.33 has. Verifies as if both were raw."""
    round_sampling, own = sampling_of([0.7, 1.3, 0.0], top_k=5), sampling_of([0.7, 1.3, 0.0])
    target, draft, streams = round_of(own)
    processed = process(target, round_sampling.each(lambda field: field.repeat_interleave(K + 1)))
    ones = replace(sampling_of([1.0]), temperature=(round_sampling.temperature > 0).float())
    found = verify(processed, draft, ones, Verification(method), streams)
    assert_same_verdict(found, verify(target, draft, round_sampling, Verification(method), streams))
    assert 0 < int(found.num_accepted.sum()) < R * K and not bool(found.invalid.any())


@pytest.mark.parametrize(
    ("method", "target_cut", "own"),
    [
        (Method.strict, {}, {"temperatures": [0.6, 1.5]}),
        (Method.probabilistic, {}, {"temperatures": [0.6, 1.5]}),
        (Method.block, {}, {"temperatures": [0.6, 1.5]}),
        (Method.block, {"top_k": 6}, {"temperatures": [1.0]}),
        (Method.probabilistic, {}, {"temperatures": [0.8], "top_k": 4, "top_p": 0.9}),
    ],
)
def test_the_kernels_weigh_draft_rows_by_the_drafts_own_sampling(method, target_cut, own):
    """Twins agree; with the round's sampling for both, tokens would differ. Greedy requests beside."""
    target, draft, streams = round_of(sampling_of(**own), seed=5)
    round_sampling = sampling_of([0.9, 0.0, 1.2, 0.5], **target_cut)
    draft = replace(draft, idx_mapping=torch.arange(R).flip(0), logits=draft.logits.flip(0))
    expected = verify(target, draft, round_sampling, Verification(method), streams)
    assert_same_verdict(verify_on_device(target, draft, round_sampling, Verification(method), streams), expected)
    if method is not Method.strict:
        alike = verify(target, replace(draft, sampling=None), round_sampling, Verification(method), streams)
        assert not torch.equal(alike.token_ids, expected.token_ids)


def test_recorded_terms_are_of_the_sampling_that_drafts_were_drawn_with():
    """Twice the logits at temperature 1 are the same drafts, beside greedy requests. Would catch the round's sampling
    for draft rows in one term and the draft's own in another."""
    round_sampling = sampling_of([1.0, 0.0])
    target, draft, _ = round_of(sampling_of([0.5]), seed=4)
    drawn = draft.logits[:, 0] + 0.3 * torch.randn(R, V, generator=torch.Generator().manual_seed(1))
    alike = replace(draft, logits=2 * draft.logits, sampling=None)
    rule = Verification(Method.probabilistic)

    def terms(draft, drawn):
        found = multi_draft_terms(target, draft, round_sampling)
        found["draft_tv"] = draft_tv(draft, round_sampling, drawn)
        found["output_tv"] = output_tv(target, draft, round_sampling, rule, drawn)
        return found | {"overlap": acceptance_terms(target, draft, round_sampling).overlap}

    found, expected = terms(draft, drawn), terms(alike, 2 * drawn)
    for name, values in expected.items():
        torch.testing.assert_close(
            found[name], values, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert bool((found["bound_independent_2"] >= found["overlap"] - 1e-12).all())


@pytest.mark.parametrize("cuts", [{}, {"top_k": 6}])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_at_temperature_0_are_certain(method, cuts):
    """Beside sampled ones and greedy requests: ties, a token that is not the largest, rows without a distribution and
    masks. Twins agree, and a certain draft is one without logits."""
    own, round_sampling = sampling_of([0.0, 0.8]), sampling_of([0.9, 1.1, 1.2, 0.0], **cuts)
    target, draft, streams = round_of(own, seed=3)
    cache, token_ids = draft.logits, draft.token_ids
    cache[0, 1, [4, 7]] = 9.0
    token_ids[0] = cache[0].argmax(dim=1)
    token_ids[0, 1] = 4
    cache[4, 2, [4, 7]] = 9.0
    token_ids[4, 2] = 7
    cache[2, 0, 5] = 9.0
    cache[2, 2], cache[6, 1, 3] = -torch.inf, torch.nan
    token_ids[2, 0] = cache[2, 0].topk(2).indices[1]
    verification = Verification(method)
    words = torch.full((1, 1), -1, dtype=torch.int32)
    words[0, 0] ^= 1 << 5
    masks = torch.where(torch.arange(R)[:, None] < 4, 0, -1).expand(R, K).contiguous()
    for mask in (TokenMask(words, masks), None):
        held = replace(draft, mask=mask)
        expected = verify(target, held, round_sampling, verification, streams)
        assert_same_verdict(verify_on_device(target, held, round_sampling, verification, streams), expected)
        if method is not Method.strict:
            first_is_impossible = expected.invalid[2] & (expected.num_accepted[2] == 0)
            assert bool(first_is_impossible) is (mask is None) and not bool(expected.invalid[0])
    if method is Method.strict:
        return
    certain = verify(target, replace(draft, logits=None, sampling=None), round_sampling, verification, streams)
    assert torch.equal(certain.token_ids[0], expected.token_ids[0])
    stats = RowStats.empty(R, K)
    for column in range(K):
        draw(cache[:, column], own, streams, Purpose.draft, row_stats=stats.at((slice(None), column)))
    known = verify(target, replace(draft, row_stats=stats), round_sampling, verification, streams, reads_stats=True)
    assert torch.equal(known.token_ids, expected.token_ids)


@pytest.mark.parametrize(
    ("method", "temperature"),
    [(each, 0.9) for each in (*METHODS, Method.coupled, Method.synthetic, Method.typical)] + [(Method.block, 0.0)],
)
def test_a_placeholder_ends_the_draft_without_a_flag(method, temperature):
    """Would catch one that synthetic accepts, and a residual of rows that nothing was drawn from."""
    target, draft, streams = round_of(sampling_of([0.9]), seed=2)
    draft, round_sampling = replace(draft, sampling=None), sampling_of([temperature])
    ends = torch.arange(R) % (K + 1)
    token_ids = torch.where(torch.arange(K) < ends[:, None], draft.token_ids, -1)
    cache = draft.logits.clone()
    cache[torch.arange(K) >= ends[:, None]] = torch.nan
    held = replace(draft, token_ids=token_ids, logits=cache)
    rule = Verification(method, **({"rates": (1.0,) * K} if method is Method.synthetic else {}))
    found = verify(target, held, round_sampling, rule, streams)
    assert not bool(found.invalid.any()) and bool((found.num_accepted <= ends).all())
    assert_same_verdict(verify_on_device(target, held, round_sampling, rule, streams), found)
    short = replace(draft, num_draft_tokens=ends)
    rows = target.view(R, K + 1, V)
    packed = torch.cat([rows[request, : count + 1] for request, count in enumerate(ends.tolist())])
    accepted = verify(packed, short, round_sampling, rule, streams)
    assert torch.equal(accepted.num_accepted, found.num_accepted)


def test_a_token_outside_is_still_flagged():
    target, draft, streams = round_of(sampling_of([0.9]))
    draft.token_ids[0, 0], draft.token_ids[1, 0] = -2, -1
    found = verify_on_device(target, draft, sampling_of([0.9]), Verification(Method.probabilistic), streams)
    assert found.invalid[:2].tolist() == [True, False] and found.num_accepted[:2].tolist() == [0, 0]


def test_traversal_takes_both_on_a_chain():
    """On the reference core; the kernels run what it is there."""
    target, draft, streams = round_of(sampling_of([0.6]), seed=4)
    draft.token_ids[0, 1:] = -1
    call = sampling_of([0.9]), Verification(TreeMethod.traversal), streams
    found, alike = verify(target, draft, *call), verify(target, replace(draft, sampling=None), *call)
    assert not bool(found.invalid.any()) and int(found.num_accepted[0]) <= 1
    assert not torch.equal(found.token_ids, alike.token_ids)
