"""The Python that a server is started with."""

from __future__ import annotations

from pathlib import Path

from harness.config.schema import SettingsError


def python_of(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment.absolute() / "bin" / "python"


def checked_python(environment: str) -> Path:
    """The interpreter of server.environment; SettingsError where there is none."""
    python = python_of(Path(environment))
    if not python.is_file():
        raise SettingsError(
            f"server.environment: expected the folder of a Python environment, found no bin/python in {environment}; "
            "make one there with the engine in it, or name another"
        )
    return python
