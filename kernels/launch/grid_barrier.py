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


MOST_LOOKS: tl.constexpr = tl.constexpr(2**20)
"""How often a program asks whether the others have come: about a second."""
LEFT: tl.constexpr = tl.constexpr(2**20)
"""What a program that leaves adds to the counter; more than all comings together."""
LATE: tl.constexpr = tl.constexpr(2**20)
"""Added to the number of meetings where one did not come; even, so that odd ones stay odd."""


@triton.jit
def meet(counter, num_met, num_programs):
    """Wait for all programs of a request; returns the number of meetings with this one, plus LATE from the first on to
    which one did not come.

    They all come, unless their arguments are written to during the launch, so that they walk apart. Then the verdict
    means nothing, and the request must be flagged.

    Args:
        counter: of the request, int32; 0 before the launch.
        num_met: what the meeting before returned, 0 at first. From LATE on nothing is waited for.
        num_programs: of the request.
    """
    tl.debug_barrier()
    num_met += 1
    if num_programs > 1:
        all_come = num_met * num_programs
        num_come = (tl.atomic_add(counter, 1, sem="acq_rel") + 1) % LEFT
        if num_met < LATE:
            num_looks = num_met * 0
            while (num_come < all_come) & (num_looks < MOST_LOOKS):
                num_come = tl.atomic_add(counter, 0, sem="acquire") % LEFT
                num_looks += 1
            num_met = tl.where(num_come < all_come, num_met + LATE, num_met)
        tl.debug_barrier()
    return num_met


@triton.jit
def leave(counter, num_programs):
    """After the last meeting: the last program to leave sets the counter back to 0."""
    if num_programs > 1:
        if tl.atomic_add(counter, LEFT, sem="relaxed") // LEFT == num_programs - 1:
            tl.store(counter, 0)
