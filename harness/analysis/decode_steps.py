"""The steps of a cell, from its rounds: how many requests decode in each, emitted tokens, seconds, and prompts read.

Rounds that arrived at one moment are of one step, whose duration they share, with the prompts that it read too. Shapes:
N rounds of such steps, P prompts, F first rounds. This module knows records; it does not know settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from harness.records.request import RequestRecord

MIN_SHARE = 0.99
"""Of a step's duration, that the rounds of a step without prompts share; the rest is rounding."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class DecodeRounds:
    """The rounds of requests that decode, but for the first of each, which ends its prompt; fields [N]."""

    prompt: Integers
    """Row of the prompt."""
    size: Integers
    """Requests that decoded in the step."""
    reads_prompts: NDArray[np.bool_]
    """Whether the step read prompts too, or parts of some."""
    num_drafts: Integers
    """Draft tokens that the drafter produced for the round."""
    num_tokens: Floats
    """That the round emitted."""
    seconds: Floats
    """Its share of the step's duration, which the decoding requests share."""

    def by_prompt(self, values: Floats, num_prompts: int) -> Floats:
        """[P] sums of a value of each round."""
        return np.bincount(self.prompt, weights=values, minlength=num_prompts).astype(np.float64)

    def where(self, kept: NDArray[np.bool_]) -> DecodeRounds:
        """Some of the rounds."""
        return DecodeRounds(*(getattr(self, field.name)[kept] for field in fields(self)))


@dataclass(frozen=True)
class PromptReads:
    """The first round of each request, which ends its prompt; fields [F]."""

    prompt: Integers
    """Row of the prompt."""
    size: Integers
    """Requests that decoded in its step; 0 where nothing but prompts was read."""
    seconds: Floats
    """Its share of the steps that read prompts, up to its own from the one before in which a prompt ended: the first
    rounds of a step share them."""
    num_steps: Floats
    """The same share of the number of these steps."""


def prompt_reads(requests: Sequence[RequestRecord], rows: Mapping[str, int]) -> PromptReads:
    """What reading the prompts of a block takes, whose engine never waits for requests.

    Args:
        requests: of one block, which all wait from its start.
        rows: row of each prompt. Requests of other prompts take their share and are then left out.
    """
    steps = _Steps(requests, rows)
    ended = np.flatnonzero(steps.num_first)
    # a step that only reads a part of a prompt belongs to the next in which one ends; behind the last there is none
    owner = np.searchsorted(ended, np.arange(len(steps.num_first)))
    read = steps.reads_prompts & (owner < len(ended))
    took_s = np.bincount(owner[read], weights=steps.took_s[read], minlength=len(ended))
    num_steps = np.bincount(owner[read], minlength=len(ended))
    first = np.flatnonzero(steps.is_first)
    place = owner[steps.step[first]]
    shared = steps.num_first[ended][place]
    kept = steps.prompt[first] >= 0
    first, place, shared = first[kept], place[kept], shared[kept]
    size = steps.num_decoding[steps.step[first]]
    return PromptReads(steps.prompt[first], size, took_s[place] / shared, num_steps[place] / shared)


class _Steps:
    """Which step each round is of, and what the steps are."""

    def __init__(self, requests: Sequence[RequestRecord], rows: Mapping[str, int]) -> None:
        found = [
            (
                *(item.arrival_s, rows.get(request.prompt_id, -1), place == 0),
                *(item.num_proposed_tokens, item.num_output_tokens, item.share_s),
            )
            for request in requests
            for place, item in enumerate(request.rounds)
        ]
        arrival, prompt, is_first, num_drafts, num_tokens, share_s = np.array(found, dtype=np.float64).reshape(-1, 6).T
        ends, self.step, num_rounds = np.unique(arrival, return_inverse=True, return_counts=True)
        # the first round of a request is drawn where its prompt ends; who reads a part of one takes a share, no round
        self.num_first = np.bincount(self.step, weights=is_first, minlength=len(ends)).astype(np.int64)
        shared_s = np.bincount(self.step, weights=share_s, minlength=len(ends))
        # nothing ends in front of the first step
        self.took_s: Floats = np.append(shared_s[:1], np.diff(ends))
        self.reads_prompts = (self.num_first > 0) | (shared_s < MIN_SHARE * self.took_s)
        self.num_decoding = num_rounds - self.num_first
        self.prompt, self.is_first = prompt.astype(np.int64), is_first == 1
        self.num_drafts, self.num_tokens, self.share_s = num_drafts.astype(np.int64), num_tokens, share_s


def decode_rounds(requests: Sequence[RequestRecord], rows: Mapping[str, int]) -> DecodeRounds:
    """The rounds of a cell whose rounds are known.

    Args:
        requests: of the cell.
        rows: row of each prompt. Requests of other prompts count in the size of a step and are then left out.
    """
    steps = _Steps(requests, rows)
    reads_prompts, num_decoding = steps.reads_prompts[steps.step], steps.num_decoding[steps.step]
    seconds = np.where(reads_prompts, steps.took_s[steps.step] / np.maximum(num_decoding, 1), steps.share_s)
    found_all = DecodeRounds(steps.prompt, num_decoding, reads_prompts, steps.num_drafts, steps.num_tokens, seconds)
    return found_all.where(~steps.is_first & (steps.prompt >= 0))
