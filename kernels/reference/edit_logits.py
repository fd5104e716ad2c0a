"""Penalties, biases and the least number of tokens, as changes of target rows along a draft.

The specification of kernels.edit_logits, which has the rule. It reads the whole text of every request.

Shapes: R requests, K draft tokens, C tokens of a text at most, V the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import LogitEdits, Texts, TokenTally


def edit_logits(
    target_logits: Tensor,
    draft_ids: Tensor,
    decides: Tensor,
    texts: Texts,
    edits: LogitEdits,
    tally: TokenTally | None = None,
    parents: Tensor | None = None,
) -> None:
    """See kernels.edit_logits; `tally` is left alone, and rows are of any floating dtype."""
    num_requests, num_drafts = draft_ids.shape
    rows = target_logits.view(num_requests, num_drafts + 1, -1)
    vocab_size = rows.shape[2]
    lengths, prompt_lengths = texts.lengths[:num_requests, None], texts.prompt_lengths[:num_requests, None]
    token_ids = texts.token_ids[:num_requests]
    places = torch.arange(token_ids.shape[1], device=rows.device)
    in_prompt = _counts(token_ids, places < prompt_lengths, vocab_size) > 0
    num_outputs = _counts(token_ids, (places >= prompt_lengths) & (places < lengths), vocab_size)
    before = drafts_before(draft_ids, parents)
    for index in range(num_drafts + 1):
        counts = num_outputs + _counts(draft_ids, before[:, index], vocab_size)
        logits = _edited(rows[:, index].float(), counts, in_prompt, edits)
        num_before = (lengths - prompt_lengths)[:, 0] + before[:, index].sum(1)
        waits = edits.ends & (edits.token_ids >= 0) & (num_before < edits.min_tokens)[:, None]
        logits.masked_fill_(_marked(edits.token_ids, waits, vocab_size), -torch.inf)
        rows[:, index] = torch.where(decides[:, None] != 0, logits.to(rows.dtype), rows[:, index])


def drafts_before(draft_ids: Tensor, parents: Tensor | None) -> Tensor:
    """[R, K + 1, K] bool, the draft tokens that each target row is conditioned on: those of its path in a tree."""
    num_requests, num_drafts = draft_ids.shape
    places = torch.arange(num_drafts, device=draft_ids.device)
    if parents is None:
        return (places < torch.arange(num_drafts + 1, device=draft_ids.device)[:, None]).expand(num_requests, -1, -1)
    before = torch.zeros(num_requests, num_drafts + 1, num_drafts, dtype=torch.bool, device=draft_ids.device)
    for node in range(num_drafts):
        above = before.gather(1, (parents[:, node] + 1).view(-1, 1, 1).expand(-1, 1, num_drafts))
        before[:, node + 1] = above[:, 0] | (places == node)
    return before


def _counts(token_ids: Tensor, counted: Tensor, vocab_size: int) -> Tensor:
    """[R, V] int64, how often each token stands at the places that count."""
    counted = counted & (token_ids >= 0) & (token_ids < vocab_size)
    counts = torch.zeros(len(token_ids), vocab_size, dtype=torch.int64, device=token_ids.device)
    return counts.scatter_add_(1, token_ids.long().where(counted, 0), counted.long())


def _marked(token_ids: Tensor, marked: Tensor, vocab_size: int) -> Tensor:
    """[R, V] bool, the tokens that are marked."""
    return _counts(token_ids, marked, vocab_size) > 0


def _edited(logits: Tensor, counts: Tensor, in_prompt: Tensor, edits: LogitEdits) -> Tensor:
    """Rows [R, V] float32 with biases and penalties."""
    has_bias = edits.token_ids >= 0
    logits = logits.scatter_add(1, edits.token_ids.long().where(has_bias, 0), edits.biases.where(has_bias, 0.0))
    repetition = edits.repetition_penalty[:, None]
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(in_prompt | (counts > 0), scaled, logits)
    logits = logits - edits.frequency_penalty[:, None] * counts
    return logits - edits.presence_penalty[:, None] * (counts > 0)
