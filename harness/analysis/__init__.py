"""Records -> numbers with intervals; returns values, never text.

`load_results` is the entry for notebooks. It is loaded when it is asked for, so that other modules of this package do
not import pandas.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.analysis.frame import load_results

__all__ = ["load_results"]


def __getattr__(name: str) -> Any:
    if name == "load_results":
        from harness.analysis.frame import load_results

        return load_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
