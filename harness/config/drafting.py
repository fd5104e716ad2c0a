"""The settings of the section `drafting`: how many tokens are drafted, in which shape, how they are drawn and kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from harness.config.depth import CONFIDENCE, PLANNER, DepthTable, depths_name, read_depths
from harness.config.models import require
from harness.config.step_times import StepTimes, read_step_times
from harness.config.tree import DynamicTree, Tree, is_dynamic, num_nodes_of, read_shape, tree_name
from kernels.methods import MethodTraits, SiblingDraws

MAX_SPECULATIVE_TOKENS = 32
"""K at most: what the kernels take under every method (block verification holds the positions as the bits of a number),
and the same for all, so that no method of a sweep is left without a partner."""


OF_CHAINS = ("drafting.depth", "drafting.min_confidence", "drafting.step_times")
"""Settings of how many tokens of a chain are drafted, round by round; a tree has one depth."""
NUM_TOKENS, TREE, SIBLINGS = "drafting.num_speculative_tokens", "drafting.tree", "drafting.siblings"


class DraftSamplingChoice(Enum):
    """Draft sampling as configured; `auto` is resolved by the verification method."""

    auto = "auto"
    greedy = "greedy"
    sampled = "sampled"
    coupled = "coupled"


class CacheDtype(Enum):
    """Floating-point type of the draft-logit cache as configured; `auto` is the drafter's own."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class SiblingsChoice(Enum):
    """How the children of a node are drawn, as configured; `auto` is distinct where the verification method allows."""

    auto = "auto"
    distinct = "distinct"
    independent = "independent"


class DrawnFrom(Enum):
    """Which values draft tokens are drawn from."""

    stored = "stored"
    unrounded = "unrounded"


@dataclass
class DraftingConfig:
    """How many tokens are drafted, and how."""

    num_speculative_tokens: int = 4
    """K, draft tokens proposed per round; 32 at most. A tree has as many as it has nodes."""
    sampling: DraftSamplingChoice = DraftSamplingChoice.auto
    """How the proposal is drawn; auto takes what the verification method is made for, and greedy where the drafter is
    no model of ours."""
    cache_dtype: CacheDtype = CacheDtype.auto
    """Type of the cached draft logits, which verification reads; auto is the drafter's own, in which nothing is
    rounded."""
    drawn_from: DrawnFrom = DrawnFrom.stored
    """Draw drafts from the logits as they are stored in the cache, or as the drafter gave them, before rounding; the
    second is biased under the methods that compare with the draft distribution."""
    tree: str | None = None
    """Draft a tree instead of a chain: chain (of K), the number of children level by level such as 3-2-1, a list of
    parents such as [-1,-1,0,0], where -1 follows the context, or dynamic:NODES-DEPTH-WIDTH such as dynamic:16-5-4, the
    nodes that the drafter finds most probable, anew in each round."""
    siblings: SiblingsChoice = SiblingsChoice.auto
    """How the children of a node are drawn: distinct (without replacement) or independent; auto is distinct unless the
    verification method takes independent ones alone."""
    min_confidence: float = 0.0
    """A round's drafts end in front of the first draft row whose largest probability, at temperature 1, is below this;
    0 drafts K tokens. The row alone decides, so lossless methods stay lossless. A CPU does not compute the drafts
    beyond; a GPU, whose steps have one size, computes them and does not verify them."""
    depth: str | None = None
    """Drafts of a round, step by step; null is K in each. 1:4/8:2/32:0 drafts 4 tokens, 2 while 8 requests or more
    decode and none from 32 on; K is the largest. planner takes the depth, 0 to K, with the most expected tokens per
    second, by measured times of steps and the acceptance of earlier rounds. Both depend on nothing that is drawn in the
    step, so lossless methods stay lossless; tokens at a fixed seed depend on the batch, and under the planner on times.
    What is not drafted is not computed. For sweeps over all kinds 4 sets K, and confidence:0.3 sets min_confidence."""
    step_times: str | None = None
    """For the planner: milliseconds of a step with 0, 1, .. K drafts by the number of requests that decode, such as
    1:5-6-7.5/8:9-12-15, which make a run repeatable; null measures them before the clock starts."""

    def __post_init__(self) -> None:
        require(
            0 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS,
            "drafting.num_speculative_tokens",
            f"0 to {MAX_SPECULATIVE_TOKENS}",
            self.num_speculative_tokens,
        )
        require(0 <= self.min_confidence < 1, "drafting.min_confidence", "0 or more and below 1", self.min_confidence)
        if self.depth is not None:
            try:
                self._read_depth(self.depth.strip())
            except ValueError as error:
                raise ValueError(f"drafting.depth: {error}") from error
        if self.step_times is not None and self.depth == PLANNER:
            try:
                self.step_times = read_step_times(self.step_times, self.num_speculative_tokens).text
            except ValueError as error:
                raise ValueError(f"drafting.step_times: {error}") from error
        if self.tree is not None:
            try:
                shape = read_shape(self.tree, self.num_speculative_tokens, MAX_SPECULATIVE_TOKENS)
            except ValueError as error:
                raise ValueError(f"drafting.tree: {error}") from error
            # a tree has one name, and its nodes are the draft tokens
            self.tree, self.num_speculative_tokens = tree_name(shape), num_nodes_of(shape)

    def _read_depth(self, text: str) -> None:
        """Set the fields that `depth` names, so that a depth has one name."""
        if re.fullmatch(r"\d+", text):
            if int(text) > MAX_SPECULATIVE_TOKENS:
                raise ValueError(f"expected 0 to {MAX_SPECULATIVE_TOKENS} drafts, found {text}")
            self.depth, self.num_speculative_tokens = None, int(text)
        elif text.startswith(CONFIDENCE):
            least = text.removeprefix(CONFIDENCE)
            if not re.fullmatch(r"0?\.\d+", least):
                raise ValueError(f"expected {CONFIDENCE} and a number between 0 and 1, found {text!r}")
            if self.min_confidence not in (0, float(least)):
                raise ValueError(
                    f"expected the same confidence here and as drafting.min_confidence, found {text!r} and "
                    f"{self.min_confidence:g}; set one of both"
                )
            self.depth, self.min_confidence = None, float(least)
        elif text != PLANNER:
            table = read_depths(text, MAX_SPECULATIVE_TOKENS)
            self.depth, self.num_speculative_tokens = depths_name(table), max(depth for _, depth in table)

    @property
    def depths(self) -> DepthTable | None:
        """Drafts of a round by batch size; None unless `depth` is a table."""
        if self.depth in (None, PLANNER):
            return None
        return read_depths(self.depth, MAX_SPECULATIVE_TOKENS)

    @property
    def times(self) -> StepTimes | None:
        """Step times that the planner is given; None where it measures them."""
        return None if self.step_times is None else read_step_times(self.step_times, self.num_speculative_tokens)

    @property
    def has_dynamic_tree(self) -> bool:
        """Whether the drafter chooses the nodes of each round's tree."""
        return self.tree is not None and is_dynamic(self.tree)

    @property
    def tree_shape(self) -> Tree | DynamicTree | None:
        """Parent of each draft token, or what bounds them; None for chains."""
        if self.tree is None:
            return None
        return read_shape(self.tree, self.num_speculative_tokens, MAX_SPECULATIVE_TOKENS)


def siblings_of(method: MethodTraits) -> SiblingDraws:
    """What `auto` is for a method: distinct unless it takes independent siblings alone."""
    independent = method.siblings == (SiblingDraws.independent,)
    return SiblingDraws.independent if independent else SiblingDraws.distinct


def cache_rounds(cache_dtype: str | None, dtype: str | None) -> bool:
    """Whether a draft-logit cache of one type cannot hold what a drafter of another gives it.

    Args:
        cache_dtype: auto is the drafter's own; None in records that are older than the setting.
        dtype: of the drafter, which is the target's.
    """
    return cache_dtype not in (None, "", "auto", "float32", dtype)
