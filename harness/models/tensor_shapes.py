"""The tensors that the files of dense models and of draft heads must have, with their shapes, by config.json alone.

It is known from headers whether settings and weights belong together, before a weight is read. Needs no torch; the
loaders take tensors by the shapes of their modules, and refuse what is missing here too. Experts and latent attention
are left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.head_fits import stated_confidence, stated_markov, stated_selector
from harness.models.known_fields import DEFAULTS, Fields
from harness.models.model_types import DENSE_TYPES

Shapes = dict[str, tuple[int, ...]]


class _Sizes(NamedTuple):
    """Of the layers of a file."""

    hidden: int
    intermediate: int
    queries: int
    """Width of all query heads."""
    keys: int
    head: int
    vocab: int
    num_layers: int


def wrong_size(fields: Fields) -> str | None:
    """A size that is no whole number of 1 or more, or a constant that is no positive number, in words; None where all
    are, or are left out."""
    for name in (*_NEEDED, "num_key_value_heads", "head_dim", "max_position_embeddings", "draft_vocab_size"):
        value = fields.get(name)
        if value is not None and (type(value) is not int or value < 1):
            return f"expected {name} as a whole number of 1 or more, found {value!r}"
    for name in ("rms_norm_eps", "rope_theta"):
        value = fields.get(name)
        if value is not None and (type(value) not in (int, float) or value <= 0):
            return f"expected {name} as a number above 0, found {value!r}"
    for name in ("layer_types", "mlp_layer_types"):
        kinds, count = fields.get(name), fields.get("num_hidden_layers")
        if isinstance(kinds, list) and kinds and count is not None and len(kinds) != count:
            return f"expected {name} of {count} layers (num_hidden_layers), found {len(kinds)}"
    heads, groups = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if heads is not None and groups is not None and heads % groups:
        return f"expected num_attention_heads as a multiple of num_key_value_heads {groups}, found {heads}"
    return None


def model_shapes(fields: Fields) -> Shapes:
    """Of a target or draft model; none where its type is not dense, or a size is left out."""
    sizes = _sizes(fields)
    if sizes is None:
        return {}
    found = {"model.embed_tokens.weight": (sizes.vocab, sizes.hidden), "model.norm.weight": (sizes.hidden,)}
    if not fields.get("tie_word_embeddings"):
        found["lm_head.weight"] = (sizes.vocab, sizes.hidden)
    for index in range(sizes.num_layers):
        found |= dict(_layer(fields, sizes, f"model.layers.{index}."))
    return found


def mtp_shapes(fields: Fields) -> Shapes:
    """Of the first MTP layer in the files of a target; none as of `model_shapes`."""
    sizes = _sizes(fields)
    if sizes is None:
        return {}
    prefix, hidden = f"model.layers.{sizes.num_layers}.", sizes.hidden
    found = {f"{prefix}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    return {**found, f"{prefix}eh_proj.weight": (hidden, 2 * hidden), **dict(_layer(fields, sizes, prefix))}


def head_shapes(kind: str, fields: Fields, tensors: Collection[str], num_joined: int) -> Shapes:
    """Of a draft head of a kind; none as of `model_shapes`.

    Args:
        kind: eagle, eagle3, peagle, dflash, dspark or dflash2.
        fields: of its config.json.
        tensors: names of those that it has; some it may share with its target, or leave out.
        num_joined: states of the target that it joins.
    """
    nested = fields.get("transformer_layer_config")
    layer = dict(nested) if isinstance(nested, Mapping) else {"model_type": "llama", **fields}
    if kind in BLOCK_HEADS:
        # whatever its file calls them
        layer["model_type"] = "qwen3"
    sizes = _sizes(layer)
    if sizes is None:
        return {}
    hidden, joins = sizes.hidden, kind in ("eagle3", "peagle")
    width = (fields.get("target_hidden_size") if joins else None) or hidden
    # EAGLE joins the token's embedding too
    found: Shapes = {"fc.weight": (hidden, (num_joined + (kind == "eagle")) * width)}
    first = "midlayer." if any(name.startswith("midlayer.") for name in tensors) else "layers.0."
    for index in range(sizes.num_layers):
        prefix = first if index == 0 else f"layers.{index}."
        found |= dict(_layer(layer, sizes, prefix, inputs=2 * hidden if joins and index == 0 else hidden))
    if kind == "eagle":
        del found["layers.0.input_layernorm.weight"]
        found |= {"fc.bias": (hidden,)} if fields.get("bias", True) else {}
    else:
        found["norm.weight"] = (hidden,)
    if joins:
        found |= _joining(fields, hidden, width, num_joined, first)
    if kind in BLOCK_HEADS:
        found["hidden_norm.weight"] = (hidden,)
    if kind in _OF_ROWS:
        try:
            found |= _OF_ROWS[kind](fields, sizes)
        except ValueError:
            # the loader says what is wrong
            return {}
    if kind != "eagle" and "lm_head.weight" in tensors:
        found["lm_head.weight"] = (fields.get("draft_vocab_size") or sizes.vocab, hidden)
    return found


def _joining(fields: Fields, hidden: int, width: int, num_joined: int, first: str) -> Shapes:
    """The norms of an EAGLE-3 head over states of that width, and of its first layer, by the prefix of its tensors."""
    found: Shapes = {f"{first}hidden_norm.weight": (hidden,)}
    own = fields.get("eagle_config")
    nested = own if isinstance(own, Mapping) else {}
    if fields.get("norm_before_fc", nested.get("norm_before_fc")):
        found["input_norm.weight"] = (num_joined * width,)
    if fields.get("fc_norm"):
        found |= {f"fc_norm.{index}.weight": (width,) for index in range(num_joined)}
    return found


def _of_dspark(fields: Fields, sizes: _Sizes) -> Shapes:
    """Of the Markov head and the confidence head of a DSpark head."""
    (rank, head_type), (is_there, with_markov) = stated_markov(fields), stated_confidence(fields)
    inputs = sizes.hidden + (rank if with_markov else 0)
    confidence: Shapes = {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}
    return _markov(fields, sizes, rank, head_type) | (confidence if is_there else {})


def _markov(fields: Fields, sizes: _Sizes, rank: int, head_type: str) -> Shapes:
    if not rank:
        return {}
    prefix, rows = "markov_head.", fields.get("draft_vocab_size") or sizes.vocab
    found: Shapes = {f"{prefix}markov_w1.weight": (sizes.vocab, rank), f"{prefix}markov_w2.weight": (rows, rank)}
    outputs, inputs = {"vanilla": (0, 0), "gated": (rank, rank), "rnn": (3 * rank, 2 * rank)}[head_type]
    if outputs:
        name = f"{prefix}{'gate_proj' if head_type == 'gated' else 'joint_proj'}"
        found |= {f"{name}.weight": (outputs, sizes.hidden + inputs), f"{name}.bias": (outputs,)}
    return found


def _selector(fields: Fields, sizes: _Sizes) -> Shapes:
    """Of the convolutions and the selector of a DFlash2 head."""
    taps, group, rank, _ = stated_selector(fields)
    rows, outputs = fields.get("draft_vocab_size") or sizes.vocab, 2 * taps * (sizes.hidden // group)
    prefix = "candidate_selector."
    found: Shapes = {
        f"{prefix}predecessor_codebook": (sizes.vocab, rank),
        f"{prefix}successor_codebook": (rows, rank),
        f"{prefix}hidden_projection.weight": (rank, sizes.hidden),
    }
    for index in range(sizes.num_layers):
        for name in ("attention_conv", "mlp_conv"):
            found[f"layers.{index}.{name}.base_kernel"] = (2, taps, sizes.hidden)
            found[f"layers.{index}.{name}.kernel_projection.weight"] = (outputs, sizes.hidden)
    return found


_OF_ROWS: Mapping[str, Callable[[Fields, _Sizes], Shapes]] = {"dspark": _of_dspark, "dflash2": _selector}
"""Kind of a head -> what it has beside a DFlash head."""
_NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_hidden_layers")
_OF_QWEN3 = {name: DEFAULTS["qwen3"][name].value for name in ("num_key_value_heads", "head_dim")}
"""What its configuration takes for sizes that a file leaves out; a Llama has as many groups as heads, which share the
hidden size."""


def _sizes(fields: Fields) -> _Sizes | None:
    if fields.get("model_type") not in DENSE_TYPES or any(fields.get(name) is None for name in _NEEDED):
        return None
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    others = (
        _OF_QWEN3 if fields["model_type"] == "qwen3" else {"num_key_value_heads": heads, "head_dim": hidden // heads}
    )
    head, groups = (
        others[name] if fields.get(name) is None else fields[name] for name in ("head_dim", "num_key_value_heads")
    )
    return _Sizes(
        hidden,
        fields["intermediate_size"],
        heads * head,
        groups * head,
        head,
        fields["vocab_size"],
        fields["num_hidden_layers"],
    )


def _layer(
    fields: Fields, sizes: _Sizes, prefix: str, inputs: int | None = None
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a layer; `inputs` is the width of what its projections read, if it is not the hidden size."""
    hidden, inputs = sizes.hidden, inputs or sizes.hidden
    widths = {"q": sizes.queries, "k": sizes.keys, "v": sizes.keys}
    projections = {f"self_attn.{name}_proj": (width, inputs) for name, width in widths.items()}
    projections["self_attn.o_proj"] = (hidden, sizes.queries)
    mlp = {f"mlp.{name}_proj": (sizes.intermediate, hidden) for name in ("gate", "up")}
    mlp["mlp.down_proj"] = (hidden, sizes.intermediate)
    has_mlp_bias = fields["model_type"] == "llama" and fields.get("mlp_bias")
    for parts, has_bias in ((projections, fields.get("attention_bias")), (mlp, has_mlp_bias)):
        for name, shape in parts.items():
            yield f"{prefix}{name}.weight", shape
            if has_bias:
                yield f"{prefix}{name}.bias", shape[:1]
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}{name}.weight", (hidden,)
    for name in ("q_norm", "k_norm") if fields["model_type"] == "qwen3" else ():
        yield f"{prefix}self_attn.{name}.weight", (sizes.head,)
