"""What reading prompts adds to the seconds that a request waits for a token.

Of a load of c requests that waits for none: e seconds of each prompt, by which steps that read prompts are longer than
steps of as many requests that read none, over the n tokens that a request decodes. B requests wait B e / n more for
each token (`rates.py`). Of one request e is all of the steps between two requests, the one that was launched ahead of
the end of the first included, so that e grows with the depth; plain decoding has no drafter that reads. Between loads
e / n lies on the line through both.
Shapes: R resamples and the observed sums behind them, P prompts, S batch sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis.decode_steps import DecodeRounds, Floats, PromptReads

Part = tuple[DecodeRounds, PromptReads]
"""Of a block."""


def seconds_a_token(
    parts: Sequence[Part], alone: tuple[Floats, Floats], slow: float, usual: float, weights: Floats
) -> Floats:
    """[R + 1] seconds of the engine that reading prompts adds for each decoded token of one load and depth.

    Args:
        parts: blocks.
        alone: numbers of requests that decode in a step, growing, and seconds of such a step that reads no prompt.
        slow: times the `usual` quantile of the fastest block, from which on something else has slowed a step.
        weights: [R + 1, P] how often each prompt counts.
    """
    # at the start of a block all slots read at once, which a load of several requests does not
    have_others = any(reads.size.any() for _, reads in parts)
    chosen = [
        (reads, reads.size > 0) if have_others else (reads, np.ones(len(reads.size), np.bool_)) for _, reads in parts
    ]
    taken = [(reads.seconds / reads.num_steps)[here] for reads, here in chosen]
    limit_s = slow * min(float(np.quantile(each, usual)) for each in taken if len(each))
    num_prompts = weights.shape[1]
    added, counted, tokens, requests = (np.zeros(num_prompts) for _ in range(4))
    for (rounds, _), (reads, here) in zip(parts, chosen, strict=True):
        kept = here & (reads.seconds / reads.num_steps <= limit_s)
        alone_s = np.where(reads.size > 0, np.interp(reads.size, *alone), 0.0)
        excess = reads.seconds - reads.num_steps * alone_s
        added += np.bincount(reads.prompt[kept], weights=excess[kept], minlength=num_prompts)
        counted += np.bincount(reads.prompt[kept], minlength=num_prompts)
        requests += np.bincount(reads.prompt, minlength=num_prompts)
        tokens += rounds.by_prompt(rounds.num_tokens, num_prompts)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = (weights @ added) / (weights @ counted) * (weights @ requests) / (weights @ tokens)
    # a resample without such a step takes the observed value
    filled: Floats = np.where(np.isfinite(found), found, found[-1])
    return filled


def at_sizes(sizes: Sequence[int], by_load: Mapping[int, Floats], is_apart: Sequence[bool]) -> Floats:
    """[R + 1, S] seconds that a request waits in addition for a token.

    Args:
        sizes: requests that decode.
        by_load: requests in flight -> [R + 1] seconds of the engine for each token.
        is_apart: [S] whether the times of steps leave the reading of prompts out; where not, nothing is added.
    """
    loads = sorted(by_load)
    # [L, S]: what a load counts at a size
    lines = np.stack([np.interp(sizes, loads, row) for row in np.eye(len(loads))])
    known = np.stack([by_load[load] for load in loads], axis=1)
    found: Floats = (known @ lines) * np.array(sizes) * np.array(is_apart)
    return found
