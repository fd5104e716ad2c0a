"""What the commands without Hydra share: arguments to settings, settings to a run, what stops it to an exit code.

This module does not know any command, nor what its settings mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from harness.cli.arguments import read_plain_settings
from harness.cli.command_line import SUCCESS, CommandParser, exit_code_of, plain_settings_help

Schema = TypeVar("Schema")


@dataclass(frozen=True)
class PlainCommand(Generic[Schema]):
    """A command whose arguments are `prefix.setting=value`, `--help` and `--debug`."""

    schema: type[Schema]
    """The dataclass that holds its settings."""
    prefix: str
    """Of their keys, without the dot."""
    usage: str
    """Above the settings in its help."""
    examples: str
    """Below them."""

    def call(self, run: Callable[[Schema], int], arguments: Sequence[str] | None) -> int:
        """Read the settings and run the command, or print its help; returns its exit code.

        Args:
            run: does the work and returns the exit code; a ValueError or OSError is a message for the user.
            arguments: None takes those of the process.
        """
        return exit_code_of(partial(self._call, run), arguments)

    def _call(self, run: Callable[[Schema], int], arguments: Sequence[str]) -> int:
        options, settings = CommandParser().parse(arguments)
        if options.help:
            print("\n".join([self.usage, plain_settings_help(self.schema, self.prefix), "", self.examples]))
            return SUCCESS
        return run(read_plain_settings(self.schema, self.prefix, settings))
