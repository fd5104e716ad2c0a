"""What a scripted server answers: every step follows from a request's seed."""

import random
from dataclasses import dataclass, replace

SEEDS = 2**31
"""The engines' seeds modulo this are the same for one request."""


@dataclass(frozen=True)
class Script:
    """What a request is answered with."""

    depth: int
    accepted: tuple[int, ...]
    """Of each step, those beyond the end included."""
    sizes: tuple[int, ...]
    """Output tokens of each chunk, the prefill's first."""
    finish_reason: str
    stop: str | None = None
    """The stop string that ends it."""

    @property
    def num_tokens(self):
        return sum(self.sizes)


def script_of(seed, depth, max_tokens):
    """The script of a seed: about every other answer ends before its limit."""
    rng = random.Random(seed % SEEDS)
    has_end = rng.random() < 0.5 and max_tokens > 2
    total = rng.randint(2, max_tokens - 1) if has_end else max_tokens
    accepted, sizes = [], [1]
    while sum(sizes) < total:
        accepted.append(rng.randint(0, depth))
        sizes.append(min(accepted[-1] + 1, total - sum(sizes)))
    return Script(depth, tuple(accepted) if depth else (), tuple(sizes), "stop" if has_end else "length")


def endless(script, max_tokens):
    """The same answer without its end: steps of one accepted token go on to the limit."""
    accepted, sizes = list(script.accepted), list(script.sizes)
    if sum(sizes) < max_tokens and accepted:
        accepted[-1] = sizes[-1] - 1
    while sum(sizes) < max_tokens:
        accepted.append(min(1, script.depth))
        sizes.append(min(accepted[-1] + 1, max_tokens - sum(sizes)))
    return replace(script, accepted=tuple(accepted), sizes=tuple(sizes), finish_reason="length")
