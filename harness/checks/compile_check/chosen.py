"""The calls of the core that are compiled for every change, by the names that the full list gives them.

The variants of a kernel that share a register limit and a number of warps differ in how near the limit they come. Of
each such group the launch that comes nearest is here, as the table of the full list shows it, and every launch that has
spilled before; of the others every verification method once. All are compiled for FIRST_TARGET; other generations need
about as many registers and are left to the full list. Of the steps of engines `step_calls` chooses.
"""

from __future__ import annotations

from kernels.methods import VerificationMethod

CHOSEN = frozenset(f"verify {method.value}, bfloat16" for method in VerificationMethod) | {
    "experts in groups, 16 tokens",
    "routed experts, 16 tokens",
    "routed experts of gpt-oss, 16 tokens",
    "windows and sinks, 16 rows of 4 tokens",
    "windows and a soft cap, 16 rows of 1 tokens",
    "edit logits, bfloat16",
    "edit logits, trees",
    "verify recursive, distinct siblings, bfloat16",
    "verify recursive, no statistics",
    "verify recursive, one-hot drafts",
    "verify recursive, masked",
    "verify kseq, independent siblings, bfloat16",
    "verify kseq, truncated",
    "verify kseq, masked and truncated, odd vocabulary",
    "verify traversal, one-hot drafts",
    "verify traversal, odd vocabulary",
    "verify traversal, masked",
    "verify synthetic trees, distinct siblings, bfloat16",
    "draw distinct children, bfloat16",
    "draw children, masked",
    "draw, bfloat16",
    "coupled draw, bfloat16",
    "logprobs, processed",
    "logprobs, masked, float32",
    "verify block, float32",
    "verify probabilistic, few requests",
    "verify probabilistic, some requests",
    "verify probabilistic, most that are decided late",
    "verify block, few requests",
    "verify block, few requests, odd vocabulary",
    "verify probabilistic, more requests",
    "verify block, more requests, odd vocabulary",
    "verify block, one-hot drafts",
    "verify block, odd rows, bfloat16",
    "verify block, odd rows, float32",
    "verify block, truncated, odd rows, bfloat16",
    "verify probabilistic, odd rows, bfloat16",
    "verify probabilistic, odd rows, float32",
    "verify probabilistic, many requests, odd rows, bfloat16",
    "verify block, one-hot drafts, odd rows, bfloat16",
    "verify probabilistic, smaller draft vocabulary, odd rows, bfloat16",
    "verify typical, odd rows, float32",
    "verify block, no statistics, packed rows",
    "verify probabilistic, many requests, no statistics",
    "verify coupled, many requests",
    "verify block, aligned short vocabulary",
    "verify block, largest vocabulary, 8 drafts",
    "verify probabilistic, toy vocabulary, truncated",
    "verify typical, truncated",
    "draw, mixed",
    "verify strict, masked, bfloat16",
    "verify block, masked, odd vocabulary",
    "verify block, masked, many requests",
    "verify block, masked, short vocabulary, truncated",
    "verify block, masked and truncated, bfloat16",
    "verify probabilistic, masked, many requests",
    "verify probabilistic, masked, smaller vocabulary, no statistics, packed rows",
    "verify coupled, masked and truncated, bfloat16",
    "coupled draw, masked and mixed, float32, smaller vocabulary",
}
"""The names of its launches."""
