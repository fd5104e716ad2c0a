"""A foreign file -> its numbers in our definitions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from harness.analysis.converted import ConvertedRun, converted
from harness.backends.foreign.content import Content
from harness.backends.foreign.format import Asked
from harness.backends.foreign.formats import format_named, format_of
from harness.config.schema import SettingsError

QUESTIONS = {
    "mean": "mean",
    "bonus": "bonus token",
    "denominators": "denominators",
    "last_step": "last step",
    "warm_up": "warm-up",
}


def convert(
    path: Path, name: str | None = None, before: Path | None = None, depth: int | None = None
) -> list[ConvertedRun]:
    """Convert a file.

    Args:
        path: the file.
        name: of its format; None: by its content.
        before: an earlier page of the same counters.
        depth: K, where the file does not say it.

    Raises:
        SettingsError: it is of no format, of several, not what such a file is, or cannot be read; the message names it.
    """
    try:
        content = Content.of(path)
        kind, item = format_named(name) if name is not None else format_of(content)
        if not item.recognises(content):
            raise SettingsError(f"expected {kind}, {item.title}, found a file without what these have")
        if before is not None and not item.has_snapshots:
            raise SettingsError(f"--before: expected pages of counters, found {kind}")
        asked = Asked(depth, None if before is None else Content.of(before))
        readings = item.read(content, asked)
        for reading in readings:
            if None not in (depth, reading.depth) and reading.depth != depth:
                raise SettingsError(f"--num-speculative-tokens: found K = {reading.depth} in the file, not {depth}")
        definitions = {label: str(asdict(item.definitions)[key]) for key, label in QUESTIONS.items()}
        return [
            ConvertedRun(str(path), kind, item.title, item.source, item.seen, definitions, reading, converted(reading))
            for reading in readings
        ]
    except OSError as error:
        raise SettingsError(f"{error.filename}: expected a file that can be read, found: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SettingsError(f"{path}: {what}") from error
