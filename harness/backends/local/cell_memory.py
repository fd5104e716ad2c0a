"""What cells keep on their device, counted before anything of it is made.

The models are counted on torch's meta device, and caches on the very engine that will run, built without memory. What
grows and shrinks while an engine runs is not counted: the activations of a forward, rows that wait to be measured, and
CUDA graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from harness.backends.local.model_store import Models, StoredModels
from harness.config.drafter import DrafterConfig
from harness.engine.engine import Engine
from harness.models.free_memory import Need, check_fits, weights_need

ADVICE = (
    "CUDA graphs, the activations of a forward and rows that wait to be measured come on top. Lower "
    "backend.max_concurrency, decoding.max_new_tokens, backend.max_length or drafting.num_speculative_tokens, take a "
    "smaller backend.dtype, backend.weight_dtype=fp8, backend.kv_cache_dtype=fp8, smaller models or a device with more "
    "memory, or end what else runs there."
)
FEWER_CELLS = (
    " Cells that run as CUDA graphs keep their caches side by side: run fewer at once, or backend.graphs=false."
)


class CacheBytes(NamedTuple):
    """Memory of what an engine keeps of its requests."""

    target: int = 0
    """Key-value cache of the target."""
    drafter: int = 0
    """Key-value cache of the drafter."""
    draft_logits: int = 0
    """Draft-logit cache, and the row statistics beside it."""

    @classmethod
    def of(cls, engine: Engine) -> CacheBytes:
        return cls(engine.cache_bytes, engine.drafter.cache_bytes, engine.drafter.logit_cache_bytes)


class CellMemory(NamedTuple):
    """What one cell keeps."""

    weights: dict[object, Need]
    """By the model, which other cells may share."""
    caches: tuple[Need, ...]
    is_kept: bool
    """Whether the caches stay while other cells have their turn."""


def cell_memory(models: StoredModels, drafter: DrafterConfig, engine: Engine, is_kept: bool) -> CellMemory:
    """What a cell keeps.

    Args:
        models: those that it runs.
        drafter: of the cell.
        engine: the cell's, made on the meta device.
        is_kept: see CellMemory.
    """
    meta_models, loaded = models
    target, head = meta_models.target, meta_models.head(drafter)
    weights: dict[object, Need] = {
        target: _weights(loaded, f"target {target.name}", target.causal_lm, target, is_there=loaded.has_target)
    }
    split = target.split
    # each on a GPU of its own, or all on the one CPU
    num_ranks_here = split.num_ranks if split is not None and loaded.device.type == "cpu" else 1
    if split is not None:
        each = weights[target]
        weights[target] = each._replace(
            what=f"{each.what}, of which each of {split.num_ranks} ranks has a part",
            num_bytes=split.rank_bytes * num_ranks_here,
        )
    if head is not None and not head.is_of_target:
        what = f"the drafter {drafter.kind.value}"
        weights[head] = _weights(loaded, what, head.module, head.head, is_there=loaded.has_head(drafter))
    sizes, found = engine.settings, CacheBytes.of(engine)
    slots = f"{sizes.num_slots} slots and a spare one, of {sizes.capacity:,} tokens"
    caches = [Need(f"the target's key-value cache ({slots})", found.target * num_ranks_here)]
    if split is not None and head is not None:
        whole = target.embed_weight.nbytes + target.output_matrix.nbytes
        caches.append(Need("the whole embedding and output matrix, which drafters read", whole))
    rows = f"{sizes.num_slots} slots, {sizes.num_speculative_tokens} rows"
    if head is not None:
        rows += f" of {head.num_draft_ids:,} logits"
    else:
        own_bytes = engine.drafter.num_parameters * target.dtype.itemsize
        caches.append(Need(f"the drafter {drafter.kind.value}", own_bytes))
    caches.append(Need(f"the drafter's key-value cache ({slots})", found.drafter))
    caches.append(Need(f"the draft-logit cache ({rows})", found.draft_logits))
    return CellMemory(weights, tuple(need for need in caches if need.num_bytes), is_kept)


def _weights(loaded: Models, what: str, network: nn.Module, model: object, is_there: bool) -> Need:
    """The weights of a model's network, with the second copy that some of them have on a CPU."""
    need, num_bytes = weights_need(what, network, is_there), loaded.blocked_bytes(network, model)
    return (
        need._replace(what=f"{need.what}, large ones twice", num_bytes=need.num_bytes + num_bytes)
        if num_bytes
        else need
    )


def check_memory(cells: Sequence[CellMemory], device: torch.device) -> None:
    """Refuse cells that take turns, before any of their models is loaded, unless what they keep has room.

    Caches that are not kept lie there one cell at a time, so those of the largest cell count.

    Raises:
        ValueError: there is too little memory; the message lists what each part needs and what to lower.
    """
    weights = {model: need for cell in cells for model, need in cell.weights.items()}
    passing = max((cell.caches for cell in cells if not cell.is_kept), key=_total, default=())
    kept = [cell.caches for cell in cells if cell.is_kept]
    caches = [*passing, *(need for each in kept for need in each)]
    check_fits([*weights.values(), *_together(caches)], device, ADVICE + (FEWER_CELLS if len(kept) > 1 else ""))


def _total(needs: Iterable[Need]) -> int:
    return sum(need.num_bytes for need in needs)


def _together(needs: Sequence[Need]) -> list[Need]:
    """The same with those that are alike as one."""
    return [
        need if count == 1 else Need(f"{count} times {need.what}", count * need.num_bytes)
        for need, count in Counter(needs).items()
    ]
