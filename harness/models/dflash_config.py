"""What config.json of a DFlash head says, in the original layout and in that of speculators; base of its like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from transformers import PreTrainedConfig

from harness.config.models import AS_FILED, Anchor, HeadChoices
from harness.models.assumptions import assumed_of_head
from harness.models.aux_layer_ids import DEEPSPEC, aux_layers_of, checked_layers
from harness.models.checkpoint import named
from harness.models.decoder_layer import head_layer_config, layer_config, layer_fields, resized
from harness.models.dflash_anchor import NAMES as ANCHOR_NAMES
from harness.models.dflash_anchor import anchor_of
from harness.models.eagle3_config import check_kind, stated_draft_vocab_size, stated_verifier
from harness.models.head_fits import NAMES, check_block_size, check_mask_token, check_num_target_layers, stated_block
from harness.models.target import TargetModel

LAYER_TYPE = "qwen3"
"""Model type of its layers, whatever a file says of their sizes: all have norms of queries and keys."""
ORIGINAL = "dflash_config"
SPECULATORS = "transformer_layer_config"
"""Field that the layout of speculators alone has."""


@dataclass(frozen=True)
class DFlashConfig:
    """What config.json of a DFlash head says."""

    layer: PreTrainedConfig
    """Sizes, heads, RoPE and number of its layers."""
    draft_vocab_size: int
    """Tokens the head can propose."""
    aux_layers: tuple[int, ...]
    """Layers of the target whose entering states make the context."""
    block_size: int
    """Places of the blocks that it was trained on, the first of which holds the last known token."""
    mask_token_id: int
    """Token of the target's vocabulary whose embedding stands for tokens that are not known yet."""
    verifier: str | None = None
    """Name of the target in the file."""
    anchor: Anchor = Anchor.mask
    """What the first place of a block predicts (harness.models.dflash_anchor)."""
    assumptions: tuple[str, ...] = ()
    """What the file does not say and was taken."""
    kind: ClassVar[str] = "dflash"
    """Its name in the layout of speculators, and as a drafter."""

    @classmethod
    def for_target(
        cls,
        target: TargetModel,
        *,
        aux_layers: tuple[int, ...],
        block_size: int,
        mask_token_id: int,
        draft_vocab_size: int | None = None,
        own: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Self:
        """A head whose layers have the target's widths; `own` are fields of a kind, `changes` those of the layers.

        Raises ValueError for a target whose layers such heads are not made of.
        """
        fields = layer_fields(head_layer_config(target.config)) | changes
        layer, size = _qwen3(fields, f"target {target.name}"), draft_vocab_size or target.vocab_size
        return cls(layer, size, aux_layers, block_size, mask_token_id, verifier=target.name, **(own or {}))

    @classmethod
    def from_dict(
        cls,
        data: dict[str, Any],
        target: TargetModel,
        source: object = "config.json",
        choices: HeadChoices = AS_FILED,
    ) -> Self:
        """Read either layout.

        Args:
            choices: what counts in place of what the file says.

        Raises:
            ValueError: a field that is needed is missing, or the head computes what this version does not.
        """
        check_kind(data, cls.kind, source)
        with named(source):
            check_num_target_layers(data, target)
            blocks = stated_block(cls.kind, data)._asdict() | cls.own_fields(data)
        blocks |= cls._chosen(data, target, source, choices)
        if SPECULATORS not in data:
            others = {ORIGINAL, "num_target_layers", DEEPSPEC, *ANCHOR_NAMES, *cls.__dataclass_fields__}
            layer = _qwen3(cls.of_layer({key: value for key, value in data.items() if key not in others}), source)
            with named(source):
                return cls(layer, layer.vocab_size, **blocks)
        layer = _qwen3(cls.of_layer(data[SPECULATORS]), source)
        width = data.get("target_hidden_size") or layer.hidden_size
        if width != layer.hidden_size:
            raise ValueError(f"{source}: expected target_hidden_size {layer.hidden_size}, its own, found {width!r}")
        size, verifier = stated_draft_vocab_size(data, layer, source), stated_verifier(data, source)
        with named(source):
            return cls(layer, size, verifier=verifier, **blocks)

    @classmethod
    def own_fields(cls, data: dict[str, Any]) -> dict[str, Any]:
        """What a kind has beside the fields of a DFlash head. Raises ValueError where a file does not say."""
        return {}

    @classmethod
    def of_layer(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a file's layers that their class is made with."""
        return fields

    @classmethod
    def _chosen(cls, data: dict[str, Any], target: TargetModel, source: object, choices: HeadChoices) -> dict[str, Any]:
        """The fields that the user may give, and what is assumed of them."""
        with named(source):
            layers = aux_layers_of(cls.kind, data, target.num_layers, choices.aux_layers or None).layers
            anchor = anchor_of(data, choices.anchor, cls.kind).anchor
            assumed = assumed_of_head(cls.kind, data, target.num_layers, target.weights_label, choices)
        return {"aux_layers": layers, "anchor": anchor, "assumptions": assumed}

    def of_vocabulary(self, num_rows: int, draft_vocab_size: int) -> Self:
        """The same for a vocabulary of so many rows, padding left out or added."""
        return replace(self, layer=resized(self.layer, num_rows), draft_vocab_size=draft_vocab_size)

    def check_target(self, target: TargetModel) -> None:
        """Raise ValueError when the context, the mask or the embedding cannot come from this target."""
        checked_layers(self.kind, self.aux_layers, target.num_layers)
        if self.layer.hidden_size != target.hidden_size:
            raise ValueError(
                f"{NAMES[self.kind]} head: expected hidden_size {target.hidden_size}, that of target {target.name}, "
                f"found {self.layer.hidden_size}; the head was made for another target"
            )
        check_mask_token(self.kind, self.mask_token_id, target)
        check_block_size(self.kind, self.block_size)

    @property
    def most_drafts(self) -> int:
        """Draft tokens of a block."""
        return self.block_size if self.anchor is Anchor.first else self.block_size - 1

    def num_places(self, num_drafts: int) -> int:
        """Places that give so many draft tokens."""
        return num_drafts if self.anchor is Anchor.first else num_drafts + 1

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json in the layout of speculators."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": self.most_drafts}
        return {
            "architectures": [f"{NAMES[self.kind]}Speculator"],
            "speculators_model_type": self.kind,
            "speculators_config": {
                "algorithm": self.kind,
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.verifier, "architectures": []},
            },
            "transformer_layer_config": layer_fields(self.layer),
            "draft_vocab_size": self.draft_vocab_size,
            "aux_hidden_state_layer_ids": list(self.aux_layers),
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "sample_from_anchor": self.anchor is Anchor.first,
        }


def _qwen3(fields: dict[str, Any], source: object) -> PreTrainedConfig:
    """The layers of a file's sizes; the file may give them as those of a Llama."""
    config = layer_config(fields, source, is_stack=True)
    if config.model_type == LAYER_TYPE:
        return config
    same = {key: value for key, value in layer_fields(config).items() if key not in ("model_type", "mlp_bias")}
    return layer_config(same | {"model_type": LAYER_TYPE}, source, is_stack=True)
