"""A drafter in training: what is trained, what runs it over text, and how a fresh head begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.models.eagle3 import Eagle3Head
from harness.models.head import Head
from harness.models.peagle import MASK_HIDDEN
from harness.models.target import TargetOutput
from harness.training.unrolled import ChainStates, HeadChain


@dataclass
class Drafter:
    """One drafter in training."""

    module: nn.Module
    """What is trained, in float32."""
    chain: Callable[[Tensor, Tensor], ChainStates]
    num_pairs: int
    features: Callable[[TargetOutput], Tensor]
    logits: Callable[[Tensor], Tensor]
    aux_layers: tuple[int, ...] = ()
    draft_to_target: Tensor | None = None
    learns_features: bool = False


def drafter_of(head: Head, chain: HeadChain, *, learns_features: bool = False) -> Drafter:
    """A head and the chain that runs it."""
    return Drafter(
        head,
        chain,
        chain.num_pairs,
        head.features,
        head.logits,
        head.aux_layers,
        head.draft_to_target,
        learns_features,
    )


def initialize(head: Head) -> None:
    """Draw a head's weights; an EAGLE-3 head's output matrix, and the norm before it, begin as the target's."""
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name == MASK_HIDDEN:
                nn.init.normal_(parameter)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02 if "lm_head" in name else parameter.shape[1] ** -0.5 / 2)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        if not isinstance(head, Eagle3Head):
            return
        final: Any = getattr(getattr(head.target.causal_lm, "model", None), "norm", None)
        if type(final) is type(head.norm) and final.weight.shape == head.norm.weight.shape:
            head.norm.weight.copy_(final.weight)
        if head.has_own_output:
            ids = slice(None) if head.draft_to_target is None else head.draft_to_target
            head.lm_head.weight.copy_(head.target.output_matrix[ids])
