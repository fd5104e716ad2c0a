"""The smallest value with less than a target weight above it, among packed logits.

Four probes at a time divide the order of the values, not the values: integer keys that order as the logits do.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered_key(logits, SHIFT: tl.constexpr):
    """int32 that orders as the logits do; SHIFT drops the low bits that a 16-bit type does not have."""
    # Adding 0 makes -0 and 0 one value.
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def value_of(key, SHIFT: tl.constexpr):
    """The logit, float32, that has this key."""
    bits = (key << SHIFT) | tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def summed(weights):
    """[n, GROUP] float32 -> [n] float64."""
    return tl.sum(weights, axis=1).to(tl.float64)


@triton.jit
def probe(lowest, highest, index):
    """int32 key that `index` fifths of an interval lie below, 1 to 4; rounded down.

    The width of an interval fits into 32 bits without a sign, where a division costs little.
    """
    width = highest.to(tl.uint32, bitcast=True) - lowest.to(tl.uint32, bitcast=True)
    fifth = width // 5
    # x * 13 >> 6 is x // 5 up to 16.
    rest = ((width - fifth * 5) * index * 13) >> 6
    return (lowest.to(tl.uint32, bitcast=True) + fifth * index + rest).to(tl.int32, bitcast=True)


@triton.jit
def probed_value(lowest, highest, index, SHIFT: tl.constexpr):
    """The logit of `probe`."""
    return value_of(probe(lowest, highest, index), SHIFT)


@triton.jit
def narrow(lowest, highest, above, first, second, third, fourth, target):
    """The interval after a look at the weights above four probes, in which threads meet once.

    Args:
        above: weight of what the four leave out.
        first: [n] float64, weights above the first probe; so are `second`, `third` and `fourth`.
    """
    weights = tl.sum(tl.join(tl.join(first, second), tl.join(third, fourth)), axis=0)
    # Weights fall from probe to probe: so many of them do not lie above the answer.
    number = tl.sum(tl.sum((above + weights >= target).to(tl.int32), axis=1), axis=0).to(tl.uint32)
    floor = tl.where(number == 0, lowest, probe(lowest, highest, number) + 1)
    highest = tl.where(number == 4, highest, probe(lowest, highest, number + 1))
    return tl.minimum(floor, highest), highest


@triton.jit
def radix_select(logits, weights, above, target, lowest, highest, SHIFT: tl.constexpr):
    """The smallest key in lowest..highest with less than `target` above it, or `highest`.

    Args:
        logits: [n, GROUP] float32, those from `lowest` to `highest`; -inf elsewhere.
        weights: [n, GROUP] float32, theirs; 0 elsewhere.
        above: weight of the tokens above `highest`, float64.
        target: float64.
    """
    while lowest < highest:
        lowest, highest = narrow(
            lowest, highest, above,
            summed(tl.where(logits > probed_value(lowest, highest, 1, SHIFT), weights, 0.0)),
            summed(tl.where(logits > probed_value(lowest, highest, 2, SHIFT), weights, 0.0)),
            summed(tl.where(logits > probed_value(lowest, highest, 3, SHIFT), weights, 0.0)),
            summed(tl.where(logits > probed_value(lowest, highest, 4, SHIFT), weights, 0.0)),
            target,
        )  # fmt: skip
    return highest
