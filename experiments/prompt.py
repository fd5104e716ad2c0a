"""Answer prompts and show which tokens were accepted, recovered and bonus.

Answers the prompts side by side and shows every answer with accepted, recovered and bonus tokens told apart, by colour
on a terminal and by marks elsewhere or with NO_COLOR set, and its acceptance below. With decoding.logprobs=N every
token follows with its log-probability, its rank and the N best tokens in its place. Without a PROMPT and without --file
the prompts come from standard input, one a line. Everything after -- is a prompt, also what looks like a setting.

examples:
  rejection-lab prompt "What is a prime number?" "Write a haiku about rivers."
  rejection-lab prompt --file questions.txt drafter=mtp verification=block decoding.temperature=0.7
  echo "Name three colours." | rejection-lab prompt decoding.temperature=0
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from harness.config.cell import CellConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import SUCCESS
from harness.config.cli.settings_help import settings_help
from harness.config.guarantee import RANDOM_WEIGHTS, guarantee, labels
from harness.config.schema import SettingsError, all_settings, group_options
from harness.records.request import RequestRecord
from harness.report.token_colours import (
    Piece,
    TokenKind,
    acceptance_line,
    legend,
    logprob_lines,
    pieces,
    render,
    token_kinds,
    wants_colour,
    without_end,
)

DEFAULT_DRAFTER = "eagle3"
SECTIONS = ("target", "drafter", "drafting", "decoding", "verification", "backend", "seed")
OWN_SETTINGS = ("measurement.baseline=false", "measurement.num_warmup_requests=0", "workload.too_long=error")
Decode = Callable[[Sequence[int]], str]


def main(arguments: Sequence[str] | None = None, stdin: TextIO | None = None) -> int:
    """Run the command; returns its exit code."""
    shown = [name for name in group_options() if name in SECTIONS]
    parser = CommandParser(
        "prompt",
        __doc__,
        "[PROMPT ..] [group=OPTION ..] [setting=VALUE ..]",
        lambda: settings_help(shown, defaults={"drafter": DEFAULT_DRAFTER}),
    )
    parser.add_argument("--file", metavar="FILE", help="read the prompts from a file, one a line")
    before, after = split_at_dashes(sys.argv[1:] if arguments is None else arguments)
    return parser.call(partial(_run, after=after, stdin=sys.stdin if stdin is None else stdin), before)


def _run(options: argparse.Namespace, after: Sequence[str], stdin: TextIO) -> int:
    others = options.overrides
    cell = compose_cell([item for item in others if is_override(item)])
    prompts = read_prompts([*(item for item in others if not is_override(item)), *after], options.file, stdin)
    show(cell, prompts, *answer(cell, prompts))
    return SUCCESS


def split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before a lone `--` and those after it."""
    if "--" not in arguments:
        return list(arguments), []
    index = list(arguments).index("--")
    return list(arguments[:index]), list(arguments[index + 1 :])


def is_override(argument: str) -> bool:
    """Whether an argument is meant as a setting: it starts with a known name, or looks like one and has no spaces."""
    name = re.match(r"([+~]?[A-Za-z_]\w*)[\w./@]*=", argument)
    if name is None:
        return False
    known = {key.partition(".")[0] for key in [*group_options(), *all_settings()]}
    return name[1] in known or re.search(r"\s", argument) is None


def compose_cell(overrides: Sequence[str]) -> CellConfig:
    """The one cell that answers.

    Raises:
        SettingsError: for wrong settings, a sweep, or settings that mean nothing here.
    """
    from harness.runner.plan.compose import compose_plan
    from harness.runner.plan.overrides import read_overrides

    given = read_overrides(overrides)
    for key, item in given.items():
        if key.partition(".")[0] not in SECTIONS:
            raise SettingsError(f"{key} is not used here; settings of {', '.join(SECTIONS)} are")
        if item.is_sweep:
            raise SettingsError(f"{key}: expected one value, found {len(item.values)}; rejection-lab run does sweeps")
    if not {"drafter", "drafter.kind"} & set(given):
        overrides = [f"drafter={DEFAULT_DRAFTER}", *overrides]
    return compose_plan([*overrides, *OWN_SETTINGS]).cells[0]


def read_prompts(given: Sequence[str], file: str | None, stdin: TextIO) -> list[str]:
    """The prompts from the arguments and the file, or, where there are none, from standard input.

    Raises:
        SettingsError: if there is no prompt, or the file cannot be read.
    """
    lines = list(given)
    if file is not None:
        try:
            lines += Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"--file: expected a text file with one prompt a line, found {file!r}: {error}"
            ) from error
    elif not lines and not stdin.isatty():
        lines = stdin.read().splitlines()
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise SettingsError(
            "expected a prompt as an argument, in a --file or on standard input, found none (see --help)"
        )
    return prompts


def answer(cell: CellConfig, prompts: Sequence[str]) -> tuple[list[RequestRecord], Decode]:
    """Answer all prompts concurrently; returns the requests in the order of the prompts, and how to decode them."""
    say("loading PyTorch and the models")
    from harness.backends.backend import backend_class
    from harness.runner.cpu_threads import choose_threads
    from harness.runner.progress import progress_on
    from harness.workload.conversations import conversations
    from harness.workload.prompt import Prompt

    choose_threads([cell])
    asked = [Prompt(str(index), "prompt", (text,)) for index, text in enumerate(prompts)]
    progress = progress_on(sys.stderr)
    progress.start(len(prompts))
    try:
        kind = backend_class(cell.backend)
        backend = kind(cell, kind.Shared())
        played = conversations(asked, cell.workload, cell.seed)
        kind.prepare_together([backend], played)
        run = backend.generate(played, lambda num_tokens: progress.advance(1, num_tokens))
    finally:
        progress.finish()
    facts = backend.facts()
    say(*(f"note: {fallback}" for fallback in facts.fallbacks), *(f"assumed: {text}" for text in facts.assumptions))
    requests = sorted(run.requests, key=lambda record: int(record.prompt_id))
    return requests, backend.decode


def show(cell: CellConfig, prompts: Sequence[str], requests: Sequence[RequestRecord], decode: Decode) -> None:
    """Print the answers to standard output."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    colour = wants_colour(sys.stdout, os.environ)
    print(f"{headline(cell)}\n{legend(colour)}")
    for prompt, record in zip(prompts, requests, strict=True):
        ids, kinds = record.output_token_ids, token_kinds(record.rounds)
        num_cut = 0 if record.stop is None else record.stop.num_cut_characters or 0
        # without rounds the tokens cannot be told apart
        parts = pieces(ids, kinds, decode) if kinds else (Piece(TokenKind.accepted, decode(ids)),)
        parts = without_end(parts, num_cut)
        text = render(parts, colour) if kinds else "".join(part.text for part in parts)
        print(f"\n> {prompt}\n{text}\n  {acceptance_line(record)}")
        for line in logprob_lines(record, decode):
            print(f"  {line}")


def headline(cell: CellConfig) -> str:
    """Who drafts, how the drafts are drawn and verified, and what that promises about the text."""
    random = [label for label in labels(cell) if RANDOM_WEIGHTS in label]
    weights = f"; {random[0]}, so the text means nothing" if random else ""
    if cell.is_baseline:
        return f"no drafts, temperature {cell.decoding.temperature:g}{weights}"
    return (
        f"drafter {cell.drafter.kind.value}, K = {cell.drafting.num_speculative_tokens}, "
        f"{cell.draft_sampling.value} drafts, temperature {cell.decoding.temperature:g}, "
        f"{cell.verification.method.value} verification ({guarantee(cell).value}){weights}"
    )


if __name__ == "__main__":
    sys.exit(main())
