"""What identifies the weights of a cell, told without torch and without loading them.

Of random weights only what they are drawn after is known; the drawing itself is that of the commit and the libraries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from harness.backends.server.random_models import draws_weights
from harness.backends.server.weights import models_of
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterConfig
from harness.config.models import TargetConfig, Weights
from harness.models.fingerprint import TEXT_SUFFIXES, fingerprint
from harness.models.hub_snapshot import hub_snapshot
from harness.models.shape import SHAPES
from harness.models.zoo import zoo_path

Snapshot = Callable[[str, str | None], Path | None]
"""As `hub_snapshot`."""


def weights_here(cell: CellConfig, snapshot: Snapshot = hub_snapshot) -> Mapping[str, str] | None:
    """Digests of the weights by role, as a worker finds them; None where it may find others, or has to draw them."""
    if cell.backend.kind == "server":
        return None if draws_weights(cell) else models_of(cell)
    has_random = Weights.random in (cell.target.weights, cell.drafter.weights)
    return None if has_random else _digests(cell, snapshot)


def sources_here(cell: CellConfig, snapshot: Snapshot = hub_snapshot) -> Mapping[str, str]:
    """Digests by role of what weights are read from, or drawn after where they are random; empty where that is not
    known, and where no weights are random, so that `weights_here` tells more."""
    if Weights.random not in (cell.target.weights, cell.drafter.weights):
        return {}
    found = _digests(cell, snapshot)
    # its tokenizer may stand in, and sizes of a head follow from a target
    return {} if found is None else {**found, "zoo": fingerprint(zoo_path("target", with_weights=False), TEXT_SUFFIXES)}


def _digests(cell: CellConfig, snapshot: Snapshot) -> dict[str, str] | None:
    if cell.backend.kind != "local":
        return None
    found = {"target": _digest(cell.target, "target", snapshot)}
    if cell.drafter.has_model:
        in_target = cell.drafter.traits.in_target and cell.drafter.path is None
        own = found["target"] if in_target else _digest(cell.drafter, cell.drafter.kind.value, snapshot)
        # random heads without a folder have the sizes of their target
        found["drafter"] = found["target"] if own is None and cell.drafter.weights is Weights.random else own
    known = {role: digest for role, digest in found.items() if digest is not None}
    return known if len(known) == len(found) else None


def _digest(model: TargetConfig | DrafterConfig, kind: str, snapshot: Snapshot) -> str | None:
    """Digest of the folder or of the sizes of a model; None where it is not known."""
    if model.shape is not None:
        return hashlib.sha256((SHAPES / f"{model.shape}.json").read_bytes()).hexdigest()[:16]
    if model.path is None:
        with suppress(ValueError):
            return fingerprint(zoo_path(kind))
        return None
    folder = Path(model.path).expanduser()
    found = folder if folder.is_dir() else snapshot(model.path, model.revision)
    return None if found is None else fingerprint(found)
