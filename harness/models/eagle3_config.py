"""What config.json of an EAGLE-3 head says, in the original layout and in that of speculators."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from harness.models.decoder_layer import head_layer_config, layer_config, layer_fields, warn_of_unknown
from harness.models.target import TargetModel

READ_FIELDS = {
    "transformer_layer_config",
    "speculators_config",
    "speculators_model_type",
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
}
UNREAD_FIELDS = {
    "architectures",
    "auto_map",
    "dtype",
    "embed_requires_grad",
    "has_no_defaults_at_init",
    "model_type",
    "speculators_version",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
}
"""Fields of the speculators layout that do not change what the head computes."""
NESTED_FIELDS = {"eagle_aux_hidden_state_layer_ids", "norm_before_fc", "use_aux_hidden_state"}
"""Fields that some files of the original layout keep in `eagle_config`."""


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """The layers of a target whose entering states are taken when a file does not say."""
    return (2, num_layers // 2, num_layers - 3)


@dataclass(frozen=True)
class Eagle3Config:
    """What config.json of an EAGLE-3 head says."""

    layer: PreTrainedConfig
    """The layer's own sizes, heads and RoPE."""
    draft_vocab_size: int
    """Tokens the head can propose."""
    aux_layers: tuple[int, ...]
    """Layers of the target whose entering states make the features."""
    target_hidden_size: int
    """Width of those states."""
    norm_before_residual: bool = False
    """Whether the residual starts from the normalized features."""
    norm_before_fc: bool = False
    """One norm over the joined states before fc (`input_norm`)."""
    fc_norm: bool = False
    """One norm for each state before fc (`fc_norm.i`)."""
    norm_output: bool = False
    """Whether the next step's features are taken after the final norm."""
    verifier: str | None = None
    """Name of the target in the file."""

    def __post_init__(self) -> None:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("EAGLE-3 config: expected norm_before_fc or fc_norm, found both")

    @classmethod
    def for_target(
        cls, target: TargetModel, draft_vocab_size: int, *, aux_layers: tuple[int, ...] | None = None, **changes: Any
    ) -> Eagle3Config:
        """A head whose layer is like the target's; `changes` are fields of this class or of the layer."""
        own = {name: changes.pop(name) for name in tuple(changes) if name in cls.__dataclass_fields__}
        return cls(
            head_layer_config(target.config, **changes),
            draft_vocab_size,
            aux_layers or default_aux_layers(target.num_layers),
            target.hidden_size,
            verifier=target.name,
            **own,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any], target: TargetModel, source: object = "config.json") -> Eagle3Config:
        """Read either layout; what the file leaves out is filled from the target, audibly where readers disagree."""
        layer = layer_config(data.get("transformer_layer_config") or original_layer_fields(data), source)
        nested = data.get("eagle_config") or {}
        stated = data.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
        if "transformer_layer_config" in data and "norm_before_residual" not in data:
            warnings.warn(
                f"{source}: norm_before_residual is absent; false is taken, as speculators does (vLLM takes true). "
                f"If acceptance is poor, state it in the file",
                stacklevel=2,
            )
        if nested.get("use_aux_hidden_state") is False:
            raise ValueError(f"{source}: expected a head fed with auxiliary states, found use_aux_hidden_state false")
        if "transformer_layer_config" in data:
            warn_of_unknown(data, READ_FIELDS | UNREAD_FIELDS, source)
        warn_of_unknown(nested, NESTED_FIELDS, f"{source}, eagle_config")
        verifier = (data.get("speculators_config") or {}).get("verifier") or {}
        return cls(
            layer,
            data.get("draft_vocab_size") or layer.vocab_size,
            tuple(stated) if stated else default_aux_layers(target.num_layers),
            data.get("target_hidden_size") or layer.hidden_size,
            bool(data.get("norm_before_residual", False)),
            bool(data.get("norm_before_fc", nested.get("norm_before_fc", False))),
            bool(data.get("fc_norm", False)),
            bool(data.get("norm_output", False)),
            verifier.get("name_or_path"),
        )

    def check_target(self, target: TargetModel) -> None:
        """Raise ValueError when the auxiliary states cannot come from this target."""
        ids, num_layers = self.aux_layers, target.num_layers
        if len(set(ids)) != len(ids) or not all(0 <= index <= num_layers for index in ids):
            raise ValueError(
                f"EAGLE-3 head: expected different auxiliary layers between 0 and {num_layers}, the layers of target "
                f"{target.name}, found {list(ids)}"
            )
        if self.target_hidden_size != target.hidden_size:
            raise ValueError(
                f"EAGLE-3 head: expected target_hidden_size {target.hidden_size}, that of target {target.name}, "
                f"found {self.target_hidden_size}; the head was made for another target"
            )

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json in the speculators layout."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.verifier, "architectures": []},
            },
            "transformer_layer_config": layer_fields(self.layer),
            "draft_vocab_size": self.draft_vocab_size,
            "eagle_aux_hidden_state_layer_ids": list(self.aux_layers),
            "target_hidden_size": self.target_hidden_size,
            "norm_before_residual": self.norm_before_residual,
            "norm_before_fc": self.norm_before_fc,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
        }


def original_layer_fields(data: dict[str, Any]) -> dict[str, Any]:
    """The layer's fields of a config.json in the original layout, where they stand among the head's own."""
    own = {*Eagle3Config.__dataclass_fields__, "eagle_aux_hidden_state_layer_ids", "eagle_config"}
    return {key: value for key, value in data.items() if key not in own}
