"""How the weights of linear layers lie in memory on a CPU, and products with them.

A product with the few tokens of a step has to read the weight and little else. Where torch has oneDNN, large weights
are laid out in blocks, which `product` reads once, from one end to the other. One core with AVX-512, float32, all
products of SmolLM2-135M: 17 ms with 1 token and 19 with 5, where rows as a checkpoint has them take 31 and 54; to read
the bytes takes 14. How many rows the states have does not change how each is rounded, but in long sums; in torch's
products of fewer than four rows it does. Products of the same states are one where the layers run so (`JointProduct`):
a forward of a model with 9 million parameters then takes 0.93 of the time with 1 token, and 0.81 with 3.

Small weights are stored transposed: torch multiplies by the transposed weight, and small matrices that lie so row by
row are rearranged faster before they are multiplied. One core with AVX-512, MKL, float32, sides of 128 to 1024: up to
32 tokens take 0.76 of the time on average (0.33 to 1.03), 100 to 240 tokens 0.96 (0.63 to 1.09).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_WIDTH = 1024
"""In and out, of what is stored transposed. Output heads of 4096 and 6144 tokens take 1.08 of the time with more than
32 tokens (0.94 to 1.20)."""
MAX_SMALL = 2**16
"""Numbers of a weight that is not laid out in blocks: a call of oneDNN takes longer than one of torch."""
MAX_SINGLE = 2**18
"""Numbers of a weight that a single token is multiplied by as torch does it, for the same reason."""
MAX_BLOCKED_BYTES = 2**31
"""Of a network's weights that are laid out in blocks. They are held twice: embeddings, and whatever writes into a
weight, take it as it was."""
FEW_TOKENS = 4
"""Tokens that blocks are made for; blocks for one token are slower with any number."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available()
_blocked_product = torch.ops.mkldnn._linear_pointwise.default if _HAS_ONEDNN else None


class BlockedWeight(nn.Parameter):
    """A weight, [OUT, IN], beside the same in blocks, which do not notice writes through `.data`, nor another dtype."""

    blocks: Tensor
    """As oneDNN lays it out."""
    version = -1
    """Of the values that the blocks have; what is written into the weight later, they do not have. A copy has none."""

    @classmethod
    def of(cls, weight: Tensor) -> BlockedWeight:
        """The same values, in the same memory, and blocks of them."""
        found = cls(weight.data, requires_grad=False)
        found.blocks = torch.ops.mkldnn._reorder_linear_weight(found.data.contiguous(), FEW_TOKENS)
        found.version = found._version
        return found


class BlockedLinear(nn.Linear):
    """A linear module with such a weight."""

    def __init__(self, plain: nn.Linear, weight: BlockedWeight) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = weight, plain.bias

    def forward(self, states: Tensor) -> Tensor:
        """[..., IN] -> [..., OUT]."""
        return product(states, self.weight, self.bias)


def product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch.nn.functional.linear, through the blocks of a weight that has them."""
    if torch.compiler.is_compiling():
        # whether the blocks are those of the weight is known at each call
        return _opaque_product(states, weight, bias)
    if (
        type(weight) is not BlockedWeight
        or weight._version != weight.version
        or states.requires_grad
        or weight.requires_grad
    ):
        return functional.linear(states, weight, bias)
    return _through(states, weight, weight.blocks, bias)


_opaque_product = torch.library.custom_op(
    "rejection_lab_weights::blocked_product",
    product,
    mutates_args=(),
    schema="(Tensor states, Tensor weight, Tensor? bias) -> Tensor",
)
"""`product`, which torch's compiler passes through: blocks have no form that it knows."""


@_opaque_product.register_fake
def _(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return states.new_empty(*states.shape[:-1], len(weight))


def _through(states: Tensor, weight: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    if states.numel() == weight.shape[1] and weight.numel() <= MAX_SINGLE:
        return functional.linear(states, weight, bias)
    assert _blocked_product is not None, "blocks are made by oneDNN"
    return _blocked_product(states, blocks, bias, "none", (), "")


def _large_copies(network: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Copies of rows of other weights, which a network multiplies by and keeps as buffers (`multiplied_buffers`)."""
    found = []
    for module in network.modules():
        for name in getattr(module, "multiplied_buffers", ()):
            buffer = module._buffers.get(name)
            if buffer is not None and _is_large(buffer):
                found.append((module, name, buffer))
    return found


class JointProduct:
    """The products of some linear modules with the same states, as one; an attribute of the module that holds them."""

    def __init__(self, holder: nn.Module, names: Iterable[str]) -> None:
        """Their weights, and biases, come to lie one behind the other, each module's own a part of them."""
        self._modules = {name: _linear_of(holder, name) for name in names}
        modules = self._modules.values()
        joined, first = _transposed(torch.cat([module.weight.data for module in modules])), 0
        biases: list[Tensor] = [module.bias.data for module in modules if module.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        for module in modules:
            part = slice(first, first + module.out_features)
            module.weight.data = joined[part]
            if self._bias is not None:
                # what is written into a bias is added here too
                module.bias.data = self._bias[part]
            first += module.out_features
        self._weights: list[Tensor] = [module.weight for module in modules]
        self._joined = joined
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(joined.contiguous(), FEW_TOKENS)
        self._versions = [weight._version for weight in self._weights]
        self.num_bytes = joined.nbytes

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the modules has none."""

    def __call__(self, holder: nn.Module, states: Tensor) -> Tensor | None:
        """[..., IN] -> [..., sum of OUT]; None where a module of the holder, or its weight, has become another one, or
        is trained."""
        held = holder._modules
        for (name, module), weight, version in zip(self._modules.items(), self._weights, self._versions, strict=True):
            if held[name] is not module or module._parameters["weight"] is not weight or weight._version != version:
                return None
            if weight.requires_grad:
                return None
        return None if states.requires_grad else _through(states, self._joined, self._blocks, self._bias)


def _linear_of(holder: nn.Module, name: str) -> nn.Linear:
    module = holder.get_submodule(name)
    assert isinstance(module, nn.Linear)
    return module


Joined = Callable[[nn.Module], Iterable[tuple[nn.Module, tuple[str, ...]]]]
"""Of a network: which linear modules of which module are multiplied with the same states, where that may be one product
(`JointProduct`, its attribute `joint`)."""


def lay_out(network: nn.Module, *, in_blocks: bool = True, joined: Joined = lambda network: ()) -> None:
    """Let the weights of a network's linear layers lie on a CPU as products read them fastest; shapes and values stay.

    in_blocks: its products are those of its own modules, `product` or joint ones; else none is laid out in blocks.
    """
    for module in network.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu":
            module.weight.data = _transposed(module.weight.data)
    if in_blocks and blocked_bytes(network, joined) and next(network.parameters()).device.type == "cpu":
        _lay_out_in_blocks(network, joined)


def _transposed(weight: Tensor) -> Tensor:
    """The same weight, stored transposed if that is faster."""
    is_faster = weight.dtype is torch.float32 and max(weight.shape) <= MAX_WIDTH
    return weight.t().contiguous().t() if is_faster else weight


def blocked_bytes(network: nn.Module, joined: Joined = lambda network: ()) -> int:
    """Memory that blocks of a network's weights take on a CPU; it may be on the meta device."""
    parts = [_linear_of(holder, name) for holder, names in _together(network, joined) for name in names]
    modules = [*parts, *(module for module in network.modules() if _is_large_layer(module))]
    weights = {id(module.weight): module.weight for module in modules}
    copies = [buffer for _, _, buffer in _large_copies(network)]
    num_bytes = sum(weight.nbytes for weight in [*weights.values(), *copies])
    return num_bytes if num_bytes <= MAX_BLOCKED_BYTES else 0


def _together(network: nn.Module, joined: Joined) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """The modules that get joint products."""
    found = []
    for holder, names in joined(network):
        modules = [holder.get_submodule(name) for name in names]
        linear = [module for module in modules if _takes_blocks(module)]
        num_kinds, size = len({module.bias is None for module in linear}), sum(each.weight.numel() for each in linear)
        if len(linear) == len(names) and num_kinds == 1 and size > MAX_SMALL:
            found.append((holder, names))
    return found


def _is_large_layer(module: nn.Module) -> TypeGuard[nn.Linear]:
    return _takes_blocks(module) and _is_large(module.weight)


def _takes_blocks(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer and no more than that, with a weight that can be laid out in blocks."""
    if type(module) is not nn.Linear or type(module.weight) is not nn.Parameter or "forward" in vars(module):
        return False
    return not (module._forward_hooks or module._forward_pre_hooks) and _has_blocks(module.weight)


def _is_large(weight: Tensor) -> bool:
    """Whether a weight is better laid out in blocks."""
    return weight.numel() > MAX_SMALL and _has_blocks(weight)


def _has_blocks(weight: Tensor) -> bool:
    """Whether a weight can be laid out in blocks."""
    # inference tensors do not tell whether something was written into them
    if not _HAS_ONEDNN or weight.requires_grad or weight.is_inference():
        return False
    knows_bfloat16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype is torch.float32 or (weight.dtype is torch.bfloat16 and knows_bfloat16)


def _lay_out_in_blocks(network: nn.Module, joined: Joined) -> None:
    parts: set[int] = set()
    for holder, names in _together(network, joined):
        vars(holder)["joint"] = JointProduct(holder, names)
        parts.update(id(holder.get_submodule(name)) for name in names)
    weights: dict[int, BlockedWeight] = {}
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if _is_large_layer(child) and id(child) not in parts:
                if id(child.weight) not in weights:
                    weights[id(child.weight)] = BlockedWeight.of(child.weight)
                setattr(module, name, BlockedLinear(child, weights[id(child.weight)]))
    for module in network.modules():
        # an embedding may be the output matrix too
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in weights:
                setattr(module, name, weights[id(parameter)])
    for module, name, buffer in _large_copies(network):
        module._buffers[name] = BlockedWeight.of(buffer)
