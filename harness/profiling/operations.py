"""The arithmetic of a round: operations of its matrix products, counted from the models themselves.

A product and the sum that it goes into are two operations. Counted are the products with weights and those of
attention, the scores of the keys that a query sees and the values under them; not norms, activations, softmax,
rotations, biases, or the sampling core, whose arithmetic is thousands of times smaller. Experts count for the tokens
that go through them, which no router changes. It knows neither time nor the rate of a device.

Shapes: S slots that decode, L tokens in each of them, K draft tokens of a round, N tokens of a forward, E experts, k
of them for a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from transformers import Glm4MoeLiteConfig, PreTrainedConfig

from harness.drafters.chain import ChainDrafter
from harness.drafters.draft_model import DraftModelDrafter
from harness.engine.step import Step
from harness.models.decoder_layer import cache_shape
from harness.models.head import Head
from harness.models.target import TargetModel
from harness.profiling.model_parts import (
    experts_of_token,
    is_merged_experts,
    joining_parameters,
    layer_parameters,
    output_matrix,
)

OPERATIONS_DEFINITION = (
    "Operations: two for each weight and token of a product (of E experts, k a token, k / E of their weights; the "
    "output matrix for the tokens whose logits are needed), and in attention two for each number of a key and of a "
    "value that a query sees, in each query head (of latent attention: latent and rotated key, and the latent again)."
    " Target: K + 1 tokens of a slot. Draft: K - 1 passes of the head over one, K output matrices; of a draft model K"
    " + 1 tokens. Extend: the head over K + 1, with what joins the target's states. Not counted: everything "
    "elementwise."
)


@dataclass(frozen=True)
class Operations:
    """Operations of one round."""

    num_target_linear: int
    """Of products with weights, output matrix included."""
    num_target_attention: int
    num_draft_linear: int = 0
    """Of all passes before verification, without output matrices."""
    num_draft_output: int = 0
    num_draft_attention: int = 0
    num_extend_linear: int = 0
    num_extend_attention: int = 0

    @property
    def num_target(self) -> int:
        """Of the target's forward."""
        return self.num_target_linear + self.num_target_attention

    @property
    def num_draft(self) -> int:
        """Of the drafter before verification."""
        return self.num_draft_linear + self.num_draft_output + self.num_draft_attention

    @property
    def num_extend(self) -> int:
        """Of the drafter after verification."""
        return self.num_extend_linear + self.num_extend_attention


def operations_of(step: Step, num_slots: int, length: int) -> Operations:
    """The operations of a round of a step.

    Args:
        step: with its target and drafter; of the kinds that `round_bytes` takes.
        num_slots: S.
        length: L, the last of which the target has not read.
    """
    target, num_tokens = step.target, step.num_speculative_tokens
    linear = num_slots * (num_tokens + 1) * (_linear(target) + 2 * output_matrix(target).numel())
    attention = num_slots * _keys_seen(length, num_tokens + 1) * _of_key(target.config) * target.num_layers
    drafter = step.drafter
    if isinstance(drafter, ChainDrafter) and isinstance(drafter.head, Head):
        return _with_head(linear, attention, drafter.head, num_slots, num_tokens, length)
    if isinstance(drafter, DraftModelDrafter):
        return _with_draft_model(linear, attention, drafter.model, num_slots, num_tokens, length)
    assert drafter.num_parameters == 0, "floor_of refuses drafters of other kinds"
    return Operations(linear, attention)


def _with_head(linear: int, attention: int, head: Head, num_slots: int, num_tokens: int, length: int) -> Operations:
    """K - 1 passes over a pair of each slot, K products with the output matrix, one pass over K + 1 pairs."""
    joining = {id(parameter) for parameter in joining_parameters(head)}
    named = layer_parameters(head)
    top_k = experts_of_token(head.layer_config)
    of_pass = _of_token([(name, item) for name, item in named if id(item) not in joining], top_k)
    of_joining = _of_token([(name, item) for name, item in named if id(item) in joining], top_k)
    of_key = _of_key(head.layer_config)
    return Operations(
        linear,
        attention,
        num_draft_linear=num_slots * (num_tokens - 1) * of_pass,
        num_draft_output=num_slots * num_tokens * 2 * output_matrix(head).numel(),
        num_draft_attention=num_slots * _keys_seen(length, num_tokens - 1) * of_key,
        num_extend_linear=num_slots * (num_tokens + 1) * (of_pass + of_joining),
        num_extend_attention=num_slots * _keys_seen(length, num_tokens + 1) * of_key,
    )


def _with_draft_model(
    linear: int, attention: int, model: TargetModel, num_slots: int, num_tokens: int, length: int
) -> Operations:
    """K passes, the first over the last two tokens of each slot."""
    num_read = num_tokens + 1
    return Operations(
        linear,
        attention,
        num_draft_linear=num_slots * num_read * _linear(model),
        num_draft_output=num_slots * num_tokens * 2 * output_matrix(model).numel(),
        num_draft_attention=num_slots * _keys_seen(length - 1, num_read) * _of_key(model.config) * model.num_layers,
    )


def _keys_seen(first: int, num_queries: int) -> int:
    """Keys that successive queries see in all, the first of them so many, itself included."""
    return num_queries * first + num_queries * (num_queries - 1) // 2


def _of_key(config: PreTrainedConfig) -> int:
    """Operations of a query with one key and its value in one layer, all query heads."""
    _, key_dim, value_dim = cache_shape(config)
    if config.model_type == Glm4MoeLiteConfig.model_type:
        # values are the latent part of the keys
        value_dim = config.kv_lora_rank
    return 2 * config.num_attention_heads * (key_dim + value_dim)


def _linear(model: TargetModel) -> int:
    """Operations of one token in products with the weights of all layers, without the output matrix."""
    return _of_token(layer_parameters(model), experts_of_token(model.config))


def _of_token(named: Iterable[tuple[str, nn.Parameter]], top_k: int) -> int:
    """Operations of one token in products with parameters: those of matrices, and of k of E merged experts."""
    total = 0
    for name, parameter in named:
        if is_merged_experts(name):
            total += 2 * top_k * parameter[0].numel()
        elif parameter.ndim == 2:
            total += 2 * parameter.numel()
    return total
