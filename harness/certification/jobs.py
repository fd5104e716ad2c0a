"""What a certification plays: the lossless cells that the settings ask for, then the controls."""

from __future__ import annotations

from harness.certification.cases import Case, full_cases, small_cases
from harness.certification.config import CertifyConfig, Size
from harness.certification.controls import Control, controls
from harness.settings.schema import SettingsError


def chosen_cases(config: CertifyConfig, size: Size) -> list[Case]:
    """The lossless cells that the settings ask for; raises SettingsError when there is none."""
    every = full_cases() if size is Size.full else small_cases()
    found = [
        case
        for case in every
        if (not config.methods or case.verification.method.value in config.methods) and config.cells in case.name
    ]
    if not found:
        raise SettingsError(
            f"--methods {','.join(config.methods)} --cells {config.cells!r}: expected some lossless cell, "
            "found none; lossy methods are controls"
        )
    return found


def chosen_jobs(config: CertifyConfig, size: Size) -> list[Case | Control]:
    """Cells, then controls, in the order of the report; the same list in every process.

    Raises:
        SettingsError: there is no lossless cell.
    """
    return [*chosen_cases(config, size), *(controls() if config.controls else [])]
