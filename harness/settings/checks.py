"""Checks of the settings that a command takes as flags; messages name the flag of a field."""

from __future__ import annotations

from collections.abc import Iterable

from harness.settings.schema import SettingsError, did_you_mean


def check_setting(holds: bool, name: str, expected: str, found: object) -> None:
    """Raise SettingsError unless a condition holds, with what was expected of the field and what was found."""
    if not holds:
        raise SettingsError(f"--{name.replace('_', '-')}: expected {expected}, found {found}")


def check_known(name: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Raise SettingsError unless every value is one of those that are known."""
    choices = list(known)
    for value in values:
        hint = did_you_mean(value, choices)
        check_setting(value in choices, name, f"some of {', '.join(choices)}", f"{value!r}{hint}")


def check_seed(seed: int) -> None:
    """Raise SettingsError unless a seed leaves room for the seeds that are made from it, which have 64 bits."""
    check_setting(0 <= seed < 2**32, "seed", "0 to 4294967295", seed)
