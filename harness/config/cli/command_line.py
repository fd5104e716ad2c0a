"""The parser that every command has: its help, its options, what stops it as an exit code and one line, completion.

A command's help is the docstring of its module: the first line, a description, and examples after a line `examples:`.
This module imports neither Hydra nor torch, so that help comes at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from textwrap import fill
from typing import NoReturn

from harness.config.cli.arguments import add_settings, flags_of, read_settings
from harness.config.cli.ending import FAILED, INTERRUPTED, SUCCESS, WRONG_SETTINGS
from harness.config.cli.shell_line import shell_line
from harness.config.own_code import own_place
from harness.config.schema import SettingsError, all_settings, did_you_mean, group_options

PROGRAM = "rejection-lab"
MAX_WIDTH = 120
"""Of a line of help."""


def say(*texts: str) -> None:
    """Tell the user something on standard error, beside the results; empty texts are left out.

    A terminal gets lines that end between words, a file the lines as they are.
    """
    for text in filter(None, texts):
        print(_folded(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def _folded(text: str) -> str:
    """The lines of a text, those broken that are wider than the terminal."""
    width = shutil.get_terminal_size().columns
    return "\n".join(
        fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        if len(line) > width
        else line
        for line in text.splitlines()
    )


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, to 120 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=min(MAX_WIDTH, shutil.get_terminal_size().columns))


class CommandParser(argparse.ArgumentParser):
    """The arguments of one command: options, and the settings of a dataclass as flags or overrides for Hydra.

    Args:
        name: of the command.
        doc: the docstring of its module.
        arguments: what its usage shows after the options.
        settings_help: the help on `key=value` settings, for a command that takes them.
    """

    def __init__(
        self, name: str, doc: str | None, arguments: str = "", settings_help: Callable[[], str] | None = None
    ) -> None:
        description, _, self._examples = (doc or "").partition("\n\nexamples:\n")
        super().__init__(
            prog=f"{PROGRAM} {name}",
            usage=f"%(prog)s [options] {arguments}".rstrip(),
            description=description,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self._settings_help = settings_help
        self._schema: tuple[type, str] | None = None
        self.add_argument("--debug", action="store_true", help="on an error, show a traceback instead of one line")

    def add_settings(self, schema: type, old_prefix: str) -> None:
        """Give every field of a dataclass a flag; the dataclass is `settings` of the options.

        Args:
            schema: a dataclass that harness.config.cli.arguments can read.
            old_prefix: of arguments `prefix.setting=value`, which are deprecated.
        """
        self._schema = schema, old_prefix
        add_settings(self, schema)

    def call(
        self,
        run: Callable[[argparse.Namespace], int],
        arguments: Sequence[str] | None,
        wrong_input: int = FAILED,
    ) -> int:
        """Parse the arguments and run the command; what stops it becomes an exit code and one line on standard error.

        Args:
            run: takes the options and returns the exit code; a ValueError or OSError is a message for the user. Beside
                the options there are `overrides`, the `key=value` settings; `settings`, the dataclass of
                `add_settings`; and `command`, the command line as typed.
            arguments: None takes those of the process; with --debug among them an error keeps its traceback.
            wrong_input: exit code of an error that is not about settings.
        """
        given = sys.argv[1:] if arguments is None else list(arguments)
        if "COMP_LINE" in os.environ:
            print("\n".join(self._completions(word_to_complete())))
            return SUCCESS
        try:
            code = run(self.parse(given))
            sys.stdout.flush()
            return code
        except SystemExit as stop:  # argparse has printed the help
            return int(stop.code or SUCCESS)
        except KeyboardInterrupt as stop:
            # with a text it has been told already
            say("" if stop.args else "interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            # the reader has seen enough; without this the interpreter complains when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        except (ValueError, OSError) as error:
            if "--debug" in given:
                raise
            say(f"error: {error}{own_place(error)}")
            return WRONG_SETTINGS if isinstance(error, SettingsError) else wrong_input

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options; raises SettingsError for an unknown option, a wrong value, or an unknown argument."""
        given = list(arguments)
        if self._schema is not None:
            given = list(flags_of(*self._schema, given, say))
        names = self._option_names()
        for name in [item.partition("=")[0] for item in given if re.match(r"-[^\d.]", item)]:
            if name not in names:
                # before argparse, which would rather miss a PATH than see the mistake
                raise SettingsError(f"unknown option {name}{did_you_mean(name, names)}; {self.prog} --help lists all")
        options, others = self.parse_known_args(given)
        if others and self._settings_help is None:
            raise SettingsError(f"expected options, found {' '.join(others)}; {self.prog} --help lists all")
        options.command = shell_line([*self.prog.split(), *arguments])
        options.overrides = others
        options.settings = None if self._schema is None else read_settings(self._schema[0], options)
        return options

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.removeprefix("argument "))

    def format_help(self) -> str:
        examples = f"examples:\n{self._examples.rstrip()}" if self._examples else ""
        settings = "" if self._settings_help is None else self._settings_help()
        self.epilog = "\n\n".join(filter(None, [settings, examples]))
        return super().format_help()

    def _option_names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _completions(self, word: str) -> list[str]:
        """What may stand for the last word of a command line; of `key=value` the value alone, as bash has it."""
        key, equals, start = word.rpartition("=")
        if not equals:
            keys = [] if self._settings_help is None else [f"{key}=" for key in (*group_options(), *all_settings())]
            return [name for name in (*(f"{name} " for name in self._option_names()), *keys) if name.startswith(word)]
        setting = all_settings().get(key)
        choices: Iterable[str] = group_options().get(key, setting.choices if setting is not None else ())
        return [f"{choice} " for choice in choices if choice.startswith(start)]


def word_to_complete() -> str:
    """The word that bash wants completed, up to the cursor."""
    line = os.environ["COMP_LINE"]
    return line[: int(os.environ.get("COMP_POINT", len(line)))].rpartition(" ")[2]
