"""Projections of the same states as one product, in layers that torch compiles.

Their weights come to lie one behind the other, each module's own a part of them. Compiled, every module multiplies by
all of them and takes its part; of products that are the same torch computes the first. Modeling code may hand its
modules other states: then they stay products of their own, and right.

Shapes: H components of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkvz", "in_proj_ba"))
"""Names of modules beside each other that modeling code hands the same states."""


def _part(weight: Tensor, bias: Tensor | None, first: int, size: int) -> Callable[[Tensor], Tensor]:
    """A module's forward, as a part of the product of several; torch takes functions of one code for the same."""

    def forward(states: Tensor) -> Tensor:
        return functional.linear(states, weight, bias)[..., first : first + size]

    return forward


def joined(layer: nn.Module) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """The modules of a layer whose products are joined, and the forward of each while torch compiles.

    Their weights become parts of one tensor.
    """
    found: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
    for module in layer.modules():
        for names in TOGETHER:
            each = [getattr(module, name, None) for name in names]
            if all(_is_plain(part) for part in each) and len({_kind(part) for part in each}) == 1:
                found += _join(each)
    return found


def _is_plain(module: object) -> bool:
    """Whether it is a product and nothing else: no quantized one, no part of a model that is shared out."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter and "forward" not in vars(module)


def _kind(module: Any) -> tuple[object, ...]:
    hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    return module.in_features, module.weight.dtype, module.weight.device, module.bias is None, hooks


def _join(modules: list[Any]) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    weight = torch.cat([module.weight.data for module in modules])
    bias = None if modules[0].bias is None else torch.cat([module.bias.data for module in modules])
    found, first = [], 0
    for module in modules:
        size = module.out_features
        module.weight.data = weight[first : first + size]
        if bias is not None:
            module.bias.data = bias[first : first + size]
        found.append((module, _part(weight, bias, first, size)))
        first += size
    return found
