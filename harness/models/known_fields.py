"""The one table of the fields in a model's files: what is used, and what has no effect here.

A field is used by a loader; has no effect here, with the reason; is computed for some values only, with what others
would change; or is told, where it asks for something that a run does not do. A field that stands in no table is not
known. `accounting` compares files with the tables; those of draft heads are in `known_head_fields`. Importable without
torch.

Sources: transformers' configuration classes; published files, and the code that reads them: meta-llama, Qwen, zai-org,
HuggingFaceTB, lmsys; SafeAILab/EAGLE, sgl-project/SpecForge, Tencent/AngelSlim, NVIDIA/Model-Optimizer,
vllm-project/speculators, deepseek-ai/DeepSpec, and the package dflash 0.1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.models.field_forms import ROPE_OF_TYPE
from harness.models.model_types import CONVERTED, MODEL_TYPES

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """What is known of one field."""

    note: str = ""
    """Why it has no effect here, what another value would change, or what is told; empty where it is used."""
    is_computed: Callable[[Any, Fields], bool] | None = None
    """(value, all fields beside it) -> whether what it asks for is what is computed; None: whatever its value."""
    is_told: bool = False
    """Whether the record says that it is not done."""
    remedy: str | Callable[[Any], str] | None = None
    """What to do about a value that is not computed, by the value; None where the user can vouch for it."""
    layout: Callable[[Fields], Layout] | None = None
    """Of an object: the table of its own fields, by its fields."""


Layout = Mapping[str, Known]


class Unread(NamedTuple):
    """A field or tensor that is not computed."""

    name: str
    """A field of an object after those around it, with dots."""
    text: str | None = None
    """What it is, with its value; None for a tensor that nothing reads."""
    remedy: str | None = None
    """What to do; None where the user can vouch for it."""


def used(*names: str) -> dict[str, Known]:
    return dict.fromkeys(names, Known())


def ignored(reason: str, *names: str) -> dict[str, Known]:
    return dict.fromkeys(names, Known(reason))


def told(what: str, harmless: tuple[Any, ...], *names: str) -> dict[str, Known]:
    return dict.fromkeys(names, Known(what, lambda value, _: value in harmless, is_told=True))


def only(values: tuple[Any, ...], changes: str, *names: str) -> dict[str, Known]:
    return dict.fromkeys(names, Known(changes, lambda value, _: value in values))


def where(is_computed: Callable[[Any, Fields], bool], changes: str, *names: str) -> dict[str, Known]:
    return dict.fromkeys(names, Known(changes, is_computed))


def nested(layout: Callable[[Fields], Layout], *names: str) -> dict[str, Known]:
    return dict.fromkeys(names, Known(layout=layout))


# fields of every config.json

NOT_QUANTIZED = "dequantize the checkpoint, or take the one that is not quantized"
_DECODING_SETS = "a run samples as its section decoding says"
_NOT_DONE = "is not done: a run samples as its section decoding says"

_SAMPLING = {
    **ignored(
        _DECODING_SETS,
        *(
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "do_sample",
            "num_return_sequences",
            "max_length",
            "max_new_tokens",
        ),
        *("early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty"),
    ),
    **told(_NOT_DONE, (1, 0), "repetition_penalty", "typical_p", "num_beams"),
    **told(_NOT_DONE, (0,), "min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff", "penalty_alpha"),
    **only((0,), "tokens that may not repeat", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    **only((), "tokens that are never sampled", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
    **only((), "tokens that must come", "forced_bos_token_id", "forced_eos_token_id", "force_words_ids", "constraints"),
    **only((), "the logits", "sequence_bias", "exponential_decay_length_penalty", "watermarking_config", "dola_layers"),
    **only((1, 0), "the logits", "guidance_scale", "encoder_repetition_penalty", "top_h"),
    **only((False,), "the logits", "renormalize_logits", "remove_invalid_values"),
}
"""Of generation_config.json; older files have them in config.json."""

OF_ANY_FILE = {
    **_SAMPLING,
    **ignored(
        "says who wrote the file and for which tools",
        *(
            "_name_or_path",
            "_model_name_or_path",
            "name_or_path",
            "transformers_version",
            "transformers.js_config",
            "unsloth_version",
        ),
        *("unsloth_fixed", "model_name", "is_llama_config"),
    ),
    **ignored("says which file the weights were written out from, which the report tells", CONVERTED),
    **ignored("weights have the type of their file, or that of backend.dtype", "dtype", "torch_dtype"),
    **ignored(
        "how transformers computes or returns something, not what",
        *("use_cache", "cache_implementation", "output_attentions", "output_hidden_states", "output_scores"),
        *("return_dict", "return_dict_in_generate", "torchscript", "chunk_size_feed_forward", "use_bfloat16"),
        *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_flash_attn_2_enabled"),
        *("attention_backend", "has_no_defaults_at_init", "keys_to_ignore_at_inference"),
        *("ignore_keys_at_rope_validation",),
    ),
    **ignored("sums in slices are the same sums", "pretraining_tp"),
    **ignored(
        "only while weights are drawn or trained",
        *("initializer_range", "attention_dropout", "hidden_dropout", "dropout", "embd_pdrop", "resid_pdrop"),
        *("output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "gradient_checkpointing"),
        *("loss_decay_gamma", "num_anchors", "embed_requires_grad", "ttt_length", "step_loss_decay"),
    ),
    **ignored(
        "of tasks other than language models",
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "prefix"),
        *("tokenizer_class", "is_decoder", "pruned_heads", "tf_legacy_loss", "decoder_start_token_id"),
    ),
    **only((False,), "a second stack of layers", "is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"),
    **only((), "a second stack of layers", "cross_attention_hidden_size"),
    **ignored(
        "prompts are the tokenizer's tokens, and nothing is padded",
        *("bos_token_id", "pad_token_id", "sep_token_id", "unk_token_id"),
    ),
    **ignored(
        "positions are bounded by max_position_embeddings", "max_sequence_length", "model_max_length", "seq_length"
    ),
    **dict.fromkeys(
        ("quantization_config", "compression_config", "quantization"),
        Known("weights of fewer bits, which this version does not run", lambda value, _: False, remedy=NOT_QUANTIZED),
    ),
}


# layers, by model type


def _all_attend_to_all(types: Any, fields: Fields) -> bool:
    return isinstance(types, list) and set(types) <= {"full_attention"}


_OF_CLASS = 4096
"""Window that the configuration of Qwen3 takes where a file states none."""


def _has_no_window(value: Any, fields: Fields) -> bool:
    """Whether windows that a file asks for reach no layer."""
    if value is False or fields.get("sliding_window", _OF_CLASS) is None:
        return True
    if fields.get("layer_types"):
        return _all_attend_to_all(fields["layer_types"], fields)
    first, count = fields.get("max_window_layers"), fields.get("num_hidden_layers")
    return fields.get("model_type") == "qwen3" and isinstance(first, int) and isinstance(count, int) and first >= count


def _window_is_off(value: Any, fields: Fields) -> bool:
    """Whether a window is not asked for, or is judged by the field that asks for it."""
    return "use_sliding_window" in fields or bool(fields.get("layer_types")) or fields.get("model_type") == "qwen3"


def _rope(fields: Fields) -> Layout:
    rope_type = str(fields.get("rope_type") or fields.get("type") or "default")
    # of a type that does not run the loader tells why
    read = ROPE_OF_TYPE.get(rope_type, [name for name in fields if name not in ("rope_type", "type", "rope_theta")])
    others = {name for names in ROPE_OF_TYPE.values() for name in names} - {*read}
    return {
        **used("rope_type", "type", "rope_theta", *read),
        **only((1, 1.0), f"positions, which RoPE of type {rope_type} does not read", *others),
        **only((1, 1.0), "how much of a head is rotated", "partial_rotary_factor"),
        # vLLM multiplies by it, transformers knows it by another name alone
        **only((1, 1.0), "the scale of attention", "attn_factor"),
    }


SCALES_AND_CAPS = {
    **only(
        (1, 1.0),
        "the scale of embeddings, residuals, attention or logits",
        *("input_embedding_scale", "embedding_multiplier", "embedding_scale", "residual_multiplier"),
        *("attention_multiplier", "output_multiplier", "logits_scaling", "logit_scale"),
    ),
    **only(
        (0, 0.0),
        "a cap on logits or attention scores",
        *("final_logit_softcapping", "logit_softcapping", "attn_logit_softcapping"),
    ),
}
"""What some models do to states and logits, and none that runs."""

LAYER = {
    **used(
        *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
        *("rope_theta",),
    ),
    **used("attention_bias"),
    **nested(_rope, "rope_scaling", "rope_parameters"),
    **where(_all_attend_to_all, "what the layers attend to", "layer_types"),
    **where(_has_no_window, "what the layers attend to", "use_sliding_window"),
    **where(_window_is_off, "what the layers attend to", "sliding_window"),
    **ignored("only with windows of attention, for which use_sliding_window and layer_types ask", "max_window_layers"),
    **ignored("only of layers with experts", "decoder_sparse_step"),
    **only(("rope",), "how positions are told apart", "position_embedding_type"),
    **only((1, 1.0), "how much of a head is rotated", "partial_rotary_factor"),
    **SCALES_AND_CAPS,
    **only((), "the scale or the size of attention's states", "query_pre_attn_scalar", "clip_qkv"),
    **only((False,), "biases of attention", "qkv_bias"),
    **only((False,), "positions, which would have several numbers", "use_mrope"),
}

_DENSE = {
    "llama": {
        **used("mlp_bias"),
        **only((False,), "the order of rotated numbers", "rope_interleaved"),
        **only((False,), "norms of queries and keys", "use_qk_norm", "qk_norm"),
    },
    "qwen3": {
        **only((False,), "biases of the feed-forward layers", "mlp_bias"),
        **only((True,), "norms of queries and keys", "use_qk_norm", "qk_norm"),
    },
}


def _is_sum_of_parts(value: Any, fields: Fields) -> bool:
    return value == (fields.get("qk_nope_head_dim") or 0) + (fields.get("qk_rope_head_dim") or 0)


OF_EXPERTS = {
    **only(("noaux_tc",), "how experts are chosen", "topk_method"),
    **only(("sigmoid",), "how experts are chosen", "scoring_func"),
    **only((1,), "which layers have experts", "moe_layer_freq"),
    **ignored("how experts are placed on devices", "ep_size"),
}
"""Fields of published files of GLM and DeepSeek that transformers does not read, and which values are what it does."""

_GLM = {
    **OF_EXPERTS,
    **used(
        *("moe_intermediate_size", "n_routed_experts", "num_local_experts", "n_shared_experts", "num_experts_per_tok"),
        *("first_k_dense_replace", "mlp_layer_types", "n_group", "topk_group"),
        *("routed_scaling_factor", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    ),
    **used("norm_topk_prob", "rope_interleave"),
    **where(_is_sum_of_parts, "the width of queries and keys", "qk_head_dim"),
}

LAYERS: Mapping[str, Layout] = {
    "glm4_moe_lite": {**OF_ANY_FILE, **LAYER, **_GLM},
    **{name: {**OF_ANY_FILE, **LAYER, **own} for name, own in _DENSE.items()},
}
"""Model type -> the fields of its layers, and those that any config.json may have."""


# the file of a target or draft model


def _is_language_model(names: Any, fields: Fields) -> bool:
    # published files spell it LLaMAForCausalLM too
    wanted = f"{MODEL_TYPES[fields['model_type']]}ForCausalLM".lower()
    return isinstance(names, list) and all(isinstance(name, str) and name.lower() == wanted for name in names)


def _is_run_as_code(entries: Any, fields: Fields) -> bool:
    return isinstance(entries, dict) and not any(name.startswith("AutoModel") for name in entries)


def model_layout(model_type: str, *, runs_code: bool) -> Layout:
    """Of a language model of a type that runs. runs_code: whether the code that comes with it is run."""
    code = Known("which is code of its own: target.trust_remote_code=true runs it", lambda value, _: False)
    if runs_code:
        code = Known("which is code of its own for layers, and that is never run", _is_run_as_code)
    return {
        **LAYERS[model_type],
        **used("eos_token_id", "num_nextn_predict_layers"),
        **used("tie_word_embeddings"),
        **where(_is_language_model, "what the model is", "architectures"),
        "auto_map": code,
    }


# generation_config.json and tokenizer_config.json of a target

GENERATION: Layout = {
    **_SAMPLING,
    **used("eos_token_id"),
    **{name: OF_ANY_FILE[name] for name in ("bos_token_id", "pad_token_id", "decoder_start_token_id")},
    **{name: OF_ANY_FILE[name] for name in ("transformers_version", "use_cache", "cache_implementation")},
    **{name: OF_ANY_FILE[name] for name in ("output_attentions", "output_hidden_states", "output_scores")},
    **{name: OF_ANY_FILE[name] for name in ("return_dict_in_generate",)},
    **ignored(
        "says who wrote the file and for which tools", "_from_model_config", "_name_or_path", "trust_remote_code"
    ),
    **ignored(
        "how transformers computes or returns something, not what",
        *("cache_config", "compile_config", "disable_compile", "output_logits", "max_cache_len", "low_memory"),
        *("prefill_chunk_size", "continuous_batching_config", "max_time", "chat_format", "max_window_size"),
    ),
    **ignored(
        "drafts are those of the sections drafter and drafting",
        *("use_mtp", "speculation_type", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    ),
    **told("do not end an answer: only tokens do", ([],), "stop_strings"),
    **only((False,), "the last token of a prompt", "token_healing"),
}

_TOKENIZER_CODE = Known("which is code of its own: target.trust_remote_code=true runs it", lambda value, _: False)


def tokenizer_layout(*, runs_code: bool) -> Layout:
    """Of tokenizer_config.json, whose fields transformers' tokenizer takes."""
    return _TOKENIZER if runs_code else {**_TOKENIZER, "auto_map": _TOKENIZER_CODE}


_TOKENIZER: Layout = {
    **used(
        *("tokenizer_class", "auto_map", "tokenizer_file", "vocab_file", "merges_file", "chat_template", "errors"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "mask_token", "sep_token", "cls_token"),
        *("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "sp_model_kwargs", "backend"),
        *("model_specific_special_tokens",),
    ),
    **used(
        *("add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces", "legacy"),
        *("split_special_tokens", "spaces_between_special_tokens", "use_default_system_prompt", "from_slow"),
        *("use_fast", "do_lower_case", "remove_space", "keep_accents", "add_dummy_prefix_space", "fix_mistral_regex"),
    ),
    **ignored(
        "nothing is cut or padded by a tokenizer",
        *("model_max_length", "padding_side", "truncation_side", "max_length", "stride", "truncation_strategy"),
        *("padding", "truncation", "pad_to_multiple_of", "pad_token_type_id", "pad_token_id", "model_input_names"),
        *("max_model_input_sizes", "return_token_type_ids"),
    ),
    **ignored(
        "says who wrote the file and for which tools",
        *("_name_or_path", "name_or_path", "special_tokens_map_file", "transformers_version", "is_local"),
        *("local_files_only", "_commit_hash", "processor_class", "unsloth_version", "revision", "trust_remote_code"),
        *("init_inputs", "response_schema", "tool_parser_type", "bos_token_id", "eos_token_id", "vocab_size"),
    ),
}


# what files leave out


@dataclass(frozen=True)
class Default:
    """What is taken for a field that a file does not state."""

    value: Any = None
    """None where it has to be stated."""
    instead: tuple[str, ...] = ()
    """Fields that state it too."""


_SIZES = dict.fromkeys(
    ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), Default()
)
_ROPE_PLACES = ("rope_parameters", "rope_scaling")
_OF_LLAMA = {
    **_SIZES,
    "hidden_act": Default("silu"),
    "rms_norm_eps": Default(1e-6),
    "max_position_embeddings": Default(2048),
    "rope_theta": Default(10000.0, _ROPE_PLACES),
}
DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "llama": _OF_LLAMA,
    "qwen3": {
        **_OF_LLAMA,
        "max_position_embeddings": Default(32768),
        "num_key_value_heads": Default(32),
        "head_dim": Default(128),
    },
    "glm4_moe_lite": {
        **_OF_LLAMA,
        **dict.fromkeys(
            ("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "kv_lora_rank"), Default()
        ),
        **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), Default()),
        "n_routed_experts": replace(Default(), instead=("num_local_experts",)),
        "rms_norm_eps": Default(1e-5),
        "max_position_embeddings": Default(202752),
        "n_shared_experts": Default(1),
        "n_group": Default(1),
        "topk_group": Default(1),
        "norm_topk_prob": Default(True),
        "routed_scaling_factor": Default(1.8),
        "q_lora_rank": Default(768),
    },
}
"""Model type -> what transformers' configuration class takes where a file says nothing; others are false, null or
follow from these."""
