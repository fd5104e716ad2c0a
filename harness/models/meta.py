"""Models on torch's meta device, where they have shapes and dtypes and take no memory.

They are made and loaded as others are, with the same checks, but without values: for some of these torch runs Python
on this device, and imports its compiler and sympy for it, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
_LIKE = (torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like)


class WithoutValues(TorchFunctionMode):
    """Inside, tensors of the meta device are made of shapes alone: by torch.nn.init, as ranges, or like others."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            tensor = named["tensor"] if "tensor" in named else args[0]
            if tensor.is_meta:
                return tensor
        elif func in _LIKE and args[0].is_meta and not named.keys() - {"dtype"}:
            return args[0].new_empty(args[0].shape, **named)
        elif func is torch.arange and torch.device(named.get("device") or torch.get_default_device()) == META:
            return func(*args, **named | {"device": "cpu"}).to(META)
        return func(*args, **named)


@contextmanager
def made_on_meta() -> Iterator[None]:
    """Modules made inside lie on the meta device."""
    with META, WithoutValues():
        yield


def on_meta(device: torch.device) -> AbstractContextManager[None]:
    """Modules made inside take no memory where `device` is META, and are made as usual for any other device."""
    return made_on_meta() if device == META else nullcontext()
