"""Runs the cells of a plan in turns and writes them; `run` does so from overrides, for notebooks.

`run` is loaded when it is asked for, so that the modules that compose a plan do not import those that run it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.runner.whole_run import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name == "run":
        from harness.runner.whole_run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
