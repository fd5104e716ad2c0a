"""The verification kernels against the reference on the same streams: equal integers, whatever lies beside the rows."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from kernels.contract import Draft, RowStats, Sampling, Streams, Verification
from kernels.random.streams import Purpose
from tests.support.kernel_rounds import (
    DEVICE,
    LENGTHS,
    MIXED,
    RUBBISH,
    UNCUT,
    KernelRound,
    always,
    assert_same_verdict,
    checked_verdict,
    draft_reading_methods,
    kernel_round,
    poisoned_allocations,
    sampled_methods,
)
from tests.support.random_round import GREEDY, PLAIN, SAMPLED_METHODS, SHARES_NOISE, Method, verification_of


@pytest.mark.parametrize("vocab_size", always(63, on_a_gpu=[300]))
@sampled_methods(*SAMPLED_METHODS)
def test_ragged_mixed_batch(method: Method, vocab_size: int):
    """Sampled beside greedy requests, with and without truncation, 0 to K drafts, a padded slot, packed rows."""
    batch = kernel_round(MIXED, LENGTHS, vocab_size, shared_noise=method in SHARES_NOISE, seed=vocab_size)
    verdict = checked_verdict(batch, method)
    assert not verdict.invalid.any()
    assert len(verdict.num_accepted.unique()) > 1
    assert verdict.token_ids[LENGTHS.index(-1)].tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("method", "one_hot"),
    always(
        (Method.probabilistic, False),
        (Method.coupled, False),
        (Method.block, True),
        on_a_gpu=list(product(SAMPLED_METHODS, (False, True))),
    ),
    ids=lambda item: item.value if isinstance(item, Method) else "one-hot" if item else "cached",
)
def test_each_kind_of_a_mixed_batch_gets_what_it_gets_alone(method: Method, one_hot: bool):
    """Would catch a launch that serves requests of the other kind, or that leaves a request or padded slot out."""
    batch = kernel_round(MIXED, LENGTHS, 63, one_hot=one_hot, padded=True, shared_noise=method in SHARES_NOISE, seed=20)
    mixed = replace(batch, sampling=replace(batch.sampling, is_mixed=True))
    verdict = checked_verdict(mixed, method)
    cuts = torch.tensor([each[1:] != PLAIN[1:] for each in MIXED])
    for kind, truncates in ((~cuts, False), (cuts, True)):
        counts = batch.draft.num_draft_tokens.where(kind.to(DEVICE), -1)
        alone = replace(
            batch,
            draft=replace(batch.draft, num_draft_tokens=counts),
            sampling=replace(batch.sampling, truncates=truncates),
        ).found(verification_of(method))
        assert torch.equal(verdict.token_ids[kind], alone.token_ids[kind])
        assert torch.equal(verdict.num_accepted[kind], alone.num_accepted[kind])


@sampled_methods(Method.block)
def test_padded_rows(method: Method):
    """Every request has K + 1 rows; those that belong to nothing hold NaN and are not looked at."""
    assert not checked_verdict(kernel_round(MIXED, LENGTHS, 63, padded=True, seed=1), method).invalid.any()


@pytest.mark.parametrize("vocab_size", always(2049, on_a_gpu=[2048, 5000]))
@sampled_methods(Method.block, Method.coupled, Method.typical)
def test_rows_of_several_chunks(method: Method, vocab_size: int):
    settings = [(0.7, 0, 1.0, 0.0), (1.0, 0, 0.95, 0.0)]
    batch = kernel_round(settings, [2, 2], vocab_size, shared_noise=method in SHARES_NOISE, seed=2)
    checked_verdict(batch, method)


@pytest.mark.parametrize("dtype", always(torch.bfloat16, on_a_gpu=[torch.float16]), ids=str)
@sampled_methods(Method.probabilistic)
def test_half_precision_logits(method: Method, dtype: torch.dtype):
    checked_verdict(kernel_round(MIXED, LENGTHS, 300, dtype, seed=3), method)


@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
def test_greedy_verification(padded: bool):
    """Some drafts are accepted, some are not."""
    batch = kernel_round([GREEDY] * len(LENGTHS), LENGTHS, 63, padded=padded, seed=4)
    verdict = checked_verdict(batch, Method.greedy)
    assert 0 < int(verdict.num_accepted.sum()) < sum(length for length in LENGTHS if length > 0)


@pytest.mark.parametrize("method", [Method.greedy, Method.block], ids=lambda method: method.value)
def test_greedy_ties_go_to_the_lowest_id(method: Method):
    target = torch.zeros(4, 4100, device=DEVICE)
    target[0, [7, 2050, 4099]] = 3.0
    target[2, [2047, 2048]] = 3.0
    token_ids = torch.tensor([[7], [2048]], device=DEVICE)
    batch = KernelRound(
        target,
        Draft(token_ids, torch.tensor([1, 1], device=DEVICE)),
        kernel_round([GREEDY] * 2, [1, 1], 63).sampling,
        kernel_round([GREEDY] * 2, [1, 1], 63).streams,
    )
    assert checked_verdict(batch, method).token_ids.tolist() == [[7, 0], [2047, -1]]


@draft_reading_methods(Method.block)
def test_one_hot_drafts(method: Method):
    batch = kernel_round(MIXED, LENGTHS, 63, one_hot=True, seed=5)
    checked_verdict(batch, method)


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("kind", ["mapped", "leading"])
def test_smaller_draft_vocabulary(method: Method, kind: str):
    ids = torch.randperm(300, generator=torch.Generator().manual_seed(6))[:120]
    batch = kernel_round(MIXED, LENGTHS, 300, draft_vocab=ids if kind == "mapped" else 120, seed=6)
    assert not checked_verdict(batch, method).invalid.any()


@draft_reading_methods(Method.probabilistic)
@pytest.mark.parametrize("num_extra", always(2, on_a_gpu=[16]))
def test_rows_further_apart_than_their_length(method: Method, num_extra: int):
    """Would catch a row whose first token is looked for in the wrong place of a word, and tokens of the next row."""
    checked_verdict(kernel_round(MIXED, LENGTHS, 303, torch.bfloat16, num_extra=num_extra, seed=7), method)


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("vocab_size", always(2051, on_a_gpu=[2048, 5000, 4095]))
def test_drafts_without_statistics_that_nothing_cuts(method: Method, vocab_size: int):
    """Would catch sums of a draft row that are taken for its neighbour's, and rows that count one word too few."""
    batch = kernel_round(UNCUT, LENGTHS, vocab_size, torch.bfloat16, shared_noise=method in SHARES_NOISE, seed=12)
    assert batch.draft.row_stats is None
    assert not checked_verdict(batch, method).invalid.any()


@draft_reading_methods(Method.probabilistic)
def test_slot_of_a_request_is_its_row_without_a_mapping(method: Method):
    batch = kernel_round([PLAIN] * 4, [2] * 4, 63, seed=8)
    assert batch.draft.logits is not None
    cache = batch.draft.logits[batch.draft.idx_mapping]
    checked_verdict(replace(batch, draft=replace(batch.draft, logits=cache, idx_mapping=None)), method)


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("kind", always("mapped", on_a_gpu=["same"]))
def test_kept_row_statistics_give_the_same_verdict(method: Method, kind: str):
    """Statistics as `draw` leaves them beside the cache; what belongs to no draft is NaN."""
    from kernels.draw import draw

    ids = torch.randperm(300, generator=torch.Generator().manual_seed(9))[:120] if kind == "mapped" else None
    batch = kernel_round(MIXED, LENGTHS, 300, draft_vocab=ids, seed=9)
    cache, mapping = batch.draft.logits, batch.draft.idx_mapping
    assert cache is not None and mapping is not None
    shape = cache.shape[:2]
    kept = RowStats(
        torch.full(shape, torch.nan, device=DEVICE),
        torch.full(shape, torch.nan, dtype=torch.float64, device=DEVICE),
        torch.full(shape, torch.nan, device=DEVICE),
    )
    for request, slot in enumerate(mapping.tolist()):
        count = max(LENGTHS[request], 0)
        one = slice(request, request + 1)
        sampling = Sampling(*(getattr(batch.sampling, name)[one].expand(count) for name in SETTINGS))
        streams = Streams(*(getattr(batch.streams, name)[one].expand(count) for name in STREAMS))
        rows = RowStats(kept.maximum[slot, :count], kept.normalizer[slot, :count], kept.threshold[slot, :count])
        if count:
            draw(cache[slot, :count], sampling, streams, Purpose.draft, batch.draft.draft_to_target, row_stats=rows)
    checked_verdict(replace(batch, draft=replace(batch.draft, row_stats=kept)), method)


@draft_reading_methods(Method.probabilistic)
@pytest.mark.parametrize("elsewhere", ["slots of other requests", "outside the cache"])
def test_padded_slots_may_point_anywhere_when_statistics_are_read_again(method: Method, elsewhere: str):
    """Would catch the statistics of a request overwritten by those of a padded slot, at temperature 0."""
    batch = kernel_round([PLAIN, PLAIN, GREEDY, GREEDY], [3, 3, -1, -1], 63, seed=19)
    mapping = batch.draft.idx_mapping
    assert mapping is not None and batch.draft.row_stats is None
    pointing = mapping.clone()
    pointing[2:] = mapping[:2] if elsewhere == "slots of other requests" else RUBBISH
    checked_verdict(replace(batch, draft=replace(batch.draft, idx_mapping=pointing)), method)


SETTINGS = ("temperature", "top_k", "top_p", "min_p")
STREAMS = ("seeds", "positions", "rounds")


@sampled_methods(Method.block, Method.coupled)
def test_promise_that_nothing_is_cut_changes_nothing(method: Method):
    batch = kernel_round([PLAIN, GREEDY, (0.7, 0, 1.0, 0.0)], [3, 3, 2], 300, seed=10)
    assert not batch.sampling.truncates
    checked_verdict(batch, method)
    checked_verdict(replace(batch, sampling=replace(batch.sampling, truncates=True)), method)


@sampled_methods(Method.block)
def test_extreme_temperatures(method: Method):
    temperatures = (1e-4, 0.01, 0.1, 20.0, 1000.0)
    checked_verdict(kernel_round([(each, 0, 1.0, 0.0) for each in temperatures], [2] * 5, 300, seed=11), method)


@sampled_methods(Method.block)
def test_logits_far_from_zero(method: Method):
    """Exponentials without the row's maximum taken off would overflow or vanish."""
    batch = kernel_round([PLAIN] * 2, [3] * 2, 63, seed=12)
    assert batch.draft.logits is not None
    far = replace(batch, target_logits=batch.target_logits + 3e4)
    checked_verdict(replace(far, draft=replace(batch.draft, logits=batch.draft.logits - 3e4)), method)


@pytest.mark.parametrize(
    "method", always(Method.block, on_a_gpu=[Method.probabilistic, Method.lenient]), ids=lambda method: method.value
)
def test_drafts_that_follow_the_target_are_all_accepted(method: Method):
    """Equal rows leave no residual: the case in which rounding could leave a sampler without any mass."""
    batch = kernel_round([PLAIN, (0.7, 0, 0.9, 0.0)], [3] * 2, 300, torch.bfloat16, seed=13)
    assert batch.draft.logits is not None and batch.draft.idx_mapping is not None
    cache = batch.draft.logits.clone()
    rows = batch.target_logits.view(2, 4, 300)
    cache[batch.draft.idx_mapping, :3] = rows[:, :3]
    likely = rows[:, :3].argmax(dim=2)
    verdict = checked_verdict(replace(batch, draft=replace(batch.draft, logits=cache, token_ids=likely)), method)
    assert verdict.num_accepted.tolist() == [3] * 2
    assert not verdict.invalid.any()


@pytest.mark.parametrize("width", [0, 2], ids=["no columns", "no drafts"])
@sampled_methods(Method.block, Method.coupled)
def test_round_without_drafts_draws_the_bonus(method: Method, width: int):
    batch = kernel_round([PLAIN, GREEDY, (0.8, 10, 0.9, 0.0)], [0, 0, 0], 63, one_hot=True, seed=14)
    token_ids = torch.zeros(3, width, dtype=torch.long, device=DEVICE)
    checked_verdict(replace(batch, draft=replace(batch.draft, token_ids=token_ids)), method)


@pytest.mark.parametrize("method", [Method.probabilistic, Method.greedy, Method.coupled], ids=lambda m: m.value)
def test_empty_batch(method: Method):
    none = torch.zeros(0, dtype=torch.long, device=DEVICE)
    real = torch.zeros(0, device=DEVICE)
    batch = KernelRound(
        torch.zeros(0, 5, device=DEVICE),
        Draft(none.view(0, 2), none),
        Sampling(real, none, real, real),
        Streams(none, none, none),
    )
    assert batch.found(verification_of(method)).token_ids.shape == (0, 3)


def test_batch_of_padded_slots_only():
    batch = kernel_round([PLAIN] * 3, [2] * 3, 63, padded=True, seed=15)
    batch.draft.num_draft_tokens[:] = -1
    batch.draft.token_ids[:] = RUBBISH
    batch.target_logits[:] = torch.nan
    verdict = checked_verdict(batch, Method.block)
    assert verdict.token_ids.tolist() == [[-1] * 3] * 3


def test_workspace_is_reused_by_calls_of_other_sizes_and_methods():
    """Each call must find its counters clean, whatever the calls before it left."""
    from kernels.launch.workspace import Workspace
    from kernels.verify import verify

    workspace = Workspace()
    small = kernel_round(MIXED[:2], [2, 1], 63, seed=16)
    large = kernel_round(MIXED[:4], [1, 3, 2, -1], 2100, seed=17)
    order = [(small, Method.probabilistic), (large, Method.block), (small, Method.block), (large, Method.strict)]
    for batch, method in [*order, order[0]]:
        with poisoned_allocations():
            found = verify(
                batch.target_logits, batch.draft, batch.sampling, verification_of(method), batch.streams, workspace
            )
        assert_same_verdict(found, batch.expected(verification_of(method)))
    assert workspace.num_bytes > 0


def test_inputs_are_left_as_they_were():
    batch = kernel_round([PLAIN, (0.7, 20, 0.9, 0.0)], [2, 1], 63, seed=18)
    before = (batch.target_logits.clone(), batch.draft.logits.clone(), batch.draft.token_ids.clone())
    batch.found(verification_of(Method.block))
    for was, value in zip(before, (batch.target_logits, batch.draft.logits, batch.draft.token_ids), strict=True):
        assert torch.equal(was.nan_to_num(123.0), value.nan_to_num(123.0))


def test_synthetic_without_a_rate_for_each_position_is_an_error():
    batch = kernel_round([PLAIN], [3], 63)
    with pytest.raises(ValueError, match="all 3 positions of the draft; found 2 rates"):
        batch.found(Verification(Method.synthetic, rates=(0.5, 0.2)))


def test_more_block_drafts_than_one_number_has_bits_are_refused():
    """Would catch counters that are left over from such a round, and memory emitted as a token by the next one."""
    batch = kernel_round([PLAIN], [33], 63)
    with pytest.raises(ValueError, match="block verification takes at most 32 draft tokens of a request, found 33"):
        batch.found(Verification(Method.block))
