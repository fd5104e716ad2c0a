"""Drafts of a round that ends where the drafter is not confident, drawn and kept by the engine's draft-logit cache.

Shapes: S slots, R rows of a batch, K draft tokens at most, V the vocabulary of target and drafter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harness.checks.certification.contract_checks import returned
from harness.checks.certification.depth_rules import MIN_CONFIDENCE, DepthRule, of_tokens
from harness.checks.certification.slot_table import SlotTable
from harness.checks.certification.subject import Subject, features_of
from kernels.contract import Draft, Drawn
from kernels.core import Core, reference_core

if TYPE_CHECKING:
    from harness.models.confidence_head import PredictedConfidence


def _core_of(subject: Subject, keeps_stats: bool) -> Core:
    """A core that draws as the subject does, which may know no row statistics."""

    def draw(logits: Tensor, *others: Any, mask: Any) -> Drawn:
        stats = others[4] if len(others) > 4 else None
        kept = {"row_stats": stats} if keeps_stats and stats is not None else {}
        drawn = subject.draw(logits, *others[:4], **kept)
        return returned("draw", drawn, Drawn, token_ids=(len(logits),))

    def coupled_draw(logits: Tensor, *others: Any, mask: Any) -> Drawn:
        drawn = subject.coupled_draw(logits, *others)
        return returned("coupled_draw", drawn, Drawn, token_ids=(len(logits),))

    return replace(reference_core(), draw=draw, coupled_draw=coupled_draw)


def _predicted(table: SlotTable, num_rows: int) -> PredictedConfidence | None:
    """A confidence head that reads the state before a draft token, whose predictions are `of_tokens`; None where the
    rows decide."""
    rule = table.case.depth_rule
    if rule is DepthRule.row:
        return None
    from harness.models.confidence_head import ConfidenceHead, PredictedConfidence

    logits = of_tokens(table.models.num_states).logit().to(table.device)
    head = ConfidenceHead(1).to(table.device)
    with torch.no_grad():
        head.proj.weight.fill_(1.0)
        head.proj.bias.zero_()
    states = torch.empty(num_rows, table.depth, 0, device=table.device)
    return PredictedConfidence(states, head, logits[:, None], multiplies=rule is DepthRule.survival)


def propose_confidently(subject: Subject, table: SlotTable, slots: Tensor) -> tuple[Draft, Tensor]:
    """Draft in every slot until its drafter is unsure.

    Args:
        subject: draws the tokens.
        table: of the requests; models without a grammar, of one vocabulary.
        slots: [R] int64; the cache has a row for each of them, in this order, and keeps nothing of the round before.

    Returns:
        (the drafts; [R, K + 1] int64 states before each of them and after the last).
    """
    # importing the engine's drafters takes seconds
    from harness.drafters.draft_logits import Caching, DraftLogits
    from harness.drafters.protocol import Batch

    case, models, num_rows = table.case, table.models, len(slots)
    size, dtype = (num_rows, table.depth, models.num_ids), table.draft_rows.dtype
    caching = Caching(min_confidence=MIN_CONFIDENCE)
    cache = DraftLogits(case.draft_sampling, size, models.num_ids, None, dtype, slots.device, caching)
    keeps_stats = case.row_stats and case.cached and features_of(subject).row_stats
    batch = Batch(
        rows=slice(0, num_rows),
        num_rows=num_rows,
        num_speculative_tokens=table.depth,
        token_ids=table.tokens[slots],
        sampling=table.sampling(slots),
        streams=table.streams(slots),
        core=_core_of(subject, keeps_stats),
        length=table.tokens.shape[1],
    )
    drafted: list[Tensor] = []
    before = [table.states[slots]]
    predicted = _predicted(table, num_rows)
    for step in range(table.depth):
        sure = None if predicted is None else predicted.at(step, before[-1]).detach()
        drafted.append(cache.draw(table.draft_rows[before[-1]], batch, step, sure))
        before.append(models.next_states(before[-1], table.numbers_of(drafted[-1]).clamp(min=0)))
        if cache.has_ended(batch, step):
            break
    before += before[-1:] * (table.depth + 1 - len(before))
    draft = cache.draft(drafted, batch)
    if not keeps_stats:
        draft = replace(draft, row_stats=None)
    return draft, torch.stack(before, dim=1)
