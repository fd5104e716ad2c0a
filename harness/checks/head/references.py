"""Acceptance by position that is known of pairs: `harness/references/*.yaml`, measured here or stated by others.

Fields of a file; all have to be there, `counts` or `rates`:

    target, drafter, path     as in the settings: target.path or its name, drafter.kind, drafter.path (null: built in);
                              of a model in a cache the part that says what is in it (gguf/NAME-DIGEST)
    protocol                  check-head, or in words how the numbers of another one were measured
    engine, source            what measured them, and where they are stated
    template, thinking        chat template and switch; null where the source does not say
    prompts                   fingerprint of the prompts (check-head), or which they are
    num_speculative_tokens    K
    counts                    of check-head: temperature -> prompt -> drafts with a token at each position, and those
                              whose token was accepted
    rates                     of others: temperature -> share of the drafts that accept so many tokens

Only what the same protocol measured on the same prompts is compared, pair by pair of prompts; other numbers are shown
beside what they were measured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.checks.head.protocol import Protocol
from harness.config.cell import CellConfig
from harness.config.models import shown_path
from harness.config.schema import SettingsError, did_you_mean
from harness.records.counts import DraftCounts

FOLDER = Path(__file__).parents[2] / "references"
OWN = "check-head"
"""The protocol of harness.checks.head.protocol."""
OF_PAIR = frozenset({"target", "drafter", "path"})
FIELDS = OF_PAIR | {"protocol", "engine", "source", "template", "thinking", "prompts", "num_speculative_tokens"}
Counts = Mapping[str, DraftCounts]
"""By prompt."""


@dataclass(frozen=True)
class Reference:
    """What is known of one pair by one protocol."""

    name: str
    fields: Mapping[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether it was measured by this protocol."""
        return bool(self.fields["protocol"] == OWN)

    def counts(self, temperature: float) -> Counts:
        """By prompt; empty where nothing is known at a temperature."""
        found = _at(self.fields.get("counts", {}), temperature) or {}
        return {
            prompt_id: DraftCounts(drafted[0], sum(drafted), sum(accepted), tuple(drafted), tuple(accepted))
            for prompt_id, (drafted, accepted) in found.items()
        }

    def rates(self, temperature: float) -> list[float]:
        """Of positions 1, 2, .. as they are stated; empty where nothing is."""
        return list(_at(self.fields.get("rates", {}), temperature) or ())

    def compares(self, protocol: Protocol) -> bool:
        """Whether its numbers are of the same work."""
        cell = protocol.cell
        same = {
            "prompts": protocol.prompts,
            "num_speculative_tokens": cell.drafting.num_speculative_tokens,
            "thinking": cell.workload.thinking,
        }
        return self.is_own and protocol.is_standard and all(self.fields[name] == value for name, value in same.items())


def _at(values: Mapping[float, Any], temperature: float) -> Any:
    return {float(key): value for key, value in values.items()}.get(temperature)


def read_references() -> list[Reference]:
    """All of them.

    Raises:
        ValueError: a file lacks a field, or has one that means nothing.
    """
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
        numbers = "counts" if fields.get("protocol") == OWN else "rates"
        expected = FIELDS | {numbers}
        if set(fields) != expected:
            raise ValueError(
                f"{path}: expected the fields {', '.join(sorted(expected))}, found {', '.join(sorted(fields))}"
            )
        found.append(Reference(path.stem, fields))
    return found


def references_of(cell: CellConfig, name: str | None = None) -> list[Reference]:
    """Those of a pair, the own protocol's first.

    Args:
        cell: of the pair.
        name: of the only one that counts, whatever its pair; None finds them by the pair.

    Raises:
        SettingsError: there is none of that name.
    """
    there = read_references()
    if name is not None:
        names = [item.name for item in there]
        if name not in names:
            raise SettingsError(
                f"--reference: expected one of {', '.join(names)}, found {name!r}{did_you_mean(name, names)}"
            )
        return [item for item in there if item.name == name]
    pair = pair_of(cell)
    found = [item for item in there if all(_same(item.fields[name]) == _same(value) for name, value in pair.items())]
    return sorted(found, key=lambda item: not item.is_own)


def pair_of(cell: CellConfig) -> dict[str, str | None]:
    """The models of a pair, as references name them."""
    target, path = cell.target.path or cell.target.name, cell.drafter.path
    return {
        "target": shown_path(target),
        "drafter": cell.drafter.kind.value,
        "path": None if path is None else shown_path(path),
    }


def _same(name: str | None) -> str | None:
    """What is the same for a Hub id however it is spelled, and for a path in whatever cache."""
    return None if name is None else shown_path(name).lower()


def reference_text(cell: CellConfig, prompts: str, counts: Mapping[float, Counts], engine: str, template: str) -> str:
    """The file of what the protocol has measured."""
    fields = pair_of(cell) | {
        "protocol": OWN,
        "engine": engine,
        "source": "rejection-lab check-head",
        "template": template,
        "thinking": cell.workload.thinking,
        "prompts": prompts,
        "num_speculative_tokens": cell.drafting.num_speculative_tokens,
        "counts": {
            temperature: {
                prompt_id: [list(item.num_draft_tokens_per_pos or ()), list(item.num_accepted_tokens_per_pos or ())]
                for prompt_id, item in sorted(found.items())
            }
            for temperature, found in counts.items()
        },
    }
    return str(yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=110))
