"""Layers of transformers compiled by torch (`torch.compile`), one after the other.

Layers of one kind share what is compiled for the first of them: each gets a view of its own cache alone, so that its
number decides nothing. Rows, tokens of a row and slots are free sizes, so that steps of all sizes share it too, those
of engines with other numbers of slots among them; torch takes a size of 1 for a case of its own. The length of slots is
free where attention reads them in place, else masks are laid out by it. Torch keeps what it compiled on disk
(TORCHINDUCTOR_CACHE_DIR).

Shapes: B rows, T tokens of a row, H heads, D width of a head, L places of a slot.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.models.general.cache import GeneralCache, Kept
from harness.models.general.compiled_states import HeldPositions, HeldStates, MixerCall, StateView, TokenRows
from harness.models.general.in_place import is_rows_in_place
from harness.models.general.joint_products import joined
from harness.models.general.network import Network, standing_in
from harness.models.general.states import States
from harness.models.general.view import GeneralView

MAX_VARIANTS = 256
"""Of one layer's code: kinds of layers, times cases of sizes, times lengths of slots that are not read in place."""
MIN_PARAMETERS = 1_000_000_000
"""Of a target that is compiled without being asked for: below, a step is too short to pay for compiling."""

ALIASING = "check_custom_op_aliasing"
"""Torch's setting for a check of custom operations."""


class LayerView:
    """The keys and values of one layer, in the slots of one forward."""

    def __init__(self, view: GeneralView, layer_idx: int) -> None:
        self.key, self.value = (view.cache.tensors[Kept(kind, layer_idx)] for kind in ("key", "value"))
        self.slots, self.places = view.slots, view.places
        self.is_in_place = view.is_in_place

    def free_sizes(self) -> None:
        """Tell torch that another cache has other numbers of slots, and other lengths where no mask is of them."""
        from torch._dynamo import maybe_mark_dynamic

        for kept in (self.key, self.value):
            maybe_mark_dynamic(kept, [0, 2] if self.is_in_place else 0)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """See `GeneralView.update`; of a forward over whole slots."""
        return self._written(self.key, key_states), self._written(self.value, value_states)

    def _written(self, kept: Tensor, states: Tensor) -> Tensor:
        heads = torch.arange(kept.shape[1], device=kept.device)
        kept.index_put_((self.slots[:, None, None], heads[None, :, None], self.places[:, None, :]), states)
        return kept if self.is_in_place else kept.index_select(0, self.slots)


class _Watched(GeneralView):
    """A view that notes which layers of the cache its network asks for, by what of them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: list[tuple[str, int]] = []
        self.states: _WatchedStates = _WatchedStates(self)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *given: object, **others: object) -> Any:
        self.asked.append(("key", layer_idx))
        return super().update(key_states, value_states, layer_idx, *given, **others)

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        self.asked.append(("indexer", layer_idx))
        return super().update_indexer(indexer_key_states, layer_idx)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        self.asked.append(("conv", layer_idx))
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        self.asked.append(("recurrent", layer_idx))
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *given: Any, **others: Any) -> Tensor:
        self.asked.append(("conv", layer_idx))
        return super().update_conv_state(conv_states, layer_idx, *given, **others)

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, *given: Any, **others: Any) -> Tensor:
        self.asked.append(("recurrent", layer_idx))
        return super().update_recurrent_state(recurrent_states, layer_idx, *given, **others)


class _WatchedStates(States):
    """States that note how mixers are called."""

    def __init__(self, view: GeneralView) -> None:
        super().__init__(view)
        self.calls: list[MixerCall] = []

    def run(self, mixer: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        here = tuple(self._written_down(each) for each in args)
        named = {name: self._written_down(each) for name, each in kwargs.items()}
        if isinstance(named.get("position_ids"), Tensor):
            named["position_ids"] = HeldPositions
        self.calls.append(MixerCall(mixer, here, named))
        return super().run(mixer, hidden_states, *args, **kwargs)

    def _written_down(self, given: object) -> object:
        return HeldStates if given is self._view else given


class LayerOfCache(NamedTuple):
    """What one layer of a network does with a cache."""

    number: int
    """Of the one layer of the cache that it asks for."""
    mixer: MixerCall | None
    """Its call where it asks for recurrent states there; None where it asks for keys and values."""


def layers_of_cache(network: Network, cache: GeneralCache) -> dict[int, LayerOfCache | str]:
    """What the layers of a network do with a cache, found by a forward of one token.

    Args:
        cache: of one slot of one place, its tensors made.

    Returns:
        By layer of the network; what hinders compiling it where it does not write and read keys and values, or the
        states of one mixer, of one layer of the cache alone.
    """
    zero = torch.zeros(1, 1, dtype=torch.int64, device=cache.slot_ids.device)
    view = _Watched(cache, slice(0, 1), zero, 1)
    # layers of a cache ask it, in versions of transformers before
    cache.in_use = view
    begins: list[tuple[int, int]] = []

    def begin(*_: object) -> None:
        begins.append((len(view.asked), len(view.states.calls)))

    hooks = [layer.register_forward_pre_hook(begin) for layer in network.layers]
    try:
        network.run(zero, zero, view)
    finally:
        for hook in hooks:
            hook.remove()
    ends = [*begins[1:], (len(view.asked), len(view.states.calls))]
    found: dict[int, LayerOfCache | str] = {}
    for index, (begun, ended) in enumerate(zip(begins, ends, strict=True)):
        asked, calls = view.asked[begun[0] : ended[0]], view.states.calls[begun[1] : ended[1]]
        found[index] = _layer_of(asked, calls)
    return found


def _layer_of(asked: list[tuple[str, int]], calls: list[MixerCall]) -> LayerOfCache | str:
    """What a layer does, by what it asked a cache for and its calls of mixers; else what hinders compiling it."""
    kinds, numbers = [kind for kind, _ in asked], {number for _, number in asked}
    if not asked:
        return "ask the cache for nothing"
    if len(numbers) > 1:
        return "ask for several layers of the cache"
    (number,) = numbers
    if kinds == ["key"]:
        return LayerOfCache(number, None)
    if not set(kinds) <= {"conv", "recurrent"}:
        return "keep more than keys and values"
    if len(calls) != 1:
        return "keep states of several mixers" if calls else "keep states outside of mixers"
    return "give their mixers tensors beside states" if calls[0].gets_tensors else LayerOfCache(number, calls[0])


def reason_of(error: Exception) -> str | None:
    """Why torch does not compile something, and where it stands, by an error of its compiler, in a line; None of any
    other error."""
    # torch's compiler takes seconds to import
    from torch._dynamo import exc

    # of none of its other kinds in some versions, and not there in others
    limit = getattr(exc, "FailOnRecompileLimitHit", None)
    if limit is not None and isinstance(error, limit):
        return f"more than {MAX_VARIANTS} variants of one layer"
    if not isinstance(error, exc.TorchDynamoException):
        return None
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    # what was traced; errors of what runs the traced operations have none
    stack = getattr(error, "real_stack", None)
    return f"{reason} ({_place(stack[-1])})" if stack else reason


def _place(frame: FrameSummary) -> str:
    file = "/".join(Path(frame.filename).parts[-3:])
    return f"at {file}:{frame.lineno} in {frame.name}: {' '.join((frame.line or '').split())}"


class CompiledLayers:
    """The layers of a network that ask for one layer of its cache each, compiled where they first run."""

    def __init__(self, network: Network, found: dict[int, LayerOfCache | str]) -> None:
        """found: as `layers_of_cache` gives it."""
        self._network, self._found = network, found
        layer_of = {index: layer for index, layer in found.items() if isinstance(layer, LayerOfCache)}
        self._layer_of = layer_of
        self._compiled: dict[int, Callable[..., Any]] = {
            index: torch.compile(network.layers[index].forward, fullgraph=True) for index in layer_of
        }
        self._mixers = {
            index: torch.compile(layer.mixer.of_token(), fullgraph=True)
            for index, layer in layer_of.items()
            if layer.mixer is not None
        }
        self._joined = [part for index in layer_of for part in joined(network.layers[index])]
        self.seconds = 0.0
        """That compiling took, so far."""

    @property
    def note(self) -> str | None:
        """Which layers run as they are; None if none does."""
        hindered = Counter(layer for layer in self._found.values() if isinstance(layer, str))
        told = [
            f"{number} of {len(self._found)} layers are not compiled: they {why}" for why, number in hindered.items()
        ]
        return "; ".join(told) or None

    @property
    def has_states(self) -> bool:
        """Whether layers with recurrent states are among them."""
        return bool(self._mixers)

    def without_states(self, obstacle: str) -> CompiledLayers | None:
        """The same without layers that have recurrent states; None if there are none, or no others."""
        if not self.has_states or len(self._mixers) == len(self._layer_of):
            return None
        return CompiledLayers(
            self._network, {index: obstacle if index in self._mixers else layer for index, layer in self._found.items()}
        )

    @contextmanager
    def running(self, view: GeneralView) -> Iterator[None]:
        """Let layers run compiled in a forward; it reads chains over whole slots."""
        rows = TokenRows(view) if self._mixers else None
        compiled = [(self._network.layers[index], self._in_place_of(index, view, rows)) for index in self._compiled]
        with standing_in((*compiled, *self._joined)):
            yield

    def _in_place_of(self, index: int, view: GeneralView, rows: TokenRows | None) -> Callable[..., Any]:
        mixer, number = self._mixers.get(index), self._layer_of[index].number
        if mixer is None or rows is None:
            return self._with_keys(index, view, LayerView(view, number))
        return self._with_states(index, view, StateView(view, rows, number, mixer))

    def _with_keys(self, index: int, view: GeneralView, own: LayerView) -> Callable[..., Any]:
        """The forward of a layer with keys and values."""
        num_rows, num_tokens = view.positions.shape

        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _given(own, view, args, kwargs)
            _free_sizes([args, tuple(kwargs.values()), own.slots, own.places], num_rows, num_tokens)
            own.free_sizes()
            return self._run(index, args, kwargs)

        return forward

    def _with_states(self, index: int, view: GeneralView, own: StateView) -> Callable[..., Any]:
        """The forward of a layer with states; outside its mixer every token is alike, and of one row.

        One graph is then of all numbers of rows and of tokens.
        """

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = _given(own, view, args, kwargs)
            size = hidden_states.shape
            in_one_row = hidden_states.reshape(1, -1, size[-1])
            _free_sizes(in_one_row, 1, in_one_row.shape[1])
            with own.running():
                found = self._run(index, (in_one_row, *args), kwargs)
            return found.view(size) if isinstance(found, Tensor) else (found[0].view(size), *found[1:])

        return forward

    def _run(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch._dynamo import config
        from torch._dynamo.utils import counters
        from torch._functorch import config as operations_config
        from torch._inductor import config as kernels_config

        from harness.models.general.same_products import SameProducts

        num_before, began = counters["stats"]["unique_graphs"], time.perf_counter()
        # free sizes are those that are marked: a length of slots by which a mask is laid out is none
        with (
            config.patch(recompile_limit=MAX_VARIANTS, automatic_dynamic_shapes=False),
            kernels_config.patch(post_grad_custom_pre_pass=SameProducts()),
            # versions of torch that check an operation's first call would compile a mixer in it for that alone
            operations_config.patch({name: False for name in (ALIASING,) if hasattr(operations_config, name)}),
        ):
            found = self._compiled[index](*args, **kwargs)
        if counters["stats"]["unique_graphs"] != num_before:
            self.seconds += time.perf_counter() - began
        return found


def _given(
    own: object, view: GeneralView, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a layer is given, with its own view in the place of the forward's."""
    return (
        tuple(own if given is view else given for given in args),
        {name: own if given is view else given for name, given in kwargs.items()},
    )


def _free_sizes(given: Any, num_rows: int, num_tokens: int) -> None:
    """Tell torch that rows and tokens of a row, where a tensor has them, may be others in another call."""
    from torch._dynamo import maybe_mark_dynamic

    if is_rows_in_place(given):
        if num_rows > 1:
            maybe_mark_dynamic(given, 3)
    elif isinstance(given, Tensor):
        if given.dim() and num_rows > 1 and given.shape[0] == num_rows:
            maybe_mark_dynamic(given, 0)
        # [B, T, ...], or masks [B, 1, T, L]
        of_tokens = [index for index in (1, 2) if given.dim() > index and given.shape[index] == num_tokens]
        if of_tokens and num_tokens > 1:
            maybe_mark_dynamic(given, of_tokens[0])
    elif isinstance(given, (tuple, list)):
        for each in given:
            _free_sizes(each, num_rows, num_tokens)
