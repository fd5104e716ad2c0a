"""Whether a server is there, or the program that starts it; told without starting it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import PurePath

from harness.backends.server.get import TooSlow, model_served
from harness.backends.server.interpreter import checked_python
from harness.config.schema import SettingsError
from harness.config.server import ServerConfig

_LIMIT_S = 4.0
_COMMAND_NAMES = ("LLAMA_ARG_HOST", "LLAMA_ARG_PORT")
"""Those that every command overrules; images of llama.cpp set the first."""
_IS_MODULE_THERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def check_server(server: ServerConfig) -> None:
    """Look for what starts the server of a cell, or ask the one that runs for its model; one that takes its time to
    answer may be busy.

    A program that another one starts (`docker run ...`) is not looked for; the module of `python -m` is.

    Raises:
        SettingsError: the command cannot be split into arguments, the folder of server.environment has no interpreter,
            there is no such program, or no such module; a variable of the environment is an option of the server; or
            the server that runs does not answer, or has another model.
    """
    python = None if server.environment is None else checked_python(server.environment)
    if server.url is not None:
        _check_answers(server.url, server.model)
        return
    check_variables(server)
    if server.command is None:
        return
    try:
        words = shlex.split(server.command)
    except ValueError as error:
        raise SettingsError(f"server.command: expected a command line, found {server.command!r} ({error})") from error
    interpreter = "python" if python is None else str(python)
    words = [interpreter if word == "{python}" else word for word in words]
    if words and PurePath(words[0]).name == "env":
        # its assignments; of its options only it knows what follows them
        named = next((place for place, word in enumerate(words) if place and not re.match(r"\w+=", word)), len(words))
        words = words[named:]
    if not words or words[0].startswith("-") or "{" in words[0]:
        return
    if shutil.which(words[0]) is None:
        raise SettingsError(
            f"server.command: expected a program that starts, found no {words[0]}; install the engine, or name the "
            "program with its folder in server.command"
        )
    if words[1:2] == ["-m"] and len(words) > 2 and PurePath(words[0]).name.startswith("python"):
        _check_module(words[0], words[2].partition(".")[0])


def check_variables(server: ServerConfig) -> None:
    """Raise SettingsError where the environment holds options of a server that is to be started: no row names them."""
    first = server.traits.option_variables
    found = sorted(name for name in os.environ if first and name.startswith(first) and name not in _COMMAND_NAMES)
    if found:
        raise SettingsError(
            f"server={server.engine.value}: expected its options in server.command, which results name, found in the "
            f"environment {', '.join(found)}; unset them, or give the options in server.command"
        )


def _check_answers(url: str, model: str | None) -> None:
    """Raise SettingsError where no server at an address lists a model."""
    try:
        model_served(url, model, _LIMIT_S)
    except ValueError as error:
        if not isinstance(error.__cause__, TooSlow):
            raise SettingsError(str(error)) from error


def _check_module(python: str, package: str) -> None:
    """Raise SettingsError where an interpreter does not find a package."""
    try:
        done = subprocess.run(
            [python, "-c", _IS_MODULE_THERE, package], capture_output=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    # any other end says nothing
    if done.returncode == 1 and not done.stderr:
        raise SettingsError(
            f"server.command: expected the package {package} for {python}, found none; install the engine there, or "
            "name the interpreter that has it (server.environment for {python})"
        )
