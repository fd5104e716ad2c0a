"""What the commands that take settings share: options and overrides, exit codes, and the help on settings.

Reads the schema and the names of the files in conf/; imports neither Hydra nor torch, so that help comes at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NoReturn

from harness.settings.schema import (
    CONF,
    Setting,
    SettingsError,
    all_settings,
    did_you_mean,
    group_options,
    sections,
    settings_of,
)

SUCCESS, FAILED, WRONG_SETTINGS, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""
_MAX_WIDTH = 120
_MAX_NAME = 36
"""A longer name stands on a line of its own."""


def exit_code_of(command: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Run a command and turn what stops it into an exit code and one line on standard error.

    Args:
        command: takes the arguments and returns its exit code; a ValueError or OSError is a message for the user.
        arguments: None takes those of the process; with --debug among them an error is let through, with its traceback.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = command(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has seen enough; without this the interpreter complains when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, OSError) as error:
        if "--debug" in given:
            raise
        print(f"error: {error}", file=sys.stderr)
        return WRONG_SETTINGS if isinstance(error, SettingsError) else FAILED


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line, and that leaves `--help` to the command."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action="store_true")
        self.add_argument("--debug", action="store_true")

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Options, and everything that is not an option in the order given.

        Raises:
            SettingsError: for an unknown option or a wrong value of one.
        """
        options, others = self.parse_known_args(list(arguments))
        for other in others:
            if other.startswith("-"):
                names = [name for action in self._actions for name in action.option_strings]
                raise SettingsError(f"unknown option {other}{did_you_mean(other, names)}; options: {', '.join(names)}")
        return options, others


def settings_help(groups: Iterable[str], takes: Callable[[str], bool] = lambda key: True) -> str:
    """Groups with their options and settings with default and meaning, wrapped to the terminal.

    Args:
        groups: names of the groups and sections to show, and `""` for the settings at the root.
        takes: whether the command takes a setting; those that it refuses are left out.
    """
    shown = list(groups)
    chosen = _chosen_options()
    lines = ["groups (group=option; * is taken unless another is given):"]
    options = {group: names for group, names in group_options().items() if group in shown and len(names) > 1}
    lines += _columns(
        [(group, ", ".join(f"{name}*" if name == chosen.get(group) else name for name in _in_order(group, names)))
         for group, names in options.items()]
    )  # fmt: skip
    if "experiment" in shown:
        lines += ["", "experiments:", *_columns([(name, _title(name)) for name in group_options()["experiment"]])]
    meanings = sections() | {"": "Of the whole run."}
    for section in shown:
        listed = [item for item in all_settings().values() if item.section == section and takes(item.key)]
        if listed:
            lines += ["", f"{section} settings (setting=value). {meanings[section]}".lstrip(), *_described(listed)]
    return "\n".join(lines)


def plain_settings_help(schema: type, prefix: str) -> str:
    """The settings of a command that reads them by harness.cli.arguments, with default and meaning.

    Args:
        schema: the dataclass that holds them.
        prefix: of their keys, without the dot.
    """
    return "\n".join(["settings, with what they are unless given:", *_described(settings_of(schema, f"{prefix}."))])


def _in_order(group: str, names: Sequence[str]) -> list[str]:
    """Options in the order of the schema's choices where it has them, else by name."""
    settings = all_settings()
    choices = [
        choice for key in (f"{group}.kind", f"{group}.method") if key in settings for choice in settings[key].choices
    ]
    return sorted(names, key=lambda name: (choices.index(name) if name in choices else len(choices), name))


def _chosen_options() -> dict[str, str]:
    """The option of each group that conf/config.yaml takes."""
    defaults: list[Any] = _read("config")["defaults"]
    return {group: option for item in defaults if isinstance(item, dict) for group, option in item.items()}


def _title(experiment: str) -> str:
    return str(_read(f"experiment/{experiment}").get("title", ""))


def _read(name: str) -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return content


def _described(settings: Iterable[Setting]) -> list[str]:
    return _columns([(f"{item.key}={_shown(item.default)}", _meaning(item)) for item in settings])


def _meaning(setting: Setting) -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    return f"{setting.doc}{choices}"


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return value if isinstance(value, str) else json.dumps(value)


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = min(_MAX_WIDTH, shutil.get_terminal_size().columns)
    indent = 2 + max((len(name) for name, _ in rows if len(name) <= _MAX_NAME), default=0) + 2
    lines: list[str] = []
    for name, text in rows:
        start, margin = f"  {name}".ljust(indent), " " * indent
        if len(name) > _MAX_NAME:
            lines.append(start)
            start = margin
        lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=margin, break_on_hyphens=False) or [
            start
        ]
    return lines
