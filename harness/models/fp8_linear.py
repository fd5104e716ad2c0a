"""Projections whose weights take 8 bits (float8 e4m3), each output with a scale: half the bytes of a 2-byte type.

    w  ->  s q        q = e4m3(w / s),   s the least power of two with max |w| / s <= 448, of each row of the weight

e4m3 is a type with an exponent, so a power of two loses nothing beside any other scale but at the least weights, below
s / 64, which e4m3 holds with fewer bits. In exchange s q is exact in float32 and bfloat16, in float16 down to 2^-24: a
sum may be scaled before or behind it, and all implementations multiply by the same numbers. States keep their type;
products are those of the states with s q.

Source of e4m3: Micikevicius et al., FP8 formats for deep learning (2022).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""Of e4m3."""


class ScaledRows(NamedTuple):
    """A weight of 8 bits."""

    codes: Tensor
    """[OUT, IN] float8_e4m3fn, q."""
    scales: Tensor
    """[OUT] float32, s."""


def quantize(weight: Tensor) -> ScaledRows:
    """Round a weight, [OUT, IN] of any floating type. A row of zeros has scale 1; one with an infinity becomes NaN."""
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    fraction, exponent = torch.frexp(largest / LARGEST)
    exponent = torch.where(fraction == 0.5, exponent - 1, exponent)
    scales = torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent), 1.0)
    # not a large number that nothing would notice
    scales = torch.where(largest.isinf(), largest, scales)
    return ScaledRows(to_fp8(wide / scales[:, None]), scales)


def to_fp8(values: Tensor) -> Tensor:
    """Round to e4m3, ties to even; what lies beyond its largest number becomes that number."""
    return values.clamp(-LARGEST, LARGEST).to(FP8)


def dequantized(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[OUT, IN] s q, exact in the type (float16 has no numbers below 2^-24)."""
    if dtype is torch.float16:
        # it may hold s q where it does not hold s
        return (codes.float() * scales[:, None]).to(dtype)
    return codes.to(dtype) * scales[:, None].to(dtype)


class Fp8Linear(nn.Module):
    """A linear projection with such a weight; made of a plain one of the same shape, whose weight is not looked at."""

    weight: nn.Parameter
    """[OUT, IN] float8_e4m3fn."""
    scales: Tensor
    """[OUT] float32."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        weight = plain.weight
        self.weight = nn.Parameter(torch.empty_like(weight, dtype=FP8), requires_grad=False)
        self.register_buffer("scales", torch.empty(len(weight), dtype=torch.float32, device=weight.device))
        self.bias = plain.bias

    def forward(self, states: Tensor) -> Tensor:
        """[..., IN] -> [..., OUT], of the type of the states."""
        return functional.linear(states, dequantized(self.weight, self.scales, states.dtype), self.bias)


def use_fp8(layer: nn.Module) -> None:
    """Put such projections in the place of all plain ones of a layer, in place; what they hold has no meaning yet."""
    for module in list(layer.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Fp8Linear(child))


def scales_name(weight: str) -> str:
    """The name of the scales in a state_dict() that has a weight of that name."""
    return weight.removesuffix("weight") + "scales"
