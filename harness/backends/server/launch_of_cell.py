"""The command line that starts the server of a cell."""

from __future__ import annotations

from pathlib import Path

from harness.backends.server.adapter import Adapter
from harness.backends.server.interpreter import checked_python
from harness.backends.server.process import Launch, launch_of
from harness.backends.server.random_models import served_target
from harness.backends.server.vllm_cpu import start
from harness.settings.cell import CellConfig


def launch_of_cell(cell: CellConfig, adapter: Adapter) -> Launch:
    """How the server of a cell is started.

    Raises:
        ValueError: server.command cannot be split into arguments, or (SettingsError) server.environment has no
            interpreter.
    """
    server = cell.server
    assert server.command is not None, "checked when the run was composed"
    python = None if server.environment is None else checked_python(server.environment)
    values = {
        "target": adapter.served_target(served_target(cell), Path(server.log_folder).resolve()),
        "drafter": adapter.drafter,
        "name": server.model or cell.target.name,
        "max_concurrency": str(cell.backend.max_concurrency),
        "python": "python" if python is None else str(python),
        "vllm_cpu": str(Path(start.__file__)),
    }
    several = {
        "speculation": adapter.speculation(),
        "reasoning": adapter.reasoning(),
        "weights": adapter.weights(),
        "details": adapter.details(),
    }
    return launch_of(server.command, values, several, adapter.environment(), adapter.config_file())
