"""The section `constraint`: where reasoning ends, which grammar the answer follows, and who sees to it.

The settings and rules of each policy stand in its module of harness.engine.constraint.policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from harness.config.imported import ImportPath
from harness.config.models import require
from harness.config.union import Member, member_of, union_of
from kernels.methods import Guarantee

if TYPE_CHECKING:
    from harness.engine.constraint.matcher import Matcher


ENDS_BY_GRAMMAR = "expected 0 with a grammar, which says itself where an answer may end"
"""Why there is no least number of tokens beside one."""


class PolicyKind(Member):
    """What is done about answer tokens of the round in which reasoning ends: its name, with its class."""

    free_text = "free_text", "harness.engine.constraint.policies.free_text:FreeText"
    none = "none", "harness.engine.constraint.policies.none:NoGrammar"
    late = "late", "harness.engine.constraint.policies.late:Late"
    commit = "commit", "harness.engine.constraint.policies.commit:Commit"
    mask = "mask", "harness.engine.constraint.policies.mask:Mask"


class GrammarKind(Enum):
    """The language that a grammar is written in."""

    json_schema = "json_schema"
    regex = "regex"
    lark = "lark"


class AnswerDrafts(Enum):
    """How the drafts of an answer are drawn."""

    masked = "masked"
    free = "free"


@dataclass(frozen=True)
class ConstraintConfig:
    """The settings of a policy, which are the fields of its dataclass, have defaults, and a docstring each."""

    guarantees: ClassVar[tuple[Guarantee, Guarantee]] = (Guarantee.lossless, Guarantee.lossless)
    """What a lossless method promises under the policy about the constrained target: of the whole distribution, and of
    one that top_k, top_p or min_p cut."""

    @property
    def policy(self) -> PolicyKind | ImportPath:
        """Its name."""
        return member_of(self, PolicyKind)

    def __reduce__(self) -> Any:
        """Another process imports one of the user's own by its path."""
        name, settings = CONSTRAINT.parts(self)
        return partial(constraint_of, name, **settings), ()


@dataclass(frozen=True)
class AnswerConfig(ConstraintConfig):
    """Of a policy under which a reasoning model answers: the end of reasoning is found, and the answer validated."""

    parser: str = "zoo"
    """How the end of reasoning is found: zoo, qwen3, glm, glm5, deepseek (V3.2 and later), harmony (gpt-oss),
    think_outside_code, none, never, or PACKAGE.MODULE:NAME."""
    kind: GrammarKind = GrammarKind.json_schema
    """The language of the grammar."""
    grammar: str | None = None
    """The grammar of every answer, as text; null takes each prompt's own JSON schema."""

    def __post_init__(self) -> None:
        require(
            self.grammar is not None or self.kind is GrammarKind.json_schema,
            "constraint.grammar",
            f"the text of a grammar with constraint.kind={self.kind.value} (prompts carry JSON schemas only)",
            "null",
        )


@dataclass(frozen=True)
class GrammarConfig(AnswerConfig):
    """Of a policy that holds the answer to its grammar: from the round after the end of reasoning on by masks, and what
    it does in that round itself.

    One of the user's own is a class of it too, outside of the package: `constraint=PACKAGE.MODULE:NAME`.
    """

    guarantees = Guarantee.biased, Guarantee.biased
    masks_boundary_round: ClassVar[bool] = False
    """Whether positions after a drafted marker are verified under masks."""
    cuts_boundary_round: ClassVar[bool] = False
    """Whether answer tokens that the grammar refuses are cut off again."""

    drafts: AnswerDrafts = AnswerDrafts.free
    """How drafts of the answer are drawn: masked, each under the grammar's mask, or free, from the drafter as it is.
    Both are verified under masks. Free ones are drawn in one go, and fewer of them are accepted."""

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        """Advance over the answer tokens of the round in which reasoning ended.

        Args:
            matcher: at the start of the grammar; is advanced by what stays.
            answer_ids: what verification emitted after the marker.

        Returns:
            How many of them stay.
        """
        num_taken = matcher.accept(answer_ids)
        is_cut = num_taken < len(answer_ids) and not matcher.is_complete
        assert self.cuts_boundary_round or not is_cut, "a token was emitted that its mask forbids"
        return num_taken


def constraint_of(policy: PolicyKind | str, **settings: Any) -> ConstraintConfig:
    """A policy with its settings; those that are not given have their defaults.

    Args:
        policy: built-in, or PACKAGE.MODULE:NAME.
        settings: by name.

    Raises:
        ValueError: there is no such policy, or a setting is out of range.
        TypeError: it has no such setting.
    """
    found: ConstraintConfig = CONSTRAINT.build(policy.value if isinstance(policy, PolicyKind) else policy, settings)
    return found


CONSTRAINT = union_of(
    ConstraintConfig,
    PolicyKind.paths(),
    section="constraint",
    tag="policy",
    default=PolicyKind.free_text.value,
    doc="The grammar of the answer, and what may be committed across the end of reasoning.",
    tag_doc="free_text: no grammar, and no end of reasoning is looked for; none: the end of reasoning is found and the "
    "answer validated afterwards, without a grammar; late, commit, mask: the answer follows its grammar from the next "
    "round, by a cut, by masks; or PACKAGE.MODULE:NAME, a policy of your own (harness.config.constraint).",
)
