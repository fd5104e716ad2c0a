"""Continuous batching: requests wait in order, and a finished request's slot is refilled at once."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from harness.engine.request import Request
from harness.engine.sequence import Sequence


class Scheduler:
    """Hands out slots, the lowest free one first, so that the occupied slots stay close together."""

    def __init__(self, num_slots: int, requests: Iterable[Request], min_tokens: int = 0) -> None:
        """min_tokens: of requests without sampling of their own."""
        self._free = list(range(num_slots))
        self._waiting, self._min_tokens = deque(requests), min_tokens
        self.running: dict[int, Sequence] = {}
        self.constrained: dict[int, Sequence] = {}
        """Those of them whose requests have grammar states."""

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self.running

    def seconds_to_wait(self, now_s: float) -> float:
        """Until the next request arrives; 0 when it has."""
        arrival_s = self._waiting[0].arrival_s if self._waiting else None
        return 0.0 if arrival_s is None else max(0.0, arrival_s - now_s)

    def admit(self, now_s: float) -> list[Sequence]:
        """Move the requests that have arrived into the free slots; returns the newcomers."""
        admitted = []
        while self._waiting and self._free and self.seconds_to_wait(now_s) == 0:
            request = self._waiting.popleft()
            submitted_s = now_s if request.arrival_s is None else request.arrival_s
            sequence = Sequence(request, heapq.heappop(self._free), submitted_s, self._min_tokens)
            self.running[sequence.slot] = sequence
            if request.grammar_state is not None:
                self.constrained[sequence.slot] = sequence
            admitted.append(sequence)
        return admitted

    def close_gaps(self) -> list[tuple[Sequence, int]]:
        """Give the running requests the lowest slots; returns those that moved, with the slots that they left."""
        moved = []
        by_slot = sorted(self.running)
        while self._free and by_slot and self._free[0] < by_slot[-1]:
            last = by_slot.pop()
            sequence = self.running[last]
            sequence.slot = heapq.heapreplace(self._free, last)
            moved.append((sequence, last))
        if moved:
            self.running = {item.slot: item for item in self.running.values()}
            self.constrained = {item.slot: item for item in self.constrained.values()}
        return moved

    def release(self, sequence: Sequence, follow_up: Request | None) -> None:
        """Free the slot; a follow-up (the next turn of a conversation) goes before all that wait."""
        del self.running[sequence.slot]
        self.constrained.pop(sequence.slot, None)
        heapq.heappush(self._free, sequence.slot)
        if follow_up is not None:
            self._waiting.appendleft(follow_up)
