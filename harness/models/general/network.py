"""The parts of a causal language model of transformers, found in its modules: body, layers, and what makes logits.

The states after the final norm are what the body returns. Logits are made of them by the model's own forward with its
body standing still, so that scales, caps and biases stay its own.

Shapes: B rows, T tokens of a row, H hidden size, V vocabulary.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from harness.models.general.experts import choose_experts
from harness.models.general.masks import INTERFACE, OWN_ATTENTION, register
from harness.models.general.states import let_mixers_run_by_token
from harness.models.general.view import GeneralView

OWN_IMPLEMENTATION = "eager"
"""Attention in the modeling code itself, which every model has."""


class _BodyOutput:
    """What a body returned, for the model's tail; whatever else it asks for is None."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class Network:
    """A causal language model of transformers, run in two parts over slots."""

    def __init__(self, causal_lm: Any) -> None:
        self.causal_lm = causal_lm
        num_layers = causal_lm.config.get_text_config(decoder=True).num_hidden_layers
        self.layers = _layers(causal_lm, num_layers)
        self._around = [each for each in causal_lm.modules() if each is not causal_lm and self._holds(each)]
        """Modules that hold the layers, the outermost first; its forward may call any of them, the last the layers."""
        self.body, self.decoder = self._around[0], self._around[-1]
        self.has_own_attention = "ALL_ATTENTION_FUNCTIONS" not in vars(sys.modules[type(self.body).__module__])
        """Whether its attention is code of its own; else it goes through the interface of transformers."""
        taken = inspect.signature(self.body.forward).parameters
        self._cache_name = next((name for name in ("past_key_values", "cache_params") if name in taken), None)
        self._takes_positions = "position_ids" in taken or any(item.kind is item.VAR_KEYWORD for item in taken.values())
        self._entering: dict[int, Tensor] = {}
        self._hooked: set[int] = set()
        let_mixers_run_by_token(causal_lm)
        register()
        for config in self._configs():
            if getattr(config, "pad_token_id", None) is not None:
                # nothing is padded, and some models wait for the device to look for it
                config.pad_token_id = None
        self._attend_through_slots()
        self.experts_note = choose_experts(causal_lm)
        """What its experts cost on this device beside their work; None if nothing."""

    def _holds(self, module: nn.Module) -> bool:
        return module is not self.layers and any(each is self.layers for each in module.modules())

    def attend_through(self, implementation: str) -> None:
        """Let all its parts attend by what transformers knows under a name."""
        for config in self._configs():
            if hasattr(config, "_attn_implementation"):
                config._attn_implementation = implementation

    def _configs(self) -> list[Any]:
        """The configurations of all its parts, each once."""
        found = (getattr(module, "config", None) for module in self.causal_lm.modules())
        return list({id(config): config for config in found if config is not None}.values())

    def run(
        self,
        # [B, T] int64
        token_ids: Tensor,
        # [B, T] int64
        positions: Tensor,
        view: GeneralView | None,
        asked: tuple[int, ...] = (),
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """([B, T, H] states after the final norm, those entering the asked layers); of number n the last one's."""
        return self._run({"input_ids": token_ids}, positions, view, asked)

    def run_states(
        self,
        # [B, T, H]
        states: Tensor,
        # [B, T] int64
        positions: Tensor,
        view: GeneralView | None,
    ) -> Tensor:
        """[B, T, H] states after the final norm, of states that take the place of embeddings."""
        return self._run({"inputs_embeds": states}, positions, view, ())[0]

    def _run(
        self, inputs: dict[str, Tensor], positions: Tensor, view: GeneralView | None, asked: tuple[int, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        for index in asked:
            self._hook(index)
        given: dict[str, Any] = {**inputs, "use_cache": view is not None}
        if view is not None and self._cache_name is not None:
            given[self._cache_name] = view
        if self._takes_positions:
            given["position_ids"] = positions
        states = self.body(**given)[0]
        entering = tuple(self._entering[index] for index in asked)
        self._entering.clear()
        return states, entering

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, T, H] after the final norm -> [B, T, V]."""
        output = _BodyOutput(hidden)
        token_ids = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        with standing_in((module, lambda *_, **__: output) for module in self._around):
            logits: Tensor = self.causal_lm(input_ids=token_ids, use_cache=False).logits
        return logits

    def plain_logits(self, token_ids: Tensor) -> Tensor:
        """[B, T] int64 -> [B, T, V], by the model's own forward over whole sequences, without slots."""
        self.attend_through(OWN_IMPLEMENTATION)
        try:
            logits: Tensor = self.causal_lm(input_ids=token_ids, use_cache=False).logits
        finally:
            self._attend_through_slots()
        return logits

    def _attend_through_slots(self) -> None:
        self.attend_through(OWN_ATTENTION if self.has_own_attention else INTERFACE)

    def _hook(self, index: int) -> None:
        """Keep what enters a layer from here on, or what leaves the last one."""
        if index in self._hooked:
            return
        self._hooked.add(index)
        if index == len(self.layers):
            self.layers[-1].register_forward_hook(lambda _, __, output: self._keep(index, output))
            return

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._keep(index, args[0] if args else kwargs["hidden_states"])

        self.layers[index].register_forward_pre_hook(keep, with_kwargs=True)

    def _keep(self, index: int, states: Any) -> None:
        self._entering[index] = states[0] if isinstance(states, tuple) else states


def _layers(causal_lm: nn.Module, num_layers: int) -> nn.ModuleList:
    """Its decoder layers: of the lists of so many modules, or of all, the one with most parameters.

    Raises:
        ValueError: there is none.
    """
    lists = [module for module in causal_lm.modules() if isinstance(module, nn.ModuleList)]
    # some count the halves of a layer
    found = [each for each in lists if len(each) == num_layers] or lists
    if not found:
        raise ValueError(
            f"{type(causal_lm).__name__}: expected its layers in a list of modules, found none; this architecture does "
            "not run here"
        )
    return max(found, key=lambda each: sum(parameter.numel() for parameter in each.parameters()))


@contextmanager
def standing_in(parts: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Let modules run other forwards inside, and those that they had before again afterwards."""
    before = []
    try:
        for module, forward in parts:
            before.append((module, vars(module).get("forward")))
            module.forward = forward
        yield
    finally:
        for module, earlier in reversed(before):
            if earlier is None:
                del module.forward
            else:
                module.forward = earlier
