"""The tensors of a model's files, by name: which of them a loader reads, and which are known to be harmless.

Names alone, so that it is known before a weight is read; what a loader has left over in the end is refused too.
Importable without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from harness.models.known_fields import NOT_QUANTIZED, Fields, Unread
from harness.models.known_head_fields import remedy_of
from harness.models.model_types import DENSE_TYPES
from harness.models.tensor_shapes import head_shapes, model_shapes, mtp_shapes, wrong_size


class Tensors(NamedTuple):
    """Those of a model's files that its loader does not read."""

    unread: tuple[Unread, ...]
    """Of which nothing says that they are harmless."""
    harmless: frozenset[str]


class _Pattern(NamedTuple):
    names: str
    """Regular expression of whole names."""
    note: str


HARMLESS: Mapping[str, tuple[_Pattern, ...]] = {
    "any": (_Pattern(r"(.+\.)?rotary_emb\.inv_freq", "computed from config.json"),),
    "speculators": (_Pattern(r"verifier_(norm|lm_head)\..+", "the target's own, for training"),),
    "eagle": (_Pattern(r"lm_head\.weight", "the target's: the loader compares it"),),
    "tied": (_Pattern(r"lm_head\.weight", "the embedding, with which it is tied: the loader compares it"),),
}
"""Tensors that nothing has to read, with the reason: of any file, of heads, of EAGLE heads, of models whose output is
tied to their embedding. So are MTP layers, which drafter=mtp reads, in the files of a target."""

OTHER_LAYOUTS = ("consolidated*.safetensors",)
"""Files beside the weights that hold the same weights in another layout, that of Mistral's own programs."""
_QUANTIZED = re.compile(
    r".+\.(weight_scale(_inv|_2)?|(input|weight|k|v|q|output)_scale|weight_(packed|shape|zero_point|g_idx|format)"
    r"|qweight|qzeros|scales|g_idx|SCB|weight\.(absmax|quant_map|nested_.+|quant_state.+))"
)
_OTHER_KINDS = {
    "DSpark": re.compile(r"(.+\.)?(markov_head|confidence_head|markov_w[12])(\..+)?"),
    "DFlash2": re.compile(r"(.+\.)?(candidate_selector|attention_conv|mlp_conv)\..+"),
    "Domino": re.compile(r"(prefix_gru|embed_proj)\..+"),
    "Medusa": re.compile(r"(medusa_head\..+|\d+\.\d+\.linear\..+)"),
}
_ADAPTER = re.compile(r".+\.lora_([AB]|embedding_[AB])(\..+)?")

_LATENT = (
    "q_proj",
    "q_a_proj",
    "q_a_layernorm",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_a_layernorm",
    "kv_b_proj",
    "o_proj",
)
_OF_GLM = re.compile(
    rf"self_attn\.({'|'.join(_LATENT)})\.(weight|bias)|(input|post_attention)_layernorm\.weight|mlp\.gate\.weight"
    r"|mlp\.gate\.e_score_correction_bias|mlp\.((experts\.\d+|shared_experts)\.)?(gate|up|down)_proj\.weight"
)
"""What a layer of GLM has, with experts or without; the loader knows which."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MTP = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight")
_MTP_OR_SHARED = ("shared_head.head.weight", "embed_tokens.weight")
_HEAD_OR_SHARED = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")


def model_tensors(names: Collection[str], fields: Fields) -> Tensors:
    """Of a target or draft model with these fields in its config.json."""
    count, is_tied = _count(fields, "num_hidden_layers"), bool(fields.get("tie_word_embeddings"))

    def in_layer(name: str) -> tuple[int, str]:
        match = _LAYER.fullmatch(name)
        return (-1, name) if match is None else (int(match[1]), match[2])

    def is_read_of_glm(name: str) -> bool:
        index, place = in_layer(name)
        if index < 0:
            return name in ("model.embed_tokens.weight", "model.norm.weight") or (
                name == "lm_head.weight" and not is_tied
            )
        return index < count and _OF_GLM.fullmatch(place) is not None

    def is_of_mtp(name: str) -> bool:
        index, _ = in_layer(name)
        # of one that is announced too: a file may count its layers wrong
        return index >= count and f"model.layers.{index}.enorm.weight" in names

    is_read = _is_among(model_shapes, fields) if fields.get("model_type") in DENSE_TYPES else is_read_of_glm
    return _sorted_out(names, is_read, ("any", "tied") if is_tied else ("any",), is_of_mtp)


def mtp_tensors(names: Collection[str], index: int, fields: Fields) -> Tensors:
    """Of the MTP layer of a number, with the fields of its target."""
    prefix, is_dense = f"model.layers.{index}.", fields.get("model_type") in DENSE_TYPES
    own, is_read_of_dense = [name for name in names if name.startswith(prefix)], _is_among(mtp_shapes, fields)

    def is_read(name: str) -> bool:
        place = name.removeprefix(prefix)
        if place in _MTP_OR_SHARED:
            return True
        return is_read_of_dense(name) if is_dense else place in _MTP or _OF_GLM.fullmatch(place) is not None

    return _sorted_out(own, is_read, ("any",))


_MOST_JOINED = 99
"""States that a head may join, each with a norm; how many it does is known with its target."""


def head_tensors(kind: str, names: Collection[str], fields: Fields) -> Tensors:
    """Of a draft head of a kind with these fields in its config.json."""
    if kind == "medusa":
        # the loader knows what it leaves over
        return _sorted_out(names, lambda name: not _is_marked(name), ("any",))
    layer = fields.get("transformer_layer_config")
    layer = layer if isinstance(layer, Mapping) else fields
    shapes = {} if wrong_size(layer) else head_shapes(kind, fields, names, _MOST_JOINED)
    read = {*shapes, *(_HEAD_OR_SHARED if kind != "eagle" else _HEAD_OR_SHARED[:1])}
    if kind == "peagle":
        read.add("mask_hidden")
    kinds = ("any", "speculators", *([kind] if kind in HARMLESS else []))
    # where shapes do not follow from the file, the loader knows what it leaves over
    return _sorted_out(names, lambda name: not shapes or name in read, kinds, own_kind=kind)


def _is_among(shapes: Callable[[Fields], Collection[str]], fields: Fields) -> Callable[[str], bool]:
    """Whether a tensor is one of those that the sizes of a file ask for; true where these are not known."""
    found = () if wrong_size(fields) else shapes(fields)
    return lambda name: not found or name in found


def _sorted_out(
    names: Iterable[str],
    is_read: Callable[[str], bool],
    kinds: Collection[str],
    is_harmless: Callable[[str], bool] = lambda name: False,
    own_kind: str = "",
) -> Tensors:
    patterns = [re.compile(pattern.names) for kind in kinds for pattern in HARMLESS[kind]]
    left = [name for name in sorted(names) if not is_read(name)]
    harmless = {name for name in left if is_harmless(name) or any(pattern.fullmatch(name) for pattern in patterns)}
    return Tensors(tuple(_unread_tensor(name, own_kind) for name in left if name not in harmless), frozenset(harmless))


def _is_marked(name: str) -> bool:
    """Whether a name says that a tensor is none of plain weights of a model."""
    return any(pattern.fullmatch(name) for pattern in (_QUANTIZED, _ADAPTER))


def _unread_tensor(name: str, own_kind: str) -> Unread:
    """A tensor that nothing reads, with what it belongs to where that is known."""
    if _QUANTIZED.fullmatch(name):
        return Unread(name, f"tensor {name} of quantized weights, which this version does not run", NOT_QUANTIZED)
    for kind, pattern in _OTHER_KINDS.items():
        if kind.lower() != own_kind and pattern.fullmatch(name):
            return Unread(name, f"tensor {name} of a {kind} head", remedy_of(kind))
    if _ADAPTER.fullmatch(name):
        return Unread(name, f"tensor {name} of an adapter", "merge the adapter into the weights")
    return Unread(name)


def _count(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
