"""Whether the kernels of a layer may start while the one before them ends (programmatic dependent launch).

Every kernel of the chain lets the next one start as soon as all its own programs have started (gdc_launch_dependents),
and waits for the one before it to have completed (gdc_wait) before it reads or writes anything but weights. Why that is
enough: a kernel completes when all its programs have ended, each of which has waited for the kernel before; so, when
gdc_wait returns, every earlier kernel has completed, not only the last, and what they wrote can be seen. Nothing that
an earlier kernel may still read is written, because writes come after the wait too. A product asks for its first
weights to be brought into the L2 cache before it waits; that cache is the one place where all writes meet, so that this
is right even behind a kernel that writes weights. A kernel that is not of the chain lets nothing start before it has
completed, and starts after all kernels before it have.

No program can keep an earlier one from starting: a kernel starts when all programs of the one before it have.
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
