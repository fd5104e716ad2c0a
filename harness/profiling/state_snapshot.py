"""State of a step put aside, and put back, so that the same round can run again and again.

What a round writes for itself before it reads it (draft logits, keys and values from the last token on) needs no care.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.engine.step import Step


class Snapshot:
    """Copies of some tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._copies = [tensor.clone() for tensor in tensors]

    def put_back(self) -> None:
        """Give every tensor its values of the beginning; launches only, so that a CUDA graph can hold it."""
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.copy_(copy)


def where_a_round_starts(step: Step) -> list[Tensor]:
    """What a round moves and the next one starts from: lengths, rounds, and where the drafter's chain begins."""
    return [step.state.lengths, step.state.rounds, *_tensors(step.drafter)]


def _tensors(owner: object) -> list[Tensor]:
    """The tensors that an object holds by itself, such as the chain drafter's last states."""
    return [item for item in vars(owner).values() if isinstance(item, Tensor)]
