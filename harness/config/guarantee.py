"""What must stand beside every number of a cell: that its verification is not lossless, that weights are random."""

from __future__ import annotations

from dataclasses import asdict, replace

from harness.config.cell import CellConfig
from harness.config.models import Weights
from harness.config.sampling import SamplingSettings
from kernels.methods import Guarantee

RANDOM_WEIGHTS = "weights: random"
FP8_WEIGHTS = "fp8 weights"
"""The target is the rounded one, whose output is not that of the checkpoint."""
FP8_CACHE = "fp8 KV cache"
SEVERAL_RANKS = "several ranks"
"""Processes that compute the target together (backend.tensor_parallel)."""
OWN_METHOD = "own method"
"""The verification method is the user's own, and what it promises was not tested here."""
OTHER_DRAFTS = "unrounded drafts"
"""The drafts come from another distribution than the one that verification compares with."""


def guarantee(cell: CellConfig) -> Guarantee:
    """What the cell's verification promises about the output; a baseline's is the target's own.

    Under a grammar, the target is the constrained one.
    """
    if cell.is_baseline:
        return Guarantee.lossless
    if compares_with_another(cell) or _is_edited_by_round(cell):
        return Guarantee.biased
    promise = cell.verification.traits.guarantee
    if promise is not Guarantee.lossless:
        return promise
    return cell.constraint.guarantees[cell.decoding.sampling.truncates]


def compares_with_another(cell: CellConfig) -> bool:
    """Whether verification compares with a distribution that the drafts were not drawn from."""
    return cell.draws_unrounded and cell.verification.traits.reads_draft and cell.decoding.temperature > 0


def _is_edited_by_round(cell: CellConfig) -> bool:
    """Whether a server verifies with penalties that do not count the draft tokens before a position."""
    penalties = cell.decoding.sampling.edits.keys() - {"logit_bias"}
    return cell.is_served and cell.server.traits.edits_by_round and bool(penalties)


def check_promise(cell: CellConfig, own: SamplingSettings, prompt_id: str) -> None:
    """Look at the sampling of a prompt's own line beside the cell's.

    Raises:
        ValueError: the two together are an invalid combination, or verification promises something else about the
            output of these requests than about those of the cell.
    """
    try:
        as_cell = replace(cell, decoding=replace(cell.decoding, **asdict(own)))
    except ValueError as error:
        raise ValueError(f"prompt {prompt_id}: its sampling does not fit the cell: {error}") from error
    found, promised = guarantee(as_cell).value, guarantee(cell).value
    if found != promised:
        raise ValueError(
            f"prompt {prompt_id}: expected sampling under which verification is {promised}, as in the rest of the "
            f"cell, found one under which it is {found}; run it in a cell of its own"
        )


def labels(cell: CellConfig) -> tuple[str, ...]:
    """The labels of a cell's record."""
    promise = guarantee(cell)
    drafter = cell.drafter.weights.value if cell.drafter.has_model else ""
    weights = weights_label(cell.target.weights.value, drafter)
    kept = "" if promise is Guarantee.lossless else promise.value
    drafts = OTHER_DRAFTS if compares_with_another(cell) else ""
    own = OWN_METHOD if "verification.method" in cell.imported else ""
    rounded = rounding_labels(**cell.backend.rounded)
    ranks = SEVERAL_RANKS if getattr(cell.backend, "tensor_parallel", 1) > 1 else ""
    return tuple(label for label in (kept, own, drafts, weights, *rounded, ranks) if label)


def rounding_labels(weight_dtype: str | None = None, kv_cache_dtype: str | None = None) -> tuple[str, ...]:
    """What of the target takes 8 bits; other backends and older records have neither setting."""
    found = {FP8_WEIGHTS: weight_dtype, FP8_CACHE: kv_cache_dtype}
    return tuple(label for label, dtype in found.items() if dtype == "fp8")


def weights_label(target: str, drafter: str) -> str:
    """Which models have random weights: nothing if none has, and no role named if all have.

    Args:
        target: `checkpoint` or `random`.
        drafter: the same; empty without a drafting network.
    """
    random = [name for name, weights in (("target", target), ("drafter", drafter)) if weights == Weights.random.value]
    if not random:
        return ""
    return RANDOM_WEIGHTS if len(random) == 1 + bool(drafter) else f"{random[0]} {RANDOM_WEIGHTS}"
