"""The slots of a simulation, and what their requests have emitted so far.

Shapes: S slots, R rows of a batch, K draft tokens at most, L tokens of a tested sequence, G profiles, N = V ** L
sequences. See harness.checks.certification.simulate.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from harness.checks.certification.cases import DTYPES, Case
from harness.checks.certification.engine_steps import EngineSteps, depth_of
from kernels.contract import RowStats, Sampling, Streams, TokenMask, VerificationResult

SEED_STEP = 0x9E3779B97F4A7C15 - 2**64
"""Odd, so that requests never share a seed."""
SMALLEST_BATCH, BATCH_STEP = 4096, 16
"""A batch that is smaller, or no multiple of the step, would need kernels that are compiled for it."""
WATCHED_ROUNDS = 4
"""Rounds of a table, on a CPU, in which inputs must stay as they were; watching all would take a tenth of the time."""
NUM_POSITIONS = 7
"""Requests begin at positions 1 .. NUM_POSITIONS in turn."""
NOT_A_TOKEN = -7
"""Stands where nothing may be read."""


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
        """Faults, drafts that were verified, and those that were accepted."""
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
        self.engines: EngineSteps | None = None
        if case.depth_rule is not None and case.depth_rule.is_of_step:
            self.engines = EngineSteps(num_slots, partial(depth_of, case.depth_rule, self.depth))
        columns = torch.tensor(case.profiles, dtype=torch.float64).T
        self.profiles = [columns[0].float(), columns[1].long(), columns[2].float(), columns[3].float()]
        self.profiles = [column.to(device) for column in self.profiles]

    def numbers_of(self, token_ids: Tensor) -> Tensor:
        """The models' own numbers of tokens, int64 of any shape; -1 for what is no token of it."""
        inside = (token_ids >= 0) & (token_ids < len(self.numbers))
        return torch.where(inside, self.numbers[token_ids.clamp(0, len(self.numbers) - 1)], -1)

    def is_busy(self, slots: Tensor) -> Tensor:
        """[R] bool, whether the requests of some slots are not all done."""
        return self.num_served[slots] < self.case.requests_per_slot

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

    def streams(self, slots: Tensor, offset: int | Tensor = 0) -> Streams:
        positions = 1 + self.digits(slots).position + self.num_emitted[slots] + offset
        return Streams((self.requests[slots] + self.seed) * SEED_STEP, positions, self.rounds[slots])

    def masked(self, states: Tensor) -> dict[str, TokenMask]:
        """The argument `mask` of the rows after some states; nothing where the pair has no grammar."""
        if self.words is None or self.models.allowed is None:
            return {}
        is_free = self.models.allowed[states].all(dim=-1)
        return {"mask": TokenMask(self.words, torch.where(is_free, -1, states))}

    def decodes(self, slots: Tensor) -> Tensor:
        """[R] bool, whether the next step of a slot is a round of its request, where `engines` decide."""
        return self.is_busy(slots) & (self.num_emitted[slots] > 0)

    def num_draft_tokens(self, slots: Tensor) -> Tensor:
        """[R] int64; it depends on nothing that was drawn in this round."""
        if self.engines is not None:
            return self.engines.choose(slots, self.decodes(slots))
        lengths = torch.tensor(self.case.lengths, device=self.device)
        return lengths[(self.digits(slots).length + self.rounds[slots]) % len(lengths)]

    def commit(
        self,
        slots: Tensor,
        verdict: VerificationResult,
        num_draft_tokens: Tensor,
        num_emitted: Tensor | None = None,
    ) -> None:
        """Append what the real rows emitted, count the requests that are done, and start the next in their slots.

        Args:
            slots: [R] int64.
            verdict: of the round; its rows beyond R are not read.
            num_draft_tokens: [R] int64.
            num_emitted: [R] int64, output tokens; None: one more than accepted.
        """
        count, width = len(slots), self.depth + 1
        emitted = self.numbers_of(verdict.token_ids[:count])
        num_accepted = verdict.num_accepted[:count].clamp(0, self.depth)
        num_emitted = num_accepted + 1 if num_emitted is None else num_emitted
        columns = torch.arange(width, device=self.device)
        if self.engines is not None:
            goes_on = self.decodes(slots) & (self.num_emitted[slots] + num_accepted + 1 < self.length)
            self.engines.learn(slots, goes_on, num_accepted)
        self.tokens[slots[:, None], self.num_emitted[slots, None] + columns] = emitted
        for column in range(width):
            token_ids = emitted[:, column].clamp(0, self.models.vocab_size - 1)
            moved = self.models.next_states(self.states[slots], token_ids)
            self.states[slots] = torch.where(num_emitted > column, moved, self.states[slots])
        self.num_emitted[slots] += num_emitted
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
