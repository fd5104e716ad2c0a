"""What is refused of a plan before anything is played: cells that are one, and prompts that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.backends.backend import backend_class
from harness.config.cell import CellConfig
from harness.config.identity import determinants, key_without, plain_values
from harness.config.usage import normal_form
from harness.records.files import identity
from harness.runner.groups import Group
from harness.runner.weights_here import weights_here


def refuse_repeated(cells: Sequence[CellConfig]) -> None:
    """Raise ValueError where two cells of a plan are one here: the second record would take the place of the first."""
    first: dict[str, CellConfig] = {}
    of_result: dict[str, CellConfig] = {}
    for cell in cells:
        found = backend_class(cell.backend).resolved(cell)
        other = first.setdefault(key_without(normal_form(found)), cell)
        if other is not cell:
            raise ValueError(
                f"two cells differ in {' and '.join(_differences(other, cell))} only, which makes no difference "
                f"on {found.backend.device} with the rest of the settings, so that they are one; give one value, or "
                "what makes it count (rejection-lab run --help)"
            )
        try:
            # of ids of the Hub the names are compared, so that it is not asked
            weights = weights_here(found, lambda name, revision: None)
        except OSError:
            continue  # the cell fails alone, with what is missing
        other = of_result.setdefault(identity(determinants(found, None, weights)), cell)
        if other is not cell:
            raise ValueError(
                f"two cells differ in {' and '.join(_differences(other, cell))} only, which does not tell their "
                "results apart (of a folder of weights the content counts), so that they share one record; give one "
                "value, or run each under a name of its own"
            )


def refuse_unreadable(groups: Sequence[Group]) -> None:
    """Raise ValueError or OSError if this host can read the prompts of no group; those of one may still be missing."""
    errors = list[Exception]()
    for group in groups:
        try:
            _ = group.played
            return
        except (ValueError, OSError) as error:
            errors.append(error)
    raise errors[0]


def _differences(one: CellConfig, other: CellConfig) -> list[str]:
    """Every setting in which two cells differ, with both values."""
    first, second = plain_values(one), plain_values(other)
    return [
        f"{section}.{name} ({json.dumps(value)}, {json.dumps(second[section].get(name))})"
        for section, values in first.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if value != second[section].get(name)
    ]
