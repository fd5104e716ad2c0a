"""The part of the table of known fields that is for draft heads, in every layout; see `known_fields`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from harness.models.checkpoint_kind import BLOCK_HEADS, HEADS
from harness.models.dflash_anchor import NAMES as ANCHOR_NAMES
from harness.models.known_fields import (
    LAYERS,
    OF_ANY_FILE,
    SCALES_AND_CAPS,
    Fields,
    Known,
    Layout,
    ignored,
    nested,
    only,
    used,
    where,
)
from harness.models.rounded_weights import TRAINED_ON

NOT_RUN = "this version does not run heads of that kind"


DRAFTERS = {"DSpark": "dspark", "DFlash2": "dflash2", "Medusa": "medusa"}
"""Kinds of OTHER_KINDS that run -> their drafters."""


def remedy_of(kind: str) -> str:
    """What to do with a head of a kind of OTHER_KINDS."""
    return f"run it with drafter={DRAFTERS[kind]}" if kind in DRAFTERS else NOT_RUN


def _of_another_kind(kind: str, *names: str) -> dict[str, Known]:
    """Fields of another kind of head; 0 and false ask for nothing."""
    known = Known(f"of a {kind} head", lambda value, _: value in (0, False), remedy=remedy_of(kind))
    return dict.fromkeys(names, known)


OTHER_KINDS = {
    "DSpark": ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
               "confidence_head_alpha"),
    # among the MTP layers of its target
    "DeepSeek-V4 DSpark": ("dspark_markov_rank", "dspark_noise_token_id"),
    "DFlash2": ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size"),
    "Domino": ("gru_hidden_dim", "pure_draft_prefix_len", "emb_dim"),
    "Medusa": ("medusa_num_heads", "medusa_num_layers"),
}  # fmt: skip
"""Kinds of head -> fields that only their files have."""
_FIELDS_OF_OTHER_KINDS = {
    name: known for kind, names in OTHER_KINDS.items() for name, known in _of_another_kind(kind, *names).items()
}


def other_kind(text: Any) -> str | None:
    """The kind of OTHER_KINDS which a name of a class or of a method contains; None without one."""
    return next((kind for kind in OTHER_KINDS if isinstance(text, str) and kind.lower() in text.lower()), None)


def _is_no_other_kind(value: Any, fields: Fields, own: str | None = None) -> bool:
    return not any(other_kind(text) not in (None, own) for text in (value if isinstance(value, list) else [value]))


def _stated_kind(*names: str, own: str | None = None) -> dict[str, Known]:
    """Fields that name the kind of a head; `own` is the one of OTHER_KINDS that they may name."""
    is_own = partial(_is_no_other_kind, own=own)
    return dict.fromkeys(names, Known("which names another kind of head", is_own, remedy=_remedy_of_name))


def _remedy_of_name(value: Any) -> str:
    kinds = [other_kind(text) for text in (value if isinstance(value, list) else [value])]
    return next((remedy_of(kind) for kind in kinds if kind is not None), NOT_RUN)


_OF_ANY_HEAD = {
    **_FIELDS_OF_OTHER_KINDS,
    **_stated_kind("architectures", "projector_type"),
    **ignored("a head is run by this program's code", "auto_map"),
    **ignored("a sequence ends where the target says", "eos_token_id"),
    **ignored("the output matrix is that of the file or of the target", "tie_word_embeddings"),
    **ignored("names the target", "target_model_type", "target_model_name_or_path", "modal_type"),
}


def _layers_of_head(fields: Fields) -> Layout:
    # of a type that does not run the loader tells
    layers = LAYERS.get(str(fields.get("model_type") or "llama"), LAYERS["llama"])
    return {**layers, **_OF_ANY_HEAD}


_PROPOSAL = {
    **ignored("K is drafting.num_speculative_tokens", "proposal_methods", "default_proposal_method"),
    **_stated_kind("algorithm"),
    **nested(
        lambda fields: {
            **used("name_or_path", TRAINED_ON),
            **ignored("names the target", *(name for name in fields if name not in ("name_or_path", TRAINED_ON))),
        },
        "verifier",
    ),
}
_SPECULATORS_KIND = {
    "speculators_model_type": Known(
        "which names another kind of head", lambda value, _: isinstance(value, str) and value in HEADS, remedy=NOT_RUN
    )
}
_SPECULATORS = {
    **OF_ANY_FILE,
    **SCALES_AND_CAPS,
    **_OF_ANY_HEAD,
    **_SPECULATORS_KIND,
    **used("draft_vocab_size", "target_hidden_size"),
    **nested(_layers_of_head, "transformer_layer_config"),
    **nested(lambda fields: _PROPOSAL, "speculators_config"),
    **ignored("says who wrote the file and for which tools", "model_type", "speculators_version"),
}
"""Of any file of the package speculators."""

_EAGLE3 = {
    **used("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "target_layer_ids"),
    **used("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    **only((False,), "a bias of fc", "bias"),
}
_NESTED_EAGLE3 = {
    **used("eagle_aux_hidden_state_layer_ids"),
    **used("norm_before_fc"),
    "use_aux_hidden_state": Known("of a head that reads one state", lambda value, _: value is True, remedy=NOT_RUN),
    **only((True,), "norms of the head", "use_input_layernorm_in_first_layer", "use_last_layernorm"),
    **only((False,), "norms of the head", "use_mtp_layernorm"),
    **only((True,), "the layers of the head", "next_layer_regular"),
    **only((0, 1), "drafts of several tokens at once", "parallel_draft_step"),
    **ignored("only where parallel_draft_step asks for several tokens", "parallel_draft_heads_num_layers"),
}
"""Of eagle_config, which Model-Optimizer and SpecForge write."""
_PEAGLE = {**used("mask_token_id", "pard_token", "ptd_token_id"), **used("parallel_drafting")}


def _eagle3_layout(fields: Fields, more: Layout) -> Layout:
    own = {**_EAGLE3, **more}
    inner = nested(lambda fields: _NESTED_EAGLE3, "eagle_config")
    if "transformer_layer_config" in fields:
        return {**_SPECULATORS, **own, **inner}
    return {**_layers_of_head(fields), **own, **inner, **_SPECULATORS_KIND}


_NESTED_DFLASH = {
    **_FIELDS_OF_OTHER_KINDS,
    **_stated_kind("projector_type"),
    **used("mask_token_id", "target_layer_ids", "block_size"),
    **used(*ANCHOR_NAMES),
    **SCALES_AND_CAPS,
    **only((False,), "which places of a block see which", "is_causal"),
    **only((False,), "which token a place of a block drafts", "shift_label"),
    **ignored("the numbers of heads say it", "attention_mode"),
}
"""Of dflash_config; the package dflash reads most of them beside it too."""
_DFLASH = {
    **used("block_size"),
    **used(*ANCHOR_NAMES),
    **{name: _NESTED_DFLASH[name] for name in ("is_causal", "shift_label", "attention_mode")},
}


_OF_BLOCKS: Mapping[str, Layout] = {
    "dflash": {},
    "dspark": {
        **used("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"),
        **ignored("the weight of a loss in training", "confidence_head_alpha"),
        **_stated_kind("architectures", "projector_type", own="DSpark"),
    },
    "dflash2": {
        **used("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size"),
        **_stated_kind("architectures", "projector_type", own="DFlash2"),
    },
}
"""Kind of a head that fills blocks -> what it has beside DFlash heads, in dflash_config or beside it."""


def _has_known_windows(types: Any, fields: Fields) -> bool:
    return isinstance(types, list) and {*types} <= {"full_attention", "sliding_attention"}


_WINDOWS = {
    **where(_has_known_windows, "what the layers attend to", "layer_types"),
    **ignored("the window of those layers that layer_types name", "sliding_window"),
    **where(lambda value, fields: not value or bool(fields.get("layer_types")), "what the layers attend to",
            "use_sliding_window"),
}  # fmt: skip
"""Of the layers of a DFlash2 head, which may attend through windows."""


def _block_layout(kind: str, fields: Fields) -> Layout:
    of_kind, of_layers = _OF_BLOCKS[kind], _WINDOWS if kind == "dflash2" else {}
    if "dflash_config" not in fields and "transformer_layer_config" in fields:
        own = used("aux_hidden_state_layer_ids", "mask_token_id")
        windows = ignored("only in layers with windows, which are not run", "sliding_window_non_causal")
        if kind == "dflash2":
            windows = ignored("the loader asks for it beside windows", "sliding_window_non_causal")
        layers = nested(lambda fields: {**_layers_of_head(fields), **of_layers}, "transformer_layer_config")
        algorithm = nested(lambda fields: {**_PROPOSAL, **_only_algorithm(kind)}, "speculators_config")
        return {**_SPECULATORS, **_DFLASH, **own, **windows, **of_kind, **layers, **algorithm}
    inner = nested(lambda fields: {**_NESTED_DFLASH, **of_kind}, "dflash_config")
    beside = used("num_target_layers", *(("mask_token_id", "target_layer_ids") if kind == "dspark" else ()))
    layers = {**_layers_of_head(fields), **of_layers}
    return {**layers, **_DFLASH, **of_kind, **inner, **_SPECULATORS_KIND, **beside}


def _only_algorithm(kind: str) -> Layout:
    own = {drafter: name for name, drafter in DRAFTERS.items()}
    return _stated_kind("algorithm", own=own.get(kind))


_MEDUSA = {
    **ignored("of the target, whose layers these heads do not have", *LAYERS["llama"]),
    **OF_ANY_FILE,
    **used("medusa_num_heads", "medusa_num_layers", "hidden_size", "vocab_size"),
    **ignored("the tensors say whose output matrix is used", "version"),
    **ignored("names the target", "base_model_name_or_path"),
    **ignored("says what the file is", "architectures", "model_type", "auto_map"),
    **ignored("a sequence ends where the target says", "eos_token_id", "bos_token_id", "pad_token_id"),
    # of vLLM
    **used("num_heads", "num_hidden_layers", "truncated_vocab_size", "medusa_fc_bias", "original_lm_head"),
    **used("logit_scale"),
    **ignored("trees are those of drafting.tree", "max_paths", "topk", "max_seq_len", "num_lookahead_tokens"),
}

HEAD_LAYOUTS: Mapping[str, Callable[[Fields], Layout]] = {
    "eagle": lambda fields: {**_layers_of_head(fields), **used("bias")},
    "eagle3": lambda fields: _eagle3_layout(fields, {}),
    "peagle": lambda fields: _eagle3_layout(fields, _PEAGLE),
    **{kind: partial(_block_layout, kind) for kind in BLOCK_HEADS},
    "medusa": lambda fields: _MEDUSA,
}
"""Kind of drafter -> the table for its config.json, which may be of either layout."""
