"""Rules and bounds for several drafts of a position, by name; which they are is known without torch.

Computed by kernels.reference.multi_draft_terms, for drafts of a position at the contexts that a chain visits.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_DRAFTS = 8


class MultiDraftRule(NamedTuple):
    """What is true of one of them."""

    title: str
    definition: str
    is_bound: bool
    """The most that any lossless rule reaches with such drafts, and some rule does."""
    numbers: tuple[int, ...] = tuple(range(2, MAX_DRAFTS + 1))
    """Of drafts, for which it has a term; with one draft all but bound_top are sum min(p, q)."""


MULTI_DRAFT_RULES = {
    "bound_independent": MultiDraftRule(
        "bound, independent", "most that any lossless rule accepts of n drafts that are each drawn from q", True
    ),
    "recursive": MultiDraftRule(
        "recursive, independent", "what recursive rejection accepts of n drafts that are each drawn from q", False
    ),
    "kseq": MultiDraftRule("K-SEQ", "what SpecTr's K-SEQ accepts of n drafts that are each drawn from q", False),
    "bound_distinct": MultiDraftRule(
        "bound, distinct", "most that any lossless rule accepts of n drafts drawn from q without replacement", True
    ),
    "recursive_distinct": MultiDraftRule(
        "recursive, distinct",
        "what recursive rejection accepts of two drafts drawn from q without replacement",
        False,
        numbers=(2,),
    ),
    "bound_top": MultiDraftRule(
        "bound, n best",
        "target mass of the n best tokens of the draft row: most that any lossless rule accepts of them",
        True,
        numbers=tuple(range(1, MAX_DRAFTS + 1)),
    ),
}


def multi_draft_term(rule: str, num_drafts: int) -> str:
    """The name of a rule's term for so many drafts."""
    return f"{rule}_{num_drafts}"


MULTI_DRAFT_TERMS = {
    multi_draft_term(name, number): rule for name, rule in MULTI_DRAFT_RULES.items() for number in rule.numbers
}
"""Name of every term -> its rule."""
