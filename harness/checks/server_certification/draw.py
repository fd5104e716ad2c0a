"""Asks a server many short requests, all cases and prompts in turn, and hands over the tokens of each answer."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.backends.server.reply import RequestFailed
from harness.checks.server_certification.known_model import Tokens
from harness.checks.server_certification.served import Served
from harness.config.sampling import SamplingSettings

MOST_FAILURES = 0.01
"""Share of requests; more, and the server cannot be certified."""
FIRST_FAILURES = 20
"""Failures that are borne however few requests there were."""
TELL_EVERY_S = 15.0


class Answer(NamedTuple):
    """One answer and what it was asked for."""

    case: int
    prompt: int
    half: int
    """0 or 1, in turn."""
    token_ids: Tokens


@dataclass
class Draws:
    """What some requests came to, beside their answers."""

    failures: list[str] = field(default_factory=list)
    num_retried: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Requests to send."""

    cases: Sequence[tuple[int, SamplingSettings]]
    """Number and parameters of each."""
    prompts: Sequence[Tokens]
    num_requests: int
    """Of each case at most."""
    num_tokens: int
    budget_s: float
    concurrency: int
    stream: str
    """Makes the seeds; requests of another stream have others."""
    vocabulary: Callable[[], Mapping[bytes, int]]
    """Makes the target's tokens by their bytes, for a server that holds tokens back."""

    def seed(self, index: int) -> int:
        """The seed of a request, of 63 bits."""
        return int.from_bytes(hashlib.sha256(f"{self.stream}:{index}".encode()).digest()[:8], "big") >> 1


def draw(served: Served, plan: Plan, take: Callable[[Answer], None], tell: Callable[[str], None]) -> Draws:
    """Send the requests until there are enough, or the time is over; those under way then are waited for.

    Args:
        served: the server.
        plan: what is asked.
        take: called with each answer.
        tell: called with a line on the progress now and then.

    Raises:
        ValueError: too many requests failed.
    """
    return asyncio.run(_draw(served, plan, take, tell))


async def _draw(served: Served, plan: Plan, take: Callable[[Answer], None], tell: Callable[[str], None]) -> Draws:
    draws = Draws()
    total, began = plan.num_requests * len(plan.cases), time.perf_counter()
    indices, told = iter(range(total)), began

    def due() -> Iterator[int]:
        nonlocal told
        for index in indices:
            now = time.perf_counter()
            if now - began > plan.budget_s:
                return
            if now - told > TELL_EVERY_S:
                told = now
                tell(f"{index:,} of {total:,} requests, {now - began:.0f} s")
            yield index

    async with served.client() as client:

        async def ask_some() -> None:
            for index in due():
                turn, which = divmod(index, len(plan.cases))
                case, sampling = plan.cases[which]
                half, prompt = divmod(turn, len(plan.prompts))
                body = served.body(plan.prompts[prompt], sampling, plan.num_tokens, plan.seed(index))
                try:
                    reply = await client.ask(body)
                except RequestFailed as error:
                    draws.failures.append(str(error))
                    _check_failures(draws, index)
                    continue
                reply.find_held_ids(plan.vocabulary)
                take(Answer(case, prompt, half % 2, reply.first_ids(plan.num_tokens)))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(plan.concurrency):
                    group.create_task(ask_some())
        except BaseExceptionGroup as several:
            # one stops all
            raise several.exceptions[0] from None
    draws.num_retried, draws.wall_s = client.num_retried, time.perf_counter() - began
    return draws


def _check_failures(draws: Draws, num_asked: int) -> None:
    if len(draws.failures) > max(FIRST_FAILURES, MOST_FAILURES * num_asked):
        raise ValueError(
            f"expected answers, found {len(draws.failures)} failures in {num_asked + 1:,} requests; the last: "
            f"{draws.failures[-1]}"
        )
