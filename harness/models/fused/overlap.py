"""Whether the kernels of a layer may start while the one before them ends (programmatic dependent launch).

Every kernel of the chain, but for products with weights of 8 bits, lets the next one start as soon as all its own
programs have started (gdc_launch_dependents), and each of its programs waits for the kernel before to have completed
(gdc_wait) before it reads or writes anything.

- What it reads is there: a kernel has completed when all its programs have ended, each of which has waited for the
  kernel before it. So when gdc_wait returns, every earlier kernel has completed, not the last one only.
- What it writes is not read any more, for the same reason.
- A kernel that is not of the chain starts when all before it have completed, and lets none start before it has.
- No program keeps an earlier one from starting: a kernel starts when all programs of the one before it have.

Programs that wait take the place of others that could read. Measured on an H200, 32 layers and the logits of Llama-3-8B
in a CUDA graph, one after another and overlapping: 4.43 and 4.51 ms with 16 tokens, 4.80 and 4.60 ms with 64, 5.26 and
5.07 ms with 96. Bringing weights into the L2 cache before the wait gained nothing with 512 bytes of a row, and cost 0.2
to 0.5 ms with 2 kB.

Products with weights of 8 bits do not overlap: a layer of Llama-3-8B on an H100 takes 206 us with 64 tokens where all
of its kernels do, and 159 where none does (188 and 195 with weights of bfloat16). That the other kernels go on
overlapping was not timed apart.
"""

from __future__ import annotations

from triton import knobs
from triton.runtime import driver

MIN_CAPABILITY = 90
"""Of a GPU that can, times ten."""
MIN_TOKENS = 17
"""From so many tokens on it pays."""


def overlaps(num_tokens: int) -> bool:
    """Whether the kernels of a forward over so many tokens overlap; not in Triton's interpreter."""
    if num_tokens < MIN_TOKENS or knobs.runtime.interpret:
        return False
    target = driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= MIN_CAPABILITY
