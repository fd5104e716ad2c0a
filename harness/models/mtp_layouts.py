"""How public checkpoints name the tensors of MTP layers, and what the code that reads them computes, by model type.

Of types whose layers are transformers' (harness.models.general.mtp). A layer is one decoder layer of its family behind
a projection of two normed inputs, the embedding of the next token and a state of the target, and before a norm:

    hidden_t = norm(layer(eh_proj([enorm(embed(x_{t+1})); hnorm(features_t)])))      logits = head(hidden_t)

hidden_t is the next step's features too. Importable without torch.

Sources: vLLM's deepseek_mtp, qwen3_next_mtp, qwen3_5_mtp and mimo_mtp; SGLang's deepseek_nextn, qwen3_next_mtp and
mimo_mtp; XiaomiMiMo/vllm; transformers.modeling_layers.MtpModel.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.models.checkpoint import CheckpointError
from harness.models.described import CONFIG
from harness.models.known_fields import Fields

OWN_HEAD, OWN_EMBEDDING = "head.", "embed_tokens."
"""Parts that a layer shares with its target where its file has none."""


@dataclass(frozen=True)
class MtpLayout:
    """The MTP layers of some families."""

    prefix: str
    """Of the first one's tensors; {layers} is the number of the target's own layers."""
    names: Mapping[str, str]
    """Part of a GeneralMtpHead -> what its tensors are called behind `prefix`."""
    counted_by: tuple[str, ...]
    """Fields that state how many there are."""
    stated: bool = True
    """Whether one of them has to be there; else a file without them has one."""
    hidden_first: bool = False
    """Whether the state comes before the embedding in what is projected."""
    masks_first: bool = False
    """Whether the embedding at position 0 is taken as 0."""
    reads_unnormed: bool = False
    """Whether the first step reads the target's states before its final norm, not after it."""
    told: str | None = None
    """Where readers of such files disagree and no file says, and what is taken."""

    def first(self, num_layers: int) -> str:
        """The prefix of the first one's tensors, for a target of so many layers."""
        return self.prefix.format(layers=num_layers)

    def count(self, fields: Fields) -> int:
        """How many layers a config.json announces."""
        stated = [fields[name] for name in self.counted_by if fields.get(name) is not None]
        found = stated[0] if stated else int(not self.stated)
        return found if type(found) is int else 0

    def stored(self, num_layers: int) -> dict[str, str]:
        """Prefix of the names in a GeneralMtpHead -> prefix in the checkpoint of a target of so many layers."""
        return {part: self.first(num_layers) + name for part, name in self.names.items()}


_LAYER = "stack.model.layers.0."
_NORM = "stack.model.norm."
_DEEPSEEK = MtpLayout(
    prefix="model.layers.{layers}.",
    names={
        **{part: part for part in ("enorm.", "hnorm.", "eh_proj.", OWN_EMBEDDING)},
        **{OWN_HEAD: "shared_head.head.", _NORM: "shared_head.norm.", _LAYER: ""},
    },
    counted_by=("num_nextn_predict_layers",),
    masks_first=True,
    told=(
        "no file states whether the next step reads states before or after shared_head.norm, and after it is "
        "taken, as transformers and SGLang do, while vLLM reads them before"
    ),
)
_QWEN = MtpLayout(
    prefix="mtp.",
    names={
        **{"enorm.": "pre_fc_norm_embedding.", "hnorm.": "pre_fc_norm_hidden.", "eh_proj.": "fc."},
        **{_NORM: "norm.", _LAYER: "layers.0.", OWN_EMBEDDING: OWN_EMBEDDING},
    },
    counted_by=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    stated=False,
)
_MIMO = MtpLayout(
    prefix="model.mtp_layers.0.",
    names={
        **{"enorm.": "token_layernorm.", "hnorm.": "hidden_layernorm.", "eh_proj.": "input_proj."},
        **{_NORM: "final_layernorm.", _LAYER: ""},
    },
    counted_by=("num_nextn_predict_layers",),
    hidden_first=True,
    masks_first=True,
    reads_unnormed=True,
    told=(
        "no file states whether the layer reads the target's states before or after its final norm, and before it is "
        "taken, as vLLM and the authors' copy of it do, while SGLang reads them after"
    ),
)

MTP_LAYOUTS: Mapping[str, MtpLayout] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm4_moe"), _DEEPSEEK),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN),
    **dict.fromkeys(("mimo", "qwen2"), _MIMO),
}
"""Model type of a text model -> its layout. MiMo is a qwen2 but for its MTP layers."""


def text_fields(fields: Fields) -> Fields:
    """The fields of the language model of a config.json."""
    nested = fields.get("text_config")
    return nested if isinstance(nested, Mapping) else fields


def mtp_layout(fields: Fields) -> MtpLayout | None:
    """The layout of a config.json's model type; None for one whose MTP layers do not run here."""
    outer, inner = fields.get("model_type"), text_fields(fields).get("model_type")
    return MTP_LAYOUTS.get(str(inner or f"{outer}_text")) or MTP_LAYOUTS.get(str(outer))


def announced_layout(source: object, fields: Fields) -> MtpLayout:
    """The layout of the MTP layers that a configuration announces; `source` names it in errors.

    Raises CheckpointError where its type has none that run here, or it announces none.
    """
    layout = mtp_layout(fields)
    if layout is None:
        raise CheckpointError(
            f"{source}: expected a model_type whose MTP layers run here (llama, qwen3, glm4_moe_lite, "
            f"{', '.join(sorted(MTP_LAYOUTS))}), found {fields.get('model_type')!r}; choose another drafter"
        )
    count = layout.count(text_fields(fields))
    if count < 1:
        raise CheckpointError(
            f"{source}: expected a target with an MTP layer ({layout.counted_by[0]} 1 or more), found {count}; choose "
            "another drafter"
        )
    return layout


def general_mtp(folder: Path, fields: Fields, names: Collection[str] | None = None) -> MtpLayout:
    """The layout of the MTP layer in the folder of a target whose layers are transformers'.

    names: of its tensors; None where they are not read.
    Raises CheckpointError as `announced_layout` does, and where the tensors are not there.
    """
    source, text = folder / CONFIG, text_fields(fields)
    layout = announced_layout(source, fields)
    prefix = layout.first(text.get("num_hidden_layers", 0))
    if names is not None and not any(name.startswith(prefix) for name in names):
        raise CheckpointError(
            f"{folder}: expected the tensors {prefix}* of its MTP layer, found none; the MTP layer was left out of "
            "this copy of the checkpoint"
        )
    if text.get("mtp_use_dedicated_embeddings") and names is not None and f"{prefix}embed_tokens.weight" not in names:
        raise CheckpointError(
            f"{folder}: expected {prefix}embed_tokens.weight, which mtp_use_dedicated_embeddings in {source} "
            "announces, found none; take the whole checkpoint"
        )
    return layout


def is_mtp_tensor(name: str, fields: Fields) -> bool:
    """Whether a tensor is of MTP layers apart from the numbered ones, which the code of a target leaves out."""
    layout = mtp_layout(fields)
    if layout is None or not layout.count(text_fields(fields)):
        return False
    return "{" not in layout.prefix and name.startswith(layout.prefix.removesuffix("0."))


def is_of_further_layer(name: str, prefix: str) -> bool:
    """Whether a tensor is of another MTP layer than the first, of those whose names begin with one prefix."""
    return re.match(rf"{re.escape(prefix)}layers\.[1-9]", name) is not None
