"""Recurrent and convolution states over slots: kept by position, as keys are.

The state after the token at position p lies at p modulo R of its slot, and a forward that begins at s reads that of
s - 1, which is zeros at 0. A rollback is therefore a forward that begins earlier: the cache needs no number of accepted
tokens, and nothing waits for the device. R bounds how far back a forward may begin. A forward has one row of a slot,
and prompts in it have one length.

The state after every token is needed of whatever may be rolled back, and modeling code gives that of the last alone. So
mixers run token by token, but for a prompt that is read from its beginning on in one piece.

Shapes: S slots, R places of a ring, B rows of a forward, T tokens of a row.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from harness.models.general.view import GeneralView

READ_AT_ONCE = 64
"""Tokens from which a prompt that begins is read in one piece. Rounds are shorter."""
CONV, RECURRENT = "conv", "recurrent"
STATES = (CONV, RECURRENT)
"""Kinds of states, as harness.models.general.cache.Kept names them."""


class StateKey(NamedTuple):
    """One state of a layer."""

    kind: str
    layer: int
    number: int


class States:
    """The states of one forward: which tokens are being read, and what modeling code holds of them."""

    def __init__(self, view: GeneralView) -> None:
        self._view = view
        self._first, self._is_beginning = 0, False
        self._handed: dict[StateKey, Tensor] = {}
        """What modeling code got, and may change in place instead of giving a new one back."""

    def before(self, key: StateKey) -> Tensor | None:
        """[B, ...] the state before the tokens that are being read; None where no layer has written one yet."""
        kept = self._view.cache.states.get(key)
        if kept is None or self._is_beginning:
            return None
        positions = self._view.positions[:, self._first]
        state = kept[self._view.slots, (positions - 1) % kept.shape[1]]
        state.masked_fill_((positions == 0).view(-1, *[1] * (state.ndim - 1)), 0)
        self._handed[key] = state
        return state

    def convolve(self, key: StateKey, inputs: Tensor, width: int) -> Tensor:
        """Take [B, C, T] inputs of a convolution in; returns them after those before, [B, C, width + T]."""
        before = self.before(key)
        self._handed.pop(key, None)
        if before is None:
            before = inputs.new_zeros(*inputs.shape[:-1], width)
        full, num_tokens = torch.cat([before, inputs], dim=-1), inputs.shape[-1]
        for token in range(max(0, num_tokens - self._view.cache.ring), num_tokens):
            self._write(key, self._first + token, full[..., token + 1 : token + 1 + width])
        return full

    def write(self, key: StateKey, state: Tensor) -> None:
        """Take in the state after the last of the tokens that are being read."""
        self._handed.pop(key, None)
        self._write(key, self._view.positions.shape[1] - 1 if self._is_beginning else self._first, state)

    def _write(self, key: StateKey, token: int, state: Tensor) -> None:
        kept = self._view.cache.keep_state(key, state)
        kept.index_put_((self._view.slots, self._view.positions[:, token] % kept.shape[1]), state.to(kept.dtype))

    def run(self, mixer: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run a mixer of a layer on [B, T, H]."""
        num_tokens = hidden_states.shape[1]
        if num_tokens >= READ_AT_ONCE and self._view.begins:
            self._is_beginning = True
            output: Tensor = mixer(hidden_states, *args, **kwargs)
            self._is_beginning = False
            return output
        outputs = []
        for token, states in enumerate(hidden_states.split(1, dim=1)):
            self._first = token
            outputs.append(mixer(states, *args, **kwargs))
            for key, state in list(self._handed.items()):
                self.write(key, state)
        self._first = 0
        return torch.cat(outputs, dim=1)


def let_mixers_run_by_token(network: nn.Module) -> None:
    """Let the mixers of a network with states run through the `States` of the view that they are given."""
    for module in network.modules():
        if _takes_states(module) and not any(_takes_states(each) for each in list(module.modules())[1:]):
            _wrap(module)


def _takes_states(module: nn.Module) -> bool:
    return "cache_params" in inspect.signature(type(module).forward).parameters and hasattr(module, "layer_idx")


def _wrap(mixer: nn.Module) -> None:
    inner = mixer.forward

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = [*args, *kwargs.values()]
        states = next((each.states for each in given if hasattr(each, "states")), None)
        output: Tensor = (
            inner(hidden_states, *args, **kwargs)
            if states is None
            else states.run(inner, hidden_states, *args, **kwargs)
        )
        return output

    mixer.forward = forward
