"""The recurrent and convolution states of one layer, in the slots of one forward, for a layer that torch compiles.

The rules are those of `harness.models.general.states`. A mixer is compiled as one that reads one token of each row, by
itself: in its layer's graph stands a custom operation (`mix_tokens`) that calls it token by token. So no graph grows
with the number of tokens, and steps of all depths share the mixer's. What an operation calls is no part of a graph,
and layers of one kind share theirs; hence the states of the layer that runs are told beside it (`StateView.running`).

Shapes: B rows, T tokens of a row, C channels, S slots, R places of a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.models.general.custom_ops import NAMESPACE
from harness.models.general.states import CONV, RECURRENT
from harness.models.general.view import GeneralView


class HeldStates:
    """Stands for what a mixer gets in the place of a cache, in a call that is written down."""


class HeldPositions:
    """Stands for the positions of tokens in such a call."""


class MixerCall(NamedTuple):
    """How a layer calls its mixer."""

    forward: Callable[..., Tensor]
    args: tuple[object, ...]
    """Behind the states of its tokens."""
    kwargs: dict[str, object]

    @property
    def gets_tensors(self) -> bool:
        """Whether it is given tensors beside the states of its tokens, such as rotary ones in a tuple."""
        return _holds_tensors((self.args, self.kwargs))

    def of_token(self) -> Callable[[Tensor, TokenStates], Tensor]:
        """The mixer of one token of each row, [B, 1, H]; torch takes functions of one code for the same."""
        forward, args, kwargs = self

        def mix(hidden_states: Tensor, states: TokenStates) -> Tensor:
            here: dict[type, object] = {HeldStates: states, HeldPositions: states.position_ids}
            given = [here[each] if isinstance(each, type) else each for each in args]
            named = {name: here[each] if isinstance(each, type) else each for name, each in kwargs.items()}
            output = forward(hidden_states, *given, **named)
            states.keep_changed()
            return output

        return mix


def _holds_tensors(given: object) -> bool:
    if isinstance(given, Mapping):
        return any(map(_holds_tensors, given.values()))
    return isinstance(given, Tensor) or (isinstance(given, (tuple, list)) and any(map(_holds_tensors, given)))


class TokenRows:
    """Where the tokens of a forward lie, token by token of its rows; one row alone stands there twice.

    Torch takes a size of 1 for a case of its own. Twice the same is written then.
    """

    def __init__(self, view: GeneralView) -> None:
        self.num_rows, self.num_tokens = view.positions.shape
        self.slots = self._twice(view.slots)
        """[B or 2] int64."""
        self.positions = [self._twice(column).contiguous() for column in view.positions.unbind(1)]
        """T times [B or 2] int64."""

    def _twice(self, of_rows: Tensor) -> Tensor:
        return torch.cat([of_rows, of_rows]) if self.num_rows == 1 else of_rows

    def tokens(self, hidden_states: Tensor) -> list[Tensor]:
        """T times [B or 2, 1, H] of [1, B * T, H], in one layout whatever T is."""
        by_token = self._twice(hidden_states.view(self.num_rows, self.num_tokens, -1)).transpose(0, 1).contiguous()
        return [states.unsqueeze(1) for states in by_token.unbind()]

    def together(self, outputs: list[Tensor]) -> Tensor:
        """[1, B * T, H] of T times [B or 2, 1, H]."""
        return torch.cat(outputs, dim=1)[: self.num_rows].view(1, self.num_rows * self.num_tokens, -1)


class StateView:
    """What modeling code gets in the place of a cache."""

    def __init__(
        self, view: GeneralView, rows: TokenRows, layer_idx: int, mixer: Callable[[Tensor, TokenStates], Tensor]
    ) -> None:
        """mixer: compiled, of `MixerCall.of_token`."""
        self._kept = {
            (key.kind, key.number): tensor for key, tensor in view.cache.states.items() if key.layer == layer_idx
        }
        self._rows, self._mixer = rows, mixer

    @property
    def states(self) -> StateView:
        """What runs mixers, as `harness.models.general.states` asks for it."""
        return self

    def run(self, mixer: Callable[..., Tensor], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run a mixer of the layer on [1, B * T, H]; in the layer's graph."""
        mixed: Tensor = torch.ops.rejection_lab_layers.mix_tokens(hidden_states)
        return mixed

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let `mix_tokens` be of this layer."""
        before = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(before)

    def mix(self, hidden_states: Tensor) -> Tensor:
        """Read [1, B * T, H] token by token."""
        from torch._dynamo import maybe_mark_dynamic

        rows = self._rows
        # numbers of slots and of places differ between engines
        for kept in self._kept.values():
            maybe_mark_dynamic(kept, [0, 1])
        outputs = []
        for states, positions in zip(rows.tokens(hidden_states), rows.positions, strict=True):
            for sized in (states, positions, rows.slots):
                maybe_mark_dynamic(sized, 0)
            outputs.append(self._mixer(states, TokenStates(self._kept, rows.slots, positions)))
        return rows.together(outputs)


_RUNNING: ContextVar[StateView] = ContextVar("_RUNNING")


def mix_tokens(
    # [1, B * T, H]
    hidden_states: Tensor,
) -> Tensor:
    """[1, B * T, H], by the mixer of the layer that runs."""
    return _RUNNING.get().mix(hidden_states)


_MIX = torch.library.custom_op(f"{NAMESPACE}::mix_tokens", mix_tokens, mutates_args=())


@_MIX.register_fake
def _(hidden_states: Tensor) -> Tensor:
    return hidden_states.new_empty(hidden_states.shape)


class TokenStates:
    """The states before one token of each row, as modeling code asks a cache of transformers for them."""

    record_past = True

    def __init__(
        self,
        # [S, R, ...] of each kind and number
        kept: dict[tuple[str, int], Tensor],
        # [B] int64
        slots: Tensor,
        # [B] int64
        positions: Tensor,
    ) -> None:
        self._kept, self._slots, self._positions = kept, slots, positions
        self._handed: dict[tuple[str, int], Tensor] = {}
        """What modeling code got, and may change in place instead of giving a new one back."""

    @property
    def position_ids(self) -> Tensor:
        """[B, 1] int64."""
        return self._positions[:, None]

    def keep_changed(self) -> None:
        """Write what was handed out and not given back."""
        for (kind, number), state in list(self._handed.items()):
            self._write(kind, number, state)

    def _before(self, kind: str, number: int) -> Tensor:
        kept = self._kept[kind, number]
        state = kept[self._slots, (self._positions - 1) % kept.shape[1]]
        is_first = (self._positions == 0).view(-1, *[1] * (state.ndim - 1))
        state = state.masked_fill(is_first, 0)
        self._handed[kind, number] = state
        return state

    def _write(self, kind: str, number: int, state: Tensor) -> None:
        kept = self._kept[kind, number]
        kept.index_put_((self._slots, self._positions % kept.shape[1]), state.to(kept.dtype))

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

    def __init__(self, states: TokenStates) -> None:
        self._states = states

    def __getitem__(self, layer_idx: int) -> TokenStates:
        return self._states


class _BeforeByNumber:
    """The recurrent states before a token."""

    def __init__(self, states: TokenStates) -> None:
        self._states = states

    def __getitem__(self, state_idx: int) -> Tensor:
        return self._states.get_recurrent_state(0, state_idx)
