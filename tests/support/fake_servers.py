"""Backends outside the package: a scripted server that tells little of its drafts, named by backend.kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.backends.backend import BackendRun, Facts
from harness.config.backend import BackendConfig
from harness.records.counts import Arrival, DraftCounts, Knowledge, added
from harness.records.fault_points import reached
from harness.records.request import FinishReason, RequestRecord, RoundRecord
from harness.records.schema import Failure
from harness.workload.conversations import Conversation

STEP_S = 0.01
NUM_STEPS = 12


def request_record(item: Conversation, submitted_s: float, **told: Any) -> RequestRecord:
    """What a server tells of the first turn of a conversation."""
    fields = {"output_token_ids": (), "finish_reason": FinishReason.length, "num_prompt_tokens": 5} | told
    return RequestRecord(
        prompt_id=item.prompt.prompt_id,
        category=item.prompt.category,
        turn=0,
        sample=item.sample,
        seed=item.turn_seed(0),
        submitted_s=submitted_s,
        **fields,
    )


class FakeServer:
    """Answers one request after the other; every step accepts a number of drafts that follows from the seed."""

    knowledge = Knowledge.arrivals

    @staticmethod
    def Shared():
        return None

    def __init__(self, cell, shared) -> None:
        self.cell = cell

    @staticmethod
    def resolved(cell):
        return cell

    @staticmethod
    def prepare_together(backends, conversations) -> None:
        pass

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        records, counts, now = [], [], start_s
        for item in conversations:
            accepted = self.accepted(item.turn_seed(0))
            arrivals = tuple(Arrival(now + (i + 1) * STEP_S, n + 1) for i, n in enumerate([0, *accepted]))
            counts.append(self.counts(accepted))
            told = counts[-1] if self.knowledge is Knowledge.requests else None
            records.append(request_record(item, now, arrivals=arrivals, counts=told))
            now = arrivals[-1].arrival_s
            if on_request is not None:
                on_request(records[-1].num_output_tokens)
        of_block = added(counts) if self.knowledge is Knowledge.blocks else None
        return BackendRun(tuple(records), now - start_s, counts=of_block, reported={"fake:steps_total": len(counts)})

    def accepted(self, seed) -> list[int]:
        """Accepted draft tokens of each step; none for the baseline."""
        depth = 0 if self.cell.is_baseline else self.cell.drafting.num_speculative_tokens
        return (
            np.random.default_rng([seed, len(self.cell.verification.method.value)])
            .integers(0, depth + 1, NUM_STEPS)
            .tolist()
        )

    def counts(self, accepted: Sequence[int]) -> DraftCounts:
        """What the server counts of some steps."""
        depth = 0 if self.cell.is_baseline else self.cell.drafting.num_speculative_tokens
        by_position = tuple(sum(n >= i for n in accepted) for i in range(1, depth + 1))
        return DraftCounts(
            len(accepted) if depth else 0, depth * len(accepted), sum(accepted), (len(accepted),) * depth, by_position
        )

    def facts(self) -> Facts:
        return Facts(self.cell.backend, {"target": "fake"}, knowledge=self.knowledge, draft_core="fake")

    def decode(self, token_ids) -> str:
        return ""


@dataclass(frozen=True)
class Paced(BackendConfig):
    """Settings of a user's own backend."""

    runs = "tests.support.fake_servers:FakeServer"
    pace_s: float = STEP_S
    """Seconds of a step."""


class TellsEveryRound(FakeServer):
    """Tells tokens and rounds, and hands over what has ended after every second request."""

    knowledge = Knowledge.rounds

    @staticmethod
    def weights():
        return {"target": "fake"}

    def generate(self, conversations, on_request=None, start_s=0.0, keep=None) -> BackendRun:
        records, num_kept = [], 0
        for item in conversations:
            accepted = [None, *self.accepted(item.turn_seed(0))]
            now = start_s + STEP_S * len(records) * len(accepted)
            depth = 0 if self.cell.is_baseline else self.cell.drafting.num_speculative_tokens
            rounds = tuple(
                RoundRecord(
                    num_proposed_tokens=0 if n is None else depth,
                    num_draft_tokens=0 if n is None else depth,
                    num_accepted_tokens=n or 0,
                    num_output_tokens=(n or 0) + 1,
                    cut_reason=None,
                    arrival_s=now + STEP_S * (i + 1),
                    share_s=STEP_S,
                )
                for i, n in enumerate(accepted)
            )
            num_tokens = sum(each.num_output_tokens for each in rounds)
            tokens = np.random.default_rng(item.turn_seed(0)).integers(0, 1000, num_tokens).tolist()
            records.append(request_record(item, now, output_token_ids=tuple(tokens), rounds=rounds))
            if on_request is not None:
                on_request(num_tokens)
            reached("a request has ended")
            if keep is not None and len(records) - num_kept == 2:
                keep(self._run(records[num_kept:]))
                num_kept = len(records)
        return self._run(records)

    def _run(self, records) -> BackendRun:
        return BackendRun(tuple(records), sum(each.share_s for item in records for each in item.rounds))


class CountsOfRequests(FakeServer):
    knowledge = Knowledge.requests


class CountsOfBlocks(FakeServer):
    knowledge = Knowledge.blocks


class LosesCounters(FakeServer):
    """Answers every request, and begins to count anew in every block."""

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        run = super().generate(conversations, on_request, start_s)
        return BackendRun(run.requests, run.wall_s, failures=(Failure("CountersReset", "the server's counters fell"),))


class LosesRequests(FakeServer):
    """Gives no answer to the first request of every block."""

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        run = super().generate(conversations[1:], on_request, start_s)
        first = conversations[0]
        lost = Failure("TimeoutError", "no answer in 60 s", request=(first.prompt.prompt_id, 0, first.sample))
        return BackendRun(run.requests, run.wall_s, failures=(lost,))
