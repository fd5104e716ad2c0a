"""What `run --list` says of the prompts of a plan: how many, how long, and what of them is left out or cut, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.backends.local.requests import CellRequests
from harness.config.cell import CellConfig
from harness.config.constraint import GrammarConfig
from harness.config.workload import History
from harness.models.described_target import DescribedTarget, target_here
from harness.runner.earlier_cells import NAMED_KINDS
from harness.runner.groups import groups_of
from harness.workload.chat import encode_prompt
from harness.workload.conversations import Selection, conversations, selected
from harness.workload.prompt import Prompt

LEVELS = (50, 90, 99)
"""Percentiles of the tokens."""


def prompt_lines(cells: Sequence[CellConfig]) -> list[str]:
    """Lines for each workload of some cells, with each target that reads it.

    Raises:
        ValueError: the prompts cannot be read.
    """
    found: dict[str, CellConfig] = {}
    for group in groups_of(cells):
        # an answer that must follow a grammar is what leaves out most
        cell = max(
            group.cells, key=lambda item: (item.backend.kind == "local", isinstance(item.constraint, GrammarConfig))
        )
        limits = cell.decoding.max_new_tokens, cell.backend.max_length, cell.constraint, cell.is_served
        found.setdefault(repr((cell.workload, cell.seed, cell.target, *limits)), cell)
    several = len(found) > 1
    return [line for cell in found.values() for line in _of_cell(cell, several)]


def _of_cell(cell: CellConfig, several: bool) -> list[str]:
    workload = cell.workload
    names = workload.dataset or ", ".join(Path(path).name for path in workload.paths) or "builtin"
    head = f"prompts ({names}{f', {cell.target.name}' if several else ''})"
    if workload.dataset is not None and not Path(workload.dataset).is_dir():
        return [f"{head}: not looked at, since a list downloads nothing"]
    chosen = selected(workload, cell.seed)
    played = conversations(chosen.prompts, workload, cell.seed)
    num_turns = sum(len(item.prompt.turns) for item in played)
    num_categories = len({item.category for item in chosen.prompts})
    plays = "" if len(played) == len(chosen.prompts) else f" in {_count(len(played), 'play')}, counted once below"
    counted = f"{_count(len(chosen.prompts), 'prompt')} in {_count(num_categories, 'category')}"
    lines = [f"{head}: {counted}, {_count(num_turns, 'turn')}{plays}"]
    target = target_here(cell.target) if cell.backend.kind in NAMED_KINDS else None
    if target is None:
        lines.append("  tokens: not known, since the target's files are not on this machine")
        return lines + _left_out(cell, chosen, None)
    lengths = _lengths(cell, target, chosen.prompts)
    # what a server takes is not known yet
    requests = None if cell.is_served else CellRequests(cell, target)
    return [*lines, _percentiles(cell, lengths), *_left_out(cell, chosen, _Read(lengths, requests))]


class _Read(NamedTuple):
    """The prompts of a cell as its target's tokenizer reads them."""

    lengths: list[list[int]]
    """Tokens of the requests of each prompt."""
    requests: CellRequests | None
    """What makes them; None of a server."""


def _lengths(cell: CellConfig, target: DescribedTarget, prompts: Iterable[Prompt]) -> list[list[int]]:
    """Tokens of the requests of each prompt that are known before the model answers."""
    found = []
    for prompt in prompts:
        num_known = len(prompt.histories) or 1
        asked = [
            encode_prompt(target.tokenizer, prompt, [""] * turn, cell.workload.thinking) for turn in range(num_known)
        ]
        found.append([len(each.token_ids) for each in asked])
    return found


def _percentiles(cell: CellConfig, lengths: Sequence[Sequence[int]]) -> str:
    values = sorted(number for each in lengths for number in each)
    least_above = {level: values[-(-level * len(values) // 100) - 1] for level in LEVELS}
    shown = ", ".join(f"p{level} {value:,}" for level, value in least_above.items())
    what = "first requests" if cell.workload.history is History.generated else "requests"
    return f"  tokens of {what}: least {values[0]:,}, {shown}, most {values[-1]:,}"


def _left_out(cell: CellConfig, chosen: Selection, read: _Read | None) -> list[str]:
    """What the settings and the target leave out or cut, one line each."""
    workload = cell.workload
    reasons = [
        (
            chosen.num_of_other_categories,
            "prompt",
            f"left out by workload.categories=[{','.join(workload.categories)}]",
        ),
        (chosen.num_not_taken, "prompt", f"left out by workload.num_prompts={workload.num_prompts}"),
        (chosen.num_turns_cut, "turn", f"left out by workload.num_turns={workload.num_turns}"),
    ]
    if read is not None:
        reasons += _by_length(cell, read)
        unusable = 0 if read.requests is None else _num_unusable(cell, read.requests, chosen)
        reasons.append((unusable, "prompt", "left out, with a schema that cannot be followed"))
    return [f"  {_count(number, noun)} {why}" for number, noun, why in reasons if number]


def _by_length(cell: CellConfig, read: _Read) -> list[tuple[int, str, str]]:
    wanted, num_new = cell.workload.prompt_tokens, cell.decoding.max_new_tokens
    if wanted is not None:
        key = f"workload.prompt_tokens={wanted}"
        lengths = [number for each in read.lengths for number in each]
        return [
            (sum(number > wanted for number in lengths), "request", f"cut to {key}"),
            (sum(number < wanted for number in lengths), "request", f"repeated to {key}"),
        ]
    if read.requests is None:
        return []
    room = read.requests.longest_sequence - num_new
    # where one turn does not fit, the rest of its conversation is left out too
    num_long = [
        next((len(each) - place for place, number in enumerate(each) if number > room), 0) for each in read.lengths
    ]
    why = f"left out, longer than {room:,} tokens beside decoding.max_new_tokens={num_new} (workload.too_long=skip)"
    return [(sum(num_long), "request", why)]


def _num_unusable(cell: CellConfig, requests: CellRequests, chosen: Selection) -> int:
    if not isinstance(cell.constraint, GrammarConfig):
        return 0
    for item in conversations(chosen.prompts, cell.workload, cell.seed):
        if item.sample == 0:
            requests.first(item)
    return len(requests.unusable)


def _count(number: int, noun: str) -> str:
    plural = "categories" if noun == "category" else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
