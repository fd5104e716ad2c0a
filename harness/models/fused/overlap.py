"""Whether the kernels of a layer may start while the one before them ends (programmatic dependent launch).

Every kernel of the chain lets the next one start as soon as all its own programs have started (gdc_launch_dependents),
and each of its programs waits for the kernel before to have completed (gdc_wait) before it reads or writes anything.

- What it reads is there: a kernel has completed when all its programs have ended, each of which has waited for the
  kernel before it. So when gdc_wait returns, every earlier kernel has completed, not the last one only.
- What it writes nobody reads any more, for the same reason.
- A product has its first weights brought into the L2 cache before it waits. That is not a read: the cache is where all
  writes meet, so that it never holds anything old, even behind a kernel that writes weights.
- A kernel that is not of the chain starts when all before it have completed, and lets none start before it has.
- No program keeps an earlier one from starting: a kernel starts when all programs of the one before it have.
"""

from __future__ import annotations

from triton import knobs
from triton.runtime import driver

LEAST_CAPABILITY = 90
"""Of a GPU that can, times ten."""


def overlaps() -> bool:
    """Whether the GPU of this launch can do so; not in Triton's interpreter."""
    if knobs.runtime.interpret:
        return False
    target = driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= LEAST_CAPABILITY
