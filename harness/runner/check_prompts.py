"""Whether the prompts of a plan can be read, fit their targets and have what their constraint needs.

Looked at before a worker starts, by the code that the worker makes its requests with, and without torch. A tokenizer,
which takes about a second, is read only where something depends on it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.backends.local.requests import CellRequests, sampling_of
from harness.backends.server.prompts import ServedPrompts
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerConfig
from harness.config.guarantee import check_promise
from harness.config.schema import SettingsError
from harness.config.workload import TooLong
from harness.engine.constraint.answer_check import grammar_of
from harness.models.described_target import num_positions_here, target_here, tokenizer_folder_here
from harness.models.tokenizer_files import template_bytes
from harness.runner.earlier_cells import NAMED_KINDS
from harness.runner.groups import Group
from harness.workload.chat import chat_messages
from harness.workload.conversations import Conversation
from harness.workload.hub_dataset import check_there
from harness.workload.prompt import Prompt
from harness.workload.tasks import RUNS_CODE


def check_prompts(groups: Sequence[Group], *, downloads: bool) -> None:
    """Look at the prompts of each group.

    Args:
        groups: of the plan.
        downloads: whether a data set of the Hub is read, or only looked for.

    Raises:
        SettingsError: prompts cannot be read; none fits, or one does not where workload.too_long is `error`; one has no
            schema where answers need it; or the tokenizer has no marker or switch that is asked for.
    """
    are_read = True
    for group in groups:
        workload = group.cells[0].workload
        if workload.dataset is not None and not downloads and not Path(workload.dataset).is_dir():
            check_there(workload.dataset)
            are_read = False
            continue
        # a prompt is looked at once, however often it is played
        played = [item for item in group.played if item.sample == 0]
        own_sampling = {repr(item.prompt.sampling): item.prompt for item in played if item.prompt.sampling is not None}
        looked_at: set[str] = set()
        for cell in group.cells:
            if cell.backend.kind not in NAMED_KINDS:
                continue
            alike = repr((cell.backend.kind, cell.constraint, cell.server.engine if cell.is_served else None))
            try:
                for prompt in own_sampling.values():
                    if cell.is_served:
                        _check_served_sampling(cell, prompt)
                    else:
                        sampling_of(cell, prompt)
                if alike not in looked_at:
                    looked_at.add(alike)
                    _check(cell, played)
            except (ValueError, OSError) as error:
                raise error if isinstance(error, SettingsError) else SettingsError(str(error)) from error
    if are_read:
        _check_tests(groups)


def _check_tests(groups: Sequence[Group]) -> None:
    """Code of answers is run for tests alone, and on a system that can confine it."""
    if not any(cell.measurement.run_code for group in groups for cell in group.cells):
        return
    prompts = [item.prompt for group in groups for item in group.played]
    if not any(prompt.known is not None and prompt.known.task in RUNS_CODE for prompt in prompts):
        raise SettingsError(
            "measurement.run_code: expected prompts with tests (workload=humaneval), found none; leave it out"
        )
    if os.name != "posix":
        raise SettingsError(
            f"measurement.run_code: expected a POSIX system, on which a process can be confined, found {sys.platform}"
        )


def _check_served_sampling(cell: CellConfig, prompt: Prompt) -> None:
    """Raise ValueError where a prompt's own sampling changes logits as the engine that serves cannot, or as it breaks
    what the cell promises."""
    assert prompt.sampling is not None
    own = prompt.sampling.over(cell.decoding.sampling)
    if own.min_tokens > cell.decoding.max_new_tokens:
        raise ValueError(
            f"prompt {prompt.prompt_id}: sampling.min_tokens: expected at most decoding.max_new_tokens="
            f"{cell.decoding.max_new_tokens}, found {own.min_tokens}"
        )
    refused = cell.server.traits.refused_edit(own, not cell.is_baseline)
    if refused is not None:
        raise ValueError(f"prompt {prompt.prompt_id}: sampling: {refused}; server.engine={cell.server.engine.value}")
    check_promise(cell, own, prompt.prompt_id)


def _check(cell: CellConfig, played: Sequence[Conversation]) -> None:
    if isinstance(cell.constraint, AnswerConfig):
        for item in played:
            grammar_of(cell.constraint, item.prompt.prompt_id, item.prompt.schema)
    with_tools = [item for item in played if item.prompt.tools is not None][:1]
    if cell.is_served:
        if _asks_tokenizer(cell) or with_tools:
            _look_as_served(cell, with_tools or played)
        return
    doubtful = _doubtful(cell, played)
    if doubtful or with_tools:
        target = target_here(cell.target)
        if target is not None:
            requests = CellRequests(cell, target)
            for item in with_tools:
                # whether the template takes them
                requests.first(item)
            if doubtful:
                _look(requests, cell, played, doubtful)


def _asks_tokenizer(cell: CellConfig) -> bool:
    """Whether something is asked of the tokenizer beside what a prompt comes to."""
    return isinstance(cell.constraint, AnswerConfig) or cell.workload.thinking is not None


def _look_as_served(cell: CellConfig, played: Sequence[Conversation]) -> None:
    """What a server takes is not known yet."""
    target = target_here(cell.target)
    if target is not None:
        questions = ServedPrompts(cell)
        questions.tokenizer = target.tokenizer
        questions.question(played[0], [])


def _doubtful(cell: CellConfig, played: Sequence[Conversation]) -> list[Conversation]:
    """The conversations that have to be tokenized to tell whether the cell can run, the shortest first."""
    positions, configured = num_positions_here(cell.target), cell.backend.max_length
    known = [number for number in (positions, configured) if number is not None]
    shortest_first = sorted(played, key=_num_bytes)
    if _asks_tokenizer(cell):
        return shortest_first
    if not known:
        return []
    room, num_tokens = min(known) - cell.decoding.max_new_tokens, cell.workload.prompt_tokens
    if num_tokens is not None:
        return shortest_first if num_tokens > room else []
    folder = tokenizer_folder_here(cell.target)
    around = 0 if folder is None else template_bytes(folder)
    # a token has a byte or more
    doubtful = [item for item in shortest_first if _num_bytes(item) + around > room]
    return doubtful if cell.workload.too_long is TooLong.error or len(doubtful) == len(played) else []


def _num_bytes(item: Conversation) -> int:
    """Of what stands in the first request, beside the template's own text."""
    others = len((item.prompt.tools or "").encode())
    for message in chat_messages(item.prompt, []):
        calls = {name: value for name, value in message.items() if name not in ("role", "content")}
        others += len(message["content"].encode()) + (len(json.dumps(calls)) if calls else 0)
    return others


def _look(
    requests: CellRequests, cell: CellConfig, played: Sequence[Conversation], doubtful: Sequence[Conversation]
) -> None:
    """Make requests of the doubtful conversations: up to the first that fits, or of all where each must fit."""
    found: Any = None
    for item in doubtful:
        found = requests.first(item)
        if found is not None and cell.workload.too_long is TooLong.skip:
            return
    if found is None:
        requests.fit_slots(played)
