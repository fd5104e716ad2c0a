"""What a certification simulates: the lossless cases that the settings ask for, then the controls."""

from __future__ import annotations

from harness.checks.certification.cases import Case, full_cases, own_cases, small_cases
from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.controls import Control, controls
from harness.checks.certification.tree_cases import tree_cases, tree_controls
from harness.config.cli.methods import method_of
from harness.config.imported import is_import_path
from harness.config.schema import SettingsError, check_setting
from kernels.methods import Guarantee, OwnMethod


def chosen_cases(config: CertifyConfig, size: Size) -> list[Case]:
    """The lossless cases that the settings ask for; raises SettingsError when there is none."""
    every = full_cases() if size is Size.full else small_cases()
    every += tree_cases(size is Size.full)
    for name in filter(is_import_path, config.methods):
        every += own_cases(_own_method(name), size is Size.full)
    found = [
        case
        for case in every
        if (not config.methods or case.verification.method.value in config.methods) and config.cells in case.name
    ]
    if not found:
        given = [f"--methods {','.join(config.methods)}"] if config.methods else []
        given += [f"--cells {config.cells!r}"] if config.cells else []
        raise SettingsError(
            f"{' '.join(given)}: expected some lossless case, found none; lossy methods are controls, and a case is "
            f"called for example {every[0].name!r}"
        )
    return found


def _own_method(path: str) -> OwnMethod:
    """A method of the user's own; raises SettingsError if there is none that says it is lossless."""
    method = method_of(path)
    assert isinstance(method, OwnMethod)
    promise = method.traits.guarantee
    check_setting(
        promise is Guarantee.lossless,
        "methods",
        "methods that say they are lossless",
        f"{path}, which is {promise.value}",
    )
    return method


def chosen_jobs(config: CertifyConfig, size: Size) -> list[Case | Control]:
    """Cells, then controls, in the order of the report; the same list in every process.

    Raises:
        SettingsError: there is no lossless case.
    """
    return [*chosen_cases(config, size), *(chosen_controls(config) if config.controls else [])]


def chosen_controls(config: CertifyConfig) -> list[Control]:
    """Of the methods that the settings ask for; all of them where they name none, or only methods without a control."""
    every = [*controls(), *tree_controls()]
    return [control for control in every if control.case.verification.method.value in config.methods] or every
