"""How transformers splits a model over ranks: which tensors its plan splits, and a split model for inference.

The plan is the model's own (`tp_plan="auto"`). Projections are split by outputs or inputs, so that a layer needs a sum
over ranks for attention and one for its MLP; the output matrix is split by tokens, and logits are gathered once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.distributed.configuration_utils import DistributedConfig

from harness.models.ranks_fit import SPLIT_BY, heads_misfit

WHOLE_STYLES = ("replicate", "replicated_with_grad_allreduce", "sequence_parallel", "mla_kv_a_proj", "all_reduce")
"""Of a plan: tensors that each rank has whole."""
KEY_PROJECTIONS = ("k_proj", "qkv_proj", "query_key_value", "kv_b_proj")


class Split(NamedTuple):
    """What each rank has of a model."""

    num_ranks: int
    num_parameters: int
    """Of the whole model, tied ones counted once."""
    num_split: int
    """Of these: that are split."""
    rank_bytes: int
    """Parameters of one rank."""
    splits_keys: bool
    """Whether each rank keeps the keys of its own heads alone."""
    collectives: str = ""
    """By what ranks talk: nccl or gloo; empty on the meta device."""

    @property
    def note(self) -> str:
        """What the report says of it."""
        share = self.num_split / max(1, self.num_parameters)
        text = (
            f"backend.tensor_parallel={self.num_ranks}: as many ranks compute the target's layers over "
            f"{self.collectives}, by transformers' own code, whose plan splits {100 * share:.3g} % of the parameters"
        )
        return text if self.splits_keys else f"{text}; attention is not split, and each rank keeps all keys and values"


def split_of(causal_lm: Any, num_ranks: int) -> Split:
    """What each rank will have of a model that is whole, such as one on the meta device.

    Raises:
        ValueError: the model has no plan, or its plan does not fit so many ranks.
    """
    plan: Mapping[str, str] = causal_lm.tp_plan or {}
    kind = type(causal_lm).__name__
    if not plan:
        raise ValueError(
            f"backend.tensor_parallel: expected a model with a plan of transformers for several ranks, found {kind}, "
            "which has none; use backend.tensor_parallel=1"
        )
    total = split = rank_bytes = 0
    splits_keys = False
    for name, parameter in causal_lm.named_parameters():
        total += parameter.numel()
        if not _is_split(name, parameter, plan):
            rank_bytes += parameter.nbytes
            continue
        split += parameter.numel()
        rank_bytes += -(-parameter.nbytes // num_ranks)
        splits_keys |= name.split(".")[-2] in KEY_PROJECTIONS
    config = causal_lm.config.get_text_config(decoder=True)
    misfit = heads_misfit({name: getattr(config, name, None) for name in SPLIT_BY}, num_ranks)
    if splits_keys and misfit is not None:
        raise ValueError(misfit)
    return Split(num_ranks, total, split, rank_bytes, splits_keys)


def _is_split(name: str, parameter: Tensor, plan: Mapping[str, str]) -> bool:
    generic = re.sub(r"\.\d+(?=\.|$)", ".*", name)
    style = plan.get(generic, plan.get(generic.rpartition(".")[0]))
    if style is None or style in WHOLE_STYLES or style.startswith("moe_"):
        return False
    return not (style.startswith("rowwise") and name.endswith("bias"))


class WholeTensor(NamedTuple):
    """How a tensor that was split can be had whole again."""

    mesh: Any
    placements: Any
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, local: Tensor) -> Tensor:
        """All ranks take part."""
        given = DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return given.full_tensor()


def config_for(num_ranks: int) -> DistributedConfig:
    """What transformers is told; the process group exists already."""
    return DistributedConfig(tp_size=num_ranks, tp_plan="auto")


def distributed(causal_lm: Any, num_ranks: int) -> Any:
    """A model on the meta device, its parameters replaced by this rank's parts of them, on the meta device too."""
    kind = type(causal_lm)
    config, _, mesh = kind.prepare_distribute_model(config_for(num_ranks))
    return kind.maybe_distribute_model(causal_lm, config, mesh)


def local_projections(causal_lm: nn.Module) -> dict[str, WholeTensor]:
    """Let projections have this rank's part as a plain tensor, which costs the host less at each step, and no module
    have hooks for gradients.

    Returns:
        How each can be had whole, by the name of its parameter; those that stay as they are are not among them.
    """
    found: dict[str, WholeTensor] = {}
    counts: dict[int, int] = {}
    for module in causal_lm.modules():
        # of gradients, which there are none of; torch compiles no module that has some
        module._backward_hooks.clear()
        module._is_full_backward_hook = None
        for parameter in module.parameters(recurse=False):
            counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    for name, module in causal_lm.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        for part, parameter in list(module.named_parameters(recurse=False)):
            # one that is tied is another module's too
            if isinstance(parameter, DTensor) and counts[id(parameter)] == 1:
                found[f"{name}.{part}"] = WholeTensor(
                    parameter.device_mesh, parameter.placements, parameter.shape, parameter.stride()
                )
                module._parameters[part] = nn.Parameter(parameter.to_local(), requires_grad=False)
    return found
