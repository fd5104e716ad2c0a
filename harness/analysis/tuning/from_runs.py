"""Acceptance and round times of a run's cells, by batch size and depth.

Cells of a family differ in depth and concurrency alone. Where rounds are known, each belongs to a step with a number of
decoding requests, of which the times of steps are means: by groups of sizes up to a power of two, over the steps that
read no prompt where these are PURE of the group's or more at each depth, else over all. What reading prompts adds to
the first is measured apart (`reading.py`), the second hold it. A step that takes SLOW times as long as nearly all of
its size do in the fastest block (SLOW_PROMPTS where it reads prompts) was slowed by something else, since other jobs
and pauses only add time, and does not count. Nearly all are USUAL of them, not the median: steps take longer as
contexts grow. Of a server a cell stands for its concurrency: tokens of a round are 1 + accepted / drafts of its counts,
and a step takes concurrency * tokens / throughput, all that the server does included.
Shapes: R resamples and the observed sums behind them, P prompts, D depths, S batch sizes, G groups of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.comparison import NOT_COMPARED
from harness.analysis.decode_steps import DecodeRounds, Floats, PromptReads, decode_rounds, prompt_reads
from harness.analysis.depth_optimum import DEPTH_SETTINGS, fixed_depth
from harness.analysis.estimates import Estimates
from harness.analysis.intervals import resample_weights
from harness.analysis.ranking import comparable
from harness.analysis.tuning.rates import DepthRates
from harness.analysis.tuning.reading import at_sizes, seconds_a_token
from harness.config.identity import key_without
from harness.records.counts import Knowledge
from harness.records.request import RequestRecord

MIN_STEPS = 20
"""Of a group of sizes and a depth, for a time of their own."""
PURE = 0.5
"""Share of the steps of a group that have to read no prompt where these alone give the times."""
USUAL = 0.95
"""Share of a size's steps in its fastest block that nothing else has slowed."""
SLOW, SLOW_PROMPTS = 1.25, 2.0
"""Times the longest of these, from which on a step was slowed by something else; prompts differ in length."""
LOCAL = "local"
"""Kind of the backend that is this engine."""
REQUESTS = "workload.num_requests"
CONCURRENCY = "backend.max_concurrency"
SETTINGS = (*NOT_COMPARED, *DEPTH_SETTINGS, CONCURRENCY)
"""In which the cells of a family may differ."""


@dataclass(frozen=True)
class Measured:
    """A family of cells and what they say."""

    cells: tuple[CellResult, ...]
    """Of fixed depths; the first has a drafter."""
    rates: DepthRates
    how: str
    """What times and tokens are of."""
    left_out: tuple[tuple[CellResult, str], ...]
    """With the reason."""


def measured_of(cells: Sequence[CellResult], *, across_runs: bool = False) -> list[Measured]:
    """What the families of some cells say, in their order.

    Args:
        cells: of any runs.
        across_runs: whether cells of several runs, with as many requests as each needs, may be one family; depths are
            compared at one concurrency, and so within a run.

    Raises:
        ValueError: no family has two depths at one concurrency; the message says what was found.
    """
    families: dict[str, list[CellResult]] = {}
    for cell in cells:
        is_fixed = not cell.is_baseline and fixed_depth(cell) is not None and not cell["tree"]
        if is_fixed and not cell.record.has_failed:
            key = key_without(cell.record.config, *SETTINGS, REQUESTS) if across_runs else cell.key_without(*SETTINGS)
            families.setdefault(key, []).append(cell)
    found = [each for line in families.values() if (each := _measured(line)) is not None]
    if not found:
        depths = sorted({fixed_depth(cell) or 0 for line in families.values() for cell in line})
        raise ValueError(
            "expected cells of two fixed depths or more at one concurrency, plain decoding counted as one, found "
            f"{'depths ' + ', '.join(map(str, depths)) if depths else 'no cell of a fixed depth'}; run with "
            "drafting.num_speculative_tokens=1,2,3,4 backend.max_concurrency=1,8,32"
        )
    return found


def _measured(line: Sequence[CellResult]) -> Measured | None:
    by_size: dict[int, dict[int, CellResult]] = {}
    left_out: list[tuple[CellResult, str]] = []
    for cell in line:
        at_size = by_size.setdefault(int(cell["max_concurrency"]), {})
        baseline = cell.baseline
        if baseline is not None and not baseline.record.has_failed:
            at_size.setdefault(0, baseline)
        if at_size.setdefault(fixed_depth(cell) or 0, cell) is not cell:
            left_out.append((cell, "another cell of this depth and concurrency came before"))
    prompts: set[str] | None = None
    for size, at_size in by_size.items():
        timed = comparable(list(at_size.values()))
        left_out += timed.left_out
        kept = {cell.record.cell_id for cell in timed.cells}
        by_size[size] = {depth: cell for depth, cell in at_size.items() if cell.record.cell_id in kept}
        prompts = {*timed.prompt_ids} if prompts is None else prompts & {*timed.prompt_ids}
    depths = sorted(set.intersection(*({*at_size} for at_size in by_size.values())))
    for at_size in by_size.values():
        left_out += [(cell, "not at every concurrency") for depth, cell in at_size.items() if depth not in depths]
    if len(depths) < 2 or not prompts:
        return None
    kept_cells = {size: {depth: at_size[depth] for depth in depths} for size, at_size in sorted(by_size.items())}
    cells = tuple(cell for at_size in kept_cells.values() for cell in at_size.values())
    # where a server tells rounds, nothing tells which of them were one step
    have_rounds = all(cell["engine"] == LOCAL and cell.record.knowledge is Knowledge.rounds for cell in cells)
    rates, how = (_of_rounds if have_rounds else _of_throughput)(kept_cells, sorted(prompts))
    return Measured(tuple(sorted(cells, key=lambda cell: cell.is_baseline)), rates, how, tuple(left_out))


def arrives(cell: CellResult) -> bool:
    """Whether requests arrive at a rate, so that the engine may wait for them."""
    workload = cell.record.config["workload"]
    return workload.get("request_rate") is not None or workload.get("request_rates") is not None


Kept = Mapping[int, Mapping[int, CellResult]]
"""Concurrency -> depth -> cell."""


def _of_throughput(kept: Kept, prompt_ids: Sequence[str]) -> tuple[DepthRates, str]:
    sizes, estimates = tuple(kept), next(iter(next(iter(kept.values())).values())).estimates
    depths = tuple(kept[sizes[0]])
    tokens = np.ones((estimates.num_resamples + 1, len(depths), len(sizes)))
    seconds = np.ones_like(tokens)
    for column, size in enumerate(sizes):
        for row, depth in enumerate(depths):
            cell = kept[size][depth]
            found = Estimates(cell.estimates.sums.take(prompt_ids), estimates.num_resamples, estimates.confidence)
            if depth:
                tokens[:, row, column] = _values(found, "mean_acceptance_length")
            seconds[:, row, column] = size * tokens[:, row, column] / _values(found, "output_tokens_per_s")
    if not np.isfinite(seconds).all():
        raise ValueError(
            "expected drafts and accepted drafts of every cell, which give the tokens of a round, found cells without; "
            "the server must tell them (harness/backends/server/README.md)"
        )
    how = (
        "tokens of a round: 1 + accepted / drafts that the server counted; seconds of a step: requests in flight * "
        "tokens of a round / output throughput, so that all that the server does is in them"
    )
    return DepthRates(depths, sizes, tokens, seconds, len(prompt_ids), estimates.confidence), how


def _values(found: Estimates, name: str) -> Floats:
    """[R + 1]."""
    value, resampled = found.distribution(name)
    return np.append(resampled, value)


def _of_rounds(kept: Kept, prompt_ids: Sequence[str]) -> tuple[DepthRates, str]:
    estimates = next(iter(next(iter(kept.values())).values())).estimates
    rows = {prompt_id: row for row, prompt_id in enumerate(prompt_ids)}
    weights = np.vstack([resample_weights(len(rows), estimates.num_resamples), np.ones(len(rows))])
    depths = tuple(next(iter(kept.values())))
    by_block = [[_by_block(at_size[depth], rows) for at_size in kept.values()] for depth in depths]
    rounds = [_together([part for parts in cells for part in parts]) for cells in by_block]
    timed = [_together([_undisturbed(parts) for parts in cells]) for cells in by_block]
    steps = [_steps_of_groups(each) for each in timed]
    num_groups = min(len(each) for each, _ in steps)
    every, pure = (np.stack([each[place][:num_groups] for each in steps]).min(axis=0) for place in (0, 1))
    shares = np.stack([pure_[:num_groups] / np.maximum(all_[:num_groups], 1e-9) for all_, pure_ in steps]).min(axis=0)
    groups = [int(group) for group in np.flatnonzero(every >= min(MIN_STEPS, every.max(initial=1)))]
    if not groups:
        raise ValueError("expected rounds of requests that decode at every depth, found none; raise max_new_tokens")
    are_pure = (pure >= MIN_STEPS) & (shares >= PURE)
    times = [_times(each, groups, are_pure, weights) for each in timed]
    sizes = tuple(
        dict.fromkeys(round(float(np.mean(sizes))) for sizes in zip(*(each for each, _ in times), strict=True))
    )
    seconds = np.stack([_at(sizes, *found) for found in times], axis=1)
    length = np.stack([_sums(each, each.num_tokens, weights) / _counts(each, weights) for each in rounds], axis=1)
    tokens = np.repeat(length[:, :, None], len(sizes), axis=2)
    reading = _reading(kept, rows, sizes, [bool(are_pure[group]) for group in groups], times, weights)
    among = [f"{size}" for size, group in zip(sizes, groups, strict=True) if not are_pure[group]]
    how = (
        "tokens of a round: means over the rounds of requests that decode; seconds of a step: means over the steps "
        "that read no prompt"
        + ("" if reading is None else ", and what reading prompts adds for each token")
        + (f", with {', '.join(among)} requests over all, which read prompts too" if among else "")
        + f"; {_share_left_out(rounds, timed):.1%} of their time is left out, in steps that something else slowed"
    )
    return DepthRates(depths, sizes, tokens, seconds, len(rows), estimates.confidence, reading), how


def _reading(
    kept: Kept,
    rows: Mapping[str, int],
    sizes: Sequence[int],
    are_pure: Sequence[bool],
    times: Sequence[tuple[Floats, Floats]],
    weights: Floats,
) -> Floats | None:
    """[R + 1, D, S] what reading prompts adds, by the loads whose own steps were timed without and that wait for
    none; None without such."""
    pure = {_group(size) for size, is_pure in zip(sizes, are_pure, strict=True) if is_pure}
    loads = [size for size, cells in kept.items() if _group(size) in pure and not any(map(arrives, cells.values()))]
    if not loads:
        return None
    found = []
    apart = np.array(are_pure)
    for depth, (known, seconds) in zip(next(iter(kept.values())), times, strict=True):
        alone = known[apart], seconds[-1, apart]
        by_load = {
            size: seconds_a_token(_with_reads(kept[size][depth], rows), alone, SLOW_PROMPTS, USUAL, weights)
            for size in loads
        }
        found.append(at_sizes(sizes, by_load, are_pure))
    return np.stack(found, axis=1)


def _by_block(cell: CellResult, rows: Mapping[str, int]) -> list[DecodeRounds]:
    """The rounds of each block of a cell, no step of which lies in two."""
    return [decode_rounds(requests, rows) for requests in _blocks(cell)]


def _with_reads(cell: CellResult, rows: Mapping[str, int]) -> list[tuple[DecodeRounds, PromptReads]]:
    """The same, and the prompts of each block."""
    return [(decode_rounds(requests, rows), prompt_reads(requests, rows)) for requests in _blocks(cell)]


def _blocks(cell: CellResult) -> list[Sequence[RequestRecord]]:
    requests = cell.record.requests
    ends = np.cumsum([block.num_requests for block in cell.record.blocks] or [len(requests)]).tolist()
    return [requests[begin:end] for begin, end in pairwise([0, *ends]) if end > begin]


def _undisturbed(parts: Sequence[DecodeRounds]) -> DecodeRounds:
    """The rounds of a cell without those of steps that something else slowed."""
    found = _together(parts)
    kept = np.ones(len(found.size), dtype=np.bool_)
    for reads, slow in ((False, SLOW), (True, SLOW_PROMPTS)):
        steps = [(part.seconds * part.size)[part.reads_prompts == reads] for part in parts]
        known = [float(np.quantile(each, USUAL)) for each in steps if len(each)]
        limit_s = SLOW_PROMPTS * min(known) if known else np.inf
        # from the largest size on: a smaller one with few steps takes no longer than the next
        for size in np.unique(found.size[found.reads_prompts == reads])[::-1]:
            of_size = [part.seconds[(part.size == size) & (part.reads_prompts == reads)] * size for part in parts]
            usual = [float(np.quantile(each, USUAL)) for each in of_size if len(each) >= size * MIN_STEPS / len(parts)]
            limit_s = min([limit_s, *(slow * longest for longest in usual)])
            here = (found.size == size) & (found.reads_prompts == reads)
            kept &= ~here | (found.seconds * size <= limit_s)
    return found.where(kept)


def _share_left_out(rounds: Sequence[DecodeRounds], timed: Sequence[DecodeRounds]) -> float:
    """Of the time of all steps."""
    every, kept = (sum(float(each.seconds.sum()) for each in parts) for parts in (rounds, timed))
    return 1 - kept / every


def _together(parts: Sequence[DecodeRounds]) -> DecodeRounds:
    return DecodeRounds(
        *(np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(DecodeRounds))
    )


def _groups(rounds: DecodeRounds) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[N] of sizes up to the same power of two."""
    return np.ceil(np.log2(np.maximum(rounds.size, 1))).astype(np.int64)


def _group(size: int) -> int:
    return (size - 1).bit_length()


def _steps_of_groups(rounds: DecodeRounds) -> tuple[Floats, Floats]:
    """[G] steps, and those of them that read no prompt."""
    groups, share = _groups(rounds), 1.0 / np.maximum(rounds.size, 1)
    num = int(groups.max(initial=-1)) + 1
    pure = ~rounds.reads_prompts
    every: Floats = np.bincount(groups, weights=share, minlength=num).astype(np.float64)
    return every, np.bincount(groups[pure], weights=share[pure], minlength=num).astype(np.float64)


def _times(
    rounds: DecodeRounds, groups: Sequence[int], are_pure: np.ndarray[tuple[int], np.dtype[np.bool_]], weights: Floats
) -> tuple[Floats, Floats]:
    """Mean size of each group's steps [G], and their mean seconds [R + 1, G]."""
    of_rounds = _groups(rounds)
    sizes, seconds = [], []
    for group in groups:
        part = rounds.where((of_rounds == group) & (~rounds.reads_prompts if are_pure[group] else True))
        steps = _sums(part, 1 / part.size, weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_s = _sums(part, part.seconds, weights) / steps
        # a resample without such a step takes the observed mean
        seconds.append(np.where(np.isfinite(mean_s), mean_s, mean_s[-1]))
        sizes.append(len(part.size) / steps[-1])
    return np.array(sizes), np.stack(seconds, axis=1)


def _at(sizes: Sequence[int], known: Floats, seconds: Floats) -> Floats:
    """[R + 1, S] seconds at some sizes, on the lines between the known ones."""
    lines = np.stack([np.interp(sizes, known, row) for row in np.eye(len(known))])
    found: Floats = seconds @ lines
    return found


def _sums(rounds: DecodeRounds, values: Floats, weights: Floats) -> Floats:
    """[R + 1]."""
    found: Floats = weights @ rounds.by_prompt(values, weights.shape[1])
    return found


def _counts(rounds: DecodeRounds, weights: Floats) -> Floats:
    return _sums(rounds, np.ones(len(rounds.size)), weights)
