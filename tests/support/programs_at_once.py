"""Runs all programs of an interpreted kernel at once, a process for each, as a GPU runs those that wait for each other.

Triton's interpreter runs one after another. The processes share the memory of the arguments; atomics hold between them.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any

from torch import Tensor
from triton.runtime import interpreter


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
