"""The settings of the section `constraint`: where reasoning ends, which grammar the answer follows, who sees to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.config.models import require
from kernels.methods import Guarantee


class PolicyKind(Enum):
    """What is done about answer tokens of the round in which reasoning ends."""

    none = "none"
    late = "late"
    commit = "commit"
    mask = "mask"


POLICY_GUARANTEES = {
    PolicyKind.none: (Guarantee.lossless, Guarantee.lossless),
    PolicyKind.late: (Guarantee.biased, Guarantee.biased),
    # what is refused was chosen among all tokens, what takes its place among the allowed ones
    PolicyKind.commit: (Guarantee.lossless, Guarantee.lossy),
    PolicyKind.mask: (Guarantee.lossless, Guarantee.lossless),
}
"""What a lossless method promises under a policy about the constrained target: of the whole distribution, and of one
that top_k, top_p or min_p cut."""


class GrammarKind(Enum):
    """The language that a grammar is written in."""

    json_schema = "json_schema"
    regex = "regex"
    lark = "lark"


class AnswerDrafts(Enum):
    """How the drafts of an answer are drawn."""

    masked = "masked"
    free = "free"


@dataclass
class ConstraintConfig:
    """The grammar of the answer, and what may be committed across the end of reasoning."""

    policy: PolicyKind | None = None
    """null: no grammar, no end of reasoning; none: the end of reasoning is found and the answer validated afterwards,
    without a grammar; late, commit, mask: the answer follows its grammar from the next round, by a cut, by masks."""
    parser: str = "zoo"
    """How the end of reasoning is found: zoo, qwen3, glm, harmony, think_outside_code, none, never, or
    PACKAGE.MODULE:NAME."""
    kind: GrammarKind = GrammarKind.json_schema
    """The language of the grammar."""
    grammar: str | None = None
    """The grammar of every answer, as text; null takes each prompt's own JSON schema."""
    drafts: AnswerDrafts = AnswerDrafts.masked
    """How drafts of the answer are drawn: masked, each under the grammar's mask, or free, from the drafter as it is.
    Both are verified under masks. Free ones are drawn in one go, and fewer of them are accepted."""

    def __post_init__(self) -> None:
        require(
            self.grammar is not None or self.kind is GrammarKind.json_schema,
            "constraint.grammar",
            f"the text of a grammar with constraint.kind={self.kind.value} (prompts carry JSON schemas only)",
            "null",
        )

    @property
    def is_on(self) -> bool:
        """Whether answers are held to a grammar."""
        return self.policy not in (None, PolicyKind.none)
