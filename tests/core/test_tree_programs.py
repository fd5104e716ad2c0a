"""Programs that share the rows of a request, and meet: the tokens are those of one program.

Runs all programs of an interpreted kernel at once, a process for each, as a GPU runs those that wait for each other.

Triton's interpreter runs one after another. The processes share the memory of the arguments; atomics hold between them.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from harness.config.tree import branching
from kernels.contract import SiblingDraws
from kernels.launch import grid_barrier
from kernels.launch.workspace import Workspace
from kernels.methods import TreeMethod
from kernels.tree import walk
from tests.support.kernel_rounds import DEVICE
from tests.support.kernel_tree_rounds import assert_same, tree_round
from tests.support.random_round import GREEDY, PLAIN


def _share(argument: Any, private: Tensor | None) -> None:
    """Move what a kernel is given, but for one tensor, into memory that forked processes share."""
    if isinstance(argument, Tensor):
        if argument is not private:
            argument.untyped_storage().share_memory_()
    elif isinstance(argument, tuple):
        for each in argument:
            _share(each, private)


class AtOnce:
    """In the place of a kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.private: Tensor | None = None
        """An argument of which every program has a copy."""
        self.begin: Callable[[int], None] = lambda _: None
        """Called in the process of a program, with its number."""

    def __getitem__(self, grid: tuple[int]) -> Any:
        executor = interpreter.GridExecutor(self.kernel.rewrite(), self.kernel.arg_names, grid)

        def launch(*arguments: Any, **constants: Any) -> None:
            _share(arguments, self.private)
            processes = []
            for program in range(grid[0]):
                process = os.fork()
                if process == 0:
                    code = 1
                    try:
                        self.begin(program)
                        _run(executor, program, arguments, constants)
                        code = 0
                    finally:
                        os._exit(code)
                processes.append(process)
            codes = [os.waitpid(process, 0)[1] for process in processes]
            assert codes == [0] * len(codes)

        return launch


def _run(executor: Any, program: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """One program of a launch, as triton.runtime.interpreter.GridExecutor runs all."""
    names = inspect.getfullargspec(executor.fn).args
    known = {name: value for name, value in constants.items() if name in names}
    on_host, constants = executor._init_args_hst(arguments, known)
    interpreter._patch_lang(executor.fn)
    given = inspect.getcallargs(executor.fn, *on_host, **constants)
    given = {
        name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
        for name, value in given.items()
    }
    interpreter.interpreter_builder.set_grid_dim(executor.grid[0], 1, 1)
    interpreter.interpreter_builder.set_grid_idx(program, 0, 0)
    executor.fn(**given)


INDEPENDENT, DISTINCT = SiblingDraws
KERNELS = "_rejection_walk_kernel", "_traversal_walk_kernel"


@pytest.fixture
def shared_by(monkeypatch: pytest.MonkeyPatch):
    """Sets the number of programs of a request."""
    if DEVICE.type != "cuda":
        for name in KERNELS:
            monkeypatch.setattr(walk, name, AtOnce(getattr(walk, name)))

    # a group of chunks for each chunk
    monkeypatch.setattr(walk, "PARTS", 1)

    def set_number(number: int) -> None:
        monkeypatch.setattr(walk, "programs_of_request", lambda *_: number)

    return set_number


@pytest.mark.skipif(DEVICE.type == "cuda", reason="arguments cannot be written to in the middle of a launch")
@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
@pytest.mark.parametrize("other", [0, 2], ids=["first", "last"])
def test_arguments_that_change_during_a_launch_end_it_and_are_flagged(method, other, shared_by, monkeypatch):
    """One program of each request finds it greedy, which ends a walk after other meetings. Would catch programs that
    wait for ever, a verdict of theirs that nothing marks, and a count that outlives the launch."""
    monkeypatch.setattr(grid_barrier, "MOST_LOOKS", tl.constexpr(200))
    shared_by(3)
    batch = tree_round([PLAIN] * 3, [branching(2, 2)] * 3, 2051, DISTINCT, torch.bfloat16, error=4.0, seed=3)
    workspace, temperatures = Workspace(), batch.sampling.temperature
    for name in KERNELS:
        kernel = getattr(walk, name)
        kernel.private, kernel.begin = temperatures, lambda program: program % 3 == other and temperatures.zero_()
    found = batch.found(workspace, method)
    assert found.invalid.all()
    assert workspace.busy_counters() == []


@pytest.mark.parametrize(
    ("method", "siblings", "one_hot"),
    [
        (TreeMethod.recursive, DISTINCT, False),
        (TreeMethod.recursive, INDEPENDENT, True),
        (TreeMethod.kseq, INDEPENDENT, False),
        (TreeMethod.traversal, DISTINCT, False),
    ],
    ids=["recursive", "recursive one-hot", "kseq", "traversal"],
)
def test_any_number_of_programs_finds_the_same(method, siblings, one_hot, shared_by):
    """Over several rounds in one workspace. Would catch a chunk that no program reads, or that one overwrites before
    all have read it, programs that come to different steps, and counters that are left for the next launch."""
    workspace, lengths = Workspace(), set()
    shapes = [branching(2, 2), (), None, (-1, 0, -1, 0, 2)]
    for seed in range(2):
        settings = [PLAIN, PLAIN, PLAIN, PLAIN if seed else GREEDY]
        batch = tree_round(settings, shapes, 2051, siblings, torch.bfloat16, one_hot, error=1.2, seed=seed)
        shared_by(3)
        found = batch.found(workspace, method)
        assert workspace.busy_counters() == []
        assert_same(found, batch.expected(method))
        lengths |= set(found.num_accepted.tolist())
    assert len(lengths) > 1
