"""What all draft heads share: the target they lean on, the logits' vocabulary, caches, and writing to a folder.

A head drafts from pairs (token x_{t+1}, feature of x_t). Pair t lies at position t; its logits are for x_{t+2}; the
next step of a chain is at position t + 1, with the token just drafted and the features this step returned.

Shapes: B rows, T pairs of a row, H the head's hidden size, V the target's vocabulary, V_draft the head's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig

from harness.models.checkpoint import SINGLE, Checkpoint, StoredRows, WeightSource
from harness.models.cost import ModelCost
from harness.models.decoder_layer import View
from harness.models.expert_weights import put_tensor, stored_tensors
from harness.models.fused.fuse import fuse_layers
from harness.models.fused.rope_table import rope_table
from harness.models.latent_attention import LatentAttention
from harness.models.layer_forward import embedded, linear
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetModel, TargetOutput, new_cache


class HeadOutput(NamedTuple):
    """States of one forward of a head."""

    next_features: Tensor
    """[B, T, H] features of the next step of the chain."""
    hidden: Tensor
    """[B, T, H] what `logits` takes."""


class Head(nn.Module):
    """A draft head. Its state_dict holds exactly the tensors of its public format.

    The embedding and the output matrix of the target are read through `self.target`, which is no module: they are
    neither parameters of the head nor moved or trained with it.
    """

    config: Any
    """What its config.json says; each format has a class of its own."""
    aux_layers: tuple[int, ...] = ()
    """Layers of the target whose entering states make the features; () means the states after its final norm."""
    path: Path | None = None
    """Folder it was loaded from; None for a head made in memory."""
    random_fingerprint: str | None = None
    """Identifies random weights; None for those of a checkpoint."""
    assumptions: tuple[str, ...] = ()
    """What its files do not say and was taken, or what the user vouched for; one sentence each."""
    draft_to_target: Tensor | None = None
    """[V_draft] int64, target id of each draft id; None when the vocabularies are the same."""

    def __init__(self, layer_config: PreTrainedConfig, target: TargetModel) -> None:
        super().__init__()
        self.layer_config = layer_config
        self.target = target

    rotary: Any
    """The rotary module of its layers."""
    is_fused = False
    """See `fuse`."""
    fusion_obstacle: str | None = None
    """Why `fuse` left its layers as they are."""

    @property
    def decoder_layers(self) -> Sequence[Any]:
        """Its decoder layers: one, but for heads that run each of theirs once a round."""
        layers: Any = self.layers
        return list(layers)

    @property
    def has_latent_attention(self) -> bool:
        return isinstance(self.decoder_layers[0].self_attn, LatentAttention)

    def fuse(self) -> str | None:
        """Let its layers run through the fused operations, in caches made from here on; returns why not, if not."""
        self.fusion_obstacle = fuse_layers(self.decoder_layers, self.rotary)
        self.is_fused = self.fusion_obstacle is None
        return self.fusion_obstacle

    @property
    def features_are_hidden(self) -> bool:
        """Whether the features of the next step are what `logits` takes."""
        return False

    @property
    def vocab_size(self) -> int:
        """V_draft, the width of the logits."""
        return self.target.vocab_size

    @property
    def hidden_size(self) -> int:
        """H, the width of its features and of what `logits` takes."""
        return self.layer_config.hidden_size

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """What changes its speed without being asked for."""
        if self.fusion_obstacle is None:
            return ()
        return (f"the layer of the draft head runs unfused, because {self.fusion_obstacle}",)

    @property
    def num_parameters(self) -> int:
        """Parameters of the head itself, without what it shares with the target."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def embed_weight(self) -> Tensor:
        """[V, H] its own embedding if it has one, else the target's."""
        # asked for in every forward: getattr of a module that is not there takes four calls
        own: Any = self._modules.get("embed_tokens")
        return self.target.embed_weight if own is None else own.weight

    @property
    def has_own_output(self) -> bool:
        """Whether its output matrix is not the target's."""
        return False

    @property
    def output_matrix(self) -> Tensor:
        """[V_draft, H] what gives the logits: the target's, unless the head has its own."""
        return self.target.output_matrix

    @property
    def joining(self) -> Sequence[nn.Parameter]:
        """Parameters that make features of the target's states, and that the head's own features do not pass."""
        return ()

    @property
    def cost(self) -> ModelCost:
        """What its forwards cost."""
        parameters, num_layers = tuple(self.named_parameters()), len(self.decoder_layers)
        itemsize = (self.target.cache_dtype or self.embed_weight.dtype).itemsize
        return ModelCost(
            parameters, self.embed_weight, self.output_matrix, self.layer_config, num_layers, itemsize, self.joining
        )

    def new_cache(self, num_slots: int, capacity: int) -> SlotCache:
        """An empty key-value cache for the head's layers."""
        weight, num_layers = next(self.parameters()), len(self.decoder_layers)
        table = rope_table(self.rotary, capacity, weight.device) if self.is_fused else None
        dtype, stored = weight.dtype, self.target.cache_dtype
        return new_cache(self.layer_config, num_layers, num_slots, capacity, dtype, weight.device, table, stored)

    def features(self, output: TargetOutput) -> Tensor:
        """[B, T, H] the features of the target's tokens."""
        return output.hidden

    def forward(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None, wanted: Tensor | None = None
    ) -> HeadOutput:
        """One pass over pairs.

        token_ids: [B, T] int64, ids of the target's vocabulary; features: [B, T, H]; positions: [B, T] int64;
        view: where keys and values go and what each query sees; None attends causally over the given pairs alone.
        wanted: [B] int64, number of the pair of each row whose states are returned, [B, 1, H]; None for all. For heads
        of one layer that `rounds_alike` (direct_layer) alone.
        """
        raise NotImplementedError

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[..., H] -> [..., V_draft]. A head may write what it returns to `out`, see `linear` of layer_forward."""
        if self.has_own_output:
            return linear(hidden, self.output_matrix, None, self.is_fused, out)
        return self.target.logits(hidden, out)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[...] int64 -> [..., H]."""
        return embedded(token_ids, self.embed_weight)

    def state_dict_public(self) -> dict[str, Tensor]:
        """The tensors under the names of the head's public format, on the CPU, each with memory of its own."""
        return {
            stored: part.detach().cpu().contiguous().clone()
            for name, tensor in self.state_dict().items()
            for stored, part in stored_tensors(name, tensor)
        }

    def fill(self, checkpoint: WeightSource, stored: dict[str, str] | None = None) -> None:
        """Copy every weight from a checkpoint, in this head's dtype and on its device; index tensors are left alone.

        stored: prefix here -> prefix in the checkpoint, where the two differ.
        """
        renamed = (stored or {}).items()
        weights = {name: tensor for name, tensor in self.state_dict().items() if tensor.is_floating_point()}
        for name, weight in weights.items():
            key = next((theirs + name[len(ours) :] for ours, theirs in renamed if name.startswith(ours)), name)
            put_tensor(checkpoint, key, weight)


def save_head(head: Head, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write an EAGLE or EAGLE-3 head as a public checkpoint folder: config.json and model.safetensors.

    dtype: of the stored weights; None keeps the head's. (An MTP layer goes into its target's folder: save_mtp.)
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: as_stored(tensor, dtype) for name, tensor in head.state_dict_public().items()}
    stored = dtype or next(head.parameters()).dtype
    fields = head.config.to_dict() | {"dtype": str(stored).removeprefix("torch.")}
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def as_stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor in the dtype of the file; index tensors keep theirs."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def stored_embedding(
    checkpoint: Checkpoint, key: str, target: TargetModel, hidden_size: int, num_rows: int | None = None
) -> Tensor | None:
    """A head's stored embedding [V, H]; None when there is none or it equals the target's and can be shared.

    Beside a meta model, which has no values to compare with, one of the target's width counts as equal.
    num_rows: of the file, if it is padded otherwise than the target; ids that it does not have are read as its last.
    """
    if key not in checkpoint:
        return None
    num_stored = target.vocab_size if num_rows is None else num_rows
    if num_stored != target.vocab_size:
        checkpoint.read_rows(key, StoredRows.of_ids(num_stored, target.vocab_size))
    weight = checkpoint.take(key, (target.vocab_size, hidden_size)).to(target.device, target.dtype)
    same_width, num_shared = hidden_size == target.hidden_size, min(num_stored, target.vocab_size)
    is_same = same_width and (weight.is_meta or torch.equal(weight[:num_shared], target.embed_weight[:num_shared]))
    return None if is_same else weight
