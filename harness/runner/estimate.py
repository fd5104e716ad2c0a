"""What a run will take, before anything is loaded: measured by cells of earlier runs that are like its own.

It reads the tables of earlier runs. It does not know how fast a model could be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.config.cell import CellConfig
from harness.records.csv_table import number, read_rows
from harness.records.runs import RUNS, TABLES
from harness.records.without_torch import device_here
from harness.runner.groups import groups_of
from harness.runner.progress import device_time

BYTES_PER_TOKEN = 30
"""Of a record, packed: measured 16 without drafts and up to 29 with them, at an acceptance length of 2."""

BESIDE_SHARE = 0.1
"""Of the time, from which on the part beside the clock is named."""
SEVERAL_DRAFTS = (
    "measurement.multi_draft_terms=true: its terms are computed beside the clock, on a CPU for several times as long "
    "as is measured; the time above has that only where earlier cells recorded them too"
)


class _Like(NamedTuple):
    """Settings that decide how long a request takes."""

    engine: str
    target: str
    target_weights: str
    max_new_tokens: int
    max_concurrency: int
    drafter: str
    num_speculative_tokens: int


class _Earlier(NamedTuple):
    """A cell of an earlier run."""

    like: _Like
    device: str
    request_s: float
    """Measured time over requests, and the time beside the clock where it is known."""
    beside_s: float
    """The part of it beside the clock."""


def estimate_lines(
    cells: Sequence[CellConfig], runs: Iterable[Path] = (RUNS,), kept: Callable[[CellConfig], int] = lambda cell: 0
) -> list[str]:
    """The time and the disk that what is left of a run will take, in words.

    Args:
        cells: of the plan that are left.
        runs: folders of earlier runs; one that is named twice is read once.
        kept: requests of a cell that are not run again.

    Raises:
        ValueError: the prompts of a file cannot be read.
    """
    groups = groups_of([cell for cell in cells if cell.workload.dataset is None])
    counted = [(cell, group.num_requests_per_cell - kept(cell)) for group in groups for cell in group.cells]
    folders = [*{path.resolve(): path for path in runs}.values()]
    earlier, here = [item for path in folders for item in _earlier(path)], device_here()
    places = " and ".join(map(str, folders))
    seconds, beside_s, devices = [], 0.0, set()
    for cell, num_requests in counted:
        device = cell.backend.device.partition(":")[0]
        device = here.type if device == "auto" and here is not None and cell.backend.kind == "local" else device
        there = [item for item in earlier if device in ("auto", item.device)]
        like = [item for item in there if item.like == _like(cell)]
        like = like or [item for item in there if item.like[:5] == _like(cell)[:5]]
        devices |= {item.device for item in like}
        if like:
            seconds.append(num_requests * median(item.request_s for item in like))
            beside_s += num_requests * median(item.beside_s for item in like)
    lines = []
    if seconds:
        share = f" ({device_time(beside_s)} of it beside the clock)" if beside_s >= BESIDE_SHARE * sum(seconds) else ""
        lines.append(
            f"time: about {device_time(sum(seconds))}{share} for {len(seconds)} of {len(cells)} cells, as earlier "
            f"cells in {places} took on {' and '.join(sorted(devices))}, whatever ran beside them; loading and "
            "compiling come on top"
        )
    if len(seconds) < len(cells):
        lines.append(
            f"time: not known of {len(cells) - len(seconds)} cells: none like them has run on such a device in "
            f"{places}; the run tells it once it has measured"
        )
    if any(cell.measurement.multi_draft_terms and cell.has_draft_cache for cell, _ in counted):
        lines.append(SEVERAL_DRAFTS)
    num_tokens = sum(num_requests * cell.decoding.max_new_tokens for cell, num_requests in counted)
    if counted:
        size = f"{num_tokens * BYTES_PER_TOKEN / 1e6:.2g} MB"
        lines.append(f"disk: about {size} of records if every answer is as long as it may be")
    return lines


def _like(cell: CellConfig) -> _Like:
    return _Like(
        engine=cell.server.engine.value if cell.is_served else cell.backend.kind,
        target=cell.target.name,
        target_weights=cell.target.weights.value,
        max_new_tokens=cell.decoding.max_new_tokens,
        max_concurrency=cell.backend.max_concurrency,
        drafter=cell.drafter.kind.value,
        num_speculative_tokens=0 if cell.is_baseline else cell.drafting.num_speculative_tokens,
    )


def _earlier(runs: Path) -> Iterator[_Earlier]:
    """The cells of earlier runs; tables of another form, or damaged ones, hold none."""
    for path in sorted(runs.glob(f"*/{TABLES}/cells.csv")):
        with suppress(OSError, ValueError):
            for row in list(read_rows(path)):
                # a cell that failed has no requests
                with suppress(KeyError, ValueError, ZeroDivisionError):
                    num_requests, beside_s = int(row["num_requests"]), _beside_s(row)
                    request_s = (number(row["wall_s"]) + beside_s) / num_requests
                    yield _Earlier(_of_row(row), row["device"], request_s, beside_s / num_requests)


def _beside_s(row: Mapping[str, str]) -> float:
    """Of a cell; 0 where its table does not know it."""
    return number(row["beside_s"]) if row.get("beside_s") else 0.0


def _of_row(row: Mapping[str, str]) -> _Like:
    return _Like(
        # older tables do not name it: it was this engine
        row.get("engine") or "local",
        row["target"],
        row["target_weights"],
        int(row["max_new_tokens"]),
        int(row["max_concurrency"]),
        row["drafter"],
        int(row["num_speculative_tokens"]),
    )
