"""State of a step put aside, and put back, so that the same round can run again and again.

What a round writes for itself before it reads it (draft logits, keys and values from the last token on) needs no care.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from harness.engine.step import Step
from harness.models.slot_cache import SlotCache


class KeptState:
    """Copies of some tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._copies = [tensor.clone() for tensor in tensors]

    def put_back(self) -> None:
        """Give every tensor its values of the beginning; launches only, so that a CUDA graph can hold it."""
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.copy_(copy)


@contextmanager
def kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put tensors back at the end of a block, whatever happens in it."""
    state = KeptState(tensors)
    try:
        yield
    finally:
        state.put_back()


def where_a_round_starts(step: Step) -> list[Tensor]:
    """What a round moves and the next one starts from: lengths, rounds, and where the drafter's chain begins."""
    return [step.state.lengths, step.state.rounds, *_tensors(step.drafter)]


def everything_of_slots(step: Step) -> list[Tensor]:
    """All that is known of the slots: tokens, lengths, streams, keys and values of target and drafter."""
    owned = [step.cache, *(item for item in vars(step.drafter).values() if isinstance(item, SlotCache))]
    cached = [tensor for cache in owned for tensor in (*cache.keys, *cache.values)]
    return [*_tensors(step.state), *_tensors(step.drafter), *cached]


def _tensors(owner: object) -> list[Tensor]:
    """The tensors that an object holds by itself, such as the chain drafter's last states."""
    return [item for item in vars(owner).values() if isinstance(item, Tensor)]
