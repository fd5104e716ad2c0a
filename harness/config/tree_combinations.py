"""Which settings are an invalid combination with trees of drafts, or without them.

A part of the table of harness.config.cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.config.models import DRAFTERS
from harness.config.tree import DynamicTree, most_children
from kernels.methods import DraftSampling, TreeMethod, methods_with

if TYPE_CHECKING:
    from harness.config.cell import CellConfig

_TREE_METHODS = ", ".join(method.value for method in (*TreeMethod, *methods_with(lambda traits: traits.siblings)))
_TREE_DRAFTERS = ", ".join(kind.value for kind, traits in DRAFTERS.items() if traits.drafts_trees)


def _has_rates_of_trees(cell: CellConfig) -> bool:
    return cell.verification.profile is not None and cell.verification.profile.is_of_trees


def _outgrows_profile(cell: CellConfig) -> bool:
    """Whether its trees may have nodes for which a profile has no rate."""
    if not (cell.drafts_tree and _has_rates_of_trees(cell)):
        return False
    shape, rates = cell.drafting.tree_shape, cell.verification.tree_rates
    assert shape is not None
    most = [shape.width] * shape.depth if isinstance(shape, DynamicTree) else most_children(shape)
    return len(most) > len(rates) or any(count > len(level) for count, level in zip(most, rates, strict=False))


TREE_COMBINATIONS: tuple[tuple[Callable[[CellConfig], bool], str], ...] = (
    (
        lambda cell: not cell.drafts_tree and cell.verification.traits.on_chains is not None,
        "verification={verification.method.value} verifies trees, found drafting.tree=null; set drafting.tree "
        "(chain: K tokens in a row), or use verification={verification.traits.on_chains.value}, which it is on chains",
    ),
    (
        lambda cell: cell.drafts_tree and not cell.verification.traits.siblings,
        "verification={verification.method.value} verifies chains, found drafting.tree={drafting.tree}; use "
        f"verification= one of {_TREE_METHODS}, or drafting.tree=null",
    ),
    (
        lambda cell: cell.drafts_tree and not cell.drafter.traits.drafts_trees,
        "drafter={drafter.kind.value} proposes one token for a position, found drafting.tree={drafting.tree}; use "
        f"drafter= one of {_TREE_DRAFTERS}",
    ),
    (
        lambda cell: cell.drafts_tree and cell.drafter.traits.is_one_hot and not cell.drafts_dynamic_tree,
        "drafter={drafter.kind.value} proposes what it finds, in trees of no fixed shape; use "
        "drafting.tree=dynamic:NODES-DEPTH-WIDTH, found drafting.tree={drafting.tree}",
    ),
    (
        lambda cell: cell.drafts_tree and cell.backend.kind != "local",
        "drafting.tree={drafting.tree} needs backend=local, found backend.kind={backend.kind}",
    ),
    (
        lambda cell: cell.drafts_tree and cell.constraint.policy is not None,
        "drafting.tree={drafting.tree} cannot be followed across the end of reasoning, found "
        "constraint.policy={constraint.policy.value}; use constraint.policy=null or drafting.tree=null",
    ),
    (
        lambda cell: cell.drafts_tree and cell.draws_unrounded,
        "drafting.tree={drafting.tree} is drawn from the stored logits; use drafting.drawn_from=stored",
    ),
    (
        lambda cell: cell.drafts_dynamic_tree and cell.draft_sampling is not DraftSampling.greedy,
        "drafting.tree={drafting.tree} chooses tokens by their probability, so that they are certain and not drawn; "
        "use drafting.sampling=greedy (or auto)",
    ),
    (
        lambda cell: cell.drafts_dynamic_tree and DraftSampling.greedy not in cell.verification.traits.draft_samplings,
        "verification={verification.method.value} takes drafts that are drawn, and those of "
        "drafting.tree={drafting.tree} are certain; use verification=recursive or traversal, or a fixed tree",
    ),
    (
        lambda cell: cell.drafts_tree and cell.draft_sampling is DraftSampling.coupled,
        "drafting.tree={drafting.tree} is drawn with noise of its own; use drafting.sampling=sampled or greedy (or "
        "auto), found coupled",
    ),
    (
        lambda cell: cell.verification.traits.ignores_tokens and cell.drafts_tree and not cell.verification.tree_rates,
        "verification={verification.method.value} has rates of chains, found drafting.tree={drafting.tree}; give "
        "verification.synthetic_tree_rates, or a profile of trees",
    ),
    (
        lambda cell: cell.verification.profile is not None and cell.drafts_tree is not _has_rates_of_trees(cell),
        "verification.profile={verification.profile.value} holds for trees or for chains alone, found "
        "drafting.tree={drafting.tree}; choose another profile, or null and rates",
    ),
    (
        lambda cell: (
            cell.verification.traits.ignores_tokens
            and not cell.drafts_tree
            and not cell.verification.rates
            and cell.verification.synthetic_length is None
        ),
        "verification={verification.method.value} has rates of trees, found drafting.tree=null; give "
        "verification.synthetic_rates, synthetic_length or a profile of chains, or set drafting.tree (chain: K tokens "
        "in a row)",
    ),
    (
        _outgrows_profile,
        "verification.profile={verification.profile.value} has rates of fewer depths or children than "
        "drafting.tree={drafting.tree} has; use a smaller tree, or give verification.synthetic_tree_rates",
    ),
    (
        lambda cell: cell.drafts_tree and cell.siblings not in cell.verification.traits.siblings,
        "verification={verification.method.value} does not take {siblings.value} siblings; use drafting.siblings=auto",
    ),
)
"""See INVALID_COMBINATIONS."""
