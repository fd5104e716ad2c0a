"""The EAGLE head: one decoder layer over the token's embedding joined with the target's last hidden state.

    features_t = target's hidden state of x_t, after its final norm
    hidden_t   = layer(fc([embed(x_{t+1}); features_t]))      the layer has no norm before its attention
    logits     = target's output matrix of hidden_t           and hidden_t is the next step's features

Source: Li et al., EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty (2024); the public checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, head_account
from harness.models.checkpoint import Checkpoint, checkpoint_folder, read_fields
from harness.models.decoder_layer import (
    View,
    head_layer_config,
    layer_config,
    layer_fields,
    layer_types,
    resized,
    with_slots,
)
from harness.models.direct_layer import only
from harness.models.head import Head, HeadOutput, stored_embedding
from harness.models.layer_forward import add_feed_forward, attend, join_embedded, project
from harness.models.meta import on_meta
from harness.models.target import OUTPUT, TargetModel, check_copy
from harness.models.token_ids import missing_ids
from harness.models.vocabulary import check_head_vocabulary
from harness.models.zoo import zoo_path


@dataclass(frozen=True)
class EagleConfig:
    """What config.json of an EAGLE head says."""

    layer: PreTrainedConfig
    """The layer's own sizes, heads and RoPE."""
    bias: bool = True
    """Whether fc has a bias; a file that does not say has one."""

    @classmethod
    def for_target(cls, target: TargetModel, *, bias: bool = False, **layer_changes: Any) -> EagleConfig:
        """A head whose layer is like the target's, but for the fields given."""
        return cls(head_layer_config(target.config, **layer_changes), bias)

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: object = "config.json") -> EagleConfig:
        fields = {key: value for key, value in data.items() if key != "bias"}
        return cls(layer_config(fields, source), data.get("bias", True))

    def of_vocabulary(self, num_rows: int) -> EagleConfig:
        """The same for a vocabulary of so many rows, padding left out or added."""
        return replace(self, layer=resized(self.layer, num_rows))

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json."""
        architecture = layer_types(self.layer, "EAGLE config").causal_lm.__name__
        return {"architectures": [architecture], "bias": self.bias} | layer_fields(self.layer)


class EagleHead(Head):
    """An EAGLE head. `own_embedding`: whether it has an embedding of its own (it normally shares the target's)."""

    def __init__(self, config: EagleConfig, target: TargetModel, *, own_embedding: bool = False) -> None:
        super().__init__(config.layer, target)
        self.config = config
        hidden_size = config.layer.hidden_size
        if hidden_size != target.hidden_size:
            raise ValueError(
                f"EAGLE head: expected hidden_size {target.hidden_size}, that of target {target.name}, "
                f"found {hidden_size}; its output goes through the target's output matrix"
            )
        types = layer_types(config.layer, "EAGLE head")
        self.fc = nn.Linear(2 * hidden_size, hidden_size, bias=config.bias)
        self.layers = nn.ModuleList([types.layer(with_slots(config.layer), 0)])
        del self.layers[0].input_layernorm
        if own_embedding:
            self.embed_tokens = nn.Embedding(target.vocab_size, hidden_size)
        self.to(device=target.device, dtype=target.dtype)
        self.rotary = types.rotary(config.layer).to(target.device)

    @property
    def features_are_hidden(self) -> bool:
        return True

    def forward(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None, wanted: Tensor | None = None
    ) -> HeadOutput:
        layer: Any = self.layers[0]
        joined, _ = join_embedded(token_ids, self.embed_weight, features, view)
        states = project(self.fc, joined, view)
        attended = attend(layer, self.rotary, states, positions, view, wanted)
        states = add_feed_forward(layer, attended, only(states, wanted), view)
        return HeadOutput(states, states)


def load_eagle(
    path: str | Path | None,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
) -> EagleHead:
    """Load a frozen EAGLE head for a target; path None is the built-in one. Raises ValueError as load_target does."""
    folder = zoo_path("eagle") if path is None else checkpoint_folder(path, revision)
    source = folder / CONFIG
    fields = read_fields(source)
    with Checkpoint(folder) as checkpoint:
        account = head_account("eagle", folder, fields, accepted, checkpoint.names)
        config = EagleConfig.from_dict(account.fields, source)
        settled, num_rows = account.settled(), config.layer.vocab_size
        assumed = check_head_vocabulary(num_rows, folder, target, source)
        embedding = stored_embedding(checkpoint, "embed_tokens.weight", target, target.hidden_size, num_rows)
        with on_meta(target.device):
            head = EagleHead(config.of_vocabulary(target.vocab_size), target, own_embedding=embedding is not None)
        head.fill(checkpoint)
        what = f"that of target {target.name}, which the head is run with"
        check_copy(checkpoint, OUTPUT, target.output_matrix, what, num_rows)
        checkpoint.check_used(settled.left_alone)
    has_embedding = embedding is not None
    assumed = (*assumed, *missing_ids(num_rows, target.vocab_size, are_drafted=True, are_read=has_embedding))
    head.path, head.assumptions = folder, (*settled.assumptions, *head.assumptions, *assumed)
    return head.eval().requires_grad_(False)
