"""Layers of a network of transformers that launch the same kernels, of which one runs where nothing is computed.

The others return what it returned: on the meta device states are shapes, and those of all layers are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from harness.models.general.network import Network, standing_in

NUMBERS = ("layer_idx", "layer_id", "layer_number")
"""What modeling code calls a layer's number, by which it finds its part of a cache."""
_PLAIN = (bool, int, float, str, type(None))


def kind_of(layer: nn.Module) -> object:
    """Equal for layers of the same modules, with tensors of the same shapes and the same plain attributes, but for
    their number."""
    return tuple((name, type(module), _tensors(module), _plain(vars(module))) for name, module in layer.named_modules())


def _tensors(module: nn.Module) -> tuple[object, ...]:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return tuple((name, tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in own)


def _plain(attributes: dict[str, Any]) -> tuple[object, ...]:
    return tuple(
        (name, value) for name, value in attributes.items() if isinstance(value, _PLAIN) and name not in NUMBERS
    )


@contextmanager
def one_of_each_kind(network: Network) -> Iterator[None]:
    """Inside, a forward of a network on the meta device runs the first layer of each kind that it comes to."""
    returned: dict[object, Any] = {}
    hook = network.body.register_forward_pre_hook(lambda *_: returned.clear())
    try:
        with standing_in((layer, _once(layer, kind_of(layer), returned)) for layer in network.layers):
            yield
    finally:
        hook.remove()


def _once(layer: nn.Module, kind: object, returned: dict[object, Any]) -> Callable[..., Any]:
    """A layer's forward that runs if none of its kind has run."""
    run = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if kind not in returned:
            returned[kind] = run(*args, **kwargs)
        return returned[kind]

    return forward
