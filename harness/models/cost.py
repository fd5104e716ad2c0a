"""What the forwards of a model cost: bytes that must be read, and operations of matrix products.

Bytes are the weights and the keys and values of earlier tokens; not activations, or anything that is written. Of
experts, those count as read that the tokens hit on average under an even router. A product and the sum that it goes
into are two operations; counted are products with weights and those of attention, not norms, activations, softmax,
rotations or biases. It knows neither time nor the rates of a device.

Shapes: S slots, V vocabulary, H hidden size, E experts, k of them for a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedConfig

from harness.models.decoder_layer import cache_shape
from harness.models.expert_weights import EXPERTS, MERGED


class Cost(NamedTuple):
    """What a part of a round must read and multiply."""

    weight_bytes: int = 0
    """Weights, without output matrices."""
    output_bytes: int = 0
    """Matrices that give logits, once for each pass that needs them."""
    cache_bytes: int = 0
    """Keys and values of earlier rounds."""
    logit_bytes: int = 0
    """Cached draft logits that tokens are drawn from, with their statistics."""
    num_linear: int = 0
    """Operations of products with weights, without output matrices."""
    num_output: int = 0
    """Operations of products with output matrices."""
    num_attention: int = 0

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.output_bytes + self.cache_bytes + self.logit_bytes

    @property
    def num_operations(self) -> int:
        return self.num_linear + self.num_output + self.num_attention


def total(*costs: Cost) -> Cost:
    """All of them together."""
    return Cost(*map(sum, zip(*costs, strict=True)))


@dataclass(frozen=True)
class ModelCost:
    """A model's parameters by what they do in a forward, from which its cost follows."""

    named_parameters: Sequence[tuple[str, nn.Parameter]]
    """All of the model; the embedding and the output matrix may be among them."""
    embedding: Tensor
    """[V, H]."""
    output: Tensor
    """[V, H] what gives the logits; may be the embedding."""
    config: PreTrainedConfig
    """Of the layers."""
    num_layers: int
    cache_itemsize: int
    """Bytes of a component of a key or value as it is kept."""
    joining: Sequence[nn.Parameter] = ()
    """Those of a head that join the target's states, which no pass over the head's own features reads."""

    def passes(self, num_slots: int, widths: Sequence[int], num_seen: int, sees_all: bool = False) -> Cost:
        """Successive forwards without their logits.

        Args:
            num_slots: S.
            widths: tokens of a slot in each forward.
            num_seen: keys that the first token of a slot sees, itself included; the others see more.
            sees_all: whether every token of a single forward sees as many as the last one.
        """
        total = sum(widths)
        keys_seen = total * (num_seen + total - 1) if sees_all else total * num_seen + total * (total - 1) // 2
        return Cost(
            weight_bytes=sum(self._read_bytes(num_slots * width) for width in widths),
            cache_bytes=len(widths) * num_slots * max(num_seen - 1, 0) * self._token_bytes,
            num_linear=num_slots * total * self._operations(self._layers),
            num_attention=num_slots * keys_seen * self._of_key,
        )

    def logits(self, num_passes: int, num_rows: int) -> Cost:
        """Logits of so many rows in each of some passes."""
        operations = 2 * num_passes * num_rows * self.output.numel()
        return Cost(output_bytes=num_passes * self.output.nbytes, num_output=operations)

    def join(self, num_tokens: int) -> Cost:
        """The target's states of so many tokens made into features."""
        named = [("", parameter) for parameter in self.joining]
        read = sum(parameter.nbytes for parameter in self.joining)
        return Cost(weight_bytes=read, num_linear=num_tokens * self._operations(named))

    @property
    def _layers(self) -> list[tuple[str, nn.Parameter]]:
        """What every pass reads whole, or the experts of it that are hit."""
        apart = {id(item) for item in (self.embedding, self.output, *self.joining)}
        return [(name, item) for name, item in self.named_parameters if id(item) not in apart]

    @property
    def _top_k(self) -> int:
        """Experts that one token goes through; 0 where the layers have none."""
        return getattr(self.config, "num_experts_per_tok", 0)

    @property
    def _token_bytes(self) -> int:
        """What all layers keep of a token."""
        num_heads, key_dim, value_dim = cache_shape(self.config)
        return self.num_layers * num_heads * (key_dim + value_dim) * self.cache_itemsize

    @property
    def _of_key(self) -> int:
        """Operations of a query with one key and its value, all query heads of all layers."""
        _, key_dim, value_dim = cache_shape(self.config)
        # latent attention: the values are the latent part of the keys
        return (
            2 * self.num_layers * self.config.num_attention_heads * (key_dim + (value_dim or self.config.kv_lora_rank))
        )

    def _read_bytes(self, num_tokens: int) -> int:
        """Weights of one forward over so many tokens, without the output matrix.

        Of an embedding that is not the output matrix too, the rows of the tokens are read.
        """
        rows = 0 if self.embedding is self.output else min(num_tokens, len(self.embedding))
        total = rows * self.embedding[0].nbytes
        for name, parameter in self._layers:
            # a token leaves an expert out with 1 - k / E
            share = 1 - (1 - self._top_k / len(parameter)) ** num_tokens if _is_merged(name) else 1
            total += round(parameter.nbytes * share)
        return total

    def _operations(self, named: Sequence[tuple[str, nn.Parameter]]) -> int:
        """Operations of one token in products with matrices, and with k of E merged experts."""
        merged = sum(2 * self._top_k * item[0].numel() for name, item in named if _is_merged(name))
        return merged + sum(2 * item.numel() for name, item in named if item.ndim == 2 and not _is_merged(name))


def _is_merged(name: str) -> bool:
    """Whether a parameter of this name holds the weights of all experts of a layer, [E, ...]."""
    _, experts, merged = name.rpartition(EXPERTS)
    return bool(experts) and merged in MERGED
