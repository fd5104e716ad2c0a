"""Rows of up to 256 tokens are one short chunk for one warp, longer ones are not: the kernels at the border between.

Also what the two have in common: a drafter on the one side and its target on the other, and one workspace for both.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch

from kernels.launch.workspace import SHORT_CHUNK, Workspace, chunk_size
from tests.support.kernel_rounds import (
    DEVICE,
    LENGTHS,
    MIXED,
    UNCUT,
    always,
    checked_draw,
    checked_verdict,
    draft_reading_methods,
    kernel_round,
    moved,
    sampled_methods,
    streams_of,
)
from tests.support.random_round import SAMPLED_METHODS, SHARES_NOISE, Method, Setting, sampling_of

SIZES = (SHORT_CHUNK - 1, SHORT_CHUNK, SHORT_CHUNK + 1)
BORDER = pytest.mark.parametrize("vocab_size", SIZES)
CUT_OR_NOT = pytest.mark.parametrize("settings", [MIXED, UNCUT], ids=["truncated", "not truncated"])
RAGGED = always(
    (Method.block, True, MIXED, SHORT_CHUNK - 1),
    (Method.block, False, UNCUT, SHORT_CHUNK),
    (Method.coupled, False, UNCUT, SHORT_CHUNK),
    (Method.block, False, UNCUT, SHORT_CHUNK + 1),
    (Method.coupled, True, MIXED, SHORT_CHUNK + 1),
    on_a_gpu=product(SAMPLED_METHODS, (False, True), (MIXED, UNCUT), SIZES),
)


def name_of(case: tuple[Method, bool, list[Setting], int]) -> str:
    method, masked, settings, vocab_size = case
    words = [method.value, "masked" if masked else "free", "truncated" if settings is MIXED else "not truncated"]
    return ", ".join([*words, str(vocab_size)])


def test_the_border_is_where_these_tests_expect_it():
    assert [chunk_size(size) == SHORT_CHUNK for size in (1, SHORT_CHUNK, SHORT_CHUNK + 1)] == [True, True, False]


@pytest.mark.parametrize(("method", "masked", "settings", "vocab_size"), RAGGED, ids=map(name_of, RAGGED))
def test_ragged_rounds(method: Method, masked: bool, settings: list[Setting], vocab_size: int):
    """Sampled beside greedy requests, 0 to K drafts, packed rows, and a padded slot, which writes nothing but its own.

    Would catch a program that prepares no draft token's test, or ends a padded slot twice or never, on one side only.
    """
    noisy = method in SHARES_NOISE
    # with these seeds every method accepts some draft token
    batch = kernel_round(
        settings, LENGTHS, vocab_size, torch.bfloat16, shared_noise=noisy, seed=vocab_size + 30, masked=masked
    )
    verdict = checked_verdict(batch, method)
    assert verdict.token_ids[LENGTHS.index(-1)].tolist() == [-1] * 4
    assert verdict.num_accepted.max() > 0


@BORDER
@pytest.mark.parametrize("settings", always(UNCUT, on_a_gpu=[MIXED]), ids=lambda _: "settings")
@sampled_methods(Method.strict)
def test_one_hot_drafts(method: Method, settings: list[Setting], vocab_size: int):
    """Where nothing is cut, one launch: the program that reads a row also draws from it."""
    checked_verdict(kernel_round(settings, LENGTHS, vocab_size, torch.float32, one_hot=True, seed=vocab_size), method)


@BORDER
@CUT_OR_NOT
@pytest.mark.parametrize("coupled", [False, True], ids=["draw", "coupled draw"])
def test_draws(coupled: bool, settings: list[Setting], vocab_size: int):
    logits = 3 * torch.randn(len(settings), vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    sampling = replace(sampling_of(*settings), truncates=settings is MIXED)
    rows = (moved(value, DEVICE) for value in (logits, sampling, streams_of(len(settings), vocab_size)))
    checked_draw(*rows, coupled=coupled)


@pytest.mark.parametrize("kind", always("mapped", on_a_gpu=["leading"]))
@CUT_OR_NOT
@draft_reading_methods(Method.probabilistic)
def test_short_draft_rows_beside_long_target_rows(method: Method, settings: list[Setting], kind: str):
    """Statistics were not kept: the draft's rows are read as short ones, then again beside the target's."""
    size, num_known = SHORT_CHUNK + 44, SHORT_CHUNK
    ids = torch.randperm(size, generator=torch.Generator().manual_seed(1))[:num_known]
    known = ids if kind == "mapped" else num_known
    batch = kernel_round(settings[:3], [2, 1, 1], size, torch.bfloat16, draft_vocab=known, seed=1)
    assert batch.draft.row_stats is None
    assert not checked_verdict(batch, method).invalid.any()


@sampled_methods(Method.block)
def test_one_workspace_for_short_and_long_rows_of_several_types(method: Method):
    """Would catch scratch memory whose size, place or counters depend on the call that came first."""
    workspace, noisy = Workspace(), method in SHARES_NOISE
    calls = [(63, torch.float32, MIXED), (2100, torch.bfloat16, UNCUT), (300, torch.bfloat16, MIXED)]
    calls += [(SHORT_CHUNK, torch.bfloat16, MIXED), (63, torch.float32, UNCUT)]
    for seed, (vocab_size, dtype, settings) in enumerate(calls):
        batch = kernel_round(settings[:3], [1, 1, -1], vocab_size, dtype, shared_noise=noisy, seed=seed)
        checked_verdict(batch, method, workspace)
