"""The kernels on arguments that a caller must not give: clamped, flagged or refused, and never felt by a later call."""

from dataclasses import replace

import pytest
import torch

from kernels.contract import Draft, Sampling, VerificationResult
from kernels.core import Core, reference_core, triton_core
from kernels.launch.workspace import Workspace
from kernels.random.streams import Purpose
from tests.support.kernel_rounds import (
    DEVICE,
    UNCUT,
    KernelRound,
    always,
    assert_same_drawn,
    assert_same_verdict,
    checked_verdict,
    kernel_round,
    moved,
    streams_of,
)
from tests.support.random_round import PLAIN, SAMPLED_METHODS, Method, Setting, sampling_of, verification_of

CUT = (0.9, 30, 0.8, 0.02)
TOO_MANY = (4, 2**31 - 1, 2**32 + 1, 2**63 - 1)
"""Counts above a width of 3; the last but one is 1 in 32 bits."""


def with_counts(batch: KernelRound, counts: list[int]) -> KernelRound:
    return replace(batch, draft=replace(batch.draft, num_draft_tokens=torch.tensor(counts, device=DEVICE)))


def check_sound(batch: KernelRound, method: Method, workspace: Workspace) -> None:
    """The workspace rests, and a sound call on it agrees with the reference."""
    assert workspace.busy_counters() == []
    checked_verdict(batch, method, workspace)
    assert workspace.busy_counters() == []


@pytest.mark.parametrize("width", [1, 8])
def test_the_smallest_round_after_a_count_above_its_width(width: int):
    """Would catch a counter that is never completed: the third call then returned what its memory held before."""
    batch, workspace = kernel_round([PLAIN], [width], 8, one_hot=True, padded=True), Workspace()
    for count in (width, width + 1, width):
        verdict = with_counts(batch, [count]).found(verification_of(Method.strict), workspace)
        expected = batch.expected(verification_of(Method.strict))
        flagged = expected.invalid | (count > width)
        assert_same_verdict(verdict, replace(expected, invalid=flagged))


@pytest.mark.parametrize(
    ("method", "settings"),
    always(
        (Method.block, UNCUT[:4]),
        (Method.coupled, [PLAIN, CUT, PLAIN, PLAIN]),
        on_a_gpu=[(method, settings) for method in SAMPLED_METHODS for settings in (UNCUT[:4], [CUT, PLAIN] * 2)],
    ),
    ids=lambda value: value.value if isinstance(value, Method) else "uncut" if value[1][1] == 0 else "cutting",
)
def test_counts_out_of_range_are_clamped_and_flagged(method: Method, settings: list[Setting]):
    """Would catch a count that reads beyond its rows, spoils its neighbours, or is taken modulo 2^32."""
    batch, workspace = kernel_round(settings, [3, 3, 2, 3], 63, padded=True, seed=21), Workspace()
    check_sound(batch, method, workspace)
    for count in always(*TOO_MANY[:3:2], on_a_gpu=TOO_MANY):
        wrong = with_counts(batch, [3, count, 2, -(2**40)])
        expected = with_counts(batch, [3, 3, 2, -1]).expected(verification_of(method))
        flagged = expected.invalid | torch.tensor([False, True, False, False], device=DEVICE)
        assert_same_verdict(wrong.found(verification_of(method), workspace), replace(expected, invalid=flagged))
        check_sound(batch, method, workspace)


@pytest.mark.parametrize(
    "setting", always(PLAIN, on_a_gpu=[CUT]), ids=lambda setting: "uncut" if setting == PLAIN else "cutting"
)
def test_packed_rows_that_do_not_add_up_are_not_read(setting: Setting):
    """Would catch rows read behind the last, and rows of another request taken for one's own."""
    batch, workspace = kernel_round([setting] * 4, [2, 2, 1, -1], 63, seed=22), Workspace()
    method = Method.probabilistic
    for counts in ([2, 2, 2, -1], [2, 9, -1, -1], [2, 1, 1, -1]):
        wrong = with_counts(batch, counts).found(verification_of(method), workspace)
        present = torch.tensor(counts, device=DEVICE) >= 0
        assert wrong.invalid.tolist() == present.tolist()
        assert not wrong.num_accepted.any()
        assert wrong.token_ids[:, 0].tolist() == torch.where(present, 0, -1).tolist()
        assert (wrong.token_ids[:, 1:] == -1).all()
    check_sound(batch, method, workspace)


@pytest.mark.parametrize(
    ("method", "setting"),
    always(
        (Method.probabilistic, PLAIN), (Method.coupled, PLAIN), (Method.coupled, CUT),
        on_a_gpu=[(method, setting) for method in SAMPLED_METHODS for setting in (PLAIN, CUT)],
    ),
    ids=lambda value: value.value if isinstance(value, Method) else "uncut" if value == PLAIN else "cutting",
)  # fmt: skip
def test_a_temperature_of_nan_is_flagged(method: Method, setting: Setting):
    """Would catch a temperature that is replaced by the smallest allowed one."""
    batch = kernel_round([(torch.nan, *setting[1:]), setting, (torch.nan, 0, 1.0, 0.0)], [2, 2, 0], 300, seed=23)
    batch.draft.token_ids[0] = batch.draft.token_ids[1]
    verdict = checked_verdict(batch, method)
    assert verdict.invalid.tolist() == [True, False, True]
    assert not verdict.num_accepted[0]


@pytest.mark.parametrize("coupled", [False, True], ids=["draw", "coupled draw"])
@pytest.mark.parametrize("setting", [PLAIN, CUT], ids=["uncut", "cutting"])
def test_draws_at_a_temperature_of_nan_are_flagged(coupled: bool, setting: Setting):
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(24)).to(DEVICE)
    sampling = replace(sampling_of((torch.nan, *setting[1:]), setting, setting), truncates=setting is CUT)
    found, expected = draws_of_both(logits, moved(sampling, DEVICE), 24, coupled)
    assert_same_drawn(found, expected)
    assert found.invalid.tolist() == [True, False, False]


def draws_of_both(logits: torch.Tensor, sampling: Sampling, seed: int, coupled: bool):
    streams = moved(streams_of(len(logits), seed), DEVICE)
    if coupled:
        return [core.coupled_draw(logits, sampling, streams, logits.shape[1]) for core in cores()]
    return [core.draw(logits, sampling, streams, Purpose.draft) for core in cores()]


def cores() -> tuple[Core, Core]:
    return triton_core(), reference_core()


@pytest.mark.parametrize("core", cores(), ids=lambda core: core.name)
@pytest.mark.parametrize("mapped", [False, True], ids=["same ids", "mapped ids"])
@pytest.mark.parametrize("method", [Method.probabilistic, Method.strict], ids=lambda method: method.value)
def test_a_drafter_with_more_tokens_than_the_target_is_refused(core: Core, mapped: bool, method: Method):
    """A padded draft head: what lies beyond the target's vocabulary has mass that no target token can take."""
    batch = kernel_round([PLAIN] * 2, [2, 2], 63, seed=25)
    cache = torch.zeros(4, 2, 64, device=DEVICE)
    ids = torch.arange(64, device=DEVICE).clamp(max=62) if mapped else None
    draft = Draft(batch.draft.token_ids, batch.draft.num_draft_tokens, cache, None, ids)
    arguments = (batch.sampling, verification_of(method), batch.streams)
    with pytest.raises(ValueError, match=r"draft\.logits .*63.*found 64"):
        core.verify(batch.target_logits, draft, *arguments)
    fitting = replace(draft, logits=cache[..., :63], draft_to_target=None)
    result: VerificationResult = core.verify(batch.target_logits, fitting, *arguments)
    assert not result.invalid.any()


@pytest.mark.parametrize("core", cores(), ids=lambda core: core.name)
def test_a_coupled_draw_of_more_tokens_than_the_target_has_is_refused(core: Core):
    sampling, streams = moved((sampling_of(PLAIN)), DEVICE), moved(streams_of(1, 26), DEVICE)
    with pytest.raises(ValueError, match=r"logits .*63.*found 64"):
        core.coupled_draw(torch.zeros(1, 64, device=DEVICE), sampling, streams, 63)
