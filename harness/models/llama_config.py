"""The configuration of a Llama, as transformers has it, without the modules that transformers' own class imports.

Those are torch's compiler and distributed tensors among others: more seconds than the rest of a start. Whatever
takes a configuration takes either class.
"""

from collections.abc import Mapping
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class LlamaConfig(PreTrainedConfig):
    """Fields and defaults of transformers' LlamaConfig."""

    model_type = "llama"

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pretraining_tp: int | None = 1
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    attention_dropout: int | float | None = 0.0
    mlp_bias: bool = False
    head_dim: int | None = None

    def __post_init__(self, **fields: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**fields)

    def validate_architecture(self) -> None:
        """Called with the other checks of `strict`. Raises ValueError where heads do not share the hidden size."""
        if self.hidden_size % self.num_attention_heads != 0:
            raise ValueError(
                f"The hidden size ({self.hidden_size}) is not a multiple of the number of attention "
                f"heads ({self.num_attention_heads})."
            )


def own_config_class(fields: Mapping[str, Any]) -> type[LlamaConfig] | None:
    """LlamaConfig where it takes these fields of a config.json; None where a class of transformers, or one that comes
    with the checkpoint, does."""
    return LlamaConfig if fields.get("model_type") == LlamaConfig.model_type and "auto_map" not in fields else None
