"""What config.json of an EAGLE-3 head says, in the original layout and in that of speculators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from transformers import PreTrainedConfig

from harness.config.models import AS_FILED, HeadChoices
from harness.models.assumptions import assumed_of_head
from harness.models.aux_layer_ids import DEEPSPEC, aux_layers_of, checked_layers, default_aux_layers
from harness.models.checkpoint import named
from harness.models.decoder_layer import head_layer_config, layer_config, layer_fields, resized
from harness.models.head_fits import check_width
from harness.models.rounded_weights import TRAINED_ON
from harness.models.target import TargetModel


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
    rounded_weights: str | None = None
    """Label of the target's weights that it was trained on, see TRAINED_ON; None where the file does not say."""
    assumptions: tuple[str, ...] = ()
    """What the file does not say and was taken."""
    kind: ClassVar[str] = "eagle3"
    """Its name in the speculators layout, and as a drafter."""

    def __post_init__(self) -> None:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("EAGLE-3 config: expected norm_before_fc or fc_norm, found both")

    @classmethod
    def for_target(
        cls, target: TargetModel, draft_vocab_size: int, *, aux_layers: tuple[int, ...] | None = None, **changes: Any
    ) -> Self:
        """A head whose layer is like the target's; `changes` are fields of this class or of the layer."""
        own = {name: changes.pop(name) for name in tuple(changes) if name in cls.__dataclass_fields__}
        return cls(
            head_layer_config(target.config, **changes),
            draft_vocab_size,
            aux_layers or default_aux_layers(target.num_layers),
            target.hidden_size,
            verifier=target.name,
            rounded_weights=target.weights_label,
            **own,
        )

    @classmethod
    def from_dict(
        cls,
        data: dict[str, Any],
        target: TargetModel,
        source: object = "config.json",
        choices: HeadChoices = AS_FILED,
    ) -> Self:
        """Read either layout; what the file leaves out is filled from the target.

        choices: what counts in place of what the file says.
        """
        check_kind(data, cls.kind, source)
        return cls(**eagle3_fields(cls.kind, data, target, source, choices))

    def of_vocabulary(self, num_rows: int, draft_vocab_size: int) -> Self:
        """The same for a vocabulary of so many rows, padding left out or added."""
        return replace(self, layer=resized(self.layer, num_rows), draft_vocab_size=draft_vocab_size)

    def check_target(self, target: TargetModel) -> None:
        """Raise ValueError when the auxiliary states cannot come from this target."""
        checked_layers(self.kind, self.aux_layers, target.num_layers)
        check_width(self.kind, self.target_hidden_size, target)

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json in the speculators layout."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
        trained_on = {} if self.rounded_weights is None else {TRAINED_ON: self.rounded_weights}
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": self.kind,
            "speculators_config": {
                "algorithm": self.kind,
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.verifier, "architectures": [], **trained_on},
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


def check_kind(data: dict[str, Any], kind: str, source: object) -> None:
    """Raise ValueError when a file of the speculators layout says that it is a head of another kind."""
    stated = data.get("speculators_model_type", kind)
    if stated != kind:
        raise ValueError(
            f"{source}: expected speculators_model_type {kind!r}, found {stated!r}; choose the drafter that runs it"
        )


def stated_draft_vocab_size(data: dict[str, Any], layer: PreTrainedConfig, source: object) -> int:
    """Tokens that a head can propose; all where its file says nothing. Raises ValueError for what is no count."""
    stated = data.get("draft_vocab_size")
    if stated is None:
        return int(layer.vocab_size)
    if type(stated) is not int or stated < 1:
        raise ValueError(f"{source}: expected draft_vocab_size as a whole number of 1 or more, found {stated!r}")
    return stated


def stated_verifier(data: dict[str, Any], source: object) -> str | None:
    """Name of the target in a file of the speculators layout; None without one. Raises ValueError for another form."""
    name_or_path = _stated_of_verifier(data, source).get("name_or_path")
    return None if name_or_path is None else str(name_or_path)


def _stated_of_verifier(data: dict[str, Any], source: object) -> dict[str, Any]:
    found: Any = data
    for name in ("speculators_config", "verifier"):
        found = found.get(name) or {}
        if not isinstance(found, dict):
            raise ValueError(f"{source}: expected {name} as an object, found {found!r}")
    return dict(found)


def eagle3_fields(
    kind: str,
    data: dict[str, Any],
    target: TargetModel,
    source: object,
    choices: HeadChoices = AS_FILED,
    *,
    is_stack: bool = False,
) -> dict[str, Any]:
    """The fields of an Eagle3Config from a config.json of either layout; see `layer_config` for is_stack."""
    layer = layer_config(data.get("transformer_layer_config") or original_layer_fields(data), source, is_stack=is_stack)
    nested = data.get("eagle_config") or {}
    with named(source):
        layers = aux_layers_of(kind, data, target.num_layers, choices.aux_layers or None).layers
        assumed = assumed_of_head(kind, data, target.num_layers, target.weights_label, choices)
    return {
        "layer": layer,
        "draft_vocab_size": stated_draft_vocab_size(data, layer, source),
        "aux_layers": layers,
        "assumptions": assumed,
        "target_hidden_size": data.get("target_hidden_size") or layer.hidden_size,
        "norm_before_residual": bool(data.get("norm_before_residual", False)),
        "norm_before_fc": bool(data.get("norm_before_fc", nested.get("norm_before_fc", False))),
        "fc_norm": bool(data.get("fc_norm", False)),
        "norm_output": bool(data.get("norm_output", False)),
        "verifier": stated_verifier(data, source),
        "rounded_weights": _stated_of_verifier(data, source).get(TRAINED_ON),
    }


def original_layer_fields(data: dict[str, Any]) -> dict[str, Any]:
    """The layer's fields of a config.json in the original layout, where they stand among the head's own."""
    own = {*Eagle3Config.__dataclass_fields__, "eagle_aux_hidden_state_layer_ids", "eagle_config", DEEPSPEC}
    return {key: value for key, value in data.items() if key not in own}
