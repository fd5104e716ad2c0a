"""Files of prompts: JSON Lines, one record a line, plain or gzip-compressed, or one JSON array of records.

The layouts of records are `harness.workload.formats`. This module knows neither tokenizers nor the order in which
prompts are run.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config.imported import ImportPath
from harness.config.sampling import GivenSampling
from harness.config.schema import SettingsError
from harness.config.sections import check_stop
from harness.config.workload import History, Layout
from harness.records.strict_json import parse_json, shown
from harness.workload.formats.record import Format, Place
from harness.workload.line_keys import check_known, check_not_refused, without_nulls
from harness.workload.prompt import Prompt

PROMPTS = Path(__file__).parent / "prompts"
BUILTIN = "builtin:"
_BEFORE_0_2 = "harness/prompts/"
"""How records written before version 0.2 name a prompt set of the package."""
LAYOUTS = tuple(layout for layout in Layout if layout is not Layout.auto)
"""In the order in which they are looked for."""


def prompt_file(path: str) -> Path:
    """The file that a workload path names; `builtin:NAME` is a prompt set of the package, wherever it is installed."""
    for prefix in (BUILTIN, _BEFORE_0_2):
        if path.startswith(prefix):
            return PROMPTS / path.removeprefix(prefix)
    return Path(path).expanduser()


def read_files(paths: Sequence[str], layout: Layout | ImportPath, history: History) -> list[Prompt]:
    """Every prompt of some files, in their order. Of several files, the ids of prompts begin with the name of their
    file, which is also the category of prompts whose record names none.

    Raises:
        SettingsError: a file is not there, or cannot be read (`read_prompts`); two have the same name.
    """
    stems: dict[str, str] = {}
    prompts: list[Prompt] = []
    for path in paths:
        file = prompt_file(path)
        if not file.is_file():
            raise SettingsError(f"workload.path: expected a JSON Lines file, found nothing at {file}")
        if len(paths) == 1:
            return read_prompts(file, layout, history)
        stem = file.name.removesuffix(".gz").rpartition(".")[0] or file.name
        if stem in stems:
            raise SettingsError(
                f"workload.path: expected files of different names, which their prompts are told apart by, found "
                f"{stems[stem]} and {path}; rename one"
            )
        stems[stem] = path
        prompts += [
            replace(prompt, prompt_id=f"{stem}/{prompt.prompt_id}")
            for prompt in read_prompts(file, layout, history, category=stem)
        ]
    return prompts


def read_prompts(
    path: Path,
    layout: Layout | ImportPath = Layout.auto,
    history: History = History.generated,
    category: str | None = None,
) -> list[Prompt]:
    """Read every prompt of a file, in its order.

    Args:
        path: the file; a name that ends in .gz is decompressed. Blank lines are skipped.
        layout: how its records are laid out; auto is `detect_layout`.
        history: whose answers stand between the turns of messages.
        category: of records that name none; None is the layout's name.

    Raises:
        SettingsError: the file cannot be read, holds no record, or a record is not of the layout; the message begins
            with path:line and says what was expected and found.
    """
    rows = [(line, without_nulls(row)) for line, row in json_lines(path)]
    if not rows:
        raise SettingsError(f"{path}: expected JSON Lines with at least one prompt, found an empty file")
    if layout is Layout.auto:
        layout = detect_layout([row for _, row in rows], f"{path}:{rows[0][0]}")
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for line, row in rows:
        try:
            prompt = prompt_of_record(row, layout, Place(line, category or layout_name(layout)), history)
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


def prompt_of_record(row: Any, layout: Layout | ImportPath, place: Place, history: History) -> Prompt:
    """The prompt of one record, which has no key that would be lost.

    Args:
        row: the record, without keys whose value is null.
        layout: any but auto.
        place: where it stands.
        history: whose answers stand between the turns of messages.

    Raises:
        ValueError: it is of another layout, or has a key that changes requests and is not read.
    """
    form = format_of(layout)
    fields = (*form.fields, "sampling", "stop")
    check_not_refused(row, fields)
    prompt = form.read(row, place, history)
    check_known(row, fields)
    if isinstance(row, dict) and "sampling" in row:
        sampling = GivenSampling.from_json(row["sampling"])
        prompt = replace(prompt, sampling=sampling if sampling.values else None)
    if isinstance(row, dict) and row.get("stop") is not None:
        prompt = replace(prompt, stop=_stop_strings(row["stop"]))
    return prompt


def _stop_strings(value: Any) -> tuple[str, ...]:
    """One string or several; ValueError for anything else."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise ValueError(f"stop: expected a text or a list of texts, found {shown(value)}")
    check_stop("stop", strings)
    return tuple(strings)


def format_of(layout: Layout | ImportPath) -> Format:
    """The layout itself; ValueError where one of the user's own is none."""
    found: Format = layout.named if isinstance(layout, Layout) else layout.load("workload.layout", Format)
    return found


def layout_name(layout: Layout | ImportPath) -> str:
    """What it is called, without the module of one of the user's own."""
    return layout.value.rpartition(":")[2]


def detect_layout(rows: list[Any], place: str = "first record") -> Layout:
    """Tell the layout from the records, mostly from the fields of the first.

    Raises:
        SettingsError: the first record is of no known layout; the message begins with `place`.
    """
    found = [layout for layout in LAYOUTS if format_of(layout).recognises(rows)]
    if found:
        return found[0]
    fields = set(rows[0]) if isinstance(rows[0], dict) else set()
    what = f"fields {', '.join(sorted(fields))}" if fields else type(rows[0]).__name__
    raise SettingsError(
        f"{place}: expected a record of a known layout ({', '.join(item.value for item in LAYOUTS)}), found {what}; "
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
