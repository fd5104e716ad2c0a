"""Which tokens go to which experts, ordered by expert: what routing returns and the products of experts read.

Beside it how these products are cut: a function of shapes alone.

A pair is a token and one of its experts; its place is its number where pairs are ordered by expert, then by token.

Shapes: N tokens, E experts, k experts of a token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

MAX_TOKENS = 128
"""Of a forward that is routed here: a kernel holds the scores of all of them, 8 registers a thread for 64 experts."""


class Choice(NamedTuple):
    """How a router chooses, as the fields of a GLM configuration say it."""

    top_k: int
    """k."""
    num_groups: int
    """Groups of as many successive experts each; 1 for no groups."""
    num_chosen_groups: int
    """Groups that a token's experts come from: those whose two best experts score most together."""
    is_normalized: bool
    """Whether a token's weights are divided by their sum."""
    scaling: float
    """Factor of all weights."""

    @classmethod
    def of(cls, router: Any) -> Choice:
        """router: a Glm4MoeLiteTopkRouter of transformers."""
        return cls(
            router.top_k, router.num_group, router.topk_group, router.norm_topk_prob, router.routed_scaling_factor
        )


class Routing(NamedTuple):
    """The experts of some tokens."""

    starts: Tensor
    """[E + 1] int32, the place of each expert's first pair, and the number of pairs."""
    tokens: Tensor
    """[N * k] int32, the token of the pair at each place."""
    places: Tensor
    """[N, k] int32, the places of a token's pairs: its experts ascending, or as a router gave them."""
    weights: Tensor
    """[N, k] float32, of the pairs at these places."""


class ExpertTiling(NamedTuple):
    """The work of a program of one of the two products."""

    columns: int
    """Rows of the weight, which are components of the result."""
    depth: int
    """Components of a row that a block holds."""
    num_stages: int
    """Blocks in work: one that is multiplied, and the others under way."""
    num_warps: int


MIN_ROWS = 16
"""Tokens of the smallest tile."""
ROWS_FROM = {16: 0, 32: 128}
"""Tokens of a tile, and of how many tokens of a call on. Of 64 experts, 4 a token, each has N / 16 tokens on average;
one with more than a tile holds reads its weights again, from the L2 cache where they still lie there."""


def rows_of_tile(num_tokens: int) -> int:
    """Tokens that a program multiplies at a time."""
    return max(rows for rows, least in ROWS_FROM.items() if num_tokens >= least)
