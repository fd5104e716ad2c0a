"""vLLM's kernels as a peer of the benchmark: what they are given; a stand-in for vLLM computes the reference."""

from dataclasses import replace

import pytest
import torch

import tests.support.stand_in_vllm_worker as stand_in
from harness.checks.kernel_bench.case import Case, Dtype, Truncation, Work
from harness.checks.kernel_bench.measure import RowCounts, inputs_of
from harness.checks.kernel_bench.peers import measure_peer, peers_of
from harness.checks.kernel_bench.records import Status
from harness.checks.kernel_bench.workload import verification_of
from harness.checks.timing.clock import WallClock
from kernels.contract import Streams, VerificationMethod
from kernels.core import reference_core
from kernels.random.streams import Purpose

CPU = torch.device("cpu")
CASE = Case(num_requests=24, vocab_size=300, dtype=Dtype.float32)
DRAW = Case(work=Work.draw, width=0, num_requests=24, vocab_size=300, dtype=Dtype.float32)


def without_rounds(streams: Streams) -> Streams:
    """As vLLM's numbers are."""
    return Streams(streams.seeds, streams.positions, torch.zeros_like(streams.rounds))


@pytest.mark.parametrize("method", [VerificationMethod.probabilistic, VerificationMethod.block], ids=str)
def test_vllm_is_given_the_batch_of_the_case(method, monkeypatch):
    """Would catch rows, slots, seeds or positions that are mixed up: its tokens would be others."""
    stand_in.install(monkeypatch)
    case = replace(CASE, method=method)
    inputs = inputs_of(case, reference_core(), 3, CPU)
    expected = replace(inputs, streams=without_rounds(inputs.streams)).verified_by(
        reference_core(), verification_of(case)
    )
    peers = peers_of(case, CPU, with_torch=False)
    assert [peer.name for peer in peers] == ["vLLM 0.25.1, kernel", "vLLM 0.25.1, path"]
    for peer in peers:
        num_sampled, sampled = peer.prepare(case, inputs)()
        assert (num_sampled - 1).tolist() == expected.num_accepted.tolist()
        assert torch.equal(sampled[expected.token_ids >= 0], expected.token_ids[expected.token_ids >= 0])
    found = measure_peer(case, peers[0], inputs, RowCounts(1, 1), WallClock(2))
    assert found.mean_accepted == pytest.approx(float(expected.num_accepted.double().mean()))


def test_vllm_draws_from_the_rows_of_the_case(monkeypatch):
    stand_in.install(monkeypatch)
    inputs = inputs_of(DRAW, reference_core(), 3, CPU)
    (peer,) = peers_of(DRAW, CPU, with_torch=False)
    expected = reference_core().draw(inputs.logits, inputs.sampling, without_rounds(inputs.streams), Purpose.draft)
    assert peer.prepare(DRAW, inputs)().tolist() == expected.token_ids.tolist()


def test_vllm_is_a_peer_of_what_its_kernels_do_alone(monkeypatch):
    assert peers_of(CASE, CPU, with_torch=False) == []
    stand_in.install(monkeypatch)
    others = [
        replace(CASE, truncation=Truncation.top_p),
        replace(CASE, temperature=0.0),
        replace(CASE, method=VerificationMethod.typical),
        replace(DRAW, work=Work.coupled_draw),
    ]
    assert not [peer for case in others for peer in peers_of(case, CPU, with_torch=False)]


def test_a_version_of_vllm_that_was_not_read_is_left_out_with_the_reason(monkeypatch):
    stand_in.install(monkeypatch, version="0.24.0")
    inputs = inputs_of(CASE, reference_core(), 3, CPU)
    found = measure_peer(CASE, peers_of(CASE, CPU, with_torch=False)[0], inputs, RowCounts(1, 1), WallClock(2))
    assert found.status is Status.skipped and "expected vLLM 0.25.1" in found.reason
