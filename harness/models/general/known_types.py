"""What transformers knows of model types: which are causal language models, and the fields that they are configured by.

transformers interprets config.json itself on the general path, so a field that its configuration class has counts as
used. Imported only for models of that path: the tables of transformers take seconds to import, and torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.models.checkpoint import CheckpointError, configured_by
from harness.models.known_fields import LAYER, NOT_QUANTIZED, OF_ANY_FILE, OF_EXPERTS, Layout, ignored, only, used
from harness.models.model_types import MODEL_TYPES, QUANTIZATION
from harness.models.mtp_layouts import mtp_layout
from harness.records.strict_json import shown

_READ_BESIDE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_local_base_freq")
"""Fields that configuration classes read into attributes of other names."""


_SAME_AS = {"mimo": "qwen2"}
"""Types that transformers does not know by name -> the type whose code computes their layers, as vLLM's does."""
_OF_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")


def architecture_of(model_type: object) -> str | None:
    """The class of a type's causal language models; None where transformers has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(_SAME_AS.get(str(model_type), str(model_type)))
    return found[0] if isinstance(found, tuple) else found


def general_config_class(model_type: str) -> Any:
    """transformers' class of a type's configurations."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[_SAME_AS.get(model_type, model_type)]


def general_config(fields: Mapping[str, Any]) -> Any:
    """The configuration that the fields of a file make."""
    kind = general_config_class(fields["model_type"])
    return kind.from_dict(_with_floats({**fields, "model_type": kind.model_type}))


def _with_floats(value: Any) -> Any:
    """The same with the numbers that JSON lacks, which transformers writes as {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        stated = value.get("__float__") if len(value) == 1 else None
        return {name: _with_floats(item) for name, item in value.items()} if stated is None else float(stated)
    return [_with_floats(item) for item in value] if isinstance(value, list) else value


def general_layout(fields: Mapping[str, Any]) -> Layout:
    """The table of the fields of a config.json whose type transformers has a causal language model of.

    A field counts as used where the type's configuration class has it, or its code names it: classes keep others too.
    """
    kind = general_config_class(fields["model_type"])
    # what an instance has follows from fields, and is written beside them
    with quietly(), configured_by(f"model_type {fields['model_type']}"):
        written = kind().to_dict()
    words = _words_of_code(kind)
    names = {
        *(name for name in fields if name in words),
        *written,
        *kind.attribute_map,
        *kind.attribute_map.values(),
        *_READ_BESIDE,
    }
    return {
        **OF_EXPERTS,
        **{name: known for name, known in LAYER.items() if known.note},
        **only((False,), "biases of layers", "attention_bias", "mlp_bias"),
        **only((False,), "norms of queries and keys", "use_qk_norm", "qk_norm"),
        **used(*names),
        **(only((True,), "biases of attention", "attention_bias") if fields["model_type"] == "mimo" else {}),
        **OF_ANY_FILE,
        **used(QUANTIZATION),
        **used("model_type", "eos_token_id", "tie_word_embeddings"),
        **ignored("the code of transformers is run, not that of the checkpoint", "auto_map"),
        **ignored("tensors tell whether they are a language model's", "architectures"),
        **ignored("of MTP layers, which drafter=mtp reads", *_OF_MTP),
    }


def _words_of_code(kind: Any) -> set[str]:
    """The words in the files of a type's configuration and layers."""
    files = [Path(inspect.getfile(kind))]
    files.append(files[0].with_name(files[0].name.replace("configuration_", "modeling_")))
    return {word for path in files if path.is_file() for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


@contextmanager
def quietly() -> Iterator[None]:
    """Let transformers show neither progress nor warnings: what it finds is told by who asked it."""
    from transformers.utils import logging

    verbosity, has_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_progress:
            logging.enable_progress_bar()


def check_quantization(fields: Mapping[str, Any], folder: Path) -> None:
    """Raise CheckpointError where transformers does not know how weights were rounded: it would take them as stored."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = fields[QUANTIZATION].get("quant_method") if isinstance(fields[QUANTIZATION], Mapping) else None
    known = ["bitsandbytes", *AUTO_QUANTIZATION_CONFIG_MAPPING]
    if method not in known:
        raise CheckpointError(
            f"{folder}: expected a quantization_config.quant_method that the installed transformers loads "
            f"({', '.join(sorted(known))}), found {shown(method)}; {NOT_QUANTIZED}"
        )


def what_it_means(architecture: str, model_type: object) -> str:
    """What a reader must know of a model on the general path, one sentence without its end."""
    lacking = ["fused operations", "weights or caches of 8 bits"]
    # a head of such a layer is made of layers of our own, or of transformers'
    if model_type not in MODEL_TYPES and mtp_layout({"model_type": model_type}) is None:
        lacking.append("MTP layers")
    return f"layers are transformers' own ({architecture}, target.layers): without {', '.join(lacking)}"
