"""The MTP layer of a target that transformers runs: one decoder layer of the target's own class, as a draft head.

The layer stands in a body of its family that has no other: masks, rotation and the norm behind it are modeling code
too, and so are norms whose scale is 1 + w. harness.models.mtp_layouts has the names of its tensors and the order of
what it reads.

Shapes: B rows, T pairs of a row, H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, means, mtp_account
from harness.models.checkpoint import Checkpoint, CheckpointError, StoredRows, first_names, read_fields
from harness.models.cost import ModelCost
from harness.models.decoder_layer import View
from harness.models.general.cache import GeneralCache
from harness.models.general.network import OWN_IMPLEMENTATION, Network
from harness.models.general.target import GeneralCost, GeneralTarget
from harness.models.general.view import GeneralView
from harness.models.head import Head, HeadOutput
from harness.models.mtp_layouts import (
    OWN_EMBEDDING,
    OWN_HEAD,
    MtpLayout,
    announced_layout,
    general_mtp,
    is_of_further_layer,
)
from harness.models.random_head import SEED
from harness.models.random_weights import RandomWeights, is_bias, made_on, random_fingerprint
from harness.models.target import TargetOutput
from harness.models.vocabulary import check_head_vocabulary

_OF_LAYERS = {
    **{"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_layer_types": ["sparse"]},
    **{"first_k_dense_replace": 0, "mlp_only_layers": [], "vocab_size": 1},
}
"""Fields that say which layer of a target is of which kind -> those of a body of one MTP layer, whose embedding is
dropped once it is made."""


@dataclass(frozen=True)
class GeneralMtpConfig:
    """What an MTP layer does, and what it does not share with its target."""

    layout: MtpLayout
    own_head: bool = False
    own_embedding: bool = False


class _Stack(nn.Module):
    """A body of one layer, where a `Network` expects a language model."""

    def __init__(self, target: GeneralTarget) -> None:
        super().__init__()
        decoder, self.config = target.network.decoder, copy.deepcopy(target.config)
        for name, value in _OF_LAYERS.items():
            if getattr(self.config, name, None) is not None:
                setattr(self.config, name, value)
        self.config._attn_implementation = OWN_IMPLEMENTATION
        self.model = type(decoder)(self.config)
        # read through the head, which may share its target's
        self.model.embed_tokens = None
        # a copy: the target's may be held to its original length
        self.model.rotary_emb = copy.deepcopy(decoder.rotary_emb)
        self._embedding = [target.causal_lm.get_input_embeddings()]

    def get_input_embeddings(self) -> Any:
        return self._embedding[0]


class GeneralMtpHead(Head):
    """An MTP layer as a draft head."""

    config: GeneralMtpConfig
    target: GeneralTarget

    def __init__(self, config: GeneralMtpConfig, target: GeneralTarget) -> None:
        """Its parameters are made in the target's type and on its device, those of norms as its class begins with."""
        if target.split is not None:
            raise ValueError(
                "backend.tensor_parallel: expected 1 with drafter=mtp whose layer is transformers' own, found "
                f"{target.split.num_ranks}"
            )
        with made_on(target.device, target.dtype):
            stack = _Stack(target)
        super().__init__(stack.config, target)
        self.config, self.stack = config, stack
        norm, hidden_size = stack.model.norm, stack.config.hidden_size
        with made_on(target.device, target.dtype):
            self.enorm, self.hnorm = (type(norm)(hidden_size, eps=stack.config.rms_norm_eps) for _ in range(2))
            self.eh_proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)
            if config.own_head:
                self.head = nn.Linear(hidden_size, target.vocab_size, bias=False)
            if config.own_embedding:
                self.embed_tokens = nn.Embedding(target.vocab_size, hidden_size)
        for buffer in (item for name, item in stack.named_buffers() if name in stack.state_dict()):
            # a router's bias, as transformers keeps it
            buffer.data = buffer.data.float()
        self.network = Network(stack)
        if config.layout.reads_unnormed:
            self.aux_layers = (target.num_layers,)

    @property
    def decoder_layers(self) -> Sequence[Any]:
        return list(self.network.layers)

    @property
    def features_are_hidden(self) -> bool:
        return True

    @property
    def has_own_output(self) -> bool:
        return self.config.own_head

    @property
    def output_matrix(self) -> Tensor:
        return self.head.weight if self.config.own_head else self.target.output_matrix

    @property
    def fallbacks(self) -> tuple[str, ...]:
        return () if self.network.experts_note is None else (self.network.experts_note,)

    @property
    def cost(self) -> ModelCost:
        named, weights = tuple(self.named_parameters()), (self.embed_weight, self.output_matrix)
        itemsize = self.target.dtype.itemsize
        return GeneralCost(named, *weights, self.layer_config, 1, itemsize, cache=self.new_cache(1, 1))

    def fuse(self) -> str | None:
        self.fusion_obstacle = "its layer is transformers' own (target.layers)"
        return self.fusion_obstacle

    def new_cache(self, num_slots: int, capacity: int) -> Any:
        """An empty `GeneralCache` for the layer."""
        cache = GeneralCache(1, num_slots, capacity, self.target.dtype, self.target.device)
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.target.device)
        states = torch.zeros(1, 1, self.hidden_size, dtype=self.target.dtype, device=self.target.device)
        # makes all its tensors
        self.network.run_states(states, zero, cache.view(slice(0, 1), zero, 1))
        return cache

    def features(self, output: TargetOutput) -> Tensor:
        return output.aux[0] if self.config.layout.reads_unnormed else output.hidden

    def forward(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None, wanted: Tensor | None = None
    ) -> HeadOutput:
        assert view is None or isinstance(view, GeneralView), "views are of the head's own caches"
        assert wanted is None, "such layers run all pairs"
        layout, embedded = self.config.layout, self.embed(token_ids)
        if layout.masks_first:
            embedded = embedded.masked_fill(positions[..., None] == 0, 0)
        parts = self.enorm(embedded), self.hnorm(features)
        joined = torch.cat(parts[::-1] if layout.hidden_first else parts, dim=-1)
        hidden = self.network.run_states(self.eh_proj(joined), positions, view)
        return HeadOutput(hidden, hidden)


def load_general_mtp(folder: Path, target: GeneralTarget, *, accepted: Accepted = OF_DRAFTER) -> GeneralMtpHead:
    """Load the frozen MTP layer of a target whose layers are transformers'.

    folder: normally the target's own. Of several layers the first is run, which `assumptions` tell.
    Raises CheckpointError where its type has no MTP layers that run here, or its tensors are missing, misshapen,
    rounded or unknown.
    """
    source = folder / CONFIG
    fields = read_fields(source)
    others = None if folder == target.path or target.path is None else read_fields(target.path / CONFIG)
    with Checkpoint(folder) as checkpoint:
        settled = mtp_account(folder, fields, accepted, checkpoint.names, target=others).settled()
        layout = general_mtp(folder, fields)
        assumed: tuple[str, ...] = ()
        stored, prefix = layout.stored(target.num_layers), layout.first(target.num_layers)
        shared = {part: f"{stored[part]}weight" for part in (OWN_HEAD, OWN_EMBEDDING) if part in stored}
        if others is not None:
            num_rows = fields.get("vocab_size", target.vocab_size)
            assumed = check_head_vocabulary(num_rows, folder, target, source)
        for name in shared.values():
            if name in checkpoint and checkpoint.shape_of(name)[0] > target.vocab_size:
                checkpoint.read_rows(name, StoredRows.of_ids(checkpoint.shape_of(name)[0], target.vocab_size))
        owned = {part: name in checkpoint for part, name in shared.items()}
        config = GeneralMtpConfig(layout, owned.get(OWN_HEAD, False), owned.get(OWN_EMBEDDING, False))
        with no_init_weights():
            head = GeneralMtpHead(config, target)
        head.fill(checkpoint, stored)
        unused = [name for name in checkpoint.unused(prefix) if not is_of_further_layer(name, prefix)]
    left = [name for name in unused if not any(means(pattern, name) for pattern in accepted.names)]
    if left:
        raise CheckpointError(
            f"{folder}: expected tensors of one layer of {type(target.causal_lm).__name__} behind {prefix}, found "
            f"{len(left)} that it does not have: {first_names(left)}; choose another drafter or, if you know that "
            f"nothing here depends on them, {accepted.given(f'{left[0]},...')}"
        )
    if unused:
        assumed += (f"{first_names(unused)}: left out, because {accepted.setting} vouches for it",)
    head.path, head.assumptions = folder, (*settled.assumptions, *assumed)
    return head.eval().requires_grad_(False)


def random_general_mtp(target: GeneralTarget) -> GeneralMtpHead:
    """The MTP layer that the configuration of a target announces, with random weights; norms begin as their class does.

    It has an output matrix of its own where public checkpoints store one, unless the target's is its embedding.
    Raises ValueError when its type has no MTP layers that run here, or it announces none.
    """
    fields = target.config.to_dict()
    layout = announced_layout(f"target {target.name}", fields)
    own_head = OWN_HEAD in layout.names and not target.config.tie_word_embeddings
    head = GeneralMtpHead(GeneralMtpConfig(layout, own_head), target)
    weights = RandomWeights(SEED, 1, device=target.device, dtype=target.dtype)
    for name, tensor in head.state_dict().items():
        if tensor.ndim >= 2 or is_bias(name):
            weights.put(name, tensor)
    identity = {"kind": type(head).__name__, "layout": layout.prefix, "own_head": own_head}
    head.random_fingerprint = random_fingerprint(SEED, identity)
    return head.eval().requires_grad_(False)
