"""What a certification plays: the lossless cells that the settings ask for, then the controls."""

from __future__ import annotations

from harness.certification.cells import Cell, full_cells, small_cells
from harness.certification.config import CertifyConfig, Size
from harness.certification.controls import Control, controls
from harness.settings.schema import SettingsError


def chosen_cells(config: CertifyConfig, size: Size) -> list[Cell]:
    """The lossless cells that the settings ask for; raises SettingsError when there is none."""
    every = full_cells() if size is Size.full else small_cells()
    found = [
        cell
        for cell in every
        if (not config.methods or cell.verification.method.value in config.methods) and config.cells in cell.name
    ]
    if not found:
        raise SettingsError(
            f"certify.methods={','.join(config.methods)} certify.cells={config.cells}: expected some lossless cell, "
            "found none; lossy methods are controls"
        )
    return found


def chosen_jobs(config: CertifyConfig, size: Size) -> list[Cell | Control]:
    """Cells, then controls, in the order of the report; the same list in every process.

    Raises:
        SettingsError: there is no lossless cell.
    """
    return [*chosen_cells(config, size), *(controls() if config.controls else [])]
