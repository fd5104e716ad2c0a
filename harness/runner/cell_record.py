"""The record that the parts of a cell make.

This module does not know when parts are written or where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.backends.backend import Facts
from harness.config.backend import BACKEND
from harness.config.cell import CellConfig
from harness.config.guarantee import guarantee, labels
from harness.config.identity import determinants, plain_values
from harness.config.verification import recorded_verification
from harness.records.counts import Knowledge
from harness.records.files import identity
from harness.records.parts import Part
from harness.records.schema import CellRecord


def record_of(cell: CellConfig, parts: Sequence[Part], prompts: str, warnings: Sequence[str]) -> CellRecord:
    """The record of a cell that is done.

    Args:
        cell: as it was asked for.
        parts: one for each block and session, in the order of the blocks; at least one.
        prompts: fingerprint of the prompts.
        warnings: of the run; they go into the record.
    """
    # the order of the sessions is that of their first parts; what a session knew last holds for it
    last = {part.block.session: part for part in parts}
    places = {session: place for place, session in enumerate(last)}
    found = [_facts(part.facts) for part in last.values()]
    facts = found[-1]
    # what was found determines the result, not the word auto
    resolved = replace(cell, backend=facts.backend)
    first, *others = (part.provenance for part in last.values())
    return CellRecord(
        cell_id=identity(determinants(resolved, prompts, facts.models)),
        config=recorded_config(cell, resolved),
        provenance=first,
        requests=tuple(item for part in parts for item in part.requests),
        wall_s=sum(part.block.wall_s for part in parts),
        num_skipped_turns=sum(part.num_skipped_turns for part in parts),
        # all sessions of a cell are known as well as the one that is known worst
        knowledge=max((each.knowledge for each in found), key=list(Knowledge).index),
        blocks=tuple(replace(part.block, provenance=places[part.block.session]) for part in parts),
        more_provenances=tuple(others),
        failures=tuple(item for part in parts for item in part.failures),
        # a run made again brings those of its records
        fallbacks=tuple(dict.fromkeys((*warnings, *(text for each in found for text in each.fallbacks)))),
        assumptions=tuple(dict.fromkeys(text for each in found for text in each.assumptions)),
        rounded_weights=facts.rounded_weights,
        aux_layers=facts.aux_layers,
        drafter_positions=facts.drafter_positions,
        shared_mass=_shared_mass(found),
        labels=labels(cell),
        **facts.sizes,
    )


def _shared_mass(found: Sequence[Facts]) -> float | None:
    """The mean over the draft rows of all sessions."""
    known = [(each.shared_mass, each.num_shared_rows) for each in found if each.shared_mass is not None]
    num_rows = sum(rows for _, rows in known)
    return sum(mass * rows for mass, rows in known) / num_rows if num_rows else None


def recorded_config(cell: CellConfig, resolved: CellConfig) -> Mapping[str, Any]:
    """The configuration of a cell as its record holds it; `resolved` has the backend's settings as they were found."""
    config: dict[str, Any] = plain_values(resolved)
    return config | {
        "verification": plain_values(recorded_verification(cell.verification, cell.drafts_tree)),
        "draft_sampling": cell.draft_sampling.value,
        "guarantee": guarantee(cell).value,
        "device": resolved.backend.device,
        "dtype": resolved.backend.dtype,
    }


def _facts(plain: Mapping[str, Any]) -> Facts:
    """Facts from plain values."""
    changed = {"backend": BACKEND.of_plain(plain["backend"]), "knowledge": Knowledge(plain["knowledge"])}
    # parts of an earlier version have no assumptions, layers and positions
    lists = {name: tuple(plain.get(name, ())) for name in ("fallbacks", "assumptions", "aux_layers")}
    return Facts(**{**plain, **changed, **lists})
