"""Packages that only some settings need, looked for before anything is loaded; does not know what they are for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

from harness.config.constraint import AnswerConfig, GrammarConfig, GrammarKind
from harness.config.schema import SettingsError
from harness.config.tracker import TRACKING
from harness.report.trackers.tracker import tracker_of
from harness.runner.plan.run_plan import RunPlan

EXTRAS = {
    "grammar": ("llguidance", "jsonschema"),
    "server": ("aiohttp", "prometheus_client"),
    "gguf": ("gguf",),
    "slurm": ("submitit",),
    "ray": ("ray",),
    "tracking": ("mlflow", "wandb"),
}
"""Extra of `pip install` -> its packages, by the names that they are imported by."""


def check_optional_packages(plan: RunPlan) -> None:
    """Raise SettingsError, with the command that installs them, if packages are missing that a plan needs.

    Jobs of a cluster are taken to have what this host has.
    """
    missing = {package: why for package, why in _needed(plan) if not is_installed(package)}
    if missing:
        extras = ",".join(extra for extra, packages in EXTRAS.items() if missing.keys() & {*packages})
        # what an object of the user's own needs is in no extra
        others = missing.keys() - {package for packages in EXTRAS.values() for package in packages}
        install = [*([f"'rejection-lab[{extras}]'"] if extras else []), *sorted(others)]
        expected = " and ".join(f"{package} (for {why})" for package, why in missing.items())
        raise SettingsError(
            f"expected the package{'s' * (len(missing) > 1)} {expected}, found none; pip install {' '.join(install)}"
        )


def is_installed(package: str) -> bool:
    """Whether a package can be imported, which it is not."""
    if package in sys.modules:
        return sys.modules[package] is not None
    found = find_spec(package)
    # a folder of that name has no origin
    return found is not None and found.origin is not None


def _needed(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """Packages, and the settings that need them."""
    for cell in plan.cells:
        constraint = cell.constraint
        if isinstance(constraint, GrammarConfig) and cell.backend.kind == "local":
            yield "llguidance", f"constraint={constraint.policy.value}"
        if isinstance(constraint, AnswerConfig) and constraint.kind is GrammarKind.json_schema:
            yield "jsonschema", f"constraint={constraint.policy.value}"
        if cell.backend.kind == "server":
            yield from ((package, "backend=server") for package in EXTRAS["server"])
    if plan.launcher.package:
        yield plan.launcher.package, f"launcher={plan.launcher.kind}"
    if plan.tracking is not None and (package := tracker_of(plan.tracking).package):
        yield package, f"{TRACKING}={plan.tracking.value}"
