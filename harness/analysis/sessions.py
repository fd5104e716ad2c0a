"""Which session measured what of a cell that several processes measured: their times do not compare.

This module knows records; it does not know which metrics are times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.records.provenance import measured_with, served_by
from harness.records.schema import CellRecord

Floats = NDArray[np.float64]


def sessions_label(record: CellRecord) -> str:
    """The label of a cell that several processes measured, and what else was not the same; empty for one."""
    if len(record.sessions) < 2:
        return ""
    changed = changed_between([record])
    return f"{len(record.sessions)} sessions" + (f", not the same {', '.join(changed)}" if changed else "")


def changed_between(records: Sequence[CellRecord]) -> list[str]:
    """What some cells, or parts of them, were not measured with alike: commit, versions, GPU and the like."""
    found = [measured_with(item) for record in records for item in record.provenances]
    # code of the user's own is not imported for every cell
    names = dict.fromkeys(name for item in found for name in item)
    changed = [name for name in names if len({item[name] for item in found if name in item}) > 1]
    return [*changed, *_changed_servers(records)]


def _changed_servers(records: Sequence[CellRecord]) -> list[str]:
    """Engines whose version changed under the same settings of the server."""
    versions: dict[tuple[str, str], set[str]] = {}
    for record in records:
        if record.config.get("backend", {}).get("kind") == "server":
            settings = json.dumps(record.config.get("server"), sort_keys=True)
            for engine, version in (pair for item in record.provenances for pair in served_by(item).items()):
                versions.setdefault((engine, settings), set()).add(version)
    return [*dict.fromkeys(engine for (engine, _), found in versions.items() if len(found) > 1)]


def scaled_by_session(share_s: Floats, cell: CellRecord) -> Floats:
    """[R] shares of time, those of each session scaled to add up to its wall time; as they are where there is one."""
    if len(cell.sessions) < 2:
        return share_s
    scaled, session_of = share_s.copy(), np.array(cell.request_sessions)
    for session in cell.sessions:
        mine = session_of == session
        total = share_s[mine].sum()
        wall_s = sum(item.wall_s for item in cell.blocks if item.session == session)
        scaled[mine] = share_s[mine] * (wall_s / total) if total > 0 else np.nan
    return scaled


def prompt_sessions(cell: CellRecord, prompt_ids: Sequence[str]) -> tuple[str, ...]:
    """[P] the session of each prompt's requests as text; equal where times of two cells compare."""
    found: dict[str, dict[tuple[int, int], str]] = {}
    for request, session in zip(cell.requests, cell.request_sessions, strict=True):
        found.setdefault(request.prompt_id, {})[request.turn, request.sample] = session
    return tuple(_text(found[prompt_id]) for prompt_id in prompt_ids)


def _text(sessions: Mapping[tuple[int, int], str]) -> str:
    one, *others = set(sessions.values())
    return str(sorted(sessions.items())) if others else one
