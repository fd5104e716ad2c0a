"""How many kernels a call launches, and that the first pass lets another start early only where one follows it."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from kernels.chain import passes
from kernels.contract import RowStats
from kernels.random.streams import Purpose
from tests.support.kernel_rounds import DEVICE, KernelRound, checked_verdict, kernel_round, moved, streams_of
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
