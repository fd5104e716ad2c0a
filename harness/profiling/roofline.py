"""The shortest time of a round: what it must read over the read bandwidth, or its operations over the matrix rate.

Each part of a round takes at least the larger of the two, and parts wait for each other, so that their floors add up.
Taken by layer the floor would be higher, but no floor any more: nothing forbids reading the weights of the next product
while one is being worked out. Between parts that is neglected: a cache holds little of the next part's weights. It does
not know models.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.profiling.profile import RoundProfile

PARTS = ("draft", "target", "extend")
"""Parts of a round whose bytes and operations are counted."""
BYTES, OPERATIONS = "bytes", "operations"
ROOFLINE_DEFINITION = (
    "Floor of a part: the larger of its bytes over the read bandwidth and its operations over the matrix rate, both "
    "measured in the same run; bound by says which. Floor: the sum of the three parts, which wait for each other (what "
    "a cache could hold of the next part's weights while one multiplies is neglected: on an H200 some 10 us a part). "
    "Within a part reading and arithmetic may overlap without end, so that the floor holds however a part is cut into"
    " kernels. Bytes alone, operations alone: the same sums of only one of the two; tables made before operations "
    "were counted call the first one floor, and their step / floor is step / bytes here."
)


class PartRoofline(NamedTuple):
    """The floor of one part, in microseconds."""

    bytes_us: float
    operations_us: float

    @property
    def us(self) -> float:
        """The larger one."""
        return max(self)

    @property
    def bound_by(self) -> str | None:
        """Which of the two is larger; None for a part that neither reads nor multiplies."""
        return None if self.us == 0 else BYTES if self.bytes_us >= self.operations_us else OPERATIONS


class RoundRoofline(NamedTuple):
    """The floors of a round's parts."""

    draft: PartRoofline
    target: PartRoofline
    extend: PartRoofline

    @property
    def us(self) -> float:
        """Of the whole round."""
        return sum(part.us for part in self)

    @property
    def bytes_us(self) -> float:
        """Of its bytes alone."""
        return sum(part.bytes_us for part in self)

    @property
    def operations_us(self) -> float:
        """Of its operations alone."""
        return sum(part.operations_us for part in self)


def round_roofline(profile: RoundProfile, bytes_per_s: float, operations_per_s: float) -> RoundRoofline:
    """The floors of a profiled round on a device that reads and multiplies at these rates."""
    parts = (
        PartRoofline(
            1e6 * getattr(profile.floor, f"{name}_bytes") / bytes_per_s,
            1e6 * getattr(profile.operations, f"num_{name}") / operations_per_s,
        )
        for name in PARTS
    )
    return RoundRoofline(*parts)
