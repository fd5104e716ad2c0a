"""Layouts of prompt files: JSON Lines, one record a line, plain or gzip-compressed, or one JSON array of records.

| layout     | fields read                                               | category                                    |
|------------|-----------------------------------------------------------|---------------------------------------------|
| mt_bench   | question_id, category, turns                              | the file's                                  |
| spec_bench | the same                                                  | the file's; MT-Bench's eight are `mt_bench` |
| gsm8k      | question                                                  | `gsm8k`                                     |
| humaneval  | task_id, prompt                                           | `humaneval`                                 |
| json_schemas | id, split, schema; the prompt asks for such an object   | the file's split                            |
| messages   | messages (harness.workload.messages); tools where given   | the file's, else `messages`                 |
| share_gpt  | conversations, or conversation; the same                  | the file's, else `share_gpt`                |
| alpaca     | instruction, and below it input where given               | the file's, else `alpaca`                   |
| plain      | one of prompt, text, turns; or the line is a bare string; | the file's, else `plain`                    |
|            | json_schema where given                                   |                                             |

The last four read prompt_id, category and `system`, the system message, where given.

A record of any layout may have `sampling`: an object of temperature, top_k, top_p, min_p and seed.
Of other fields those known to be without effect (reference answers, tests, sources) are left alone, all others are
refused: harness.workload.line_keys has both lists. null is absence. A record without an id is named after its line.
This module knows neither tokenizers nor the order in which prompts are run.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config.sampling import GivenSampling
from harness.config.schema import SettingsError
from harness.config.workload import History, Layout
from harness.records.strict_json import parse_json, shown
from harness.workload.line_keys import check_known, check_not_refused, is_given, without_nulls
from harness.workload.messages import prompt_of
from harness.workload.prompt import Prompt

MT_BENCH_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
PROMPTS = Path(__file__).parent / "prompts"
BUILTIN = "builtin:"
_BEFORE_0_2 = "harness/prompts/"
"""How records written before version 0.2 name a prompt set of the package."""
ASK_FOR_SCHEMA = "Answer with a JSON object that matches this schema: "
SPEC_BENCH_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


class _RecordError(ValueError):
    """What is wrong with a record; the reader adds where it stands."""


def prompt_file(path: str) -> Path:
    """The file that a workload path names; `builtin:NAME` is a prompt set of the package, wherever it is installed."""
    for prefix in (BUILTIN, _BEFORE_0_2):
        if path.startswith(prefix):
            return PROMPTS / path.removeprefix(prefix)
    return Path(path).expanduser()


def read_prompts(path: Path, layout: Layout = Layout.auto, history: History = History.generated) -> list[Prompt]:
    """Read every prompt of a JSON Lines file, in the file's order.

    Args:
        path: the file; a name that ends in .gz is decompressed. Blank lines are skipped.
        layout: how its records are laid out; auto is `detect_layout`.
        history: whose answers stand between the turns of messages.

    Raises:
        SettingsError: the file cannot be read, holds no record, or a record is not of the layout; the message begins
            with path:line and says what was expected and found.
    """
    rows = [(line, without_nulls(row)) for line, row in json_lines(path)]
    if not rows:
        raise SettingsError(f"{path}: expected JSON Lines with at least one prompt, found an empty file")
    if layout is Layout.auto:
        layout = detect_layout([row for _, row in rows], f"{path}:{rows[0][0]}")
    read, fields = _READERS[layout], (*FIELDS[layout], "sampling")
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for line, row in rows:
        try:
            check_not_refused(row, fields)
            prompt = read(row, line, history)
            check_known(row, fields)
            if isinstance(row, dict) and "sampling" in row:
                sampling = GivenSampling.from_json(row["sampling"])
                prompt = replace(prompt, sampling=sampling if sampling.values else None)
        except ValueError as error:
            raise SettingsError(f"{path}:{line}: layout {layout.value}: {error}") from error
        if prompt.prompt_id in lines:
            raise SettingsError(
                f"{path}:{line}: expected ids that differ, found {prompt.prompt_id!r} again (first on line "
                f"{lines[prompt.prompt_id]}); give every prompt its own id"
            )
        lines[prompt.prompt_id] = line
        prompts.append(prompt)
    return prompts


def detect_layout(rows: list[Any], place: str = "first record") -> Layout:
    """Tell the layout from the fields of the first record.

    MT-Bench and Spec-Bench records have the same fields; a file with any of Spec-Bench's other tasks is Spec-Bench's.

    Raises:
        SettingsError: the first record is of no known layout; the message begins with `place`.
    """
    first = rows[0]
    fields = set(first) if isinstance(first, dict) else set()
    if {"question_id", "category", "turns"} <= fields:
        categories = {row.get("category") for row in rows if isinstance(row, dict)}
        return Layout.mt_bench if categories.isdisjoint(SPEC_BENCH_TASKS) else Layout.spec_bench
    layout = next((layout for layout, known in DETECTED if fields & known[0] and known[1] <= fields), None)
    if layout is not None or isinstance(first, str):
        return layout or Layout.plain
    found = f"fields {', '.join(sorted(fields))}" if fields else type(first).__name__
    raise SettingsError(
        f"{place}: expected a record of a known layout ({', '.join(item.value for item in _READERS)}), found {found}; "
        'write one {"prompt": "..."} a line, or name the layout with workload.layout'
    )


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The line number, from 1, and the JSON value of every line that is not blank.

    Raises:
        SettingsError: the file cannot be read, or a line is no JSON.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        # Not splitlines(), which also cuts at separators that JSON allows inside a string.
        lines = content.decode("utf-8-sig").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: expected a readable file of JSON Lines in UTF-8, found {error}") from error
    if lines[0].lstrip().startswith("["):
        yield from _array("\n".join(lines), path)
        return
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            yield line, parse_json(text)
        except ValueError as error:
            cause = error.__cause__
            what = str(error)
            if isinstance(cause, json.JSONDecodeError):
                reason = f"{cause.msg}: column {cause.colno}"
                what = f"expected one JSON value on the line, found {text[:40]!r} ({reason})"
            raise SettingsError(f"{path}:{line}: {what}; mend the line, or take it out") from error


def _array(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The items of a JSON array, counted from 1."""
    try:
        items = parse_json(text)
    except ValueError as error:
        raise SettingsError(f"{path}: expected JSON Lines or one JSON array, found {error}; mend the file") from error
    yield from enumerate(items, start=1)


def _fields(row: Any, *names: str) -> list[Any]:
    """The values of the named fields of a record."""
    if not isinstance(row, dict):
        raise _RecordError(f"expected an object with {', '.join(names)}, found {type(row).__name__}")
    missing = [name for name in names if name not in row]
    if missing:
        raise _RecordError(
            f"expected fields {', '.join(names)}, found {', '.join(map(str, row)) or 'none'} (no {', '.join(missing)})"
        )
    return [row[name] for name in names]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _RecordError(f"expected {name} to be text that is not empty, found {shown(value)}")
    return value


def _turns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _RecordError(f"expected turns to be a list of one or more texts, found {shown(value)}")
    return tuple(_text(turn, "every turn") for turn in value)


def _identifier(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise _RecordError(f"expected {name} to be text or an integer, found {shown(value)}")
    return str(value)


def _mt_bench(row: Any, _line: int, _history: History) -> Prompt:
    question_id, category, turns = _fields(row, *FIELDS[Layout.mt_bench])
    return Prompt(_identifier(question_id, "question_id"), _text(category, "category"), _turns(turns))


def _spec_bench(row: Any, line: int, history: History) -> Prompt:
    prompt = _mt_bench(row, line, history)
    category = "mt_bench" if prompt.category in MT_BENCH_CATEGORIES else prompt.category
    return Prompt(prompt.prompt_id, category, prompt.turns)


def _gsm8k(row: Any, line: int, _history: History) -> Prompt:
    (question,) = _fields(row, *FIELDS[Layout.gsm8k])
    return Prompt(f"gsm8k/{line}", "gsm8k", (_text(question, "question"),))


def _humaneval(row: Any, _line: int, _history: History) -> Prompt:
    task_id, prompt = _fields(row, *FIELDS[Layout.humaneval])
    return Prompt(_identifier(task_id, "task_id"), "humaneval", (_text(prompt, "prompt"),))


def _plain(row: Any, line: int, _history: History) -> Prompt:
    if isinstance(row, str):
        return Prompt(str(line), "plain", (_text(row, "the line"),))
    present = [name for name in ("prompt", "text", "turns") if isinstance(row, dict) and name in row]
    if len(present) != 1:
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise _RecordError(f"expected text, or an object with exactly one of prompt, text, turns; found {found}")
    name = present[0]
    turns = _turns(row[name]) if name == "turns" else (_text(row[name], name),)
    schema = _schema(row["json_schema"]) if "json_schema" in row else None
    system = _system(row)
    opening = None if system is None else json.dumps([{"role": "system", "content": system}])
    return Prompt(*_named(row, line, Layout.plain), turns, schema, opening=opening)


def _messages(row: Any, line: int, history: History, layout: Layout = Layout.messages) -> Prompt:
    names = FIELDS[layout][: 2 if layout is Layout.share_gpt else 1]
    present = [name for name in names if isinstance(row, dict) and name in row]
    if len(present) != 1:
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise _RecordError(f"expected an object with {' or '.join(names)}, found {found}")
    prompt_id, category = _named(row, line, layout)
    tools = row.get("tools") or None
    return prompt_of(prompt_id, category, row[present[0]], history, system=_system(row), tools=tools)


def _share_gpt(row: Any, line: int, history: History) -> Prompt:
    return _messages(row, line, history, Layout.share_gpt)


def _alpaca(row: Any, line: int, _history: History) -> Prompt:
    (instruction,) = _fields(row, "instruction")
    parts = [_text(instruction, "instruction")]
    if is_given(row.get("input")):
        parts.append(_text(row["input"], "input"))
    system = _system(row)
    opening = None if system is None else json.dumps([{"role": "system", "content": system}])
    return Prompt(*_named(row, line, Layout.alpaca), ("\n\n".join(parts),), opening=opening)


def _named(row: dict[str, Any], line: int, layout: Layout) -> tuple[str, str]:
    """Id and category of a record; its line and its layout where it has none."""
    prompt_id = _identifier(row.get("prompt_id", line), "prompt_id")
    return prompt_id, _text(row.get("category", layout.value), "category")


def _system(row: dict[str, Any]) -> str | None:
    """The system message of a record; an empty one is none."""
    found = row.get("system")
    return _text(found, "system") if is_given(found) else None


def _json_schemas(row: Any, _line: int, _history: History) -> Prompt:
    identifier, split, schema = _fields(row, *FIELDS[Layout.json_schemas])
    text = _schema(schema)
    return Prompt(_identifier(identifier, "id"), _text(split, "split"), (ASK_FOR_SCHEMA + text,), text)


def _schema(value: Any) -> str:
    if not isinstance(value, dict | bool):
        raise _RecordError(f"expected a JSON schema (an object), found {type(value).__name__}")
    return json.dumps(value)


FIELDS: dict[Layout, tuple[str, ...]] = {
    Layout.mt_bench: ("question_id", "category", "turns"),
    Layout.spec_bench: ("question_id", "category", "turns"),
    Layout.gsm8k: ("question",),
    Layout.humaneval: ("task_id", "prompt"),
    Layout.json_schemas: ("id", "split", "schema"),
    Layout.messages: ("messages", "tools", "prompt_id", "category", "system"),
    Layout.share_gpt: ("conversations", "conversation", "tools", "prompt_id", "category", "system"),
    Layout.alpaca: ("instruction", "input", "prompt_id", "category", "system"),
    Layout.plain: ("prompt", "text", "turns", "prompt_id", "category", "json_schema", "system"),
}
"""What each layout reads of a record, beside its sampling."""
DETECTED: tuple[tuple[Layout, tuple[set[str], set[str]]], ...] = (
    (Layout.humaneval, ({"task_id"}, {"prompt"})),
    (Layout.json_schemas, ({"id"}, {"split", "schema"})),
    (Layout.gsm8k, ({"question"}, {"answer"})),
    (Layout.plain, ({"prompt", "text", "turns"}, set())),
    (Layout.messages, ({"messages"}, set())),
    (Layout.share_gpt, ({"conversations", "conversation"}, set())),
    (Layout.alpaca, ({"instruction"}, set())),
)
"""Layouts in the order in which they are looked for: one of some fields, and all of others."""
_READERS: dict[Layout, Callable[[Any, int, History], Prompt]] = {
    Layout.mt_bench: _mt_bench,
    Layout.spec_bench: _spec_bench,
    Layout.gsm8k: _gsm8k,
    Layout.humaneval: _humaneval,
    Layout.json_schemas: _json_schemas,
    Layout.messages: _messages,
    Layout.share_gpt: _share_gpt,
    Layout.alpaca: _alpaca,
    Layout.plain: _plain,
}
