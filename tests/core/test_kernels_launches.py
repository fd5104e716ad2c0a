"""How many kernels a call launches, rounds that one launch decides, and few requests, which the second pass decides."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.chain import passes, small_batch
from kernels.contract import RowStats, Sampling, Streams, VerificationResult
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
from tests.support.random_round import GREEDY, PLAIN, Method, Setting, sampling_of, verification_of

SUMS_THE_RESIDUAL = [Method.probabilistic, Method.block, Method.lenient, Method.fly, Method.pr35461]
CUT = (0.7, 0, 0.9, 0.0)


@dataclass
class Launches:
    """Stands before the kernels and notes the name and the constants of every launch."""

    names: list[str] = field(default_factory=list)
    constants: list[dict[str, Any]] = field(default_factory=list)
    runs: bool = True


@dataclass
class NotedKernel:
    """A kernel whose launches are noted."""

    name: str
    kernel: Any
    launches: Launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.launches.names.append(self.name)
            self.launches.constants.append(constants)
            if self.launches.runs:
                self.kernel[grid](*arguments, **constants)

        return launch


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    noted, capability = Launches(), passes.capability()
    for name in ("row_reduce", "truncated_rows", "residual_sample", "small_batch"):
        attribute = f"_{name}_kernel"
        monkeypatch.setattr(passes, attribute, NotedKernel(name, getattr(passes, attribute), noted))
    monkeypatch.setattr(passes, "capability", lambda: capability)
    return noted


def with_statistics(batch: KernelRound) -> KernelRound:
    """The same round with the statistics of its cached rows, as drawing them would have left them."""
    logits = batch.draft.logits
    assert logits is not None
    rows = logits.double()
    maximum = rows.amax(dim=2)
    normalizer = (rows - maximum[:, :, None]).exp().sum(dim=2)
    threshold = torch.full_like(maximum, -torch.inf)
    stats = RowStats(maximum.float(), normalizer, threshold.float())
    return replace(batch, draft=replace(batch.draft, row_stats=stats))


@pytest.mark.parametrize("setting", [PLAIN, GREEDY, CUT], ids=["sampled", "greedy", "truncated"])
@pytest.mark.parametrize("coupled", [False, True], ids=["draw", "coupled draw"])
def test_draws(launches: Launches, coupled: bool, setting: Setting):
    from kernels.draw import coupled_draw, draw

    truncates = setting is CUT
    sampling = moved(replace(sampling_of(*[setting] * 3), truncates=truncates), DEVICE)
    logits, streams = torch.zeros(3, 63, device=DEVICE), moved(streams_of(3, 1), DEVICE)
    if coupled:
        coupled_draw(logits, sampling, streams, 63)
    else:
        draw(logits, sampling, streams, Purpose.draft)
    first = "truncated_rows" if truncates else "row_reduce"
    assert launches.names == ([first, "residual_sample"] if truncates and not coupled else [first])


@pytest.mark.parametrize("method", Method, ids=lambda method: method.value)
def test_one_hot_drafts(launches: Launches, method: Method):
    setting = GREEDY if method is Method.greedy else PLAIN
    checked_verdict(kernel_round([setting, GREEDY], [2, 1], 63, one_hot=True, seed=1), method)
    assert launches.names == (["row_reduce", "residual_sample"] if method is Method.pr35461 else ["row_reduce"])


@pytest.mark.parametrize("method", Method, ids=lambda method: method.value)
def test_cached_drafts(launches: Launches, method: Method):
    setting = GREEDY if method is Method.greedy else PLAIN
    batch = kernel_round([setting, GREEDY], [2, 1], 63, shared_noise=method is Method.coupled, seed=2)
    checked_verdict(with_statistics(batch), method)
    assert launches.names == (["row_reduce", "residual_sample"] if method in SUMS_THE_RESIDUAL else ["row_reduce"])


def test_cached_drafts_without_statistics_are_read_once_more(launches: Launches):
    checked_verdict(kernel_round([PLAIN, GREEDY], [2, 1], 63, seed=3), Method.probabilistic)
    assert launches.names == ["row_reduce", "row_reduce", "residual_sample"]


@pytest.mark.parametrize("vocab_size", [320, 303])
def test_statistics_of_drafts_that_nothing_cuts_are_summed_beside_the_target_rows(launches: Launches, vocab_size: int):
    checked_verdict(kernel_round([PLAIN, GREEDY, PLAIN], [2, 1, 0], vocab_size, seed=8), Method.probabilistic)
    assert launches.names == ["row_reduce", "small_batch"]


@pytest.mark.parametrize("method", [Method.strict, Method.coupled], ids=lambda method: method.value)
def test_truncated_rows(launches: Launches, method: Method):
    """Coupled noise names the token with the row; else the masses of what survives are yet to be summed."""
    checked_verdict(kernel_round([CUT, GREEDY], [2, 1], 63, shared_noise=method is Method.coupled, seed=4), method)
    assert launches.names == (["truncated_rows"] if method is Method.coupled else ["truncated_rows", "residual_sample"])


@pytest.mark.parametrize("method", [Method.strict, Method.probabilistic], ids=lambda method: method.value)
@pytest.mark.parametrize("setting", [PLAIN, CUT], ids=["row sums", "truncated"])
def test_only_a_first_pass_that_another_follows_lets_it_start_early(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, method: Method, setting: Setting
):
    """As on a GPU that can start a launch early; only the constants of the launches are looked at."""
    monkeypatch.setattr(passes, "capability", lambda: 90)
    launches.runs = False
    batch = with_statistics(kernel_round([setting] * 2, [2, 1], 63, seed=5))
    for one_hot in (False, True):
        launches.names.clear()
        launches.constants.clear()
        draft = replace(batch.draft, logits=None, row_stats=None) if one_hot else batch.draft
        replace(batch, draft=draft).found(verification_of(method))
        follows = len(launches.names) == 2
        assert launches.constants[0]["OVERLAPS"] is follows
        assert launches.constants[0]["EMITS"] is not follows
        if follows:
            assert launches.constants[1]["launch_pdl"] is True


def test_statistics_of_drafts_are_read_without_drawing_or_starting_anything(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(passes, "capability", lambda: 90)
    launches.runs = False
    kernel_round([PLAIN] * 2, [2, 1], 63, seed=6).found(verification_of(Method.probabilistic))
    assert launches.names == ["row_reduce", "row_reduce", "residual_sample"]
    assert launches.constants[0]["EMITS"] is launches.constants[0]["OVERLAPS"] is False


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
def test_one_hot_drafts_by_one_launch(method: Method, padded: bool):
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


FEW = [3, 2, 3, -1, 3, 0]
METHODS = [Method.probabilistic, Method.block, Method.lenient]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
@pytest.mark.parametrize("vocab_size", always(2051, on_a_gpu=[300, 2048, 5000, 128_255, 128_256]))
@pytest.mark.parametrize("keeps_statistics", [True, False], ids=["statistics", "none"])
def test_the_pass_that_decides_changes_no_token(
    monkeypatch: pytest.MonkeyPatch, method: Method, vocab_size: int, keeps_statistics: bool
):
    """Would catch a pass that decides from another row's sums, or weighs a residual by another ratio."""
    from kernels.chain.draft_stats import with_row_stats
    from kernels.launch.workspace import Workspace

    for seed in range(2, 5):
        batch = kernel_round(UNCUT, FEW, vocab_size, torch.bfloat16, seed=seed)
        if keeps_statistics:
            object.__setattr__(batch, "draft", with_row_stats(batch.draft, batch.sampling, Workspace()))
        workspace = Workspace()
        late = checked_verdict(batch, method, workspace)
        assert workspace.busy_counters() == []
        with monkeypatch.context() as patch:
            patch.setattr(small_batch, "late_programs", lambda *_: ())
            early = batch.found(verification_of(method), workspace)
        assert late.token_ids.tolist() == early.token_ids.tolist()
        assert late.num_accepted.tolist() == early.num_accepted.tolist()
        assert late.invalid.tolist() == early.invalid.tolist()


@pytest.mark.parametrize("keeps_statistics", [True, False], ids=["statistics", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("method", "num_requests", "division"),
    [
        (Method.probabilistic, 3, (2, 4)),
        (Method.lenient, 6, (4, 4)),
        (Method.probabilistic, 12, (8, 8)),
        (Method.block, 3, (4, 4)),
        (Method.block, 12, (8, 4)),
    ],
    ids=str,
)
def test_no_division_of_the_work_changes_a_token(
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
    num_requests: int,
    division: tuple[int, int],
    dtype: torch.dtype,
    keeps_statistics: bool,
):
    """Would catch a program that leaves a chunk out or sums it twice, and steps loaded early from another row: the rows
    of padded slots and those beyond a request's drafts are NaN, and are loaded early too."""
    from kernels.chain.draft_stats import with_row_stats
    from kernels.launch.workspace import Workspace

    if division == (8, 4) and dtype == torch.float32:
        division = (4, 4)
    found: list[object] = []
    for name in ("late_program", "_may_load_early"):
        monkeypatch.setattr(passes, name, _recording(getattr(passes, name), found))
    repeats = -(-num_requests // len(FEW))
    settings, lengths = (UNCUT * repeats)[:num_requests], (FEW * repeats)[:num_requests]
    batch = kernel_round(settings, lengths, 8208, dtype, padded=True, seed=num_requests)
    if keeps_statistics:
        object.__setattr__(batch, "draft", with_row_stats(batch.draft, batch.sampling, Workspace()))
    found.clear()
    late = checked_verdict(batch, method, Workspace())
    # steps are loaded early where no draft row is summed beside
    assert found == [keeps_statistics, division]
    monkeypatch.setattr(small_batch, "late_programs", lambda *_: ())
    assert late.token_ids.tolist() == batch.found(verification_of(method), Workspace()).token_ids.tolist()


@pytest.mark.parametrize("lengths", [[1, 0, 1, -1, 1, 1], [8, 5, 0, -1, 8, 3]], ids=["K = 1", "K = 8"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
def test_the_least_and_the_most_drafts(monkeypatch: pytest.MonkeyPatch, method: Method, lengths: list[int]):
    """Would catch a row of the request that no vector has room for, or one more that is taken for it."""
    from kernels.launch.workspace import Workspace

    found: list[object] = []
    monkeypatch.setattr(passes, "late_program", _recording(passes.late_program, found))
    for seed in range(2):
        checked_verdict(kernel_round(UNCUT, lengths, 2051, torch.bfloat16, seed=seed), method, Workspace())
    assert len(found) == 2


def _recording(function: Callable[..., object], found: list[object]) -> Callable[..., object]:
    """The function, which keeps what it returns."""

    def recorded(*arguments: object) -> object:
        found.append(function(*arguments))
        return found[-1]

    return recorded
