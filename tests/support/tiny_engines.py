"""Engines over tiny random models, one for each way of drafting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.config.sampling import SamplingSettings
from harness.drafters.block import BlockDrafter
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_logits import Caching
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.ngram_run import NgramDrafter, NgramTreeDrafter
from harness.drafters.none_run import NoDrafter
from harness.drafters.parallel import ParallelDrafter
from harness.drafters.protocol import Drafter
from harness.drafters.tree import TreeHeadDrafter, TreeModelDrafter
from harness.drafters.tree_growth import TreeShape
from harness.engine.depth import Depth
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.settings import EngineSettings
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.dflash import DFlashHead
from harness.models.head import Head
from harness.models.peagle import PEagleHead
from harness.models.target import TargetModel
from harness.models.without_layers import without_layers
from kernels.contract import DraftSampling, Verification, VerificationMethod
from kernels.methods import TreeMethod
from tests.support.tiny_heads import DRAFT_IDS, make_head
from tests.support.tiny_models import VOCAB_SIZE, random_target

NUM_SLOTS = 3
DEFAULT_SAMPLING, GREEDY = SamplingSettings(0.8), SamplingSettings(0.0)
OF_HEADS = {
    "mtp": {"own_head": True},
    "peagle": {"mask_token_id": 5},
    **{kind: {"mask_token_id": 5, "block_size": 9} for kind in BLOCK_HEADS},
}
KINDS = ("none", "eagle", "eagle3", "mtp", "peagle", *BLOCK_HEADS, "draft_model", "ngram")
SKIPPED = (1, 3)
"""Layers of the five that self_speculation leaves out."""


def tiny_head(kind: str, target: TargetModel) -> Head:
    """A random head: `eagle`, `eagle3` with few draft tokens, `peagle` with them and two layers, `mtp` with an output
    matrix of its own, or `dflash`, `dspark` and `dflash2` with two layers and blocks of 9."""
    return make_head(kind, target, None if kind in BLOCK_HEADS else DRAFT_IDS, seed=4, **OF_HEADS.get(kind, {}))


def engine_over(
    target: Any,
    drafter: Drafter,
    shape: DrafterShape,
    max_new_tokens: int,
    *,
    method: VerificationMethod | TreeMethod = VerificationMethod.probabilistic,
    sampling: SamplingSettings = GREEDY,
    eos_token_ids: frozenset[int] = frozenset(),
    depth: Depth | None = None,
    **options: Any,
) -> Engine:
    """An engine of the drafter's shape, which goes on past the end of sequence; `options` are fields of
    EngineSettings."""
    settings = EngineSettings(
        num_slots=shape.num_slots,
        capacity=shape.capacity,
        num_speculative_tokens=shape.num_speculative_tokens,
        sampling=sampling,
        verification=Verification(method),
        limits=Limits(max_new_tokens, eos_token_ids),
        **options,
    )
    return Engine(target, drafter, settings, depth=depth)


def tiny_engine(
    kind: str,
    *,
    target: TargetModel | None = None,
    num_slots: int = NUM_SLOTS,
    num_speculative_tokens: int = 2,
    capacity: int = 30,
    max_new_tokens: int = 12,
    draft_sampling: DraftSampling = DraftSampling.sampled,
    method: VerificationMethod | TreeMethod | None = None,
    sampling: SamplingSettings = DEFAULT_SAMPLING,
    eos_token_ids: frozenset[int] = frozenset(),
    tree: TreeShape | None = None,
    min_confidence: float = 0.0,
    depth: Depth | None = None,
    fused: bool = False,
    **options: Any,
) -> Engine:
    """An engine that goes on past the end of sequence; `options` are fields of EngineSettings.

    fused: all layers run through the fused operations.
    """
    target = random_target(seed=3, num_hidden_layers=5) if target is None else target

    def ready(model: Any) -> Any:
        assert not fused or model.fuse() is None
        return model

    ready(target)
    num_tokens = 0 if kind == "none" else num_speculative_tokens if tree is None else tree.num_nodes
    shape = DrafterShape(num_slots, capacity, num_tokens, VOCAB_SIZE)
    caching = Caching(min_confidence=min_confidence)
    drafter: Drafter
    if kind == "none":
        drafter = NoDrafter()
    elif kind == "ngram":
        drafter = NgramDrafter(3, 1) if tree is None else NgramTreeDrafter(3, 1, tree)
    elif kind in ("draft_model", "self_speculation"):
        is_own = kind == "draft_model"
        model = ready(random_target(seed=9, num_hidden_layers=1)) if is_own else without_layers(target, SKIPPED)
        if tree is None:
            drafter = DraftModelDrafter(model, draft_sampling, shape, caching)
        else:
            drafter = TreeModelDrafter(model, draft_sampling, shape, tree)
    elif kind == "peagle":
        head = ready(tiny_head(kind, target))
        assert isinstance(head, PEagleHead) and tree is None
        drafter = ParallelDrafter(head, draft_sampling, shape, caching)
    elif kind in BLOCK_HEADS:
        head = ready(tiny_head(kind, target))
        assert isinstance(head, DFlashHead) and tree is None
        drafter = BlockDrafter(head, draft_sampling, shape, caching)
    elif tree is None:
        drafter = ChainDrafter(ready(tiny_head(kind, target)), draft_sampling, shape, caching)
    else:
        drafter = TreeHeadDrafter(ready(tiny_head(kind, target)), draft_sampling, shape, tree)
    method = method or (VerificationMethod.strict if kind == "ngram" else VerificationMethod.probabilistic)
    options |= {"drafts_trees": tree is not None, "depth": depth, "eos_token_ids": eos_token_ids}
    return engine_over(target, drafter, shape, max_new_tokens, method=method, sampling=sampling, **options)


def requests_of(prompts: Iterable[Sequence[int]], first_seed: int = 50) -> list[Request]:
    """Requests of these tokens, named by their place."""
    return [Request(str(row), "toy", 0, 0, first_seed + row, tuple(prompt)) for row, prompt in enumerate(prompts)]


def prompts_of(lengths: Iterable[int], vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    """Different prompts of these lengths."""
    return [[(7 * row + 3 * place) % vocab_size for place in range(size)] for row, size in enumerate(lengths)]


def tiny_requests(num_requests: int, num_tokens: int) -> list[Request]:
    """Requests with different prompts of one length."""
    return requests_of(prompts_of([num_tokens] * num_requests))
