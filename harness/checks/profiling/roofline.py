"""The shortest time of a round: what it must read over the read bandwidth, or its operations over the matrix rate.

Each part of a round takes at least the larger of the two. Parts wait for each other, so that their times add up. Within
a part no finer cut is a lower bound: the weights of the next product may be read while one is computed. Between parts
that is neglected: a cache holds little of the next part's weights.

Shapes: S slots that decode, L tokens in each of them, K draft tokens of a round.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.engine.step import Step
from harness.models.cost import Cost, total

PARTS = ("draft", "target", "extend")
"""Parts of a round whose bytes and operations are counted."""
BYTES, OPERATIONS = "bytes", "operations"
ROOFLINE_DEFINITION = (
    "Roofline of a part: the larger of its bytes over the read bandwidth and its operations over the matrix rate, both "
    "measured in the same run; bound by says which. Roofline: the sum of the three parts, which wait for each other. "
    "What a cache could hold of the next part's weights is neglected: on an H200 some 10 us a part. Within a part "
    "reading and arithmetic may overlap without end, so that the bound holds however a part is cut into kernels. Bytes "
    "alone, operations alone: the same sums of only one of the two. Older tables call the roofline floor; those made "
    "before operations were counted mean bytes alone by it."
)


BYTES_DEFINITION = (
    "Bytes: what a round must read. Target: every weight once (of an embedding that is"
    " not the output matrix too, the rows of the tokens; of E experts, k a token, those that N tokens hit on average "
    "under an even router, E (1 - (1 - k / E)^N)), and the keys and values of all tokens of a slot but the last one, "
    "which the round itself reads. Draft: K times the output matrix that the drafter uses (EAGLE the target's, "
    "EAGLE-3 its own), K - 1 times its head with keys and values, and the draft-logit rows that are drawn from; of a "
    "draft model everything K times. Extend: the head once more, with what joins the target's states. Not counted: "
    "activations, the target's logits, the prompt lookup of ngram, what is written. Experts of a router that is not "
    "even, and what is read several times but fits into the L2, take less than that."
)
OPERATIONS_DEFINITION = (
    "Operations: two for each weight and token of a product (of E experts, k a token, k / E of their weights; the "
    "output matrix for the tokens whose logits are needed), and in attention two for each number of a key and of a "
    "value that a query sees, in each query head (of latent attention: latent and rotated key, and the latent again)."
    " Target: K + 1 tokens of a slot. Draft: K - 1 passes of the head over one, K output matrices; of a draft model K"
    " + 1 tokens. Extend: the head over K + 1, with what joins the target's states. Not counted: everything "
    "elementwise."
)


class RoundCost(NamedTuple):
    """What the parts of a round must read and multiply."""

    draft: Cost
    target: Cost
    extend: Cost

    def to_json(self) -> dict[str, dict[str, int]]:
        """Bytes (`floor`) and operations of each part."""
        draft, target, extend = self
        return {
            "floor": {
                "target_weight_bytes": target.weight_bytes + target.output_bytes,
                "target_cache_bytes": target.cache_bytes,
                "draft_weight_bytes": draft.weight_bytes,
                "draft_output_bytes": draft.output_bytes,
                "draft_cache_bytes": draft.cache_bytes,
                "draft_logit_bytes": draft.logit_bytes,
                "extend_weight_bytes": extend.weight_bytes,
                "extend_cache_bytes": extend.cache_bytes,
            },
            "operations": {
                "num_target_linear": target.num_linear + target.num_output,
                "num_target_attention": target.num_attention,
                "num_draft_linear": draft.num_linear,
                "num_draft_output": draft.num_output,
                "num_draft_attention": draft.num_attention,
                "num_extend_linear": extend.num_linear,
                "num_extend_attention": extend.num_attention,
            },
        }


def round_cost(step: Step, num_slots: int, length: int) -> RoundCost:
    """What a round of a step must read and multiply.

    Args:
        step: with its target and drafter.
        num_slots: S.
        length: L, the last of which the target has not read.
    """
    num_tokens = step.num_speculative_tokens
    target = step.target.cost
    forward = target.passes(num_slots, [num_tokens + 1], length)
    drafter = step.drafter.cost(num_slots, num_tokens, length)
    return RoundCost(drafter.draft, total(forward, target.logits(1, num_slots * (num_tokens + 1))), drafter.extend)


class PartRoofline(NamedTuple):
    """The shortest time of one part, in microseconds."""

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
    """The shortest times of a round's parts."""

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


def round_roofline(cost: RoundCost, bytes_per_s: float, operations_per_s: float) -> RoundRoofline:
    """The roofline of a round on a device that reads and multiplies at these rates."""
    parts = (
        PartRoofline(1e6 * part.num_bytes / bytes_per_s, 1e6 * part.num_operations / operations_per_s) for part in cost
    )
    return RoundRoofline(*parts)
