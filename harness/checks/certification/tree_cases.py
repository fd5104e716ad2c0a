"""The cases of certification with trees of drafts, and the controls that must be rejected there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.checks.certification.cases import ALONE, DTYPES, SAMPLED, TRUNCATIONS, Case
from harness.checks.certification.controls import Control, altered
from harness.checks.certification.subject import Subject
from harness.checks.certification.toy_models import (
    CONTROL,
    MASKED,
    NARROW_DRAFT,
    PEAKED,
    TREE_ABOVE_ZEROS,
    TREE_SPREAD,
    Profile,
)
from harness.config.tree import DynamicTree, Tree, branching
from kernels.contract import Draft, DraftSampling, Sampling, Streams, Verification, VerificationResult
from kernels.methods import SiblingDraws, TreeMethod
from kernels.reference.kseq import walk_by_kseq
from kernels.reference.recursive import at, walk_recursively
from kernels.reference.traversal import walk_by_traversal
from kernels.reference.tree_proposal import TreeProposal
from kernels.reference.tree_walk import Passes, Walked
from kernels.reference.verify_tree import verify_trees

SHAPES = {"1-1": branching(1, 1), "2-1": branching(2, 1), "2-2": branching(2, 2), "3-2": branching(3, 2)}
UNEVEN = (-1, 0, -1, 0, 1)
RAGGED = (SHAPES["2-2"], SHAPES["1-1"], (), UNEVEN, SHAPES["2-1"], (-1, -1, -1))
"""In one batch: none among them, one of depth 3, and one of depth 1."""
RAGGED_PEAKED = (SHAPES["3-2"], (-1, -1, -1, -1))
"""The second has as many children as there are tokens."""
COLD = (Profile(temperature=0.1), Profile(temperature=0.7))
DYNAMIC, DEEP = DynamicTree(5, 3, 2), DynamicTree(8, 4, 3)
INDEPENDENT, DISTINCT = SiblingDraws
WAYS = (
    *((method, SAMPLED, siblings) for method in TreeMethod for siblings in method.traits.siblings),
    *((method, DraftSampling.greedy, DISTINCT) for method in (TreeMethod.recursive, TreeMethod.traversal)),
)
"""Method, draft sampling, siblings; greedy ones are the best tokens of a row, which verification takes as certain."""


def _case(method: TreeMethod, sampling: DraftSampling, siblings: SiblingDraws, trees: tuple[Tree, ...]) -> Case:
    models, profiles = TRUNCATIONS["none"]
    case = Case(models, Verification(method), sampling, sampling is SAMPLED, profiles=profiles)
    return replace(case, trees=trees, siblings=siblings, lengths=tuple(len(tree) for tree in trees))


def _dynamic_case(method: TreeMethod, bounds: DynamicTree = DYNAMIC) -> Case:
    case = _case(method, DraftSampling.greedy, DISTINCT, ())
    return replace(case, dynamic_tree=bounds, lengths=(bounds.num_nodes,))


def dynamic_cases(is_full: bool) -> list[Case]:
    """Trees that the draft rows choose, which differ by context; requests that cut and greedy ones beside them."""
    recursive, traversal = (_dynamic_case(method) for method in (TreeMethod.recursive, TreeMethod.traversal))
    mixed = TRUNCATIONS["mixed"]
    cut = replace(recursive, models=mixed[0], truncation="mixed", profiles=mixed[1])
    if not is_full:
        return [traversal, cut]
    others = [_dynamic_case(TreeMethod.recursive, bounds) for bounds in (DynamicTree(3, 3, 1), DEEP)]
    narrow = [replace(case, models=NARROW_DRAFT) for case in (recursive, traversal)]
    return [recursive, traversal, cut, replace(cut, verification=traversal.verification), *others, *narrow]


def peaked_cases() -> list[Case]:
    """Drafts drawn at low temperature, from rows of which the first children leave next to nothing."""
    ways = [(method, siblings) for method, sampling, siblings in WAYS if sampling is SAMPLED]
    cases = [_case(method, SAMPLED, siblings, RAGGED_PEAKED) for method, siblings in ways]
    return [replace(case, models=PEAKED, profiles=COLD) for case in cases]


def spread_tree_cases() -> list[Case]:
    """Every method in rows that several programs share, of few requests at a time (evaluate.SPREAD_TREE_BATCH)."""
    cases = [_case(method, SAMPLED, method.traits.siblings[-1], RAGGED) for method in TreeMethod]
    cases = [replace(case, models=TREE_SPREAD, dtype="bfloat16") for case in cases]
    traversal = next(case for case in cases if case.verification.method is TreeMethod.traversal)
    cut = replace(traversal, models=TREE_ABOVE_ZEROS, truncation="top-k", profiles=(Profile(top_k=4),))
    return [*cases, cut]


def tree_cases(is_full: bool) -> list[Case]:
    """Every way to draft and verify trees, ragged ones in a batch; peaked rows; truncation and grammar; in full each
    shape alone, and rows that several programs share."""
    cases = [*dynamic_cases(is_full), *(_case(*way, RAGGED) for way in WAYS), *peaked_cases()]
    mixed = TRUNCATIONS["mixed"]
    cut = [_case(method, SAMPLED, method.traits.siblings[-1], RAGGED) for method in TreeMethod]
    cases += [replace(case, models=mixed[0], truncation="mixed", profiles=mixed[1]) for case in cut]
    if not is_full:
        return [*cases, replace(cut[-1], models=MASKED)]
    cases += [replace(case, models=models) for case in cut for models in (MASKED, NARROW_DRAFT)]
    cases += [_case(*way, (tree,)) for way in WAYS for tree in SHAPES.values()]
    cases += [replace(_case(*way, RAGGED), dtype=dtype) for way in WAYS for dtype in DTYPES if dtype != "float32"]
    return cases + spread_tree_cases()


def _walked_by(walk: Callable[[TreeProposal, Passes], Walked]) -> Callable[[Subject], Subject]:
    """A subject whose trees are walked otherwise."""

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        return verify_trees(target_logits, draft, sampling, verification, streams, walk_by=walk)

    return lambda subject: altered(subject, verify=verify)


def _faulty_update(mass: Tensor, chance: Tensor, deleted_prob: Tensor) -> Tensor:
    """min(1, Z / (1 - S(x))), of a public implementation."""
    others = 1.0 - deleted_prob
    return torch.where(others > 0, mass / torch.where(others > 0, others, 1.0), 1.0).clamp(max=1.0)


def _verified_as_independent(subject: Subject) -> Subject:
    from kernels.reference.verify import verify

    return altered(
        subject,
        verify=lambda logits, draft, *others: verify(logits, replace(draft, siblings=INDEPENDENT), *others),
    )


def _shared_noise(subject: Subject) -> Subject:
    """The draft tokens of one depth are tested with one uniform number."""

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        return verify_trees(target_logits, draft, sampling, verification, streams, shares_noise=True)

    return altered(subject, verify=verify)


class _RestsRaised(TreeProposal):
    """What earlier siblings leave of a row counts as 1e-10 at least."""

    def laws(self, requests: Tensor, places: Tensor) -> Tensor:
        found = super().laws(requests, places)
        earlier = self.earlier_siblings(requests, places)
        has_earlier = earlier.any(dim=1)
        rows = super().laws(requests, torch.where(has_earlier, earlier.int().argmax(dim=1), places))
        tokens = self.token_ids[requests, places]
        rests = at(rows, tokens) / at(found, tokens)
        return found * torch.where(has_earlier, rests / rests.clamp(min=1e-10), 1.0)[:, None]


def _with_rests_raised(walk: Callable[[TreeProposal, Passes], Walked]) -> Callable[[Subject], Subject]:
    return _walked_by(lambda tree, passes: walk(_RestsRaised(**vars(tree)), passes))


def _as_is(subject: Subject) -> Subject:
    """Verified by the reference: the case is what is wrong."""
    from kernels.reference.verify import verify

    return altered(subject, verify=verify)


def tree_controls() -> list[Control]:
    """Every control; siblings are drawn without replacement where the method takes them."""

    def case(method: TreeMethod) -> Case:
        return replace(_case(method, SAMPLED, DISTINCT, (SHAPES["2-2"],)), models=CONTROL, profiles=(ALONE,))

    def as_if_drawn(method: TreeMethod) -> Case:
        """Dynamic trees, verified with the rows that their tokens are the best of."""
        return replace(_dynamic_case(method), cached=True, models=CONTROL, profiles=(ALONE,))

    def peaked(method: TreeMethod) -> Case:
        return replace(case(method), models=PEAKED, profiles=COLD)

    recursive, traversal = case(TreeMethod.recursive), case(TreeMethod.traversal)
    kseq = replace(case(TreeMethod.kseq), siblings=INDEPENDENT)
    undiscounted = _walked_by(lambda tree, passes: walk_by_kseq(tree, passes, torch.ones_like))
    bare = _walked_by(
        lambda tree, passes: walk_recursively(tree, passes, lambda left, laws: (left - laws).clamp(min=1e-300))
    )
    update = _walked_by(lambda tree, passes: walk_by_traversal(tree, passes, _faulty_update))
    return [
        Control("traversal, a node's chance is updated by min(1, Z / (1 - Q(x)))", traversal, update),
        Control("recursive, distinct siblings verified as independent", recursive, _verified_as_independent),
        Control("traversal, distinct siblings verified as independent", traversal, _verified_as_independent),
        Control("recursive, the residual is not normalised", recursive, bare),
        Control("kseq, the residual ignores the discount", kseq, undiscounted),
        Control(
            "recursive, the rest of a peaked row is raised to 1e-10",
            peaked(TreeMethod.recursive),
            _with_rests_raised(walk_recursively),
        ),
        Control(
            "traversal, the rest of a peaked row is raised to 1e-10",
            peaked(TreeMethod.traversal),
            _with_rests_raised(walk_by_traversal),
        ),
        Control("recursive, siblings share their uniform", recursive, _shared_noise),
        Control("recursive, the most probable tokens verified as if drawn", as_if_drawn(TreeMethod.recursive), _as_is),
        Control("traversal, the most probable tokens verified as if drawn", as_if_drawn(TreeMethod.traversal), _as_is),
    ]
