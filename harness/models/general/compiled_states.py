"""The recurrent and convolution states of one layer, in the slots of one forward, for a layer that torch compiles.

The rules are those of `harness.models.general.states`; here nothing is changed but tensors of the cache, so that torch
traces a mixer through it. Tokens are read one by one, and each by an object of its own.

Shapes: B rows, T tokens of a row, C channels, S slots, R places of a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.models.general.states import CONV, RECURRENT
from harness.models.general.view import GeneralView


class StateView:
    """What modeling code gets in the place of a cache."""

    def __init__(self, view: GeneralView, layer_idx: int) -> None:
        self.kept = {
            (key.kind, key.number): tensor for key, tensor in view.cache.states.items() if key.layer == layer_idx
        }
        """[S, R, ...] of each kind and number."""
        self.slots, self.positions = view.slots, view.positions
        self.sized = self.slots, self.positions
        """Tensors that have rows."""

    @property
    def states(self) -> StateView:
        """What runs mixers, as `harness.models.general.states` asks for it."""
        return self

    def run(self, mixer: Callable[..., Tensor], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run a mixer of the layer on [B, T, H]."""
        outputs = []
        for token, states in enumerate(hidden_states.split(1, dim=1)):
            here = _TokenStates(self, self.positions[:, token])
            given = [here if each is self else each for each in args]
            named = {name: here if each is self else each for name, each in kwargs.items()}
            outputs.append(mixer(states, *given, **named))
            here.keep_changed()
        return torch.cat(outputs, dim=1)


class _TokenStates:
    """The states before one token of each row, as modeling code asks a cache of transformers for them."""

    record_past = True

    def __init__(
        self,
        of_layer: StateView,
        # [B] int64
        positions: Tensor,
    ) -> None:
        self._layer, self._positions = of_layer, positions
        self._handed: dict[tuple[str, int], Tensor] = {}
        """What modeling code got, and may change in place instead of giving a new one back."""

    def keep_changed(self) -> None:
        """Write what was handed out and not given back."""
        for (kind, number), state in list(self._handed.items()):
            self._write(kind, number, state)

    def _before(self, kind: str, number: int) -> Tensor:
        kept = self._layer.kept[kind, number]
        state = kept[self._layer.slots, (self._positions - 1) % kept.shape[1]]
        is_first = (self._positions == 0).view(-1, *[1] * (state.ndim - 1))
        state = state.masked_fill(is_first, 0)
        self._handed[kind, number] = state
        return state

    def _write(self, kind: str, number: int, state: Tensor) -> None:
        kept = self._layer.kept[kind, number]
        kept.index_put_((self._layer.slots, self._positions % kept.shape[1]), state.to(kept.dtype))

    # what modeling code calls

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        return self._before(CONV, state_idx)

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> Tensor:
        """Take [B, C, 1] inputs of a convolution in; returns them after those before."""
        width = conv_kernel_size or conv_states.shape[-1]
        full = torch.cat([self._before(CONV, state_idx), conv_states], dim=-1)
        self._handed.pop((CONV, state_idx))
        self._write(CONV, state_idx, full[..., 1 : 1 + width])
        return full

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        return self._before(RECURRENT, state_idx)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        self._handed.pop((RECURRENT, state_idx), None)
        self._write(RECURRENT, state_idx, recurrent_states)
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return True

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return True

    # as versions before ask the layers of a cache

    @property
    def layers(self) -> _OneLayer:
        return _OneLayer(self)

    @property
    def recurrent_states(self) -> _BeforeByNumber:
        return _BeforeByNumber(self)


class _OneLayer:
    """Every layer of a cache is the one that runs."""

    def __init__(self, states: _TokenStates) -> None:
        self._states = states

    def __getitem__(self, layer_idx: int) -> _TokenStates:
        return self._states


class _BeforeByNumber:
    """The recurrent states before a token."""

    def __init__(self, states: _TokenStates) -> None:
        self._states = states

    def __getitem__(self, state_idx: int) -> Tensor:
        return self._states.get_recurrent_state(0, state_idx)
