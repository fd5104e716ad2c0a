"""Run toy requests through a subject: draft, verify, commit, in slots that are used again, and count what comes out.

Shapes: S slots, R rows of a batch, K draft tokens at most, V and V_draft the vocabularies, L tokens of a tested
sequence, G profiles, N = V ** L sequences.

Token ids that a subject gets and gives are the ones it sees (ToyModels.token_ids); states and counts use the models'
own numbers.
Every slot serves a fixed number of requests, so that quick requests count no more than slow ones. A request begins in
state 0 at a position of its own, with its own seed, in round 1. A batch holds all slots that are not done yet, in an
order that has nothing to do with the slots; a few that are done fill it up, with requests that are not counted. All
bookkeeping stays on the device; the host learns only how many slots are still busy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.checks.certification.cases import Case
from harness.checks.certification.confident_drafts import propose_confidently
from harness.checks.certification.contract_checks import copied_inputs, num_overwritten, returned
from harness.checks.certification.slot_table import BATCH_STEP, NOT_A_TOKEN, WATCHED_ROUNDS, SlotTable
from harness.checks.certification.subject import Subject, features_of
from harness.checks.certification.toy_edits import texts_of
from harness.checks.certification.tree_rounds import simulate_tree_round
from harness.checks.certification.whole_rounds import simulate_whole_round
from kernels.contract import Draft, DraftSampling, Drawn, RowStats, Sampling, TokenMask, VerificationResult
from kernels.random.streams import Purpose


@dataclass(frozen=True)
class Simulated:
    """The counts of a simulated case."""

    counts: Tensor
    """[G, 2, N] int64, on the CPU: requests by profile, half and sequence."""
    num_faults: int
    """Verdicts that were flagged, or broke the contract of their fields; on a CPU also inputs that the first rounds
    overwrote."""
    num_draft_tokens: int
    num_accepted: int


def propose(subject: Subject, table: SlotTable, slots: Tensor, keeps_stats: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Draft in every slot, with the logits in the cache.

    Returns:
        ([R, K] int64 draft tokens, [R, K + 1] int64 states before each of them and after the last, [R] int64 drafts
        that are verified).
    """
    case, models = table.case, table.models
    sampling, states = table.sampling(slots), table.states[slots]
    drafts, before = [], [states]
    drawing = "coupled_draw" if case.draft_sampling is DraftSampling.coupled else "draw"
    for index in range(table.depth):
        logits, streams = table.draft_rows[states], table.streams(slots, index)
        table.cache[slots, index] = logits.to(table.cache.dtype)
        masked = table.masked(states)
        if masked:
            table.cache_mask_rows[slots, index] = masked["mask"].rows
        if case.draft_sampling is DraftSampling.coupled:
            drawn = subject.coupled_draw(logits, sampling, streams, models.num_ids, models.draft_to_target, **masked)
        elif case.draft_sampling is DraftSampling.greedy:
            off = torch.zeros_like(sampling.temperature)
            still = Sampling(off, torch.zeros_like(sampling.top_k), off + 1, off, truncates=False)
            drawn = subject.draw(logits, still, streams, Purpose.draft, models.draft_to_target, **masked)
        elif keeps_stats:
            rows = RowStats.empty(len(slots), device=logits.device)
            kept = {"row_stats": rows, **masked}
            drawn = subject.draw(logits, sampling, streams, Purpose.draft, models.draft_to_target, **kept)
            for name, field in vars(rows).items():
                getattr(table.row_stats, name)[slots, index] = field
        else:
            drawn = subject.draw(logits, sampling, streams, Purpose.draft, models.draft_to_target, **masked)
        drafts.append(returned(drawing, drawn, Drawn, token_ids=(len(slots),)).token_ids)
        states = models.next_states(states, table.numbers_of(drawn.token_ids).clamp(min=0))
        before.append(states)
    token_ids, counts = torch.stack(drafts, dim=1), table.num_draft_tokens(slots)
    every = torch.stack(before, dim=1)
    if case.depth_rule is not None and not case.depth_rule.is_lossless:
        counts = torch.minimum(counts, case.depth_rule.num_drafts(table.draft_rows[every[:, :-1]], token_ids, slots))
    return token_ids, every, counts


def edit_rows(subject: Subject, table: SlotTable, slots: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Let the subject change the target rows of a round in place.

    Args:
        subject: under test.
        table: of the slots.
        slots: [R] int64.
        rows: [R, K + 1, V].
        token_ids: [R, K] int64, the drafts.
    """
    edits = table.case.edits
    assert edits is not None
    texts = texts_of(table.tokens[slots], table.num_emitted[slots])
    given = edits.given(len(slots), table.device)
    subject.edit_logits(rows.view(-1, rows.shape[2]), token_ids, torch.ones_like(slots), texts, given)  # type: ignore[attr-defined]


def _pad(values: Tensor, num_rows: int, filler: int) -> Tensor:
    padding = values.new_full((num_rows - len(values), *values.shape[1:]), filler)
    return torch.cat([values, padding])


def simulate_round(subject: Subject, table: SlotTable, slots: Tensor) -> None:
    """One round of some slots."""
    case, models, depth = table.case, table.models, table.depth
    keeps_stats = (case.row_stats and case.cached and case.draft_sampling is DraftSampling.sampled) and features_of(
        subject
    ).row_stats
    own_draft: Draft | None = None
    if case.depth_rule is not None and case.depth_rule.is_of_drafts:
        own_draft, states = propose_confidently(subject, table, slots)
        token_ids, counts = own_draft.token_ids, own_draft.num_draft_tokens
    else:
        token_ids, states, counts = propose(subject, table, slots, keeps_stats)
    columns = torch.arange(depth + 1, device=table.device)
    rows = table.target_rows[states]
    if case.edits is not None:
        edit_rows(subject, table, slots, rows, token_ids)
    token_ids = torch.where(columns[:-1] < counts[:, None], token_ids, NOT_A_TOKEN)
    row_states = states
    if case.padded_rows:
        rows = rows.masked_fill((columns > counts[:, None])[..., None], torch.nan)
    elif case.is_ragged:
        rows, row_states = rows[columns <= counts[:, None]], states[columns <= counts[:, None]]
    real = slots
    if case.padded_slots:
        # The values that may not be read come from slot 0.
        num_rows = max(len(table.order), len(slots) + BATCH_STEP)
        token_ids, counts = _pad(token_ids, num_rows, NOT_A_TOKEN), _pad(counts, num_rows, -1)
        slots = _pad(slots, num_rows, 0)
    if own_draft is None:
        draft = Draft(
            token_ids=token_ids,
            num_draft_tokens=counts,
            logits=table.cache if case.cached else None,
            idx_mapping=slots if case.cached else None,
            draft_to_target=models.draft_to_target if case.cached else None,
            row_stats=table.row_stats if keeps_stats else None,
            mask=TokenMask(table.words, table.cache_mask_rows) if case.cached and table.words is not None else None,
        )
    else:
        draft = replace(own_draft, token_ids=token_ids)
    logits, masked = rows.reshape(-1, models.num_ids), table.masked(row_states.flatten())
    table.num_rounds += 1
    is_watched = table.device.type == "cpu" and table.num_rounds <= WATCHED_ROUNDS
    copies = copied_inputs(logits, draft) if is_watched else None
    found = subject.verify(logits, draft, table.sampling(slots), case.verification, table.streams(slots), **masked)
    size = (len(counts),)
    verdict = returned(
        "verify", found, VerificationResult, token_ids=(*size, depth + 1), num_accepted=size, invalid=size
    )
    table.tallies[0] += num_faults(verdict, draft, table.numbers_of(verdict.token_ids))
    if copies is not None:
        table.tallies[0] += num_overwritten(copies, logits, draft)
    table.commit(real, verdict, counts[: len(real)])


def num_faults(verdict: VerificationResult, draft: Draft, numbers: Tensor) -> Tensor:
    """[] int64, the verdicts that are flagged, not what kernels.contract promises, or emit what cannot be drawn.

    Args:
        verdict: fields [R].
        draft: what was verified.
        numbers: [R, K + 1] int64, the models' own numbers of the output tokens, -1 for what is no token of it.
    """
    padded = draft.num_draft_tokens < 0
    num_accepted, emitted = verdict.num_accepted, verdict.token_ids
    columns = torch.arange(emitted.shape[1], device=emitted.device)
    accepted = columns[:-1] < num_accepted[:, None]
    written = (columns <= num_accepted[:, None]) & ~padded[:, None]
    wrong = (num_accepted < 0) | (num_accepted > draft.num_draft_tokens.clamp(min=0)) | verdict.invalid
    wrong |= (accepted & (emitted[:, :-1] != draft.token_ids)).any(1)
    wrong |= torch.where(written, numbers < 0, emitted != -1).any(1)
    return wrong.sum()


def simulate(subject: Subject, case: Case, num_samples: int, batch: int, seed: int, device: torch.device) -> Simulated:
    """Simulate at least `num_samples` requests of a case.

    Args:
        subject: under test.
        case: what to simulate.
        num_samples: rounded up to batches of one size.
        batch: slots that are busy at a time, at most; rounded up to whole steps.
        seed: of all random streams.
        device: where everything lives.
    """
    per_slot = case.requests_per_slot
    num_batches = -(-num_samples // (batch * per_slot))
    num_slots = -(-num_samples // (num_batches * per_slot * BATCH_STEP)) * BATCH_STEP
    counts, tallies = None, None
    play = simulate_tree_round if case.drafts_trees else simulate_round
    if features_of(subject).whole_rounds:
        play = simulate_whole_round
    for index in range(num_batches):
        table = SlotTable(case, num_slots, index * num_slots * per_slot, seed, device)
        slots = table.order
        while len(slots):
            play(subject, table, slots)
            slots = table.still_running(slots)
        counts = table.counts if counts is None else counts + table.counts
        tallies = table.tallies if tallies is None else tallies + table.tallies
    assert counts is not None and tallies is not None
    faults, drafted, accepted = tallies.tolist()
    shape = (len(case.profiles), 2, case.models.num_codes)
    return Simulated(counts[:-1].view(shape).cpu(), faults, drafted, accepted)
