"""All threads of a program must branch alike.

A scalar load is made by every thread for itself. Where another program may change the value meanwhile, some threads
read the old and some the new one, take different branches and meet at different barriers: reductions go wrong, rarely
and only on a GPU. Such a value has to come from an atomic, whose result Triton hands to all threads alike
(kernels.chain.row_epilogue.shared_now).
"""

from __future__ import annotations

import ast
from pathlib import Path

import kernels


def volatile_loads(source: str) -> list[int]:
    """Lines on which a load is declared volatile: the only reason is a value that changes under the program."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if any(keyword.arg == "volatile" for keyword in call.keywords)]


def test_no_kernel_loads_a_value_that_changes_meanwhile():
    folder = Path(kernels.__file__).parent
    found = {str(path.relative_to(folder)): volatile_loads(path.read_text()) for path in folder.rglob("*.py")}
    assert len(found) > 20, "the kernels are not where this test looks for them"
    assert not {name: lines for name, lines in found.items() if lines}


def test_a_volatile_load_is_found():
    assert volatile_loads("stop = 4 - tl.load(\n    stops + request, volatile=True)\n") == [1]
