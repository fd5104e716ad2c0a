"""The option --methods of commands that check verification methods: built-in ones and rules of the user's own."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config.imported import ImportPath, is_import_path
from harness.config.schema import SettingsError, check_known, check_setting
from harness.config.verification import own_method
from kernels.methods import NAMED_METHODS, Method
from kernels.methods.hooks import runs_on_kernels

METHODS = "methods"


def check_methods(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise SettingsError unless each is a known name or has the form PACKAGE.MODULE:NAME; nothing is imported."""
    check_known(METHODS, [name for name in names if not is_import_path(name)], (*known, "PACKAGE.MODULE:NAME"))


def method_of(name: str) -> Method:
    """The method of a name or a path; raises SettingsError if there is none."""
    if name in NAMED_METHODS:
        return NAMED_METHODS[name]
    try:
        return own_method(ImportPath(name), f"--{METHODS}")
    except ValueError as error:
        raise SettingsError(str(error)) from error


def check_hooks(names: Iterable[str]) -> None:
    """Raise SettingsError unless the kernels run each method."""
    missing = [name for name in names if not runs_on_kernels(method_of(name))]
    check_setting(not missing, METHODS, "rules with `hooks`, which run on the kernels", ", ".join(missing))
