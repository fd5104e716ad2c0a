"""Settings that are valid one by one and have no meaning together.

Knows the settings of a cell; it does not know when they are checked, nor that a sweep may skip such a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.settings.models import Weights
from kernels.methods import DraftSampling

if TYPE_CHECKING:
    from harness.settings.cell import CellConfig


def _samplings(cell: CellConfig) -> tuple[DraftSampling, ...]:
    return cell.verification.traits.draft_samplings


def _lacks_weights(cell: CellConfig) -> bool:
    drafter = cell.drafter
    return drafter.has_model and drafter.weights is Weights.checkpoint and drafter.path is None


def _lacks_sizes(cell: CellConfig) -> bool:
    drafter = cell.drafter
    needs_shape = "shape" in drafter.traits.settings and drafter.weights is Weights.random
    return needs_shape and drafter.path is None and drafter.shape is None


def _profile_depth(cell: CellConfig) -> int | None:
    profile = cell.verification.profile
    return None if profile is None else profile.num_speculative_tokens


def _is_constrained(cell: CellConfig) -> bool:
    return cell.constraint.is_on


INVALID_COMBINATIONS: tuple[tuple[Callable[[CellConfig], bool], str], ...] = (
    (
        lambda cell: cell.drafting.num_speculative_tokens == 0,
        "drafting.num_speculative_tokens=0 proposes nothing with drafter={drafter.kind.value}; the run without drafts "
        "is drafter=none, which measurement.baseline adds by itself",
    ),
    (
        lambda cell: _lacks_weights(cell) and not cell.target.is_built_in and not cell.drafter.traits.in_target,
        "drafter={drafter.kind.value} for target {target.name} needs drafter.path, or drafter.weights=random; only the "
        "built-in target has one of its own",
    ),
    (
        lambda cell: _lacks_weights(cell) and cell.target.shape is not None and cell.drafter.traits.in_target,
        "drafter={drafter.kind.value} is read from the target's own folder, and target.shape={target.shape} has none; "
        "use drafter.weights=random, or drafter.path",
    ),
    (
        lambda cell: _lacks_sizes(cell) and not cell.target.is_built_in,
        "drafter={drafter.kind.value} with drafter.weights=random needs drafter.shape or drafter.path: its sizes do "
        "not follow from those of target {target.name}",
    ),
    (
        lambda cell: cell.drafter.traits.is_one_hot and DraftSampling.greedy not in _samplings(cell),
        "verification={verification.method.value} needs a drafter with a distribution; drafter={drafter.kind.value} "
        "has none",
    ),
    (
        lambda cell: cell.drafter.traits.is_one_hot and cell.draft_sampling is not DraftSampling.greedy,
        "drafter={drafter.kind.value} has no distribution to draw from; use drafting.sampling=greedy (or auto)",
    ),
    (
        lambda cell: cell.verification.traits.greedy_only and cell.decoding.temperature > 0,
        "verification={verification.method.value} is defined only at decoding.temperature=0; at other temperatures "
        "choose a sampling method",
    ),
    (
        lambda cell: cell.verification.traits.decided_by_noise and cell.draft_sampling not in _samplings(cell),
        "verification={verification.method.value} decides by the noise that its drafts were drawn with, found "
        "{draft_sampling.value} drafts; use drafting.sampling=coupled (or auto), or verification=strict",
    ),
    (
        lambda cell: cell.draft_sampling is DraftSampling.coupled and DraftSampling.coupled not in _samplings(cell),
        "coupled drafts share their noise with the target's draw, which must never reach "
        "verification={verification.method.value} (biased output); use drafting.sampling=sampled, or "
        "verification=coupled",
    ),
    (
        lambda cell: (
            cell.has_draft_cache and cell.drafting.cache_dtype.value != "auto" and cell.backend.dtype == "auto"
        ),
        "drafting.cache_dtype={drafting.cache_dtype.value} with backend.dtype=auto does not say whether it rounds the "
        "drafter's logits; give backend.dtype too",
    ),
    (
        lambda cell: (cell.verification.synthetic_length or 1) > cell.drafting.num_speculative_tokens + 1,
        "verification.synthetic_length={verification.synthetic_length} is out of reach: a round emits at most K + 1 "
        "tokens; lower it or raise drafting.num_speculative_tokens={drafting.num_speculative_tokens}",
    ),
    (
        lambda cell: len(cell.verification.synthetic_rates) > cell.drafting.num_speculative_tokens,
        "verification.synthetic_rates={verification.synthetic_rates} has more rates than drafted positions; give fewer "
        "or raise drafting.num_speculative_tokens={drafting.num_speculative_tokens}",
    ),
    (
        lambda cell: _profile_depth(cell) not in (None, cell.drafting.num_speculative_tokens),
        "verification.profile={verification.profile.value} holds for "
        "drafting.num_speculative_tokens={verification.profile.num_speculative_tokens} alone, because the rate of a "
        "position depends on it, found {drafting.num_speculative_tokens}; or give verification.synthetic_rates",
    ),
    (
        lambda cell: cell.draft_sampling not in _samplings(cell),
        "verification={verification.method.value} does not take {draft_sampling.value} drafts; use "
        "drafting.sampling=auto",
    ),
    (
        lambda cell: _is_constrained(cell) and cell.verification.traits.ignores_tokens,
        "verification={verification.method.value} accepts tokens whatever they are, so it cannot hold an answer to a "
        "grammar; use another method, or constraint=none",
    ),
)
"""What has no meaning, and why with what to do instead; the first that holds is reported."""


def why_invalid(cell: CellConfig) -> str | None:
    """Why the settings of a cell with a drafter have no meaning together; None if they have one."""
    for applies, reason in INVALID_COMBINATIONS:
        if applies(cell):
            return reason.format(**vars(cell), draft_sampling=cell.draft_sampling)
    return None
