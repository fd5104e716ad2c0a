"""Ranks that compute one target together and die: the cell ends with its error, and no process stays."""

from __future__ import annotations

import os
import select
from functools import partial

import pytest
import torch

from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import Layers, TargetConfig
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import WorkloadConfig
from harness.models.general.ranks import Ranks
from harness.models.general.sharded_target import OtherRank, load_together
from harness.models.rank_died import RankDiedError
from harness.models.target import load_target
from harness.runner.supervisor import Supervisor
from kernels.contract import VerificationMethod
from kernels.verification import Verification
from tests.runner.test_failing_cells import records_of
from tests.runner.test_sweep import plan
from tests.support.any_models import NO_TOKENIZER, save_tiny, tiny_model
from tests.support.dying_ranks import NOTED_IN, OnDyingRanks
from tests.support.supervised_runs import Counting

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="transformers puts ranks on the GPUs that it sees")
NUM_RANKS = 2
END_S = 60
"""How long a process may take to end that a test waits for."""


def test_a_rank_that_fails_says_why_and_leaves_no_process(tmp_path):
    """Would catch a rank 0 that waits for one that cannot load."""
    own = Ranks(NUM_RANKS, "cpu", OtherRank)
    pid = own._watch.processes[0].pid
    own.call("load", (partial(load_target, tmp_path / "nothing"),))
    assert own._watch.has_died.wait(END_S)
    with pytest.raises(RankDiedError, match=r"rank 1 of 0 to 1 \(backend.tensor_parallel\) failed: .*nothing"):
        own.check()
    own.close()
    assert not is_running(pid)


def test_an_error_of_rank_0_alone_is_told_instead_of_waited_for(tmp_path):
    """Would catch a forward that waits half an hour for ranks which are still in the one that failed here."""
    own = Ranks(NUM_RANKS, "cpu", OtherRank)
    pid = own._watch.processes[0].pid
    given = {"tokenizer": NO_TOKENIZER, "layers": Layers.transformers}
    target = load_together(own, partial(load_target, save_tiny(tiny_model("llama"), tmp_path), **given))
    zero = torch.zeros(1, 1, dtype=torch.int64)
    view = target.new_cache(1, 4).view(slice(0, 1), zero, 4)

    def fails(*_):
        raise torch.OutOfMemoryError("no memory")

    hook = target.network.layers[1].register_forward_pre_hook(fails)
    with pytest.raises(torch.OutOfMemoryError):
        target.forward(zero, zero, view)
    hook.remove()
    told = "rank 0 failed in what all ranks compute: OutOfMemoryError: no memory"
    with pytest.raises(RankDiedError, match=told):
        target.check_others()
    with pytest.raises(RankDiedError, match=told):
        target.forward(zero, zero, view)
    own.close()
    assert not is_running(pid)


def test_a_rank_that_dies_ends_the_cell_with_its_error_and_no_process_stays(tmp_path, monkeypatch):
    """The first cell loses a rank, the second the process that runs the engine. Would catch a run that hangs in a
    collective, a cell that is blamed for nothing, and ranks that outlive their engine."""
    noted = tmp_path / "noted"
    monkeypatch.setenv(NOTED_IN, str(noted))
    cell = CellConfig(
        target=TargetConfig(layers=Layers.transformers),
        drafter=drafter_of(DrafterKind.eagle),
        decoding=DecodingConfig(temperature=0.0, max_new_tokens=8),
        workload=WorkloadConfig(num_prompts=2, num_turns=1),
        backend=OnDyingRanks(device="cpu", tensor_parallel=NUM_RANKS),
        measurement=MeasurementConfig(num_warmup_requests=0, num_resamples=100, num_blocks=1),
        verification=Verification(VerificationMethod.greedy),
    )
    Supervisor(plan(tmp_path, cell), Counting(), []).run()
    records = records_of(tmp_path)
    (of_rank,), (of_engine,) = records["none"].failures, records["greedy"].failures
    assert of_rank.error == "RankDiedError"
    assert of_rank.message.startswith("rank 1 of 0 to 1 (backend.tensor_parallel) was ended by SIGKILL")
    assert of_engine.error == "WorkerDiedError" and "SIGKILL" in of_engine.message
    pids = {int(line) for line in noted.read_text().split()}
    assert len(pids) == 2 and not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    """Whether a process still runs after some time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([handle], [], [], END_S)[0]
    finally:
        os.close(handle)
