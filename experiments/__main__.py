"""rejection-lab COMMAND: all commands under one name; imports only the one that is asked for."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from harness.config.cli.ending import INTERRUPTED, SUCCESS, WRONG_SETTINGS, to_be_queued_again

COMMANDS = {
    "run": "run",
    "status": "status",
    "report": "report",
    "prompt": "prompt",
    "replay": "replay",
    "tune": "tune",
    "reproduce": "reproduce",
    "partings": "partings",
    "certify": "certify",
    "certify-server": "certify_server",
    "agreement": "agreement",
    "check-head": "check_head",
    "doctor": "doctor",
    "demo-server": "demo_server",
    "bench": "bench_kernels",
    "bench-reasoning": "bench_reasoning",
    "profile": "profile_round",
    "bench-ranks": "bench_ranks",
    "compile-check": "compile_check",
    "convert": "convert",
    "train-head": "train_head",
}
"""Name -> module of experiments/; the first line of its docstring says what the command does."""
ALIASES = {"again": "reproduce"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    _find_modules_here()
    if "COMP_LINE" in os.environ:
        return _complete()
    name, *others = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(overview())
        return SUCCESS
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        from harness.config.cli.command_line import PROGRAM, say
        from harness.config.schema import did_you_mean

        say(f"error: unknown command {name!r}{did_you_mean(name, list(COMMANDS))}; {PROGRAM} --help lists all")
        return WRONG_SETTINGS
    return _main_of(name, others)


def _find_modules_here() -> None:
    """Let modules of the user's own be imported from the current folder, as `python -m` does.

    Behind what is installed, so that a folder with a checkout does not take the place of the package that runs.
    """
    with suppress(FileNotFoundError):  # the folder may be gone
        here = os.getcwd()
        if not sys.flags.safe_path and here not in sys.path and "" not in sys.path:
            sys.path.append(here)


def overview() -> str:
    """The help of the program: every command with one line."""
    from harness.config.cli.command_line import PROGRAM

    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {_first_line(module)}" for name, module in COMMANDS.items()]
    return "\n".join([
        f"usage: {PROGRAM} COMMAND [arguments]", "", "commands:", *lines, "",
        f"{PROGRAM} COMMAND --help says what a command takes: run, prompt, profile, bench-ranks, train-head",
        "and check-head take settings (key=value), the other commands take options (--name value).",
        f"Completion in bash: complete -o nospace -o default -C {PROGRAM} {PROGRAM}",
    ])  # fmt: skip


def _first_line(module: str) -> str:
    """Of the docstring, read from the source: importing all commands would take seconds."""
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _main_of(name: str, arguments: Sequence[str]) -> int:
    # a job that its scheduler ends while it imports is queued again, too
    with to_be_queued_again() if name == "run" else nullcontext():
        try:
            code: int = importlib.import_module(f"experiments.{COMMANDS[name]}").main(arguments)
        except KeyboardInterrupt:
            # during the import; a command that has begun catches its own
            print("interrupted", file=sys.stderr)
            code = INTERRUPTED
    return code


def _complete() -> int:
    """Answer bash: the names of commands, or what the command on the line takes."""
    from harness.config.cli.command_line import word_to_complete

    words = os.environ["COMP_LINE"].split()
    word = word_to_complete()
    if len(words) < 2 or (len(words) == 2 and word):
        print("\n".join(f"{name} " for name in COMMANDS if name.startswith(word)))
    elif words[1] in COMMANDS:
        return _main_of(words[1], [])
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
