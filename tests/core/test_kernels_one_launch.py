"""Rounds that one launch decides: the first pass draws the next token itself, the same as the reference draws."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import Sampling, Streams, VerificationResult
from kernels.random.streams import Purpose
from kernels.reference.draw import draw as reference_draw
from tests.support.kernel_rounds import (
    DEVICE,
    LENGTHS,
    UNCUT,
    KernelRound,
    always,
    assert_same_drawn,
    assert_same_verdict,
    checked_verdict,
    kernel_round,
    moved,
    poisoned_allocations,
    streams_of,
)
from tests.support.random_round import GREEDY, Method, Setting, sampling_of, verification_of

ONE_HOT = [method for method in Method if method is not Method.pr35461]
READS_TARGET_ONLY = [Method.strict, Method.coupled, Method.greedy, Method.typical, Method.synthetic]


def rows_of(num_rows: int, vocab_size: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(num_rows, vocab_size, generator=generator)).to(dtype).to(DEVICE)


def inputs(settings: list[Setting], seed: int) -> tuple[Sampling, Streams]:
    """Of rows that nothing is cut from, and that say so."""
    sampling = replace(sampling_of(*settings), truncates=False)
    return moved(sampling, DEVICE), moved(streams_of(len(settings), seed), DEVICE)


def check_verdict(batch: KernelRound, method: Method) -> VerificationResult:
    assert not batch.sampling.truncates
    return checked_verdict(batch, method)


def settings_for(method: Method) -> list[Setting]:
    return [GREEDY] * len(UNCUT) if method is Method.greedy else UNCUT


@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("method", ONE_HOT, ids=lambda method: method.value)
def test_one_hot_drafts(method: Method, padded: bool):
    """0 to K drafts, a padded slot, and temperatures 0 and above."""
    batch = kernel_round(settings_for(method), LENGTHS, 63, one_hot=True, padded=padded, seed=9)
    verdict = check_verdict(batch, method)
    assert not verdict.invalid.any()
    assert verdict.token_ids[LENGTHS.index(-1)].tolist() == [-1] * 4


@pytest.mark.parametrize("method", READS_TARGET_ONLY, ids=lambda method: method.value)
def test_cached_drafts_that_are_not_read(method: Method):
    shares_noise = method is Method.coupled
    batch = kernel_round(settings_for(method), LENGTHS, 63, shared_noise=shares_noise, seed=10)
    assert not check_verdict(batch, method).invalid.any()


@pytest.mark.parametrize("method", always(Method.strict, on_a_gpu=ONE_HOT), ids=lambda method: method.value)
def test_one_hot_drafts_over_rows_that_several_programs_read(method: Method):
    """Some rejected, so that a token is removed from one chunk of many."""
    batch = kernel_round(settings_for(method)[:3], [1] * 3, 17_000, torch.bfloat16, one_hot=True, seed=11)
    check_verdict(batch, method)


@pytest.mark.parametrize("width", [0, 2], ids=["no columns", "no drafts"])
@pytest.mark.parametrize("method", always(Method.block, Method.strict, on_a_gpu=ONE_HOT), ids=lambda m: m.value)
def test_round_without_drafts_draws_the_bonus(method: Method, width: int):
    batch = kernel_round(settings_for(method)[:4], [0, 0, -1, 0], 63, one_hot=True, padded=True, seed=12)
    logits = batch.target_logits.view(4, 1, 63).expand(4, width + 1, 63).reshape(-1, 63)
    token_ids = torch.zeros(4, width, dtype=torch.long, device=DEVICE)
    check_verdict(replace(batch, target_logits=logits, draft=replace(batch.draft, token_ids=token_ids)), method)


@pytest.mark.parametrize("method", ONE_HOT, ids=lambda method: method.value)
def test_target_rows_without_a_distribution_are_flagged(method: Method):
    """Request r loses row r; the last request loses none."""
    batch = kernel_round(settings_for(method)[:5], [3] * 5, 63, one_hot=True, padded=True, seed=13)
    rows = batch.target_logits.view(5, 4, 63)
    for request, (place, value) in enumerate([(17, torch.nan), (0, torch.inf), (..., -torch.inf), (62, torch.nan)]):
        rows[request, request, place] = value
    verdict = check_verdict(batch, method)
    assert bool(verdict.invalid[0]) and not bool(verdict.invalid[4])
    assert bool((verdict.token_ids < 63).all())


@pytest.mark.parametrize("method", ONE_HOT, ids=lambda method: method.value)
def test_draft_tokens_outside_the_vocabulary_are_flagged(method: Method):
    batch = kernel_round(settings_for(method)[:5], [2] * 5, 63, one_hot=True, seed=14)
    for request, token in enumerate([-2, 63, 2**31, -(2**40), 10**12]):
        batch.draft.token_ids[request, request % 2] = token
    assert bool(check_verdict(batch, method).invalid[0])


def test_repeated_calls_on_one_workspace_leave_its_counters_at_0():
    """Draws and verifications of other sizes and methods in turn, each of which must find its counters clean."""
    from kernels.draw import draw
    from kernels.launch.workspace import Workspace
    from kernels.verify import verify

    workspace = Workspace()
    rounds = [
        (kernel_round(UNCUT[:2], [2, 1], 63, one_hot=True, seed=15), Method.probabilistic),
        (kernel_round(UNCUT[:4], [1, 3, 2, -1], 2100, one_hot=True, seed=16), Method.block),
        (kernel_round(UNCUT[:2], [2, 1], 63, seed=17), Method.probabilistic),
        (kernel_round(UNCUT[:4], [1, 3, 2, -1], 2100, seed=18), Method.typical),
    ]
    for batch, method in [*rounds, *rounds[::-1]]:
        arguments = (batch.target_logits, batch.draft, batch.sampling, verification_of(method), batch.streams)
        with poisoned_allocations():
            found = verify(*arguments, workspace=workspace)
        assert_same_verdict(found, batch.expected(verification_of(method)))
        logits = rows_of(3, batch.target_logits.shape[1], torch.float32, seed=19)
        sampling, streams = inputs(UNCUT[:3], 19)
        drawn = draw(logits, sampling, streams, Purpose.draft, workspace=workspace)
        assert_same_drawn(drawn, reference_draw(logits, sampling, streams, Purpose.draft))
        for name in ("row_arrivals", "request_arrivals", "stops"):
            counter = workspace.buffer(name, 1, torch.int32, logits.device)
            assert not counter.any(), name
