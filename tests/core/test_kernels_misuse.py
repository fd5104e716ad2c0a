"""The kernels on arguments that a caller must not give, and where something is wrong: clamped, flagged as the reference
flags it, or refused, and never felt by a later call."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from kernels.contract import Draft, RowStats, Sampling, Verification, VerificationMethod, VerificationResult
from kernels.core import Core, reference_core, triton_core
from kernels.draw import coupled_draw, draw
from kernels.launch.workspace import Workspace
from kernels.random.streams import Purpose
from kernels.reference.draw import draw as reference_draw
from tests.support.kernel_rounds import (
    DEVICE,
    UNCUT,
    KernelRound,
    always,
    assert_same_drawn,
    assert_same_verdict,
    checked_verdict,
    draft_reading_methods,
    kernel_round,
    moved,
    sampled_methods,
    streams_of,
)
from tests.support.own_methods import HALF_STRICT
from tests.support.random_round import GREEDY, PLAIN, SAMPLED_METHODS, Method, Setting, sampling_of, verification_of

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


NAN, INF = torch.nan, torch.inf
FIRST_VALUES = pytest.mark.parametrize(
    "values", always((NAN, INF, -INF, NAN), on_a_gpu=[(INF, -INF, NAN, INF), (-INF, NAN, INF, -INF)]), ids=str
)
"""What spoils a row of each request: every value comes first once, where all methods get as far."""


def check(batch: KernelRound, method: Method) -> VerificationResult:
    """The kernels' verdict, after it has been compared with the reference's and with the vocabulary."""
    found = checked_verdict(batch, method)
    assert bool((found.token_ids < batch.target_logits.shape[1]).all())
    return found


def spoil(row: Tensor, value: float) -> None:
    """Leave a row without a distribution: one entry of NaN or +inf, or nothing but -inf."""
    row[... if value == -torch.inf else 17] = value


@pytest.mark.parametrize(
    "method", always(Method.block, Method.coupled, Method.greedy, on_a_gpu=Method), ids=lambda method: method.value
)
@FIRST_VALUES
def test_target_rows_without_a_distribution(method: Method, values: tuple[float, ...]):
    """Request r loses row r; the last request loses none."""
    setting = GREEDY if method is Method.greedy else PLAIN
    batch = kernel_round([setting, setting, GREEDY, setting, setting], [3] * 5, 63, seed=1)
    rows = batch.target_logits.view(5, 4, 63)
    for request, value in enumerate(values):
        spoil(rows[request, request], value)
    verdict = check(batch, method)
    assert bool(verdict.invalid[0])
    assert not bool(verdict.invalid[4])


@draft_reading_methods(Method.block)
@FIRST_VALUES
def test_draft_rows_without_a_distribution(method: Method, values: tuple[float, ...]):
    batch = kernel_round([PLAIN, PLAIN, (0.7, 0, 1.0, 0.0), PLAIN], [3] * 4, 63, seed=2)
    cache, mapping = batch.draft.logits, batch.draft.idx_mapping
    assert cache is not None and mapping is not None
    for request, value in enumerate(values[:3]):
        spoil(cache[mapping[request], request], value)
    assert bool(check(batch, method).invalid[0])


@sampled_methods(Method.block)
@pytest.mark.parametrize("one_hot", [False, True], ids=["cached", "one-hot"])
def test_draft_tokens_outside_the_vocabulary(method: Method, one_hot: bool):
    batch = kernel_round([PLAIN, PLAIN, GREEDY, PLAIN, PLAIN], [3] * 5, 63, one_hot=one_hot, seed=3)
    for request, token in enumerate([-1, 63, 2**31, -(2**40), 10**12]):
        batch.draft.token_ids[request, request % 3] = token
    check(batch, method)


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("kind", ["mapped", "leading"])
def test_draft_tokens_that_the_drafter_does_not_know(method: Method, kind: str):
    ids = torch.arange(62, 20, -2)
    batch = kernel_round([PLAIN] * 3, [2] * 3, 63, draft_vocab=ids if kind == "mapped" else 30, seed=4)
    unknown = 21 if kind == "mapped" else 40
    batch.draft.token_ids[0, 0] = unknown
    batch.draft.token_ids[1, 1] = unknown
    assert bool(check(batch, method).invalid[0])


@draft_reading_methods(Method.block)
@pytest.mark.parametrize("setting", [PLAIN, (1.0, 5, 1.0, 0.0), (1.0, 0, 0.5, 0.0)], ids=["-inf", "top-k", "top-p"])
def test_draft_tokens_of_probability_zero(method: Method, setting: Setting):
    batch = kernel_round([setting] * 3, [2] * 3, 63, seed=5)
    cache, mapping = batch.draft.logits, batch.draft.idx_mapping
    assert cache is not None and mapping is not None
    for request, index in ((0, 0), (1, 1)):
        row = cache[mapping[request], index]
        batch.draft.token_ids[request, index] = row.argmin()
        if setting == PLAIN:
            row[row.argmin()] = -torch.inf
    assert bool(check(batch, method).invalid[0])


@sampled_methods(Method.block, Method.coupled)
def test_banned_tokens(method: Method):
    """Rows with -inf for most tokens, whole chunks among them, and the drafts among those that are left."""
    batch = kernel_round([PLAIN, (0.7, 3, 1.0, 0.0), GREEDY], [2] * 3, 4500, seed=6)
    left = torch.tensor([2500, 2501, 2600, 3000, 4090, 4095], device=DEVICE)
    banned = torch.ones(4500, dtype=torch.bool, device=DEVICE)
    banned[left] = False
    batch.target_logits[:, banned] = -torch.inf
    batch.draft.token_ids[:] = left[:2]
    assert batch.draft.logits is not None
    verdict = check(batch, method)
    assert bool(torch.isin(verdict.token_ids[verdict.token_ids >= 0], left).all())


@sampled_methods(Method.block, Method.strict)
def test_rows_with_all_mass_on_one_token(method: Method):
    """The last uniform of a residual must not fall after the only token that has mass."""
    batch = kernel_round([PLAIN] * 4, [2] * 4, 2100, seed=7)
    rows = batch.target_logits.view(4, 3, 2100)
    rows[:2] = -torch.inf
    rows[0, :, 2099] = 0.0
    rows[1, :, 0] = 0.0
    rows[2:] -= 200.0
    rows[2, :, 2099] = 0.0
    rows[3, :, 0] = 0.0
    verdict = check(batch, method)
    last = verdict.token_ids.gather(1, verdict.num_accepted[:, None])[:, 0]
    if method in (Method.probabilistic, Method.block, Method.coupled, Method.strict):
        assert last.tolist() == [2099, 0, 2099, 0]


def test_a_token_of_the_residual_is_never_the_rejected_one_of_a_one_hot_draft():
    batch = kernel_round([PLAIN] * 8, [1] * 8, 3, one_hot=True, seed=8)
    batch.target_logits[0::2] = torch.tensor([0.0, -1.0, -2.0], device=DEVICE)
    batch.draft.token_ids[:] = 2
    verdict = check(replace(batch, draft=Draft(batch.draft.token_ids, batch.draft.num_draft_tokens)), Method.strict)
    rejected = verdict.num_accepted == 0
    assert bool(rejected.any())
    assert bool((verdict.token_ids[rejected, 0] != 2).all())


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block], ids=lambda method: method.value)
def test_a_residual_without_mass_falls_back_to_the_target(method: Method):
    """Statistics that make every token a million times as likely to be proposed, so that [p - q]+ is 0 throughout."""
    batch = kernel_round([PLAIN] * 4, [1] * 4, 2500, seed=9)
    cache = batch.draft.logits
    assert cache is not None
    maximum = cache.amax(dim=2)
    normalizer = (cache - maximum[:, :, None]).double().exp().sum(dim=2)
    stats = RowStats(maximum, normalizer * 1e-6, torch.full_like(maximum, -torch.inf))
    verdict = replace(batch, draft=replace(batch.draft, row_stats=stats)).found(verification_of(method))
    assert verdict.num_accepted.tolist() == [0] * 4
    first_rows = batch.target_logits[::2]
    expected = reference_draw(first_rows, batch.sampling, batch.streams, Purpose.residual)
    assert verdict.token_ids[:, 0].tolist() == expected.token_ids.tolist()


@pytest.mark.parametrize(
    ("setting", "lengths"),
    [(PLAIN, [2, 0, 2, -1]), ((0.7, 3, 0.9, 0.0), [2, 0, 2, -1]), (PLAIN, [0, 0, 0, 0])],
    ids=["sampled", "truncated", "nothing drafted"],
)
def test_greedy_verification_flags_a_temperature(setting: Setting, lengths: list[int]):
    """Would catch sampling under the name of greedy; a padded slot and a request at temperature 0 are not touched."""
    batch = kernel_round([setting, setting, GREEDY, setting], lengths, 63, one_hot=True, seed=10)
    verdict = batch.found(Verification(Method.greedy))
    is_padded = lengths[3] < 0
    assert verdict.invalid.tolist() == [True, True, False, not is_padded]
    assert verdict.num_accepted[[0, 1, 3]].tolist() == [0, 0, 0]
    assert bool((verdict.token_ids[:3, 0] >= 0).all()) and bool((verdict.token_ids < 63).all())
    expected = batch.expected(Verification(Method.strict))
    assert verdict.token_ids[2].tolist() == expected.token_ids[2].tolist()


NUM_ROWS, VOCAB = 3, 63


def wrong_stats(what: str, *size: int) -> RowStats:
    """Statistics of rows of which one field is wrong."""
    good = RowStats.empty(*size, device=DEVICE)
    match what:
        case "too short":
            return RowStats.empty(size[0] - 1, *size[1:], device=DEVICE)
        case "one field too short":
            return replace(good, threshold=good.threshold[:-1])
        case "float32 normalizer":
            return replace(good, normalizer=good.normalizer.float())
        case "float64 threshold":
            return replace(good, threshold=good.threshold.double())
        case "other strides":
            return replace(good, normalizer=torch.empty(*size, 2, dtype=torch.float64, device=DEVICE)[..., 0])
        case _:
            return RowStats(*(getattr(good, name)[None] for name in ("maximum", "normalizer", "threshold")))


WRONG_STATS = pytest.mark.parametrize(
    "what",
    [
        "too short",
        "one field too short",
        "float32 normalizer",
        "float64 threshold",
        "other strides",
        "one dimension more",
    ],
)


def drawing(is_coupled: bool) -> Callable:
    """Either draw of three rows; takes the rest by name."""
    logits = torch.zeros(NUM_ROWS, VOCAB, device=DEVICE)
    sampling, streams = sampling_of(*[PLAIN] * NUM_ROWS), streams_of(NUM_ROWS, seed=1)
    if is_coupled:
        return partial(coupled_draw, logits, sampling, streams, VOCAB)
    return partial(draw, logits, sampling, streams, Purpose.draft)


EITHER_DRAW = pytest.mark.parametrize("is_coupled", [False, True], ids=["draw", "coupled draw"])


@WRONG_STATS
@EITHER_DRAW
def test_room_for_statistics_that_does_not_fit_the_rows_of_a_draw(is_coupled: bool, what: str):
    with pytest.raises(ValueError, match=r"the fields of row_stats must be \[3\] or more, with the same shape and str"):
        drawing(is_coupled)(row_stats=wrong_stats(what, NUM_ROWS))


@WRONG_STATS
def test_statistics_that_do_not_fit_the_draft_logit_cache(what: str):
    batch = kernel_round([PLAIN] * NUM_ROWS, [2] * NUM_ROWS, VOCAB)
    assert batch.draft.logits is not None
    stats = wrong_stats(what, batch.draft.logits.shape[0], 2)
    with pytest.raises(ValueError, match=r"the fields of draft.row_stats must be \[5, 2\] or more, with the same"):
        replace(batch, draft=replace(batch.draft, row_stats=stats)).found(Verification(VerificationMethod.block))


WRONG_MAPS = pytest.mark.parametrize(
    "wrong",
    # Made where it is used: a copy to a device would close the gaps.
    [torch.arange(VOCAB - 1), torch.arange(VOCAB).int(), torch.arange(2 * VOCAB, device=DEVICE)[::2]],
    ids=["too short", "int32", "with gaps"],
)


@WRONG_MAPS
@EITHER_DRAW
def test_a_map_of_ids_that_does_not_fit_the_rows_of_a_draw(is_coupled: bool, wrong: torch.Tensor):
    with pytest.raises(ValueError, match=r"^draft_to_target must be \[63\] int64 without gaps"):
        drawing(is_coupled)(draft_to_target=wrong.to(DEVICE))


@WRONG_MAPS
def test_a_map_of_ids_that_does_not_fit_the_draft_logit_cache(wrong: torch.Tensor):
    batch = kernel_round([PLAIN] * NUM_ROWS, [2] * NUM_ROWS, VOCAB)
    wrong_draft = replace(batch.draft, draft_to_target=wrong.to(DEVICE))
    with pytest.raises(ValueError, match=r"^draft.draft_to_target must be \[63\] int64 without gaps"):
        replace(batch, draft=wrong_draft).found(Verification(VerificationMethod.block))


def test_a_tree_is_refused_by_both_cores():
    batch = kernel_round([PLAIN], [2], VOCAB)
    tree = replace(batch, draft=replace(batch.draft, parents=torch.full_like(batch.draft.token_ids, -1)))
    for verified in (tree.found, tree.expected):
        with pytest.raises(ValueError, match=r"draft\.parents: expected None"):
            verified(Verification(VerificationMethod.strict))


def test_a_method_of_ones_own_is_refused_where_the_reference_alone_runs_it():
    batch = kernel_round([PLAIN], [2], VOCAB)
    with pytest.raises(ValueError, match="only the reference core runs it"):
        batch.found(Verification(HALF_STRICT))
