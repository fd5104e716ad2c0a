"""One point of the kernel benchmark: what is timed, on how many rows of which kind.

Shapes: R requests, K draft tokens of each, V the vocabulary. This module does not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from harness.config.tree import Tree, read_tree
from kernels.contract import DraftSampling, VerificationMethod
from kernels.methods import NAMED_METHODS, SiblingDraws, TreeMethod


class Work(Enum):
    """What is timed."""

    verify = "verify"
    draw = "draw"
    coupled_draw = "coupled_draw"


class Dtype(Enum):
    """Type of the logits."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"

    @property
    def num_bytes(self) -> int:
        return 4 if self is Dtype.float32 else 2


class Truncation(Enum):
    """What cuts the distributions of target and draft."""

    off = "off"
    top_k = "top_k"
    top_p = "top_p"
    min_p = "min_p"


TRUNCATION_NAMES = {
    Truncation.off: "off",
    Truncation.top_k: "top-k 50",
    Truncation.top_p: "top-p 0.95",
    Truncation.min_p: "min-p 0.05",
}


class Acceptance(Enum):
    """How close the drafter is to the target; see harness.checks.kernel_bench.workload."""

    low = "low"
    mid = "mid"
    high = "high"


class RowKind(Enum):
    """How far a row's probability is spread; see harness.checks.kernel_bench.rows."""

    wide = "wide"
    """Middling: top-p 0.95 keeps about 900 of 128,256 tokens."""
    peaked = "peaked"
    """About 60."""
    flat = "flat"
    """Most of them."""
    noise = "noise"
    """Normal numbers alone, as comparisons of kernels often have them: about 800."""


if TYPE_CHECKING:
    AnyMethod: TypeAlias = VerificationMethod | TreeMethod
else:  # msgspec takes a union of one enum at most; files have the name, which a case resolves
    AnyMethod = str


@dataclass(frozen=True)
class Case:
    """One point of the benchmark; the defaults are the headline case at its largest batch."""

    work: Work = Work.verify
    num_requests: int = 256
    """R; rows of a draw."""
    width: int = 3
    """K; 0 for a draw."""
    vocab_size: int = 128_256
    dtype: Dtype = Dtype.bfloat16
    temperature: float = 0.7
    truncation: Truncation = Truncation.off
    acceptance: Acceptance = Acceptance.mid
    method: AnyMethod = VerificationMethod.probabilistic
    """Of a verification; a draw has none."""
    draft_sampling: DraftSampling = DraftSampling.sampled
    """greedy has no draft-logit cache."""
    rows: RowKind = RowKind.wide
    keeps_statistics: bool = True
    """The statistics of sampled draft rows were kept when they were drawn; without them verification reads the rows."""
    row_gap: int = 0
    """Tokens between the end of a row and the beginning of the next."""
    tree: str = ""
    """Shape of the drafts, as `drafting.tree` names it; empty: chains."""
    siblings: SiblingDraws = SiblingDraws.distinct
    """How the children of a node of a tree are drawn."""
    edited_tokens: int = 0
    """Distinct tokens of each request's text, whose logits penalties change in front of the verification; 0: none."""

    def __post_init__(self) -> None:
        if isinstance(self.method, str):
            names = ", ".join(NAMED_METHODS)
            if self.method not in NAMED_METHODS:
                raise ValueError(f"method: expected one of {names}, found {self.method!r}")
            object.__setattr__(self, "method", NAMED_METHODS[self.method])
        if self.num_requests < 1 or self.vocab_size < 2 or self.temperature < 0:
            raise ValueError(f"expected requests, a vocabulary and a temperature of 0 or more, found {self}")
        if (self.width > 0) != (self.work is Work.verify):
            raise ValueError(f"expected draft tokens for a verification and none for a draw, found K = {self.width}")
        if bool(self.tree) != isinstance(self.method, TreeMethod) or (self.tree and len(self.parents) != self.width):
            raise ValueError(f"expected a tree of K = {self.width} draft tokens with a method for trees, found {self}")
        if self.tree and (self.keeps_statistics or self.row_gap):
            raise ValueError(f"expected no statistics and no gap between rows where drafts are trees, found {self}")
        if self.edited_tokens and (self.tree or self.work is not Work.verify or self.row_gap):
            raise ValueError(f"expected a verification of chains without gaps where rows are edited, found {self}")

    @property
    def parents(self) -> Tree:
        """Of the draft tokens of a tree."""
        return read_tree(self.tree, self.width, self.width)

    @property
    def method_name(self) -> str:
        """The method of a verification, or which draw it is."""
        return self.method.value if self.work is Work.verify else self.work.value

    @property
    def num_target_rows(self) -> int:
        return self.num_requests * (self.width + 1)

    @property
    def row_bytes(self) -> int:
        return self.vocab_size * self.dtype.num_bytes

    @property
    def logits_bytes(self) -> int:
        """Target rows, and the draft rows of the batch where they are cached."""
        has_cache = self.draft_sampling is not DraftSampling.greedy
        return (self.num_target_rows + has_cache * self.num_requests * self.width) * self.row_bytes

    @property
    def name(self) -> str:
        parts = [
            self.method_name,
            f"R={self.num_requests}",
            *([f"K={self.width}"] if self.width else []),
            f"V={self.vocab_size}",
            self.dtype.value,
            f"T={self.temperature:g}",
            *([] if self.truncation is Truncation.off else [TRUNCATION_NAMES[self.truncation].replace(" ", "=")]),
            *([f"acceptance={self.acceptance.value}"] if self.width else []),
            *(["one-hot"] if self.width and self.draft_sampling is DraftSampling.greedy else []),
            *([] if self.rows is RowKind.wide else [self.rows.value]),
            *([] if self.keeps_statistics else ["no-statistics"]),
            *([f"gap={self.row_gap}"] if self.row_gap else []),
            *([f"edited={self.edited_tokens}"] if self.edited_tokens else []),
            *([f"tree={self.tree}", self.siblings.value] if self.tree else []),
        ]
        return " ".join(parts)
