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

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.certification.cases import DTYPES, Case
from harness.certification.contract_checks import copied_inputs, num_overwritten, returned
from harness.certification.subject import Subject, features_of
from kernels.contract import Draft, DraftSampling, Drawn, RowStats, Sampling, Streams, TokenMask, VerificationResult
from kernels.streams import Purpose

SEED_STEP = 0x9E3779B97F4A7C15 - 2**64
"""Odd, so that requests never share a seed."""
REQUESTS_PER_SLOT = 4
SMALLEST_BATCH, BATCH_STEP = 4096, 16
"""A batch that is smaller, or no multiple of the step, would need kernels that are compiled for it."""
WATCHED_ROUNDS = 4
"""Rounds of a table, on a CPU, in which inputs must stay as they were; watching all would take a tenth of the time."""
NUM_POSITIONS = 7
"""Requests begin at positions 1 .. NUM_POSITIONS in turn."""
NOT_A_TOKEN = -7
"""Stands where nothing may be read."""


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


class Digits(NamedTuple):
    """The number of a request taken apart, so that what sets requests apart goes through all combinations."""

    profile: Tensor
    half: Tensor
    length: Tensor
    """Where the request begins in the case's lengths."""
    position: Tensor


def words_of(allowed: Tensor) -> Tensor:
    """[C, V] bool, V at most 31 -> [C, 1] int32 with a bit for each token."""
    return (allowed << torch.arange(allowed.shape[1], device=allowed.device)).sum(dim=1, keepdim=True).int()


class SlotTable:
    """S slots and what their requests have emitted so far."""

    def __init__(self, case: Case, num_slots: int, first_request: int, seed: int, device: torch.device) -> None:
        self.case, self.device = case, device
        models = case.models.in_dtype(DTYPES[case.dtype]).on(device)
        self.models, self.depth, self.length = models, case.num_speculative_tokens, models.num_tokens
        self.seed = seed * 0x5851F42D + zlib.crc32(case.name.encode())
        self.order = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed)).to(device)
        self.requests = first_request + torch.arange(num_slots, device=device)
        self.num_rounds = 0
        self.num_served = torch.zeros_like(self.requests)
        self.num_emitted = torch.zeros_like(self.requests)
        self.rounds = torch.ones_like(self.requests)
        self.states = torch.zeros_like(self.requests)
        self.numbers = models.numbers_of()
        self.target_rows, self.draft_rows = (
            models.rows_seen(models.target_logits),
            models.rows_seen(models.draft_logits),
        )
        self.tokens = torch.zeros(num_slots, self.length + self.depth, dtype=torch.long, device=device)
        # The last bin takes the requests that go on, and those that are not counted.
        self.counts = torch.zeros(len(case.profiles) * 2 * models.num_codes + 1, dtype=torch.long, device=device)
        self.tallies = torch.zeros(3, dtype=torch.long, device=device)
        shape = (num_slots, self.depth, self.draft_rows.shape[1])
        cache_dtype = DTYPES[case.cache_dtype or case.dtype]
        self.cache = torch.full(shape, torch.nan, dtype=cache_dtype, device=device)
        self.row_stats = RowStats(
            maximum=torch.full(shape[:2], torch.nan, device=device),
            normalizer=torch.full(shape[:2], torch.nan, dtype=torch.float64, device=device),
            threshold=torch.full(shape[:2], torch.nan, device=device),
        )
        self.words = None if models.allowed is None else words_of(models.allowed)
        self.cache_mask_rows = torch.full(shape[:2], -1, device=device)
        columns = torch.tensor(case.profiles, dtype=torch.float64).T
        self.profiles = [columns[0].float(), columns[1].long(), columns[2].float(), columns[3].float()]
        self.profiles = [column.to(device) for column in self.profiles]

    def numbers_of(self, token_ids: Tensor) -> Tensor:
        """The models' own numbers of tokens, int64 of any shape; -1 for what is no token of it."""
        inside = (token_ids >= 0) & (token_ids < len(self.numbers))
        return torch.where(inside, self.numbers[token_ids.clamp(0, len(self.numbers) - 1)], -1)

    def is_busy(self, slots: Tensor) -> Tensor:
        """[R] bool, whether the requests of some slots are not all done."""
        return self.num_served[slots] < REQUESTS_PER_SLOT

    def still_running(self, slots: Tensor) -> Tensor:
        """[R] int64, the slots of the next batch, in the same order: those that are busy, and a few that fill it up."""
        busy = self.is_busy(slots)
        num_busy = int(busy.sum())
        if num_busy == 0:
            return slots[:0]
        num_kept = max(SMALLEST_BATCH, -(-num_busy // BATCH_STEP) * BATCH_STEP)
        return slots[busy | (torch.cumsum(~busy, dim=0) <= num_kept - num_busy)]

    def sampling(self, slots: Tensor) -> Sampling:
        index = self.digits(slots).profile
        temperature, top_k, top_p, min_p = (column[index] for column in self.profiles)
        cuts = {profile.truncates for profile in self.case.profiles}
        return Sampling(temperature, top_k, top_p, min_p, truncates=True in cuts, is_mixed=len(cuts) > 1)

    def digits(self, slots: Tensor) -> Digits:
        """What sets the requests in some slots apart."""
        rest, digits = self.requests[slots], []
        for base in (len(self.case.profiles), 2, len(self.case.lengths), NUM_POSITIONS):
            digits.append(rest % base)
            rest = rest // base
        return Digits(*digits)

    def streams(self, slots: Tensor, offset: int = 0) -> Streams:
        positions = 1 + self.digits(slots).position + self.num_emitted[slots] + offset
        return Streams((self.requests[slots] + self.seed) * SEED_STEP, positions, self.rounds[slots])

    def masked(self, states: Tensor) -> dict[str, TokenMask]:
        """The argument `mask` of the rows after some states; nothing where the pair has no grammar."""
        if self.words is None or self.models.allowed is None:
            return {}
        is_free = self.models.allowed[states].all(dim=-1)
        return {"mask": TokenMask(self.words, torch.where(is_free, -1, states))}

    def num_draft_tokens(self, slots: Tensor) -> Tensor:
        """[R] int64; it depends on nothing that was drawn."""
        lengths = torch.tensor(self.case.lengths, device=self.device)
        return lengths[(self.digits(slots).length + self.rounds[slots]) % len(lengths)]

    def commit(self, slots: Tensor, verdict: VerificationResult, num_draft_tokens: Tensor) -> None:
        """Append what the real rows emitted, count the requests that are done, and start the next in their slots."""
        count, width = len(slots), self.depth + 1
        emitted = self.numbers_of(verdict.token_ids[:count])
        num_accepted = verdict.num_accepted[:count].clamp(0, self.depth)
        columns = torch.arange(width, device=self.device)
        self.tokens[slots[:, None], self.num_emitted[slots, None] + columns] = emitted
        for column in range(width):
            token_ids = emitted[:, column].clamp(0, self.models.vocab_size - 1)
            moved = self.models.next_states(self.states[slots], token_ids)
            self.states[slots] = torch.where(num_accepted >= column, moved, self.states[slots])
        self.num_emitted[slots] += num_accepted + 1
        self.rounds[slots] += 1
        busy = self.is_busy(slots)
        self.tallies[1:] += torch.stack([(num_draft_tokens * busy).sum(), (num_accepted * busy).sum()])
        self._finish(slots)

    def _finish(self, slots: Tensor) -> None:
        done = self.num_emitted[slots] >= self.length
        powers = self.models.vocab_size ** torch.arange(self.length - 1, -1, -1, device=self.device)
        codes = (self.tokens[slots, : self.length].clamp(0, self.models.vocab_size - 1) * powers).sum(1)
        digits = self.digits(slots)
        group = digits.profile * 2 + digits.half
        counted = done & self.is_busy(slots)
        bins = torch.where(counted, group * self.models.num_codes + codes, len(self.counts) - 1)
        self.counts += torch.bincount(bins, minlength=len(self.counts))
        self.num_served[slots] += done
        self.requests[slots] += done * len(self.order)
        self.num_emitted[slots] *= ~done
        self.states[slots] *= ~done
        self.rounds[slots] = torch.where(done, 1, self.rounds[slots])


def propose(subject: Subject, table: SlotTable, slots: Tensor, keeps_stats: bool) -> tuple[Tensor, Tensor]:
    """Draft in every slot, with the logits in the cache.

    Returns:
        ([R, K] int64 draft tokens, [R, K + 1] int64 states before each of them and after the last).
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
    return torch.stack(drafts, dim=1), torch.stack(before, dim=1)


def _pad(values: Tensor, num_rows: int, filler: int) -> Tensor:
    padding = values.new_full((num_rows - len(values), *values.shape[1:]), filler)
    return torch.cat([values, padding])


def simulate_round(subject: Subject, table: SlotTable, slots: Tensor) -> None:
    """One round of some slots."""
    case, models, depth = table.case, table.models, table.depth
    keeps_stats = (case.row_stats and case.cached and case.draft_sampling is DraftSampling.sampled) and features_of(
        subject
    ).row_stats
    token_ids, states = propose(subject, table, slots, keeps_stats)
    counts = table.num_draft_tokens(slots)
    columns = torch.arange(depth + 1, device=table.device)
    rows = table.target_rows[states]
    token_ids = torch.where(columns[:-1] < counts[:, None], token_ids, NOT_A_TOKEN)
    row_states = states
    if case.padded_rows:
        rows = rows.masked_fill((columns > counts[:, None])[..., None], torch.nan)
    elif len(case.lengths) > 1:
        rows, row_states = rows[columns <= counts[:, None]], states[columns <= counts[:, None]]
    real = slots
    if case.padded_slots:
        # The values that may not be read come from slot 0.
        num_rows = max(len(table.order), len(slots) + BATCH_STEP)
        token_ids, counts = _pad(token_ids, num_rows, NOT_A_TOKEN), _pad(counts, num_rows, -1)
        slots = _pad(slots, num_rows, 0)
    draft = Draft(
        token_ids=token_ids,
        num_draft_tokens=counts,
        logits=table.cache if case.cached else None,
        idx_mapping=slots if case.cached else None,
        draft_to_target=models.draft_to_target if case.cached else None,
        row_stats=table.row_stats if keeps_stats else None,
        mask=TokenMask(table.words, table.cache_mask_rows) if case.cached and table.words is not None else None,
    )
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
    num_batches = -(-num_samples // (batch * REQUESTS_PER_SLOT))
    num_slots = -(-num_samples // (num_batches * REQUESTS_PER_SLOT * BATCH_STEP)) * BATCH_STEP
    counts, tallies = None, None
    for index in range(num_batches):
        table = SlotTable(case, num_slots, index * num_slots * REQUESTS_PER_SLOT, seed, device)
        slots = table.order
        while len(slots):
            simulate_round(subject, table, slots)
            slots = table.still_running(slots)
        counts = table.counts if counts is None else counts + table.counts
        tallies = table.tallies if tallies is None else tallies + table.tallies
    assert counts is not None and tallies is not None
    faults, drafted, accepted = tallies.tolist()
    shape = (len(case.profiles), 2, case.models.num_codes)
    return Simulated(counts[:-1].view(shape).cpu(), faults, drafted, accepted)
