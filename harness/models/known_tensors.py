"""The tensors of a model's files, by name: which of them a loader reads, and which are known to be harmless.

Names alone, so that it is known before a weight is read; what a loader has left over in the end is refused too.
Importable without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from harness.models.known_fields import NOT_QUANTIZED, Fields, Unread
from harness.models.known_head_fields import NOT_RUN


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

_DENSE = [f"self_attn.{name}_proj.weight" for name in "qkvo"]
_DENSE += [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
_DENSE += ["input_layernorm.weight", "post_attention_layernorm.weight"]
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
_EXPERT = re.compile(r"mlp\.(experts\.\d+|shared_experts)\.(gate|up|down)_proj\.weight")
_MTP = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight", "shared_head.head.weight")
_LAYER_OF_MODEL = re.compile(r"model\.layers\.(\d+)\.(.+)")
_LAYER_OF_HEAD = re.compile(r"(layers\.(\d+)|midlayer)\.(.+)")


def model_tensors(names: Collection[str], fields: Fields) -> Tensors:
    """Of a target or draft model with these fields in its config.json."""
    count, in_layer = _count(fields, "num_hidden_layers"), _names_in_layer(fields)
    kinds = ("any", "tied") if fields.get("tie_word_embeddings") else ("any",)
    outside = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} - (
        {"lm_head.weight"} if "tied" in kinds else set()
    )

    def of_layer(name: str) -> tuple[int, str]:
        match = _LAYER_OF_MODEL.fullmatch(name)
        return (-1, name) if match is None else (int(match[1]), match[2])

    def is_read(name: str) -> bool:
        index, place = of_layer(name)
        return name in outside if index < 0 else index < count and in_layer(place)

    def is_of_mtp(name: str) -> bool:
        index, _ = of_layer(name)
        # of one that is announced too: a file may count its layers wrong
        return index >= count and f"model.layers.{index}.enorm.weight" in names

    return _sorted_out(names, is_read, kinds, is_of_mtp)


def mtp_tensors(names: Collection[str], index: int, fields: Fields) -> Tensors:
    """Of the MTP layer of a number, with the fields of its target."""
    prefix, in_layer = f"model.layers.{index}.", _names_in_layer(fields)
    own = [name for name in names if name.startswith(prefix)]

    def is_read(name: str) -> bool:
        place = name.removeprefix(prefix)
        return place in (*_MTP, "embed_tokens.weight") or in_layer(place)

    return _sorted_out(own, is_read, ("any",))


def head_tensors(kind: str, names: Collection[str], fields: Fields) -> Tensors:
    """Of a draft head of a kind with these fields in its config.json."""
    layer = fields.get("transformer_layer_config")
    layer = layer if isinstance(layer, Mapping) else fields
    # its layers are those of Qwen3, whatever the file says of their sizes
    in_layer = _names_in_layer({**layer, "model_type": "qwen3"} if kind == "dflash" else layer)
    outside = _outside_layers(kind, fields)

    def is_read(name: str) -> bool:
        match = _LAYER_OF_HEAD.fullmatch(name)
        if match is None:
            return name in outside
        index, place = int(match[2] or 0), match[3]
        if index == 0 and kind == "eagle" and place == "input_layernorm.weight":
            return False
        own = index == 0 and kind in ("eagle3", "peagle") and place == "hidden_norm.weight"
        return own or (index < _count(layer, "num_hidden_layers") and in_layer(place))

    return _sorted_out(names, is_read, ("any", "speculators", "eagle") if kind == "eagle" else ("any", "speculators"))


def _outside_layers(kind: str, fields: Fields) -> set[str]:
    """What a head of a kind has beside its layers."""
    if kind == "eagle":
        return {"embed_tokens.weight", "fc.weight", *(["fc.bias"] if fields.get("bias", True) else [])}
    found = {"embed_tokens.weight", "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    if kind == "dflash":
        return found | {"hidden_norm.weight"}
    nested = fields.get("eagle_config")
    if fields.get("norm_before_fc", nested.get("norm_before_fc") if isinstance(nested, Mapping) else False):
        found.add("input_norm.weight")
    if fields.get("fc_norm"):
        # one for each auxiliary layer, as many as the file or the default names
        found |= {f"fc_norm.{index}.weight" for index in range(_MOST_AUX_LAYERS)}
    return found | {"mask_hidden"} if kind == "peagle" else found


_MOST_AUX_LAYERS = 99


def _names_in_layer(fields: Fields) -> Callable[[str], bool]:
    """Whether a layer of these fields has a tensor, by its name in the layer."""
    model_type = fields.get("model_type") or "llama"
    has_bias = bool(fields.get("attention_bias"))
    if model_type == "glm4_moe_lite":
        found = {
            f"self_attn.{name}.{end}" for name in _LATENT for end in (("weight", "bias") if has_bias else ("weight",))
        }
        found |= {"mlp.gate.weight", "mlp.gate.e_score_correction_bias", *_DENSE[4:]}
        return lambda name: name in found or _EXPERT.fullmatch(name) is not None
    found = {*_DENSE}
    if has_bias:
        found |= {f"self_attn.{name}_proj.bias" for name in "qkvo"}
    if model_type == "qwen3":
        found |= {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}
    elif fields.get("mlp_bias"):
        found |= {f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")}
    return lambda name: name in found


def _sorted_out(
    names: Iterable[str],
    is_read: Callable[[str], bool],
    kinds: Collection[str],
    is_harmless: Callable[[str], bool] = lambda name: False,
) -> Tensors:
    patterns = [re.compile(pattern.names) for kind in kinds for pattern in HARMLESS[kind]]
    left = [name for name in sorted(names) if not is_read(name)]
    harmless = {name for name in left if is_harmless(name) or any(pattern.fullmatch(name) for pattern in patterns)}
    return Tensors(tuple(_unread_tensor(name) for name in left if name not in harmless), frozenset(harmless))


def _unread_tensor(name: str) -> Unread:
    """A tensor that nothing reads, with what it belongs to where that is known."""
    if _QUANTIZED.fullmatch(name):
        return Unread(name, f"tensor {name} of quantized weights, which this version does not run", NOT_QUANTIZED)
    for kind, pattern in _OTHER_KINDS.items():
        if pattern.fullmatch(name):
            return Unread(name, f"tensor {name} of a {kind} head", NOT_RUN)
    if _ADAPTER.fullmatch(name):
        return Unread(name, f"tensor {name} of an adapter", "merge the adapter into the weights")
    return Unread(name)


def _count(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
