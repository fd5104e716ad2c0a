"""Whether the answers of a cell are right, where their prompts have known answers (`harness.workload.tasks`).

Looked at when the cell is done, so that no clock runs. Answers whose tokens are not known are not judged. A request
that was cut off within its reasoning has no answer, and is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from harness.config.cell import CellConfig
from harness.config.constraint import AnswerConfig
from harness.models.described_target import target_here
from harness.records.request import RequestRecord
from harness.records.schema import CellRecord
from harness.workload.chat import decode_answer
from harness.workload.conversations import Conversation
from harness.workload.prompt import KnownAnswer
from harness.workload.tasks import RUNS_CODE, gsm8k, humaneval
from harness.workload.tasks.sandbox import Outcome

START_OF_REASONING, END_OF_REASONING = "<think>", "</think>"
NO_TOKENIZER_NOTE = "{} answers with a known one were not judged: the target's tokenizer was not found in files here"
NO_TOKENS_NOTE = "{} answers with a known one were not judged: the server gave no token ids"
CONFINED_NOTE = "code of answers ran without {}, which the system does not have or does not allow"


def judged(record: CellRecord, cell: CellConfig, played: Sequence[Conversation]) -> CellRecord:
    """The record with the verdict on each answer.

    Args:
        record: of the cell, whose answers are not judged yet.
        cell: its settings; code is run where measurement.run_code is true.
        played: its conversations.
    """
    known = {item.prompt.prompt_id: item.prompt.known for item in played}
    judges = _judges(cell.measurement.run_code)
    having = [item for item in record.requests if _known(known, item, judges) is not None]
    asked = [item for item in having if item.output_token_ids]
    notes = [NO_TOKENS_NOTE.format(len(having) - len(asked))] if len(asked) < len(having) else []
    target = target_here(cell.target) if asked else None
    if target is None:
        notes += [NO_TOKENIZER_NOTE.format(len(asked))] if asked else []
        return replace(record, fallbacks=(*record.fallbacks, *notes))
    tokenizer, seeks_end = target.tokenizer, isinstance(cell.constraint, AnswerConfig)

    def judge(request: RequestRecord) -> Outcome:
        found = _known(known, request, judges)
        assert found is not None
        return judges[found.task](found.given, _answer(tokenizer, request, seeks_end))

    # a program of an answer runs in a process of its own
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        outcomes = {item.key: outcome for item, outcome in zip(asked, pool.map(judge, asked), strict=True)}
    requests = tuple(
        replace(item, answer_is_right=outcomes[item.key].is_right) if item.key in outcomes else item
        for item in record.requests
    )
    missing = sorted({name for outcome in outcomes.values() for name in outcome.not_confined})
    notes += [CONFINED_NOTE.format(", ".join(missing))] if missing else []
    return replace(record, requests=requests, fallbacks=(*record.fallbacks, *notes))


def _judges(runs_code: bool) -> dict[str, Callable[[str, str], Outcome]]:
    """How each task is judged that is to be judged."""
    judges: dict[str, Callable[[str, str], Outcome]] = {
        "gsm8k": lambda given, answer: Outcome(gsm8k.is_right(given, answer), ""),
        "humaneval": humaneval.judge,
    }
    return {task: judge for task, judge in judges.items() if runs_code or task not in RUNS_CODE}


def _known(
    known: dict[str, KnownAnswer | None], request: RequestRecord, judges: dict[str, Callable[[str, str], Outcome]]
) -> KnownAnswer | None:
    found = known.get(request.prompt_id)
    return found if found is not None and request.turn == 0 and found.task in judges else None


def _answer(tokenizer: Any, request: RequestRecord, seeks_end: bool) -> str:
    """The text behind the end of reasoning; empty where reasoning did not end.

    seeks_end: whether the cell looked for the end of reasoning.
    """
    start = request.num_reasoning_tokens
    if start is None and seeks_end:
        return ""
    text = decode_answer(tokenizer, request.output_token_ids[start or 0 :], request.stop)
    _, end, answer = text.rpartition(END_OF_REASONING)
    return "" if not end and text.lstrip().startswith(START_OF_REASONING) else answer
