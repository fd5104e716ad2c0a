"""Masks in the kernels against the reference, on the same streams: equal integers, whatever the masks forbid."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from kernels.contract import RowStats, Sampling, TokenMask
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw as reference_coupled_draw
from kernels.reference.draw import draw as reference_draw
from kernels.reference.logprobs import logprobs as reference_logprobs
from kernels.reference.token_mask import without_forbidden
from kernels.reference.truncation import keep_row_stats, processed
from tests.support.kernel_rounds import (
    DEVICE,
    LOGPROB_ATOL,
    LOGPROB_RTOL,
    NO_TOKEN,
    ONE_TOKEN,
    KernelRound,
    always,
    assert_same_drawn,
    assert_same_verdict,
    checked_verdict,
    draft_reading_methods,
    kernel_round,
    moved,
    poisoned_allocations,
    random_words,
    sampled_methods,
    streams_of,
)
from tests.support.random_round import (
    GREEDY,
    PLAIN,
    SAMPLED_METHODS,
    SHARES_NOISE,
    Method,
    Setting,
    sampling_of,
    verification_of,
)

CUTTING, UNCUT = [(0.9, 20, 0.9, 0.02), PLAIN, GREEDY], [PLAIN, (0.7, 0, 1.0, 0.0), GREEDY]
LENGTHS = [2, 0, 1]
CUT_OR_NOT = pytest.mark.parametrize("settings", [CUTTING, UNCUT], ids=["truncated", "not truncated"])


def rounds(truncated: Iterable[Method], uncut: Iterable[Method]) -> pytest.MarkDecorator:
    """Every method, truncated and not, on a GPU; without one those given."""
    given = [*((method, CUTTING) for method in truncated), *((method, UNCUT) for method in uncut)]
    cases = always(*given, on_a_gpu=product(SAMPLED_METHODS, (CUTTING, UNCUT)))
    names = [f"{method.value}, {'truncated' if settings is CUTTING else 'not truncated'}" for method, settings in cases]
    return pytest.mark.parametrize(("method", "settings"), cases, ids=names)


@rounds(
    truncated=[Method.probabilistic, Method.block, Method.coupled, Method.typical],
    uncut=[method for method in SAMPLED_METHODS if method is not Method.probabilistic],
)
def test_masked_beside_free_rows(method: Method, settings: list[Setting]):
    """An odd vocabulary, packed rows; bits beyond the last token are rubbish."""
    batch = kernel_round(settings, LENGTHS, 63, shared_noise=method in SHARES_NOISE, seed=30, masked=True)
    free = replace(batch, mask=None).expected(verification_of(method))
    assert checked_verdict(batch, method).token_ids.tolist() != free.token_ids.tolist()


def lopsided_round(settings: list[Setting], masked: str, one_hot: bool, vocab_size: int = 63) -> KernelRound:
    """Target and draft have the same logits, and only one of them has a mask, which alone makes the difference: q is p
    where the draft is masked, and larger by a factor; or half of the draft tokens are forbidden, and p is larger
    elsewhere."""
    batch = kernel_round(settings, [1] * len(settings), vocab_size, padded=True, seed=44, masked=True)
    draft, mapping = batch.draft, batch.draft.idx_mapping
    assert batch.mask is not None and draft.mask is not None and draft.logits is not None and mapping is not None
    rows = torch.arange(2, 2 + len(settings), device=DEVICE)
    mask, draft_mask = replace(batch.mask, rows=batch.mask.rows.clone().fill_(-1)), draft.mask
    draft_mask.rows.fill_(-1)
    if masked == "target":
        mask.rows[:] = rows.repeat_interleave(2)
    else:
        draft_mask.rows[mapping, 0] = rows
    logits = batch.target_logits.view(len(settings), 2, -1)[:, 0]
    drawn_under = replace(draft_mask, rows=draft_mask.rows[mapping, 0])
    drawn = reference_draw(logits, batch.sampling, batch.streams, Purpose.draft, mask=drawn_under)
    cache = draft.logits.clone()
    cache[mapping, 0] = logits
    draft = replace(draft, token_ids=drawn.token_ids[:, None], logits=cache, mask=draft_mask)
    if one_hot:
        draft = replace(draft, logits=None, idx_mapping=None, mask=None)
    return replace(batch, draft=draft, mask=mask)


@pytest.mark.parametrize("masked", ["target", "draft"])
@draft_reading_methods(Method.probabilistic)
def test_mask_of_one_side_only(method: Method, masked: str):
    """Would catch a mask that is forgotten in p(X), in q(X), or in either of the weights of a residual."""
    batch = lopsided_round([PLAIN] * 8, masked, one_hot=False)
    verdict = checked_verdict(batch, method)
    assert 0 < int(verdict.num_accepted.sum()) < 8


@draft_reading_methods(Method.block)
def test_draft_token_that_its_own_mask_forbids_is_a_fault(method: Method):
    batch = lopsided_round([PLAIN] * 2, "draft", one_hot=False)
    mask, mapping = batch.draft.mask, batch.draft.idx_mapping
    assert mask is not None and mapping is not None
    left = without_forbidden(torch.zeros(2, 63, device=DEVICE), replace(mask, rows=mask.rows[mapping, 0]))
    forbidden = left.argmin(dim=1, keepdim=True)
    verdict = checked_verdict(replace(batch, draft=replace(batch.draft, token_ids=forbidden)), method)
    assert verdict.invalid.all() and not verdict.num_accepted.any()


@rounds(truncated=[], uncut=[Method.block])
def test_one_hot_drafts(method: Method, settings: list[Setting]):
    checked_verdict(lopsided_round([*settings, *settings], "target", one_hot=True), method)


@pytest.mark.parametrize("kind", ["mapped", "leading"])
@draft_reading_methods(Method.probabilistic)
def test_smaller_draft_vocabulary_without_kept_statistics(method: Method, kind: str):
    """The draft's mask is looked up by ids of the target's vocabulary, and again when its rows are read again."""
    ids = torch.randperm(300, generator=torch.Generator().manual_seed(35))[:120]
    batch = kernel_round(CUTTING[:2], [1, 1], 300, draft_vocab=ids if kind == "mapped" else 120, seed=35, masked=True)
    assert batch.draft.row_stats is None
    assert not checked_verdict(batch, method).invalid.any()


@pytest.mark.parametrize("vocab_size", always(2049, on_a_gpu=[1000, 4096, 5000]))
@sampled_methods(Method.block)
def test_padded_rows_of_several_chunks(method: Method, vocab_size: int):
    noisy = method in SHARES_NOISE
    checked_verdict(
        kernel_round(UNCUT[:2], [1, 1], vocab_size, padded=True, shared_noise=noisy, seed=36, masked=True), method
    )


@pytest.mark.parametrize("dtype", always(torch.bfloat16, on_a_gpu=[torch.float16]), ids=str)
@sampled_methods(Method.probabilistic)
def test_half_precision_logits(method: Method, dtype: torch.dtype):
    checked_verdict(
        kernel_round(CUTTING, LENGTHS, 1000, dtype, shared_noise=method in SHARES_NOISE, seed=37, masked=True), method
    )


@rounds(truncated=[Method.probabilistic], uncut=[Method.coupled])
def test_rows_with_one_token_and_with_none(method: Method, settings: list[Setting]):
    """The first request may emit only its last token; the second has a row of nothing, and is flagged for it."""
    batch = kernel_round(settings[:2], [1, 0], 63, shared_noise=method in SHARES_NOISE, seed=38, masked=True)
    assert batch.mask is not None and batch.draft.mask is not None
    batch.mask.rows[:] = torch.tensor([ONE_TOKEN, ONE_TOKEN, NO_TOKEN], device=DEVICE)
    verdict = checked_verdict(batch, method)
    first = int(verdict.num_accepted[0])
    assert int(verdict.token_ids[0, first]) == 62
    assert verdict.invalid[1]


@sampled_methods(Method.block)
def test_free_rows_are_as_without_a_mask(method: Method):
    batch = kernel_round(CUTTING[:1], [1], 63, seed=39)
    rows = torch.full((len(batch.target_logits),), -1, device=DEVICE)
    words = torch.zeros(1, 2, dtype=torch.int32, device=DEVICE)
    free = checked_verdict(replace(batch, mask=TokenMask(words, rows)), method)
    assert_same_verdict(free, batch.expected(verification_of(method)))


def draw_arguments(settings: list[Setting], mapped: bool) -> tuple[Tensor, Sampling, TokenMask, Tensor | None]:
    generator = torch.Generator().manual_seed(40)
    ids = torch.randperm(300, generator=generator)[:120] if mapped else None
    logits = 3 * torch.randn(6, 120 if mapped else 300, generator=generator)
    mask = TokenMask(random_words(5, 300, generator), torch.tensor([2, 3, -1, 4, ONE_TOKEN, NO_TOKEN]))
    sampling = sampling_of(*settings, *settings)
    sampling = replace(sampling, truncates=settings is CUTTING)
    return moved(logits, DEVICE), moved(sampling, DEVICE), moved(mask, DEVICE), None if ids is None else ids.to(DEVICE)


@CUT_OR_NOT
@pytest.mark.parametrize("mapped", [False, True], ids=["same ids", "mapped ids"])
def test_draws(settings: list[Setting], mapped: bool):
    """Also the kept statistics: q computed from them must be the distribution drawn from."""
    from kernels.draw import draw

    logits, sampling, mask, ids = draw_arguments(settings, mapped)
    streams, kept, expected = moved(streams_of(6, 41), DEVICE), *(RowStats.empty(6, device=DEVICE) for _ in range(2))
    with poisoned_allocations():
        found = draw(logits, sampling, streams, Purpose.draft, ids, row_stats=kept, mask=mask)
    assert_same_drawn(found, reference_draw(logits, sampling, streams, Purpose.draft, ids, mask=mask))
    keep_row_stats(processed(without_forbidden(logits, mask, ids), sampling), sampling, expected)
    assert_same_law(kept, expected)


def assert_same_law(found: RowStats, expected: RowStats) -> None:
    """Thresholds may differ where nothing lies between them; then the mass of the survivors is the same."""
    assert torch.equal(found.maximum, expected.maximum)
    # Sums of float32 weights, each within 2^-20 of its own size; see LOGPROB_RTOL.
    torch.testing.assert_close(found.normalizer, expected.normalizer, rtol=2.0**-20, atol=0.0, equal_nan=True)


@CUT_OR_NOT
@pytest.mark.parametrize("mapped", [False, True], ids=["same ids", "mapped ids"])
def test_coupled_draws(settings: list[Setting], mapped: bool):
    from kernels.draw import coupled_draw

    logits, sampling, mask, ids = draw_arguments(settings, mapped)
    arguments = (logits, sampling, moved(streams_of(6, 42), DEVICE), 300, ids)
    with poisoned_allocations():
        found = coupled_draw(*arguments, mask=mask)
    assert_same_drawn(found, reference_coupled_draw(*arguments, mask=mask))


@pytest.mark.parametrize("settings", always(CUTTING, on_a_gpu=[UNCUT]), ids=lambda _: "processed")
def test_logprobs(settings: list[Setting]):
    from kernels.logprobs import logprobs

    logits, sampling, mask, _ = draw_arguments(settings, mapped=False)
    arguments = (logits, torch.tensor([5, 6, 7, 8, 9, 0], device=DEVICE), 20, sampling, mask)
    found, expected = logprobs(*arguments), reference_logprobs(*arguments)
    for name in ("token_logprob", "top_logprobs"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), atol=LOGPROB_ATOL, rtol=LOGPROB_RTOL, equal_nan=True
        )
    assert torch.equal(found.rank, expected.rank)
    there = expected.top_logprobs > -torch.inf
    assert torch.equal(found.top_token_ids[there], expected.top_token_ids[there])


def test_mask_that_does_not_fit_is_an_error():
    batch = kernel_round([PLAIN], [1], 63, seed=43, masked=True)
    assert batch.mask is not None and batch.draft.mask is not None
    wrong_masks = {
        "mask.words must be .M, 2 or more. int32": replace(
            batch, mask=replace(batch.mask, words=batch.mask.words[:, :1])
        ),
        "mask.rows must be .2. int64": replace(batch, mask=replace(batch.mask, rows=batch.mask.rows[:1])),
        "draft.mask.rows must be .3, 1. or more int64": replace(
            batch, draft=replace(batch.draft, mask=replace(batch.draft.mask, rows=batch.draft.mask.rows[:2]))
        ),
    }
    for message, wrong in wrong_masks.items():
        with pytest.raises(ValueError, match=message):
            wrong.found(verification_of(Method.block))
