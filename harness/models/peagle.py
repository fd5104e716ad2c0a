"""The P-EAGLE head: an EAGLE-3 head that proposes K tokens in one forward, from what is known before the first of them.

    pair t                    (embed(x_{t+1}), features_t), as an EAGLE-3 head reads it: its logits are for x_{t+2}
    masked pair t + i, i >= 1 (embed(mask token), features of mask_hidden) at position t + i: logits for x_{t+2+i}

A masked pair attends to the known pairs and to the masked ones between: its logits depend on no token drafted before
it. `mask_hidden`, learnt, stands for the target's states, and goes through the same norms and fc. There may be several
layers: the first is that of EAGLE-3, the others are plain ones.

Two layouts are read: that of speculators (`mask_token_id`), which is also written, and the one of vLLM's
parallel_drafting, an EAGLE-3 head in the original layout with `pard_token` or `ptd_token_id`.
Source: Hui et al., P-EAGLE: Parallel-Drafting EAGLE with Scalable Training (2026), arXiv 2602.01469.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from harness.config.models import AS_FILED, HeadChoices
from harness.models.accounting import OF_DRAFTER, Accepted
from harness.models.checkpoint import Checkpoint, CheckpointError, WeightSource, checkpoint_folder, named
from harness.models.cost import ModelCost
from harness.models.eagle3 import Eagle3Head, read_head
from harness.models.eagle3_config import Eagle3Config, check_kind, eagle3_fields
from harness.models.head_fits import MASK_TOKEN_FIELDS, check_mask_token, stated_mask_token
from harness.models.target import TargetModel, TargetOutput

MASK_HIDDEN = "mask_hidden"


@dataclass(frozen=True)
class PEagleConfig(Eagle3Config):
    """What config.json of a P-EAGLE head says."""

    mask_token_id: int = field(kw_only=True)
    """Token of the target's vocabulary whose embedding stands for tokens that are not known yet."""
    kind: ClassVar[str] = "peagle"

    @classmethod
    def from_dict(
        cls,
        data: dict[str, Any],
        target: TargetModel,
        source: object = "config.json",
        choices: HeadChoices = AS_FILED,
    ) -> Self:
        """Read either layout. An absent norm_before_residual is false for all readers of this kind."""
        check_kind(data, cls.kind, source)
        with named(source):
            mask_token_id = stated_mask_token(data)
        own = {*MASK_TOKEN_FIELDS, "parallel_drafting"}
        others = {name: value for name, value in data.items() if name not in own}
        fields = eagle3_fields(cls.kind, others, target, source, choices, is_stack=True)
        return cls(**fields, mask_token_id=mask_token_id)

    def check_target(self, target: TargetModel) -> None:
        """The same, and for a mask token that its embedding does not have."""
        super().check_target(target)
        check_mask_token(self.kind, self.mask_token_id, target)

    def to_dict(self) -> dict[str, Any]:
        own = {"architectures": ["PEagleSpeculator"], "mask_token_id": self.mask_token_id}
        return super().to_dict() | own


class PEagleHead(Eagle3Head):
    """A P-EAGLE head. J is the width of the target's joined states."""

    config: PEagleConfig

    def __init__(self, config: PEagleConfig, target: TargetModel, **others: Any) -> None:
        """others: as of Eagle3Head."""
        super().__init__(config, target, **others)
        joined_size = len(config.aux_layers) * config.target_hidden_size
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, joined_size, device=target.device, dtype=target.dtype))

    @property
    def cost(self) -> ModelCost:
        """Without `mask_hidden`, whose features are computed once."""
        of_passes = super().cost
        own = [(name, item) for name, item in of_passes.named_parameters if name != MASK_HIDDEN]
        return replace(of_passes, named_parameters=own)

    def mask_features(self) -> Tensor:
        """[1, 1, H] the features of every masked pair."""
        joined = self.mask_hidden.view(1, 1, -1)
        return self.features(TargetOutput(joined[..., :0], joined.split(self.config.target_hidden_size, dim=-1)))

    def fill(self, checkpoint: WeightSource, stored: dict[str, str] | None = None) -> None:
        """The same; `mask_hidden` keeps the shape of its file: [1, 1, J] of speculators, or other places for ones."""
        if isinstance(checkpoint, Checkpoint):
            if MASK_HIDDEN not in checkpoint:
                raise CheckpointError(
                    f"{checkpoint.folder}: expected a tensor {MASK_HIDDEN} of {self.mask_hidden.numel()} numbers, "
                    f"found none; the head was not trained to draft in parallel, run it with drafter=eagle3"
                )
            shape = checkpoint.shape_of(MASK_HIDDEN)
            if math.prod(shape) == self.mask_hidden.numel() == (shape or [0])[-1]:
                self.mask_hidden.data = self.mask_hidden.data.view(shape)
        super().fill(checkpoint, stored)


def load_peagle(
    path: str | Path,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> PEagleHead:
    """Load a frozen P-EAGLE head for a target. Raises ValueError as load_target does."""
    return read_head(PEagleHead, PEagleConfig, checkpoint_folder(path, revision), target, accepted, choices)
