"""What the value of a field may be at all, by name, in whatever file and object it stands.

Another value is a mistake in the file: it is refused, and never taken for one that is meant. Sizes are in
`tensor_shapes.wrong_size`, and what names parts of a head's target in `head_fits`. JSON only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.models.model_types import LENGTH_DEPENDENT_ROPE

CORRECT = "correct the file"


class Form(NamedTuple):
    """What the values of a field are."""

    text: str
    """In words, after "a place where" and before "is expected"."""
    holds: Callable[[Any], bool]


def _is_number(value: Any, least: float) -> bool:
    return type(value) in (int, float) and value >= least


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _one_of(*names: str) -> Form:
    return Form(f"{', '.join(names[:-1])} or {names[-1]}", lambda value: isinstance(value, str) and value in names)


FLAG = Form("true or false", lambda value: type(value) is bool)
OBJECT = Form("an object", lambda value: isinstance(value, Mapping))
_ABOVE_0 = Form("a number above 0", lambda value: _is_number(value, 0) and value > 0)
_NUMBER = Form("a number of 0 or more", lambda value: _is_number(value, 0))
_COUNT = Form("a whole number of 1 or more", lambda value: _is_count(value, 1))
_ID = Form("the id of a token", lambda value: _is_count(value, 0))
_IDS = Form(
    "the id of a token, or a list of ids,",
    lambda value: _is_count(value, 0) or (isinstance(value, list) and all(_is_count(each, 0) for each in value)),
)
_DTYPE = Form(
    "a type of numbers such as bfloat16",
    lambda value: isinstance(value, str) and re.fullmatch(r"(torch\.)?b?float\d\w*", value) is not None,
)

ROPE_OF_TYPE = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        *("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        "original_max_position_embeddings",
    ),
}
"""RoPE types that run -> the parameters that they read."""
NEEDED_OF_ROPE = {
    name: tuple(each for each in read if each in ("factor", "low_freq_factor", "high_freq_factor"))
    for name, read in ROPE_OF_TYPE.items()
}
"""Those of them that have no default."""
_ROPE = Form(
    f"RoPE of type {', '.join([*ROPE_OF_TYPE][:-1])} or {[*ROPE_OF_TYPE][-1]}",
    # of those the loader tells why they do not run
    lambda value: isinstance(value, str) and value in (*ROPE_OF_TYPE, *LENGTH_DEPENDENT_ROPE),
)
ACTIVATIONS = (
    *("gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh"),
    *("gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu"),
    *("relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu"),
)
"""Names that transformers knows."""

FORMS: Mapping[str, Form] = {
    **dict.fromkeys(
        (
            # of layers and models
            *("attention_bias", "mlp_bias", "norm_topk_prob", "rope_interleave", "tie_word_embeddings", "use_cache"),
            # of heads
            *("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "use_aux_hidden_state", "bias"),
            *("parallel_drafting", "sample_from_anchor", "query_zero_predicts_next", "sliding_window_non_causal"),
            # of YaRN
            "truncate",
            # of tokenizers
            *("add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces", "legacy"),
            *("split_special_tokens", "spaces_between_special_tokens", "use_default_system_prompt", "from_slow"),
            *("use_fast", "do_lower_case", "remove_space", "keep_accents", "add_dummy_prefix_space"),
            "fix_mistral_regex",
        ),
        FLAG,
    ),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "rope_theta"), _ABOVE_0),
    **dict.fromkeys(("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"), _NUMBER),
    "attention_dropout": _NUMBER,
    "initializer_range": Form("a number such as 0.02", lambda value: type(value) is float and value >= 0),
    **dict.fromkeys(("original_max_position_embeddings", "pretraining_tp"), _COUNT),
    **dict.fromkeys(("bos_token_id", "pad_token_id"), _ID),
    "eos_token_id": _IDS,
    **dict.fromkeys(("rope_type", "type"), _ROPE),
    **dict.fromkeys(("dtype", "torch_dtype"), _DTYPE),
    "hidden_act": _one_of(*ACTIVATIONS),
}
"""Fields with and without effect: transformers refuses wrong ones too, when a worker loads them. An empty list or
object counts as absent."""
