"""How checkpoints store the experts of a layer: mostly one by one, where transformers and random weights have them
merged. Some store them merged too (Qwen3.5), under the names that transformers has.

    stored   ...mlp.experts.{i}.{gate,up}_proj.weight [I, D]    ...mlp.experts.{i}.down_proj.weight [D, I]
    held     ...mlp.experts.gate_up_proj [E, 2 I, D]            ...mlp.experts.down_proj [E, D, I]

Shapes: E experts, D hidden size, I width of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from harness.models.checkpoint import WeightSource

EXPERTS = ".mlp.experts."
MERGED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def stored_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a checkpoint stores for one tensor of a model: names, and views of the tensor.

    That is the tensor itself, unless it holds merged experts.
    """
    prefix, experts, merged = name.rpartition(EXPERTS)
    if not experts or merged not in MERGED:
        yield name, tensor
        return
    parts = MERGED[merged]
    for index, expert in enumerate(tensor):
        for part, weight in zip(parts, expert.chunk(len(parts)), strict=True):
            yield f"{prefix}{experts}{index}.{part}.weight", weight


def put_tensor(source: WeightSource, name: str, tensor: Tensor) -> None:
    """Write one tensor of a model from what a source has for it. Raises CheckpointError as Checkpoint.take does."""
    parts = [(name, tensor)] if source.holds(name) else stored_tensors(name, tensor)
    for stored, place in parts:
        source.put(stored, place)
