"""A target whose network several ranks compute, each a part of every layer (backend.tensor_parallel).

All ranks load the same way and have one of these. On rank 0, whose engine calls it, it has `lead` from then on, and
tells the others each operation before it runs it too: a forward, logits, a new cache, a change of one. What the others
need of it is broadcast; hidden states and logits are the same on all ranks, and only rank 0 uses them. On a GPU the
others capture what lies between the start and the end of a capture of rank 0, and replay it when rank 0 does.

Embedding and output matrix are whole on rank 0 where a drafter reads them, since drafters run there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from harness.models.decoder_layer import View
from harness.models.general.cache import GeneralCache
from harness.models.general.ranks import Ranks, environment_of
from harness.models.general.split import WholeTensor, local_projections, split_of
from harness.models.general.target import GeneralTarget
from harness.models.general.view import GeneralView
from harness.models.target import TargetModel, TargetOutput
from harness.models.tree_places import TreePlaces
from harness.models.weight_layout import lay_out

EMBEDDING, OUTPUT = "embedding", "output"
OF_CACHE = "caches"
OF_GRAPH = "graphs"


class ShardedCache(GeneralCache):
    """A cache of this rank's keys and values; on rank 0 what changes it changes those of the other ranks."""

    lead: Ranks | None = None
    number = 0

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        if self.lead is not None:
            span, slots = _rows(rows)
            self.lead.call("keep_path", (self.number, span), [*slots, starts, path])
        super().keep_path(rows, starts, path)

    def clear(self, rows: slice | Tensor) -> None:
        if self.lead is not None:
            span, slots = _rows(rows)
            self.lead.call("clear", (self.number, span), slots)
        super().clear(rows)

    def move(self, source: int, destination: int) -> None:
        if self.lead is not None:
            self.lead.call("move", (self.number, source, destination))
        super().move(source, destination)


def _rows(rows: slice | Tensor) -> tuple[tuple[int, int] | None, list[Tensor]]:
    """Rows as plain values, or as a tensor that follows."""
    return ((rows.start, rows.stop), []) if isinstance(rows, slice) else (None, [rows])


def _given_rows(span: tuple[int, int] | None, tensors: list[Tensor]) -> slice | Tensor:
    """The same on another rank; takes the tensor, if it is one."""
    return tensors.pop(0) if span is None else slice(*span)


class ShardedTarget(GeneralTarget):
    """One rank's part of a causal language model of transformers over slots."""

    CACHE: ClassVar[type[GeneralCache]] = ShardedCache
    lead: Ranks | None = None
    """On rank 0, once all ranks have loaded."""

    def __init__(self, causal_lm: Any, tokenizer: Any, **given: Any) -> None:
        """causal_lm: split by transformers (harness.models.general.split), with this rank's weights."""
        split = split_of(causal_lm, dist.get_world_size())
        self._whole_of: dict[str, WholeTensor] = local_projections(causal_lm)
        self._whole: dict[str, Tensor] = {}
        super().__init__(causal_lm, tokenizer, **given)
        self.split = split._replace(collectives=dist.get_backend())

    @property
    def num_parameters(self) -> int:
        return 0 if self.split is None else self.split.num_parameters

    @property
    def dtype(self) -> torch.dtype:
        return self.causal_lm.get_input_embeddings().weight.dtype

    @property
    def device(self) -> torch.device:
        return self.causal_lm.get_input_embeddings().weight.device

    @property
    def embed_weight(self) -> Tensor:
        return self._whole_matrix(EMBEDDING)

    @property
    def output_matrix(self) -> Tensor:
        return self._whole_matrix(OUTPUT)

    def _whole_matrix(self, which: str) -> Tensor:
        if which not in self._whole:
            assert self.lead is not None, "asked for by drafters, once all ranks have loaded"
            self.lead.call("whole_matrix", (which,))
            with self.lead.running():
                self._whole[which] = self.gathered(which)
        return self._whole[which]

    @torch.no_grad()
    def gathered(self, which: str) -> Tensor:
        """[V, H] the whole embedding or output matrix, of all ranks together; all take part."""
        model = self.causal_lm
        module = model.get_input_embeddings() if which == EMBEDDING else model.get_output_embeddings()
        weight: Tensor = module.weight
        if isinstance(weight, DTensor):
            return weight.full_tensor()
        name = next(name for name, each in model.named_modules() if each is module)
        split = self._whole_of.get(f"{name}.weight")
        return weight if split is None else split.of(weight)

    @property
    def capture_error_mode(self) -> str:
        # threads of NCCL ask for events meanwhile
        return "thread_local"

    def check_others(self) -> None:
        if self.lead is not None:
            self.lead.check()

    @torch.no_grad()
    def compile(self, *, is_asked: bool) -> str | None:
        if self.lead is None:
            return super().compile(is_asked=is_asked)
        self.lead.call("compile_layers", (is_asked,))
        with self.lead.running():
            return self._within(lambda: super(ShardedTarget, self).compile(is_asked=is_asked))

    def _within(self, call: Callable[[], Any]) -> Any:
        """Run something that the other ranks run too, without telling its parts."""
        lead, self.lead = self.lead, None
        try:
            return call()
        finally:
            self.lead = lead

    @torch.no_grad()
    def new_cache(self, num_slots: int, capacity: int, rewind: int = 0) -> GeneralCache:
        lead = self.lead
        if lead is None:
            return super().new_cache(num_slots, capacity, rewind)
        number = next(lead.numbers)
        lead.call("make_cache", (number, num_slots, capacity, rewind))
        with lead.running():
            cache = super().new_cache(num_slots, capacity, rewind)
        assert isinstance(cache, ShardedCache)
        cache.lead, cache.number = lead, number
        lead.forget_with(cache, OF_CACHE, number)
        return cache

    @torch.no_grad()
    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        if self.lead is None:
            return super().logits(hidden, out)
        self.lead.call("logits", (), [hidden])
        with self.lead.running():
            return super().logits(hidden, out)

    @torch.no_grad()
    def forward(
        self, token_ids: Tensor, positions: Tensor, view: View | None, aux_layers: tuple[int, ...] = ()
    ) -> TargetOutput:
        if self.lead is None:
            return super().forward(token_ids, positions, view, aux_layers)
        assert isinstance(view, GeneralView) and isinstance(view.cache, ShardedCache), "views are of its own caches"
        (span, slots), tree = _rows(view.rows), view.tree
        nodes = [] if tree is None else list(tree)
        args = view.cache.number, view.length, span
        self.lead.call("forward", args, [token_ids, positions, *slots, *nodes])
        with self.lead.running():
            return super().forward(token_ids, positions, view, aux_layers)

    @contextmanager
    def captured_elsewhere(self) -> Iterator[Callable[[], None]]:
        lead = self.lead
        if lead is None:
            yield lambda: None
            return
        number = next(lead.numbers)
        lead.call("begin_capture", (number,))

        def replay() -> None:
            assert lead is not None
            lead.call("replay", (number,))

        lead.forget_with(replay, OF_GRAPH, number)
        try:
            yield replay
        finally:
            lead.call("end_capture")


Loader = Callable[..., TargetModel]
"""Loads a target, or this rank's part of it, given its device and `num_ranks`; such as a `partial` of `load_target`."""


def load_together(ranks: Ranks, loader: Loader) -> ShardedTarget:
    """The target of all ranks, whose parts all load at the same time.

    Raises:
        RankDiedError: a rank ended, or could not load.
        ValueError: see the loader.
    """
    ranks.call("load", (loader,))
    with ranks.running():
        target = _loaded_part(loader, ranks.device)
    target.lead = ranks
    return target


def _loaded_part(loader: Loader, device: torch.device) -> ShardedTarget:
    num_ranks = dist.get_world_size()
    with torch.no_grad(), environment_of(dist.get_rank(), num_ranks):
        target = loader(device=device, num_ranks=num_ranks)
    assert isinstance(target, ShardedTarget), "several ranks take the general path"
    # what splits a layer is not looked through by products of blocks
    lay_out(target.causal_lm, in_blocks=False)
    return target


class OtherRank:
    """What another rank does of the target: the commands of rank 0."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._target: ShardedTarget | None = None
        self._kept: dict[str, dict[int, Any]] = {OF_CACHE: {}, OF_GRAPH: {}}
        self._capture: Any = None
        self._pool: Any = None

    @property
    def target(self) -> ShardedTarget:
        assert self._target is not None, "it is loaded first"
        return self._target

    def load(self, loader: Loader) -> None:
        """Load this rank's part, at the same time as all others."""
        self._target = _loaded_part(loader, self.device)

    def run(self, call: Callable[..., object], *args: Any) -> None:
        """Call a function of a module."""
        call(*args)

    def compile_layers(self, is_asked: bool) -> None:
        self.target.compile(is_asked=is_asked)

    def whole_matrix(self, which: str) -> None:
        self.target.gathered(which)

    def make_cache(self, number: int, num_slots: int, capacity: int, rewind: int) -> None:
        self._kept[OF_CACHE][number] = self.target.new_cache(num_slots, capacity, rewind)

    def drop(self, kind: str, number: int) -> None:
        self._kept[kind].pop(number, None)

    def forward(self, number: int, length: int, span: tuple[int, int] | None, *tensors: Tensor) -> None:
        token_ids, positions, *others = tensors
        rows = _given_rows(span, others)
        tree = TreePlaces(*others) if others else None
        view = self._kept[OF_CACHE][number].view(rows, positions, length, tree)
        self.target.forward(token_ids, positions, view)

    def logits(self, hidden: Tensor) -> None:
        self.target.logits(hidden)

    def keep_path(self, number: int, span: tuple[int, int] | None, *tensors: Tensor) -> None:
        others = list(tensors)
        rows = _given_rows(span, others)
        self._kept[OF_CACHE][number].keep_path(rows, *others)

    def clear(self, number: int, span: tuple[int, int] | None, *tensors: Tensor) -> None:
        self._kept[OF_CACHE][number].clear(_given_rows(span, list(tensors)))

    def move(self, number: int, source: int, destination: int) -> None:
        self._kept[OF_CACHE][number].move(source, destination)

    def begin_capture(self, number: int) -> None:
        """Capture what comes from here on, instead of running it."""
        torch.cuda.synchronize()
        if not self._kept[OF_GRAPH]:
            # the memory of the last ones is free
            self._pool = None
        graph = torch.cuda.CUDAGraph()
        self._kept[OF_GRAPH][number] = graph
        self._capture = torch.cuda.graph(graph, pool=self._pool, capture_error_mode=self.target.capture_error_mode)
        self._capture.__enter__()

    def end_capture(self) -> None:
        self._capture.__exit__(None, None, None)
        self._pool = self._capture.cuda_graph.pool()
        self._capture = None

    def replay(self, number: int) -> None:
        self._kept[OF_GRAPH][number].replay()
