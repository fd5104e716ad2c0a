"""Engines over tiny random models, one for each way of drafting."""

from __future__ import annotations

from typing import Any

import torch

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
from harness.models.dflash import DFlashHead
from harness.models.dflash_config import DFlashConfig
from harness.models.eagle import EagleConfig, EagleHead
from harness.models.eagle3 import Eagle3Config, Eagle3Head
from harness.models.head import Head
from harness.models.mtp import MtpConfig, MtpHead
from harness.models.peagle import PEagleConfig, PEagleHead
from harness.models.target import TargetModel
from harness.models.without_layers import without_layers
from kernels.contract import DraftSampling, Verification, VerificationMethod
from kernels.methods import TreeMethod
from tests.support.tiny_models import VOCAB_SIZE, random_target, randomize

NUM_SLOTS = 3
DRAFT_IDS = torch.tensor([0, 1, 4, 9, 16, 25, 36, 49, 60])
DEFAULT_SAMPLING = SamplingSettings(0.8)
KINDS = ("none", "eagle", "eagle3", "mtp", "peagle", "dflash", "draft_model", "ngram")
SKIPPED = (1, 3)
"""Layers of the five that self_speculation leaves out."""


def tiny_head(kind: str, target: TargetModel) -> Head:
    """A random head: `eagle`, `eagle3` with few draft tokens, `peagle` with them and two layers, `mtp` with an output
    matrix of its own, or `dflash` with two layers and blocks of 9."""
    head: Head
    if kind == "eagle":
        head = EagleHead(EagleConfig.for_target(target), target)
    elif kind == "mtp":
        head = MtpHead(MtpConfig.for_target(target, own_head=True), target)
    elif kind == "peagle":
        given: dict[str, Any] = {"aux_layers": (1, 2, 4), "num_hidden_layers": 2, "mask_token_id": 5}
        head = PEagleHead(PEagleConfig.for_target(target, len(DRAFT_IDS), **given), target, draft_token_ids=DRAFT_IDS)
    elif kind == "dflash":
        given = {"aux_layers": (1, 2, 4), "num_hidden_layers": 2, "mask_token_id": 5, "block_size": 9}
        head = DFlashHead(DFlashConfig.for_target(target, **given), target)
    else:
        config = Eagle3Config.for_target(target, len(DRAFT_IDS), aux_layers=(1, 2, 4))
        head = Eagle3Head(config, target, draft_token_ids=DRAFT_IDS)
    randomize(head, seed=4)
    return head.requires_grad_(False)


def tiny_engine(
    kind: str,
    *,
    target: TargetModel | None = None,
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
    """An engine of NUM_SLOTS slots that goes on past the end of sequence; `options` are fields of EngineSettings.

    fused: all layers run through the fused operations.
    """
    target = random_target(seed=3, num_hidden_layers=5) if target is None else target

    def ready(model: Any) -> Any:
        assert not fused or model.fuse() is None
        return model

    ready(target)
    num_tokens = 0 if kind == "none" else num_speculative_tokens if tree is None else tree.num_nodes
    shape = DrafterShape(NUM_SLOTS, capacity, num_tokens, VOCAB_SIZE)
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
    elif kind == "dflash":
        head = ready(tiny_head(kind, target))
        assert isinstance(head, DFlashHead) and tree is None
        drafter = BlockDrafter(head, draft_sampling, shape, caching)
    elif tree is None:
        drafter = ChainDrafter(ready(tiny_head(kind, target)), draft_sampling, shape, caching)
    else:
        drafter = TreeHeadDrafter(ready(tiny_head(kind, target)), draft_sampling, shape, tree)
    method = method or (VerificationMethod.strict if kind == "ngram" else VerificationMethod.probabilistic)
    settings = EngineSettings(
        num_slots=NUM_SLOTS,
        capacity=capacity,
        num_speculative_tokens=num_tokens,
        sampling=sampling,
        verification=Verification(method),
        limits=Limits(max_new_tokens, eos_token_ids),
        drafts_trees=tree is not None,
        **options,
    )
    return Engine(target, drafter, settings, depth=depth)


def tiny_requests(num_requests: int, num_tokens: int) -> list[Request]:
    """Requests with different prompts of one length."""
    return [
        Request(
            str(row), "toy", 0, 0, 50 + row, tuple((7 * row + 3 * place) % VOCAB_SIZE for place in range(num_tokens))
        )
        for row in range(num_requests)
    ]
