"""Few requests are decided by the second pass, more by the first: the same tokens."""

import pytest
import torch

from kernels import late_decision
from tests.kernel_rounds import UNCUT, always, checked_verdict, kernel_round
from tests.random_round import Method, verification_of

LENGTHS = [3, 2, 3, -1, 3, 0]
METHODS = [Method.probabilistic, Method.block, Method.lenient]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
@pytest.mark.parametrize("vocab_size", always(2051, on_a_gpu=[300, 2048, 5000, 128_255, 128_256]))
@pytest.mark.parametrize("keeps_statistics", [True, False], ids=["statistics", "none"])
def test_the_pass_that_decides_changes_no_token(
    monkeypatch: pytest.MonkeyPatch, method: Method, vocab_size: int, keeps_statistics: bool
):
    """Would catch a pass that decides from another row's sums, or weighs a residual by another ratio."""
    from kernels.draft_stats import with_row_stats
    from kernels.workspace import Workspace

    for seed in range(2, 5):
        batch = kernel_round(UNCUT, LENGTHS, vocab_size, torch.bfloat16, seed=seed)
        if keeps_statistics:
            object.__setattr__(batch, "draft", with_row_stats(batch.draft, batch.sampling, Workspace()))
        workspace = Workspace()
        late = checked_verdict(batch, method, workspace)
        assert workspace.busy_counters() == []
        with monkeypatch.context() as patch:
            patch.setattr(late_decision, "LATE_PROGRAMS", {})
            early = batch.found(verification_of(method), workspace)
        assert late.token_ids.tolist() == early.token_ids.tolist()
        assert late.num_accepted.tolist() == early.num_accepted.tolist()
        assert late.invalid.tolist() == early.invalid.tolist()
