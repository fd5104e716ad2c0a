"""The core as custom operations inside compilers and CUDA graphs of other engines.

Without a GPU the operations run the reference.
"""

from dataclasses import replace

import pytest
import torch

from kernels import custom_ops
from kernels.contract import Draft, Drawn, RowStats, Verification, VerificationResult
from kernels.core import Core, core_for
from kernels.launch.call_memory import counters_for
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose
from tests.support.custom_op_calls import cut_trees, every_argument, round_of, rows, verified
from tests.support.kernel_rounds import (
    DEVICE,
    LENGTHS,
    MIXED,
    KernelRound,
    always,
    assert_same_drawn,
    assert_same_verdict,
    kernel_round,
)
from tests.support.kernel_tree_rounds import assert_same as assert_same_tree
from tests.support.random_round import Method, verification_of

SAMPLED = [method for method in Method if method is not Method.greedy]
ONE_BY_ONE = pytest.mark.parametrize("method", always(Method.block, Method.typical, on_a_gpu=SAMPLED), ids=str)


@ONE_BY_ONE
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_verification_compiles_in_one_graph(method: Method, backend: str):
    """Would catch an argument that gets lost on its way, and what breaks the graph."""
    verification, core = verification_of(method), core_for(DEVICE)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend=backend, dynamic=True)
    def step(hidden: torch.Tensor, batch: KernelRound) -> VerificationResult:
        return verified(replace(batch, target_logits=hidden * 2), verification, None)

    for batch in every_argument():
        arguments = (batch.target_logits, batch.draft, batch.sampling, verification, batch.streams)
        assert_same_verdict(step(batch.target_logits / 2, batch), core.verify(*arguments, mask=batch.mask))


@pytest.mark.parametrize("is_tree", [True, False], ids=["trees", "chains"])
def test_trees_compile_in_one_graph(is_tree: bool):
    batch, verification = cut_trees() if is_tree else round_of(masked=False), Verification(TreeMethod.recursive)
    torch._dynamo.reset()
    step = torch.compile(lambda given: verified(given, verification, None), fullgraph=True, backend="aot_eager")
    core, arguments = core_for(DEVICE), (batch.target_logits, batch.draft, batch.sampling)
    assert_same_tree(step(batch), core.verify(*arguments, verification, batch.streams))


def test_a_whole_round_compiles_in_one_graph():
    """Statistics that a draw writes into a view are those that verification reads; aot_eager would reorder or lose
    writes that the schema does not name."""

    def round_(
        core: Core | object, logits, target, sampling, streams
    ) -> tuple[Drawn, VerificationResult, torch.Tensor]:
        kept = RowStats.empty(len(logits), 2, device=DEVICE)
        drawn = core.draw(logits, sampling, streams, Purpose.draft, row_stats=kept.at((slice(None), 0)))
        ones = torch.ones_like(streams.positions)
        draft = Draft(drawn.token_ids[:, None], ones, logits[:, None], row_stats=kept)
        coupled = core.coupled_draw(logits, sampling, streams, 70)
        result = core.verify(target, draft, sampling, verification_of(Method.probabilistic), streams)
        looked_up = core.logprobs(logits, coupled.token_ids, 3, sampling)
        return drawn, result, looked_up.top_logprobs + kept.maximum[:, :1]

    logits, sampling, streams = rows(5)
    target = rows(10, seed=2)[0]
    torch._dynamo.reset()
    compiled = torch.compile(round_, fullgraph=True, backend="aot_eager")
    found = compiled(custom_ops, logits, target, sampling, streams)
    expected = round_(core_for(DEVICE), logits, target, sampling, streams)
    assert_same_drawn(found[0], expected[0])
    assert_same_verdict(found[1], expected[1])
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("kept", [True, False], ids=["counters kept", "counters of the call"])
@pytest.mark.gpu
def test_a_compiled_round_replays_in_a_cuda_graph(kept: bool):
    """Inductor, then capture: the tokens of a direct call on each replay, the counters 0 after it."""
    verification = verification_of(Method.block)
    fixed = kernel_round(MIXED, LENGTHS, 5000, torch.bfloat16, padded=True, seed=1)
    counters = counters_for(6, 3, DEVICE) if kept else None

    @torch.compile(fullgraph=True)
    def step(hidden: torch.Tensor) -> VerificationResult:
        return verified(replace(fixed, target_logits=hidden * 2), verification, counters)

    hidden = fixed.target_logits / 2
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(hidden)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(hidden)
    for seed in (2, 3, 2):
        other = kernel_round(MIXED, LENGTHS, 5000, torch.bfloat16, padded=True, seed=seed)
        hidden.copy_(other.target_logits / 2)
        fixed.streams.rounds.add_(1)
        graph.replay()
        now = replace(fixed, target_logits=other.target_logits)
        core = core_for(DEVICE)
        expected = core.verify(now.target_logits, now.draft, now.sampling, verification, now.streams)
        assert_same_verdict(found, expected)
        assert counters is None or not bool(counters.any())


@pytest.mark.gpu
def test_cuda_graphs_of_the_compiler_take_a_call_without_counters():
    """Memory that outlives the call would be refused by the compiler's pool."""
    logits, sampling, streams = rows(8)

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def step(hidden: torch.Tensor) -> Drawn:
        return custom_ops.draw(hidden * 2, sampling, streams, Purpose.draft)

    expected = core_for(DEVICE).draw(logits, sampling, streams, Purpose.draft)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert_same_drawn(step(logits / 2), expected)
