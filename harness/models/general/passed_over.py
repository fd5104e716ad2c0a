"""A network of transformers some of whose layers hand on what they get, for the time of a forward.

The layers stay in their list, so that modeling code that goes by a layer's number finds the mask, the place in a cache
and the entry of the configuration that it finds in the whole network.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch import Tensor

from harness.models.cost import ModelCost
from harness.models.general.network import Network, standing_in
from harness.models.general.probe import check_over_slots
from harness.models.general.target import GeneralTarget
from harness.models.general.view import GeneralView


class _PassingNetwork(Network):
    """The modules of another network; outside of a forward nothing tells that some of them are passed over."""

    def __init__(self, network: Network, skipped: Collection[int], num_outputs: dict[int, int | None]) -> None:
        """num_outputs: of each skipped layer, how many a layer returns; None for the states alone."""
        # not Network.__init__, which makes a model ready that is ready
        self.__dict__.update(network.__dict__)
        self.skipped, self._num_outputs = frozenset(skipped), num_outputs

    def _passed_over(self) -> AbstractContextManager[None]:
        return standing_in((self.layers[index], _hand_on(self._num_outputs[index])) for index in self.skipped)

    def run(
        self, token_ids: Tensor, positions: Tensor, view: GeneralView | None, asked: tuple[int, ...] = ()
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        with self._passed_over():
            return super().run(token_ids, positions, view, asked)

    def plain_logits(self, token_ids: Tensor) -> Tensor:
        with self._passed_over():
            return super().plain_logits(token_ids)


class _PassingTarget(GeneralTarget):
    """A target of such a network."""

    network: _PassingNetwork

    def __init__(self, target: GeneralTarget, network: _PassingNetwork) -> None:
        # not GeneralTarget.__init__, for the same reason
        self.__dict__.update(target.__dict__)
        self.network, self.num_layers = network, target.num_layers - len(network.skipped)
        self.assumptions = ()
        # its layers are the target's own, some of which it passes over; those of the target's steps alone are compiled
        self._compiled = self._compile_failure = None
        self._first_cache = None

    @property
    def cost(self) -> ModelCost:
        layers = self.network.layers
        skipped = {id(item) for index in self.network.skipped for item in layers[index].parameters()}
        whole = super().cost
        return replace(whole, named_parameters=[item for item in whole.named_parameters if id(item[1]) not in skipped])


def layers_sharing_caches(target: GeneralTarget) -> list[int]:
    """Layers that keep nothing of their own while others keep keys and values, which they read."""
    cache = target.new_cache(1, 1)
    keeping = {kept.layer for kept in cache.tensors}
    return [] if target.is_uncounted else [index for index in range(target.num_layers) if index not in keeping]


def passing_over(target: GeneralTarget, skipped: Collection[int]) -> GeneralTarget:
    """A target without some layers, compared over slots with its plain forward unless it lies on the meta device.

    Raises:
        CheckpointError: the probe finds a difference.
    """
    shallow = _PassingTarget(target, _PassingNetwork(target.network, skipped, _num_outputs(target, skipped)))
    if target.device.type != "meta":
        check_over_slots(shallow)
    return shallow


def _num_outputs(target: GeneralTarget, skipped: Collection[int]) -> dict[int, int | None]:
    """What layers return in a forward of one token; the states alone where that cannot be told."""
    found: dict[int, int | None] = dict.fromkeys(skipped)

    def watch(index: int) -> Any:
        def note(_: object, __: object, output: Any) -> None:
            found[index] = len(output) if isinstance(output, tuple) else None

        return note

    hooks = [target.network.layers[index].register_forward_hook(watch(index)) for index in skipped]
    cache = target.new_cache(1, 1)
    try:
        if not target.is_uncounted:
            target.read_token(cache)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _hand_on(num_outputs: int | None) -> Any:
    """A layer's forward that returns its states as they came."""

    def forward(hidden_states: Tensor, *_: object, **__: object) -> Tensor | tuple[Tensor | None, ...]:
        return hidden_states if num_outputs is None else (hidden_states, *[None] * (num_outputs - 1))

    return forward
