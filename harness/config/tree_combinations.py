"""Which settings are an invalid combination with trees of drafts, or without them.

A part of the table of harness.config.cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.config.constraint import AnswerConfig
from kernels.methods import DraftSampling, TreeMethod, methods_with

if TYPE_CHECKING:
    from harness.config.cell import CellConfig

_TREE_METHODS = ", ".join(method.value for method in (*TreeMethod, *methods_with(lambda traits: traits.siblings)))


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
        "drafter= one of {tree_drafters}",
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
        lambda cell: cell.drafts_tree and isinstance(cell.constraint, AnswerConfig),
        "drafting.tree={drafting.tree} cannot be followed across the end of reasoning, found "
        "constraint={constraint.policy.value}; use constraint=free_text or drafting.tree=null",
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
        lambda cell: cell.drafts_tree and cell.siblings not in cell.verification.traits.siblings,
        "verification={verification.method.value} does not take {siblings.value} siblings; use drafting.siblings=auto",
    ),
)
"""See INVALID_COMBINATIONS."""
