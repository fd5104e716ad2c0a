"""The command line that starts the server of a cell."""

from __future__ import annotations

from pathlib import Path

from harness.backends.server.adapter import Adapter
from harness.backends.server.check_server import check_variables
from harness.backends.server.interpreter import checked_python
from harness.backends.server.process import Launch, launch_of
from harness.backends.server.random_models import served_target
from harness.backends.server.vllm_cpu import start
from harness.config.cell import CellConfig

CONTEXT = "{context}"


def sets_context(cell: CellConfig) -> bool:
    """Whether a server is started that is told how many tokens its requests may have."""
    return cell.server.url is None and CONTEXT in (cell.server.command or "")


def launch_of_cell(cell: CellConfig, adapter: Adapter, num_tokens: int | None = None) -> Launch:
    """How the server of a cell is started.

    Args:
        cell: what runs.
        adapter: of its engine.
        num_tokens: of prompt and answer of the longest request; needed where the command names {context}.

    Raises:
        ValueError: server.command cannot be split into arguments, or (SettingsError) server.environment has no
            interpreter, or a variable of the environment is an option of the server.
    """
    server = cell.server
    check_variables(server)
    assert server.command is not None, "checked when the run was composed"
    assert num_tokens is not None or not sets_context(cell), "known once the prompts are"
    num_slots = cell.backend.max_concurrency
    python = None if server.environment is None else checked_python(server.environment)
    values = {
        "target": adapter.served_target(served_target(cell), Path(server.log_folder).resolve()),
        "drafter": adapter.drafter,
        "name": server.model or cell.target.name,
        "max_concurrency": str(num_slots),
        "context": "" if num_tokens is None else str(num_slots * adapter.slot_length(num_tokens)),
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
