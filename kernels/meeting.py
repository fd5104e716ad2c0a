"""Programs of one launch that meet: each waits until all of its request have come, and sees what they have written.

They must run at once: a cooperative launch is refused where they cannot. One program of a request waits for nobody,
and may run whenever it likes. What the others wrote is loaded past the first cache (`cache_modifier=".cg"`), which may
hold what lay there before. Two meetings are apart what is written between them: a program that has left the second one
knows that all have read what was written before the first.
"""

from __future__ import annotations

import triton
import triton.language as tl

STRIDE: tl.constexpr = tl.constexpr(32)
"""Distance of the counters of two requests, in int32: a line of the cache for each, since programs ask for them all the
time."""


@triton.jit
def meet(counter, num_met, num_programs):
    """Wait for all programs of a request.

    Args:
        counter: of the request, int32; 0 before the launch.
        num_met: meetings before this one.
        num_programs: of the request.
    """
    tl.debug_barrier()
    if num_programs > 1:
        all_come = (num_met + 1) * num_programs
        num_come = tl.atomic_add(counter, 1, sem="acq_rel") + 1
        while num_come < all_come:
            num_come = tl.atomic_add(counter, 0, sem="acquire")
        tl.debug_barrier()


@triton.jit
def leave(counter, num_met, num_programs):
    """After the last meeting: the last program to leave sets the counter back to 0."""
    if num_programs > 1:
        if tl.atomic_add(counter, 1, sem="relaxed") == (num_met + 1) * num_programs - 1:
            tl.store(counter, 0)
