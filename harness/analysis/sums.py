"""Reduces a cell to sums per prompt and to latencies that remember their prompt: all that any metric needs.

Shapes: N rounds, R requests, P prompts (in sorted order of their ids).
Of a cell whose rounds are not known, counts by request or block and the arrivals of tokens are summed; a sum that is
not known is nan, not 0. This module knows records; it does not know which sums a metric divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from msgspec.structs import fields
from numpy.typing import NDArray

from harness.analysis.loops import loop_values
from harness.analysis.measured_sums import NONE_MEASURED, measured_values
from harness.analysis.reasoning_sums import boundary_values
from harness.analysis.request_work import forwards, shares_in_flight, steps
from harness.analysis.sessions import prompt_sessions, scaled_by_session
from harness.records.counts import PER_POSITION, DraftCounts, Knowledge, added
from harness.records.request import CutReason, RequestRecord, RoundRecord, counts_of_rounds
from harness.records.schema import CellRecord

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

GOOD_WITHIN = ("ttft", "tpot", "e2e")
"""Latencies with a limit measurement.max_*_ms."""
ROUND_FIELDS = tuple(item.name for item in fields(RoundRecord) if item.required and item.name != "cut_reason")
"""The numbers that every round has."""


@dataclass(frozen=True)
class CellSums:
    """Sums per prompt."""

    prompt_ids: tuple[str, ...]
    """Sorted; row order of every array below."""
    sums: dict[str, Floats]
    """[P] for each name."""
    latencies: dict[str, tuple[Floats, Integers]]
    """name -> (values in seconds [n], row of the prompt [n])."""
    num_positions: int
    """Largest number of draft tokens that counted as evidence in a round; 0 where positions are not known."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Sums of the whole cell that are not known by prompt: nan in `sums`."""
    sessions: tuple[str, ...] = ()
    """[P] the session that measured each request of a prompt, as text: equal where times of two cells compare."""
    num_failed_requests: int = 0
    """Requests of the whole cell without an answer: its times compare with those of no other cell."""

    def session_of(self, prompt_id: str) -> str:
        """Where a prompt's requests were measured; an empty text where that is not known."""
        return self.sessions[self.prompt_ids.index(prompt_id)] if self.sessions else ""

    def take(self, prompt_ids: Sequence[str]) -> CellSums:
        """The same for some of the prompts, sorted; KeyError for a prompt that the cell does not have."""
        row_of = {prompt_id: row for row, prompt_id in enumerate(self.prompt_ids)}
        chosen = tuple(sorted(prompt_ids))
        rows = np.array([row_of[prompt_id] for prompt_id in chosen], dtype=np.int64)
        new_row = np.full(len(self.prompt_ids), -1)
        new_row[rows] = np.arange(len(rows))
        latencies = {}
        for name, (values, index) in self.latencies.items():
            kept = new_row[index] >= 0
            latencies[name] = values[kept], new_row[index][kept]
        sums = {name: item[rows] for name, item in self.sums.items()}
        sessions = tuple(self.sessions[row] for row in rows) if self.sessions else ()
        # a total of all prompts says nothing about some of them
        failed = self.num_failed_requests
        return CellSums(chosen, sums, latencies, self.num_positions, sessions=sessions, num_failed_requests=failed)


def cell_sums(cell: CellRecord) -> CellSums:
    """Reduce the requests of a cell."""
    known = _round_sums(cell.requests) if cell.knowledge is Knowledge.rounds else coarse_sums(cell)
    known[0]["share_s"] = scaled_by_session(known[0]["share_s"], cell)
    known[0].update(num_forwards=forwards(cell), num_steps=steps(cell))
    known[0].update(loop_values(cell, known[0]))
    measurement = cell.config.get("measurement", {})
    limits = {name: measurement.get(f"max_{name}_ms") for name in GOOD_WITHIN}
    found = {name: limit for name, limit in limits.items() if limit}
    reduced = _reduced(cell.requests, cell.wall_s, *known, found)
    sessions = prompt_sessions(cell, reduced.prompt_ids)
    return replace(reduced, sessions=sessions, num_failed_requests=cell.num_failed_requests)


def request_sums(requests: Sequence[RequestRecord], wall_s: float) -> CellSums:
    """Reduce some requests whose rounds are known."""
    return _reduced(requests, wall_s, *_round_sums(requests))


def _reduced(
    requests: Sequence[RequestRecord],
    wall_s: float,
    of_requests: dict[str, Floats],
    totals: dict[str, float],
    num_positions: int,
    limits_ms: Mapping[str, float] | None = None,
) -> CellSums:
    """Sum by prompt; the prompts' shares of time are scaled so that they add up to the wall time."""
    prompt_ids, prompt_of_request = np.unique([item.prompt_id for item in requests], return_inverse=True)
    prompt_of_request = prompt_of_request.astype(np.int64)
    of_requests |= _request_values(requests, of_requests) | boundary_values(requests)
    latencies = _latencies(requests)
    for name, (values, request) in latencies.items():
        of_requests[f"{name}_s"] = _totals(values, request, len(requests))
        of_requests[f"num_{name}"] = _totals(np.ones_like(values), request, len(requests))
    of_requests["num_good_requests"] = _good(latencies, limits_ms or {}, len(requests))
    sums = {name: _totals(values, prompt_of_request, len(prompt_ids)) for name, values in of_requests.items()}
    sums["time_s"] = _times(sums.pop("share_s"), wall_s)
    return CellSums(
        tuple(str(item) for item in prompt_ids),
        sums,
        {name: (values, prompt_of_request[request]) for name, (values, request) in latencies.items()},
        num_positions,
        totals,
    )


def _round_sums(requests: Sequence[RequestRecord]) -> tuple[dict[str, Floats], dict[str, float], int]:
    """name -> [R] of what every round tells, no totals beside them, and the number of positions."""
    request_of_round = _request_of_event(requests)
    get = attrgetter(*ROUND_FIELDS)
    table = np.array([get(item) for request in requests for item in request.rounds], dtype=np.float64)
    columns = dict(zip(ROUND_FIELDS, table.reshape(-1, len(ROUND_FIELDS)).T, strict=True))
    # of a tree, the depths at which draft tokens count
    positions = np.array([item.num_positions for request in requests for item in request.rounds], dtype=np.float64)
    of_rounds = _round_values(columns, positions) | _cut_values(requests)
    of_rounds |= measured_values(requests, columns, _is_full(columns))
    sums = {name: _totals(values, request_of_round, len(requests)) for name, values in of_rounds.items()}
    return sums, {}, int(positions.max(initial=0))


def _request_of_event(requests: Sequence[RequestRecord]) -> Integers:
    """The request of each round or arrival."""
    return np.repeat(np.arange(len(requests)), [len(item.events) for item in requests]).astype(np.int64)


def _totals(values: Floats, group: Integers, num_groups: int) -> Floats:
    """[num_groups] sum of the values of each group."""
    return np.bincount(group, weights=values, minlength=num_groups).astype(np.float64)


def _round_values(columns: dict[str, Floats], positions: Floats) -> dict[str, Floats]:
    """[N] of each count of a round."""
    drafted, accepted = columns["num_draft_tokens"], columns["num_accepted_tokens"]
    values = {name: columns[name] for name in ("num_draft_tokens", "num_accepted_tokens", "num_output_tokens")}
    values |= {"share_s": columns["share_s"], "num_rounds": np.ones_like(drafted)}
    full = _is_full(columns)
    values["num_accepted_in_full_drafts"] = np.where(full, accepted, 0.0)
    proposed = columns["num_proposed_tokens"] >= 1
    facts = {"num_drafts": drafted >= 1, "num_full_drafts": full}
    facts |= {"num_proposals": proposed, "num_drafts_left_out": proposed & ~full}
    for position in range(1, int(positions.max(initial=0)) + 1):
        facts[f"num_draft_tokens_per_pos_{position}"] = positions >= position
        facts[f"num_reached_per_pos_{position}"] = (positions >= position) & (accepted >= position - 1)
        facts[f"num_accepted_tokens_per_pos_{position}"] = accepted >= position
    return values | {name: holds.astype(np.float64) for name, holds in facts.items()}


def _is_full(columns: dict[str, Floats]) -> NDArray[np.bool_]:
    """[N] whether a round is a draft that counts in full: every proposed token is evidence, and there is one."""
    drafted = columns["num_draft_tokens"]
    return (drafted >= 1) & (drafted == columns["num_proposed_tokens"])


def _cut_values(requests: Sequence[RequestRecord]) -> dict[str, Floats]:
    """[N] whether a round was cut, for each reason, and how many tokens behind a stop string."""
    rounds = [item for request in requests for item in request.rounds]
    wasted = [item.num_cut_tokens if item.cut_reason is CutReason.stop else 0 for item in rounds]
    return {
        f"num_cut_{reason.value}": np.array([item.cut_reason is reason for item in rounds], dtype=np.float64)
        for reason in CutReason
    } | {"num_tokens_behind_stop": np.array(wasted, dtype=np.float64)}


def _request_values(requests: Sequence[RequestRecord], sums: dict[str, Floats]) -> dict[str, Floats]:
    """[R] what is counted by request."""
    with np.errstate(invalid="ignore", divide="ignore"):
        # nan where the drafts of a request are not known
        with_drafts = np.where(np.isnan(sums["num_drafts"]), np.nan, sums["num_drafts"] > 0)
        length = np.where(with_drafts == 0, 0.0, 1 + sums["num_accepted_tokens"] / sums["num_drafts"])
    right = [item.answer_is_right for item in requests]
    return {
        "num_checked_answers": np.array([item is not None for item in right], dtype=np.float64),
        "num_right_answers": np.array([item is True for item in right], dtype=np.float64),
        "num_requests": np.ones(len(requests)),
        "num_prompt_tokens": np.array([item.num_prompt_tokens for item in requests], dtype=np.float64),
        "num_requests_with_drafts": with_drafts,
        "request_acceptance_length": length,
    }


def _latencies(requests: Sequence[RequestRecord]) -> dict[str, tuple[Floats, Integers]]:
    """name -> (seconds [n], request [n]). A round that emitted nothing is no arrival."""
    events = [(item.arrival_s, item.num_output_tokens) for request in requests for item in request.events]
    arrival, num_output = np.array(events, dtype=np.float64).reshape(-1, 2).T
    emitted = num_output >= 1
    arrival, request = arrival[emitted], _request_of_event(requests)[emitted]
    same = request[1:] == request[:-1]
    first, last = np.append(True, ~same)[: len(request)], np.append(~same, True)[: len(request)]
    answered = request[first]
    submitted = np.array([item.submitted_s for item in requests])[answered]
    num_tokens = np.array([item.num_output_tokens for item in requests], dtype=np.int64)[answered]
    ttft, e2e = arrival[first] - submitted, arrival[last] - submitted
    several = num_tokens >= 2
    gaps, of_gap = (arrival[1:] - arrival[:-1])[same], num_output[emitted][1:][same].astype(np.int64)
    tpot = (e2e - ttft)[several] / (num_tokens[several] - 1)
    return {
        "ttft": (ttft, answered),
        "tpot": (tpot, answered[several]),
        "itl": (gaps, request[1:][same]),
        "itl_per_token": (np.repeat(gaps / of_gap, of_gap), np.repeat(request[1:][same], of_gap)),
        "e2e": (e2e, answered),
    }


def _good(latencies: dict[str, tuple[Floats, Integers]], limits_ms: Mapping[str, float], num_requests: int) -> Floats:
    """[R] whether a request kept all limits; nan without limits."""
    good = np.full(num_requests, 1.0 if limits_ms else np.nan)
    for name, limit in limits_ms.items():
        values, request = latencies[name]
        good[request[values * 1e3 > limit]] = 0.0
    return good


def _times(share_s: Floats, wall_s: float) -> Floats:
    """[P] seconds of each prompt, adding up to the wall time; nan where no step recorded a duration."""
    total = share_s.sum()
    return share_s * (wall_s / total) if total > 0 else np.full(len(share_s), np.nan)


UNKNOWN = (
    *("num_rounds", "num_full_drafts", "num_accepted_in_full_drafts"),
    *("num_cut_eos", "num_cut_length", "num_cut_grammar", "num_cut_stop", "num_tokens_behind_stop"),
)
"""Sums that only rounds tell."""


def coarse_sums(cell: CellRecord) -> tuple[dict[str, Floats], dict[str, float], int]:
    """name -> [R], name -> total of the whole cell where that is all that is known, and the number of positions."""
    num_requests = len(cell.requests)
    sums = {
        "num_output_tokens": np.array([item.num_output_tokens for item in cell.requests], dtype=np.float64),
        "share_s": shares_in_flight(cell),
    }
    sums |= {name: np.full(num_requests, np.nan) for name in UNKNOWN}
    sums |= {name: np.zeros(num_requests) for name in NONE_MEASURED}
    if cell.config["drafter"]["kind"] == "none":
        return sums | _table([DraftCounts()] * num_requests), {}, 0
    if cell.knowledge is Knowledge.requests:
        found = _table([item.counts or counts_of_rounds(item.rounds) for item in cell.requests])
        return sums | found, {}, _num_positions(found)
    unknown = {name: np.full(num_requests, np.nan) for name in _names(DraftCounts())}
    if cell.knowledge is Knowledge.arrivals:
        return sums | unknown, {}, 0
    found = _table([added(item.counts or DraftCounts() for item in cell.blocks)])
    unknown = {name: np.full(num_requests, np.nan) for name in found}
    return sums | unknown, {name: float(values[0]) for name, values in found.items()}, _num_positions(found)


def _table(counts: Sequence[DraftCounts]) -> dict[str, Floats]:
    """name -> [n] of some counts; those by position only if all of them have these."""
    names = _names(added(counts))
    return {name: np.array([_value(item, name) for item in counts], dtype=np.float64) for name in names}


def _names(counts: DraftCounts) -> list[str]:
    names = ["num_drafts", "num_draft_tokens", "num_accepted_tokens"]
    for name in PER_POSITION:
        names += [f"{name}_{position}" for position in range(1, 1 + len(getattr(counts, name) or ()))]
    return names


def _value(counts: DraftCounts, name: str) -> int:
    stem, _, position = name.rpartition("_")
    if stem not in PER_POSITION:
        return int(getattr(counts, name))
    by_position = getattr(counts, stem)
    return by_position[int(position) - 1] if int(position) <= len(by_position) else 0


def _num_positions(names: dict[str, Floats]) -> int:
    return sum(name.startswith(PER_POSITION[1]) for name in names)
