"""The local engine: prefill, then rounds of draft, target forward, verification and commit, until all requests ended.

The autoregressive baseline is the same engine with a drafter that proposes nothing. The engine knows token ids, slots
and time; it does not know text, configurations or files. Batch composition does not reach the random streams: they are
functions of a request's seed, position and own round count.

Letters: B rows (slots 0..B - 1), A rows with a request, K draft tokens of a round, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from harness.drafters.protocol import Drafter, ProposalRequest, TargetStep
from harness.engine.scheduler import Scheduler
from harness.engine.sequence import Limits, Request, Sequence, Timing
from harness.models.target import TargetModel
from harness.records import RequestRecord
from kernels.contract import Draft, Sampling, Streams, Verdict, Verification
from kernels.core import core_for
from kernels.reference.acceptance import acceptance_terms, expected_accepted

PREFILL_TOKENS = 4096
"""Tokens of one prefill forward at most, unless a single prompt is longer; bounds the memory of its activations."""


@dataclass(frozen=True)
class SamplingSettings:
    """The sampling parameters that all requests of an engine share; see kernels.contract.Sampling."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def rows(self, num_rows: int, device: torch.device) -> Sampling:
        return Sampling(
            torch.full((num_rows,), self.temperature, dtype=torch.float32, device=device),
            torch.full((num_rows,), self.top_k, dtype=torch.int64, device=device),
            torch.full((num_rows,), self.top_p, dtype=torch.float32, device=device),
            torch.full((num_rows,), self.min_p, dtype=torch.float32, device=device),
            self.truncates,
        )


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built for."""

    num_slots: int
    capacity: int
    """Tokens a slot holds: prompt, output, and room for the drafts of the last round."""
    num_speculative_tokens: int
    sampling: SamplingSettings
    verification: Verification
    limits: Limits
    expected_acceptance: bool = False
    """Compute, per round, the acceptance that each chain method expects on the same drafts."""


@dataclass(frozen=True)
class EngineRun:
    """The requests in the order they finished, and how long it took."""

    requests: tuple[RequestRecord, ...]
    wall_s: float
    num_invalid: int
    """Verifications that met a row without a distribution, or a draft token its distribution cannot have produced."""


class HostVerdict(NamedTuple):
    """What a round decided, on the host."""

    emitted: list[list[int]]
    draft_ids: list[list[int]]
    invalid: list[bool]
    timing: Timing


FollowUp = Callable[[RequestRecord], Request | None]
Measured = TypeVar("Measured")


class Engine:
    """Runs requests through one target and one drafter."""

    def __init__(self, target: TargetModel, drafter: Drafter, settings: EngineSettings) -> None:
        self.target = target
        self.drafter = drafter
        self.settings = settings
        self.core = core_for(target.device)
        self._cache = target.new_cache(settings.num_slots, settings.capacity)
        self._num_invalid = 0
        self._began = 0.0

    @torch.inference_mode()
    def run(self, requests: Iterable[Request], follow_up: FollowUp, start_s: float = 0.0) -> EngineRun:
        """Run all requests and their follow-ups to the end.

        Args:
            requests: in the order of admission.
            follow_up: called with each finished request; may return the next turn of its conversation.
            start_s: what the clock of the records shows at the start.
        """
        self._began = time.perf_counter() - start_s
        self._num_invalid = 0
        scheduler = Scheduler(self.settings.num_slots, requests)
        finished: list[RequestRecord] = []
        while not scheduler.is_done:
            for batch in _prefill_batches(scheduler.admit(self._now())):
                self._prefill(batch)
            self._retire(scheduler, finished, follow_up)
            if scheduler.running:
                self._round([scheduler.running[slot] for slot in sorted(scheduler.running)])
                self._retire(scheduler, finished, follow_up)
        return EngineRun(tuple(finished), self._now() - start_s, self._num_invalid)

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _unclocked(self, measure: Callable[[], Measured]) -> Measured:
        """Do something that a measurement needs and decoding does not, while the clock stands still.

        The round's result has been read, so nothing of the round itself is still under way on the device.
        """
        stopped = time.perf_counter()
        result = measure()
        self._began += time.perf_counter() - stopped
        return result

    def _retire(self, scheduler: Scheduler, finished: list[RequestRecord], follow_up: FollowUp) -> None:
        for sequence in [item for item in scheduler.running.values() if item.finish_reason is not None]:
            record = sequence.to_record()
            finished.append(record)
            if sequence.is_tainted:
                # masking does not hide a NaN from the slot's next request: its weight is 0, and 0 times NaN is NaN
                self._cache.clear(slice(sequence.slot, sequence.slot + 1))
                self.drafter.clear(sequence.slot)
            scheduler.release(sequence, follow_up(record))

    def _prefill(self, sequences: SequenceOf[Sequence]) -> None:
        """Read the prompts and draw each request's first token: a round without drafts."""
        started_s, device = self._now(), self.target.device
        longest = max(sequence.length for sequence in sequences)
        rows = torch.tensor([sequence.slot for sequence in sequences], device=device)
        token_ids = torch.tensor(
            [sequence.token_ids + [0] * (longest - sequence.length) for sequence in sequences], device=device
        )
        positions = torch.arange(longest, device=device).expand(len(sequences), -1)
        view = self._cache.view(rows, positions, longest)
        output = self.target.forward(token_ids, positions, view, self.drafter.aux_layers)
        last_index = torch.tensor([sequence.length - 1 for sequence in sequences], device=device)
        logits = self.target.logits(output.hidden[torch.arange(len(sequences), device=device), last_index])
        draft = Draft(rows.new_empty(len(sequences), 0), torch.zeros_like(rows))
        verdict = self._verify(logits, draft, sequences)
        next_ids = token_ids.roll(-1, dims=1)
        next_ids[torch.arange(len(sequences), device=device), last_index] = verdict.token_ids[:, 0]
        result = self._read(verdict, draft)
        self._commit(sequences, result, None)
        step = TargetStep(rows, token_ids, next_ids, positions, last_index, output, longest, is_prefill=True)
        self.drafter.extend(step)
        result.timing.share_s = (self._now() - started_s) / len(sequences)

    def _round(self, sequences: SequenceOf[Sequence]) -> None:
        """Draft, verify and commit one round for every running request."""
        started_s, device = self._now(), self.target.device
        num_rows = sequences[-1].slot + 1
        active = torch.tensor([sequence.slot for sequence in sequences], device=device)
        request = self._proposal_request(sequences, num_rows)
        draft = self.drafter.propose(request)
        last_ids = [0] * num_rows
        for sequence in sequences:
            last_ids[sequence.slot] = sequence.token_ids[-1]
        # [B, K + 1]
        token_ids = torch.cat([torch.tensor(last_ids, device=device).unsqueeze(1), draft.token_ids], dim=1)
        num_columns = token_ids.shape[1]
        positions = request.positions.unsqueeze(1) + torch.arange(-1, num_columns - 1, device=device)
        length = request.length + num_columns - 1
        view = self._cache.view(slice(0, num_rows), positions, length)
        output = self.target.forward(token_ids, positions, view, self.drafter.aux_layers)

        draft = replace(
            draft,
            token_ids=draft.token_ids[active],
            num_draft_tokens=draft.num_draft_tokens[active],
            idx_mapping=active,
        )
        # [A, K + 1]: the rows that verification reads, K_r + 1 of each request
        wanted = torch.arange(num_columns, device=device) <= draft.num_draft_tokens.unsqueeze(1)
        logits = self.target.logits(output.hidden[active][wanted])
        verdict = self._verify(logits, draft, sequences)
        result = self._read(verdict, draft)
        self._commit(sequences, result, self._unclocked(lambda: self._expected(logits, draft)))
        if any(sequence.finish_reason is None for sequence in sequences):
            next_ids, last_index = torch.zeros_like(token_ids), torch.zeros_like(request.positions)
            next_ids[active] = verdict.token_ids.clamp_min(0)
            last_index[active] = verdict.num_accepted
            step = TargetStep(slice(0, num_rows), token_ids, next_ids, positions, last_index, output, length, False)
            self.drafter.extend(step)
        result.timing.share_s = (self._now() - started_s) / len(sequences)

    def _proposal_request(self, sequences: SequenceOf[Sequence], num_rows: int) -> ProposalRequest:
        device = self.target.device
        token_ids: list[list[int]] = [[] for _ in range(num_rows)]
        # a row without a request drafts and reads at position 1 of its own empty slot, and nobody looks at it
        lengths, seeds, rounds = [1] * num_rows, [0] * num_rows, [0] * num_rows
        for sequence in sequences:
            token_ids[sequence.slot] = sequence.token_ids
            lengths[sequence.slot] = sequence.length
            seeds[sequence.slot] = sequence.request.seed
            rounds[sequence.slot] = sequence.num_rounds
        return ProposalRequest(
            num_rows=num_rows,
            num_speculative_tokens=self.settings.num_speculative_tokens,
            sequences=token_ids,
            sampling=self.settings.sampling.rows(num_rows, device),
            seeds=torch.tensor(seeds, device=device),
            positions=torch.tensor(lengths, device=device),
            rounds=torch.tensor(rounds, device=device),
            length=max(lengths),
        )

    def _verify(self, logits: Tensor, draft: Draft, sequences: SequenceOf[Sequence]) -> Verdict:
        device = logits.device
        streams = Streams(
            torch.tensor([sequence.request.seed for sequence in sequences], device=device),
            torch.tensor([sequence.length for sequence in sequences], device=device),
            torch.tensor([sequence.num_rounds for sequence in sequences], device=device),
        )
        sampling = self.settings.sampling.rows(len(sequences), device)
        return self.core.verify(logits, draft, sampling, self.settings.verification, streams)

    def _expected(self, logits: Tensor, draft: Draft) -> list[tuple[float, float, float]] | None:
        """[A]: expected accepted tokens of the chain methods, given these drafts."""
        if not self.settings.expected_acceptance or draft.token_ids.shape[1] == 0:
            return None
        sampling = self.settings.sampling.rows(draft.num_draft_tokens.numel(), logits.device)
        terms = acceptance_terms(logits, draft, sampling, with_masses=False)
        return [(row[0], row[1], row[2]) for row in expected_accepted(terms, draft).tolist()]

    def _read(self, verdict: Verdict, draft: Draft) -> HostVerdict:
        """Bring a round's result to the host: the one place where the engine waits for the device."""
        emitted, accepted, invalid = (
            tensor.tolist() for tensor in (verdict.token_ids, verdict.num_accepted, verdict.invalid)
        )
        drafted, proposed = draft.token_ids.tolist(), draft.num_draft_tokens.tolist()
        return HostVerdict(
            [row[: count + 1] for row, count in zip(emitted, accepted, strict=True)],
            [row[:count] for row, count in zip(drafted, proposed, strict=True)],
            invalid,
            Timing(self._now()),
        )

    def _commit(
        self,
        sequences: SequenceOf[Sequence],
        verdict: HostVerdict,
        expected: list[tuple[float, float, float]] | None,
    ) -> None:
        """Append each request's tokens."""
        for index, sequence in enumerate(sequences):
            draft_ids = verdict.draft_ids[index]
            terms = expected[index] if expected is not None and draft_ids else None
            sequence.append_round(verdict.emitted[index], draft_ids, self.settings.limits, verdict.timing, terms)
            sequence.is_tainted |= verdict.invalid[index]
            self._num_invalid += verdict.invalid[index]


def _prefill_batches(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Batches of similar length, each of at most PREFILL_TOKENS padded tokens."""
    batches: list[list[Sequence]] = []
    for sequence in sorted(sequences, key=lambda item: item.length):
        # ascending order: the newcomer is the longest of its batch
        if batches and (len(batches[-1]) + 1) * sequence.length <= PREFILL_TOKENS:
            batches[-1].append(sequence)
        else:
            batches.append([sequence])
    return batches
