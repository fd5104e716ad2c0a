"""Rounds as rows of probabilities, which is what SGLang, FlashInfer and transformers verify.

All requests of a round have K draft tokens; target rows are packed, K + 1 of each request. Drafts are drawn from the
softmax of the draft logits at the request's temperature, and not truncated.

Shapes: R requests, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.certification.subject import Features
from kernels.contract import Draft, DraftSampling, Drawn, Sampling, Streams, VerificationMethod, VerificationResult
from kernels.random.streams import Purpose
from kernels.reference.truncation import process, sampling_rows

Method = VerificationMethod
GREEDY, SAMPLED = DraftSampling.greedy, DraftSampling.sampled


def features(drafts: frozenset[tuple[VerificationMethod, DraftSampling, bool]], remark: str) -> Features:
    """Of a subject that verifies probabilities."""
    return Features(
        methods=frozenset(method for method, _, _ in drafts),
        draft_samplings=frozenset(sampling for _, sampling, _ in drafts),
        drafts=drafts,
        dtypes=frozenset({torch.float32}),
        narrow_draft=False,
        ragged=False,
        padded_slots=False,
        padded_rows=False,
        remark=f"target rows arrive as probabilities, processed in float32; drafts are not truncated; {remark}",
    )


def step_features(drafts: frozenset[tuple[VerificationMethod, DraftSampling, bool]]) -> Features:
    """Of a subject whose step drafts, calls both models and verifies, at a temperature alone."""
    return Features(
        methods=frozenset(method for method, _, _ in drafts),
        draft_samplings=frozenset(sampling for _, sampling, _ in drafts),
        drafts=drafts,
        remark="one call drafts, calls both models and verifies, one request a call; random numbers from torch's "
        "generator",
    )


def draft_probs(logits: Tensor, temperature: Tensor) -> Tensor:
    """The distributions that drafts are drawn from; one-hot where the temperature is 0.

    Args:
        logits: [R, V] or [R, K, V].
        temperature: [R] float32.

    Returns:
        float32, of the shape of the logits.
    """
    each = temperature.view(-1, *[1] * (logits.dim() - 1))
    probs = (logits.float() / torch.where(each == 0, 1.0, each)).softmax(dim=-1)
    largest = torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    return torch.where(each == 0, largest, probs)


def drafted_probs(draft: Draft, temperature: Tensor) -> Tensor:
    """[R, K, V] float32, what the draft tokens of a round were drawn from; one-hot where no logits are kept."""
    if draft.logits is None:
        raise ValueError("expected cached draft logits, found none")
    slots = slice(None) if draft.idx_mapping is None else draft.idx_mapping
    return draft_probs(draft.logits[slots], temperature)


def target_probs(target_logits: Tensor, sampling: Sampling, draft: Draft) -> Tensor:
    """[R, K + 1, V] float32, the processed target rows of a round."""
    num_requests, depth = draft.token_ids.shape
    request = torch.arange(num_requests, device=target_logits.device).repeat_interleave(depth + 1)
    rows = process(target_logits, sampling_rows(sampling, request)).float().softmax(dim=-1)
    return rows.view(num_requests, depth + 1, -1)


def drawn(token_ids: Tensor, probs: Tensor) -> Drawn:
    """Draft tokens [R] and the distributions [R, V] that they were drawn from."""
    logprobs = probs.gather(1, token_ids[:, None])[:, 0].log()
    return Drawn(token_ids, logprobs, torch.zeros_like(token_ids, dtype=torch.bool))


def multinomial_draw(
    logits: Tensor, sampling: Sampling, streams: Streams, purpose: Purpose, draft_to_target: Tensor | None = None
) -> Drawn:
    """Drafts by `torch.multinomial`, for the packages that draw them so."""
    seed_generators(streams)
    probs = draft_probs(logits, sampling.temperature)
    return drawn(torch.multinomial(probs, 1)[:, 0], probs)


def accepted_and_next(draft: Draft, num_accepted: Tensor, next_ids: Tensor) -> VerificationResult:
    """The result of a round from how many drafts were accepted and the token after them; both [R] int64."""
    columns = torch.arange(draft.token_ids.shape[1] + 1, device=next_ids.device)
    padded = torch.nn.functional.pad(draft.token_ids, (0, 1), value=-1)
    kept = torch.where(columns < num_accepted[:, None], padded, -1)
    token_ids = torch.where(columns == num_accepted[:, None], next_ids[:, None], kept)
    return VerificationResult(token_ids, num_accepted, torch.zeros_like(num_accepted, dtype=torch.bool))


def seed_generators(streams: Streams) -> None:
    """Seed torch's generators when a batch begins, so that a case does not depend on what ran before it.

    For subjects that draw from those generators. Every draw of a first round gets a seed of its own.

    Args:
        streams: of a draw.
    """
    if bool((streams.rounds == 1).all()):
        torch.manual_seed(int(streams.seeds[0] ^ streams.positions[0]))


def no_coupled_draw(*arguments: object) -> Drawn:
    """For subjects without coupled drafts, whose features say so."""
    raise ValueError("this subject has no coupled drafts; its features say so")
