"""The bytes that a round must read, counted from the models themselves.

Counted are the weights of the target and the drafter, the keys and values of earlier rounds, and the draft-logit rows
that are drawn from; not activations, the target's logits, or anything that is written. It knows neither time nor
bandwidth: bytes over a bandwidth are the shortest time. Of experts it counts as many as the tokens hit on average under
an even router, so that with them it is the shortest time of an average round.

Shapes: S slots that decode, L tokens in each of them, K draft tokens of a round, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from harness.drafters.chain import ChainDrafter
from harness.drafters.draft_model import DraftModelDrafter
from harness.engine.step import Step
from harness.models.decoder_layer import cache_shape
from harness.models.head import Head
from harness.models.target import TargetModel
from harness.profiling.model_parts import (
    embedding_of,
    experts_of_token,
    is_merged_experts,
    joining_parameters,
    layer_parameters,
    output_matrix,
)

BYTES_DEFINITION = (
    "Bytes: what a round must read. Target: every weight once (of an embedding that is"
    " not the output matrix too, the rows of the tokens; of E experts, k a token, those that N tokens hit on average "
    "under an even router, E (1 - (1 - k / E)^N)), and the keys and values of all tokens of a slot but the last one, "
    "which the round itself reads. Draft: K times the output matrix that the drafter uses (EAGLE the target's, "
    "EAGLE-3 its own), K - 1 times its head with keys and values, and the draft-logit rows that are drawn from; of a "
    "draft model everything K times. Extend: the head once more, with what joins the target's states. Not counted: "
    "activations, the target's logits, the prompt lookup of ngram, what is written. Experts of a router that is not "
    "even, and what is read several times but fits into the L2, take less than that."
)


@dataclass(frozen=True)
class RoundBytes:
    """Bytes that one round must read."""

    target_weight_bytes: int
    """Of one forward, output matrix included."""
    target_cache_bytes: int
    draft_weight_bytes: int
    """Of all passes before verification, without output matrices."""
    draft_output_bytes: int
    """K times the matrix that gives the draft logits."""
    draft_cache_bytes: int
    draft_logit_bytes: int
    """Rows that draft tokens are drawn from, with their statistics; 0 where drafts are greedy."""
    extend_weight_bytes: int
    """Of the pass after verification."""
    extend_cache_bytes: int

    @property
    def target_bytes(self) -> int:
        """Of the target's forward."""
        return self.target_weight_bytes + self.target_cache_bytes

    @property
    def draft_bytes(self) -> int:
        """Of the drafter before verification."""
        return self.draft_weight_bytes + self.draft_output_bytes + self.draft_cache_bytes + self.draft_logit_bytes

    @property
    def extend_bytes(self) -> int:
        """Of the drafter after verification."""
        return self.extend_weight_bytes + self.extend_cache_bytes


class _Drafting(NamedTuple):
    """What the drafter reads, in the order of RoundBytes."""

    draft_weight_bytes: int = 0
    draft_output_bytes: int = 0
    draft_cache_bytes: int = 0
    extend_weight_bytes: int = 0
    extend_cache_bytes: int = 0


def round_bytes(step: Step, num_slots: int, length: int) -> RoundBytes:
    """The floor of a round of a step.

    Args:
        step: with its target and drafter.
        num_slots: S.
        length: L, the last of which the target has not read.

    Raises:
        ValueError: the drafter is of a kind whose reads are not known here.
    """
    target, num_tokens = step.target, step.num_speculative_tokens
    drafting = _drafting(step, num_slots, length)
    return RoundBytes(
        target_weight_bytes=_model_bytes(target, num_slots * (num_tokens + 1)),
        target_cache_bytes=num_slots * (length - 1) * _token_bytes(target.config, target.num_layers, target.dtype),
        # the cache is as large for every slot
        draft_logit_bytes=step.drafter.logit_cache_bytes * num_slots // step.state.lengths.numel(),
        **drafting._asdict(),
    )


def _drafting(step: Step, num_slots: int, length: int) -> _Drafting:
    drafter, num_tokens = step.drafter, step.num_speculative_tokens
    if isinstance(drafter, ChainDrafter) and isinstance(drafter.head, Head):
        return _head(drafter.head, num_slots, num_tokens, length)
    if isinstance(drafter, DraftModelDrafter):
        return _draft_model(drafter.model, num_slots, num_tokens, length)
    if drafter.num_parameters:
        raise ValueError(
            f"floor of a round: expected a head, a draft model or a drafter without weights, found "
            f"{type(drafter).__name__} with {drafter.num_parameters} parameters; say here what it reads"
        )
    return _Drafting()


def _head(head: Head, num_slots: int, num_tokens: int, length: int) -> _Drafting:
    """K - 1 passes over a pair of each slot, K products with the output matrix, one pass over K + 1 pairs."""
    output, embedding = output_matrix(head), embedding_of(head)
    joining = {id(parameter) for parameter in joining_parameters(head)}
    named = layer_parameters(head)
    top_k = experts_of_token(head.layer_config)

    def weights(tokens: int) -> int:
        """Of a pass, without what joins the target's states."""
        passed = ((name, item) for name, item in named if id(item) not in joining)
        return _weight_bytes(passed, tokens, top_k) + _row_bytes(embedding, output, tokens)

    cache_bytes = num_slots * (length - 1) * _token_bytes(head.layer_config, 1, named[0][1].dtype)
    joining_bytes = sum(item.nbytes for _, item in named if id(item) in joining)
    return _Drafting(
        draft_weight_bytes=(num_tokens - 1) * weights(num_slots),
        draft_output_bytes=num_tokens * output.nbytes,
        draft_cache_bytes=(num_tokens - 1) * cache_bytes,
        extend_weight_bytes=weights(num_slots * (num_tokens + 1)) + joining_bytes,
        extend_cache_bytes=cache_bytes,
    )


def _draft_model(model: TargetModel, num_slots: int, num_tokens: int, length: int) -> _Drafting:
    """K passes, the first over two tokens of each slot; the keys of those two are not there before."""
    output = output_matrix(model)
    passes = _model_bytes(model, 2 * num_slots) + (num_tokens - 1) * _model_bytes(model, num_slots)
    token_bytes = _token_bytes(model.config, model.num_layers, model.dtype)
    return _Drafting(
        draft_weight_bytes=passes - num_tokens * output.nbytes,
        draft_output_bytes=num_tokens * output.nbytes,
        draft_cache_bytes=num_tokens * num_slots * max(length - 2, 0) * token_bytes,
    )


def _model_bytes(model: TargetModel, num_tokens: int) -> int:
    """Weights of one forward of a language model over so many tokens, output matrix included."""
    embedding, output = embedding_of(model), output_matrix(model)
    layers = _weight_bytes(layer_parameters(model), num_tokens, experts_of_token(model.config))
    return layers + output.nbytes + _row_bytes(embedding, output, num_tokens)


def _weight_bytes(named: Iterable[tuple[str, nn.Parameter]], num_tokens: int, top_k: int) -> int:
    """Of parameters: all of each, but of merged experts [E, ...] those that the tokens hit on average, k a token."""
    total = 0
    for name, parameter in named:
        share = _share_hit(len(parameter), num_tokens, top_k) if is_merged_experts(name) else 1
        total += round(parameter.nbytes * share)
    return total


def _share_hit(num_experts: int, num_tokens: int, top_k: int) -> float:
    """Of the experts, the share that an even router hits on average: a token leaves one out with 1 - k / E."""
    return 1 - (1 - top_k / num_experts) ** num_tokens


def _row_bytes(embedding: Tensor, output: Tensor, num_tokens: int) -> int:
    """Of an embedding [V, H], the rows of so many tokens; nothing where it is read whole as the output matrix."""
    return 0 if embedding is output else min(num_tokens, len(embedding)) * embedding[0].nbytes


def _token_bytes(config: PreTrainedConfig, num_layers: int, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    num_heads, key_dim, value_dim = cache_shape(config)
    return num_layers * num_heads * (key_dim + value_dim) * dtype.itemsize
