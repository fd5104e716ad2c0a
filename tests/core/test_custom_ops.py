"""The core as custom operations: schemas, the kernels behind them with their counters, a second copy of the core, and
compilers and CUDA graphs of other engines.

Without a GPU the operations run the reference; some tests run the kernels in Triton's interpreter."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import custom_ops, operations
from kernels.contract import Draft, Drawn, RowStats, Verification, VerificationResult
from kernels.core import Core, core_for, reference_core, triton_core
from kernels.launch.call_memory import CallMemory, counters_for
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose
from tests.support.custom_op_calls import cut_trees, every_argument, round_of, rows, verified, with_own_sampling
from tests.support.kernel_rounds import (
    DEVICE,
    LENGTHS,
    MIXED,
    UNCUT,
    KernelRound,
    always,
    assert_same_drawn,
    assert_same_verdict,
    kernel_round,
    poisoned_allocations,
)
from tests.support.kernel_tree_rounds import assert_same as assert_same_tree
from tests.support.random_round import Method, verification_of

KERNELS = Path(operations.__file__).parent


@pytest.fixture
def calls(monkeypatch) -> list:
    """(operation, arguments, named arguments) of every call through kernels.custom_ops."""
    seen: list = []

    def noting(operation):
        def call(*arguments, **named):
            seen.append((operation.default, arguments, named))
            return operation(*arguments, **named)

        return call

    noted = {name: noting(getattr(torch.ops.rejection_lab, name)) for name in operations.OPERATIONS}
    monkeypatch.setattr(custom_ops, "OPERATIONS", SimpleNamespace(**noted))
    return seen


def test_operations_keep_to_their_schemas(calls):
    """Would catch results that lie on arguments or are of another size than the fake kernels say, and what is written
    into without being named."""
    logits, sampling, streams = rows(4)
    counters = counters_for(6, 3, DEVICE)
    stats = RowStats.empty(4, device=DEVICE)
    verified(round_of(), verification_of(Method.block), counters)
    verified(with_own_sampling(round_of()), verification_of(Method.synthetic), None)
    drawn = custom_ops.draw(logits, sampling, streams, Purpose.draft, row_stats=stats, counters=counters)
    verified(cut_trees(), Verification(TreeMethod.traversal), None)
    custom_ops.coupled_draw(logits, sampling, streams, 70)
    custom_ops.logprobs(logits, drawn.token_ids, 80)
    custom_ops.logprobs(logits, drawn.token_ids, 2, sampling)
    assert {operation._schema.name for operation, *_ in calls} == {
        f"rejection_lab::{name}" for name in operations.OPERATIONS
    }
    for operation, arguments, named in calls:
        torch.library.opcheck(operation, arguments, named)


@pytest.fixture
def on_kernels(monkeypatch) -> None:
    """Operations run the kernels on any device."""

    def core_of(device, num_requests, width, counters):
        return triton_core(CallMemory(counters_for(num_requests, width, device) if counters is None else counters))

    monkeypatch.setattr(operations, "core_of", core_of)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (Method.block, "masked"),
        (Method.block, "own sampling"),
        (Method.typical, "masked"),
        (Method.lenient, "uncut"),
        (Method.synthetic, "uncut"),
    ],
    ids=lambda value: getattr(value, "value", value),
)
def test_kernels_behind_an_operation_give_the_reference_tokens_from_counters_of_the_caller(method: Method, kind: str):
    """Two calls on one set of counters, which each must leave at 0; all other memory is poisoned."""
    counters, verification = counters_for(6, 3, DEVICE), verification_of(method)
    batch = round_of(masked=kind == "masked", settings=UNCUT if kind == "uncut" else MIXED)
    batch = with_own_sampling(batch) if kind == "own sampling" else batch
    expected = batch.expected(verification)
    for given in (counters, counters):
        with poisoned_allocations():
            found = verified(batch, verification, given)
        assert_same_verdict(found, expected)
        assert not bool(counters.any())


@pytest.mark.usefixtures("on_kernels")
def test_one_request_has_room_in_its_counters():
    batch, verification = kernel_round(MIXED[1:2], [1], 70, seed=1), verification_of(Method.block)
    assert_same_verdict(verified(batch, verification, None), batch.expected(verification))


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("method", TreeMethod, ids=lambda method: method.value)
def test_walks_of_trees_have_room_in_their_counters(method: TreeMethod):
    batch, verification = cut_trees(method.traits.siblings[-1]), Verification(method)
    counters = counters_for(4, batch.draft.token_ids.shape[1], DEVICE)
    for given in (counters, counters):
        assert_same_tree(verified(batch, verification, given), batch.expected(verification))
        assert not bool(counters.any())


@pytest.mark.usefixtures("on_kernels")
def test_kernels_of_rows_behind_operations():
    logits, sampling, streams = rows(3)
    counters = counters_for(3, 0, DEVICE)
    for given in (counters, None):
        with poisoned_allocations():
            drawn = custom_ops.draw(logits, sampling, streams, Purpose.draft, counters=given)
            coupled = custom_ops.coupled_draw(logits, sampling, streams, 70, counters=given)
            found = custom_ops.logprobs(logits, drawn.token_ids, 2, sampling, counters=given)
        core = reference_core()
        assert_same_drawn(drawn, core.draw(logits, sampling, streams, Purpose.draft))
        assert_same_drawn(coupled, core.coupled_draw(logits, sampling, streams, 70))
        assert torch.equal(found.top_token_ids, core.logprobs(logits, drawn.token_ids, 2, sampling).top_token_ids)
        assert not bool(counters.any())


@pytest.mark.usefixtures("on_kernels")
def test_counters_that_do_not_fit_are_refused():
    batch, verification = round_of(), verification_of(Method.block)
    with pytest.raises(ValueError, match="counters must be those of counters_for this many requests and drafts"):
        verified(batch, verification, counters_for(1, 3, DEVICE)[:8])
    with pytest.raises(ValueError, match=r"counters must be one row of int64 without gaps, found \[4\] torch.int32"):
        verified(batch, verification, torch.zeros(4, dtype=torch.int32, device=DEVICE))


def test_the_examples_of_the_readme_run():
    text = (KERNELS / "README.md").read_text(encoding="utf-8")
    direct, compiled = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    names: dict = {}
    exec(direct + compiled.replace("fullgraph=True", "fullgraph=True, backend='eager'"), names)
    assert names["result"].token_ids.shape == (4, 2) and not bool(names["result"].invalid.any())


def second_copy(monkeypatch, folder: Path) -> None:
    """Import a copy of the core under the name that the wheel gives it."""
    name = "rejection_lab_core"
    path = str(folder / "__init__.py")
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(folder)])
    package = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, name, package)
    try:
        spec.loader.exec_module(package)
        importlib.import_module(f"{name}.custom_ops")
        custom = sys.modules[f"{name}.custom_ops"]
        logits, sampling, streams = rows(3)
        found = custom.draw(logits, sampling, streams, Purpose.draft)
        assert type(found).__module__ == f"{name}.contract"
        assert_same_drawn(found, core_for(DEVICE).draw(logits, sampling, streams, Purpose.draft))
    finally:
        for added in set(sys.modules) - before:
            del sys.modules[added]


def test_a_second_copy_of_the_core_uses_the_operations_of_the_first(monkeypatch):
    """rejection-lab and the wheel rejection-lab-core may meet in one process; torch refuses to register twice."""
    second_copy(monkeypatch, KERNELS)


def test_a_second_version_of_the_core_is_refused(monkeypatch, tmp_path):
    for path in KERNELS.rglob("*.py"):
        copy = tmp_path / path.relative_to(KERNELS)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text().replace("bool is_mixed=False", "bool is_mixed=True"))
    with pytest.raises(ImportError, match="one version of the sampling core in a process, found two"):
        second_copy(monkeypatch, tmp_path)


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
