"""Few requests are decided by the second pass, more by the first: the same tokens."""

from collections.abc import Callable

import pytest
import torch

from kernels.chain import passes, small_batch
from tests.support.kernel_rounds import UNCUT, always, checked_verdict, kernel_round
from tests.support.random_round import Method, verification_of

LENGTHS = [3, 2, 3, -1, 3, 0]
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
        batch = kernel_round(UNCUT, LENGTHS, vocab_size, torch.bfloat16, seed=seed)
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
    repeats = -(-num_requests // len(LENGTHS))
    settings, lengths = (UNCUT * repeats)[:num_requests], (LENGTHS * repeats)[:num_requests]
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
