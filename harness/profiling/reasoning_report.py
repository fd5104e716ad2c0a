"""Writes what timing the parsers found: bench_reasoning.md, .html and .tex for people, .json for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.profiling.reasoning_config import ReasoningCostConfig
from harness.profiling.reasoning_cost import ParserCost
from harness.records.files import write_atomically
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_document
from harness.report.number_format import Number
from harness.report.table import Entry, Table

STEM = "bench_reasoning"
TITLE = "What looking for the end of reasoning costs"
NOTE = (
    "Median microseconds that the host spends on one round of one request while reasoning goes on: the drafts looked "
    "at before verification, and the tokens that were emitted. Columns: tokens of the sequence so far."
)


def table(costs: Sequence[ParserCost]) -> Table:
    """One row per parser, one column per context."""
    contexts = list(dict.fromkeys(item.context for item in costs))
    rows: list[tuple[Entry, ...]] = []
    for name in dict.fromkeys(item.parser for item in costs):
        found = {item.context: item.median_us for item in costs if item.parser == name}
        rows.append((name, *(Number(found[context], decimals=1) for context in contexts)))
    return Table(TITLE, ("parser", *(f"{context:,}" for context in contexts)), tuple(rows))


def write_costs(config: ReasoningCostConfig, costs: Sequence[ParserCost]) -> Path:
    """Write bench_reasoning as .json, .md, .html and .tex; returns the path of the .md."""
    folder, origin = Path(config.output), provenance()
    content = {"settings": asdict(config), "costs": [item._asdict() for item in costs], "provenance": origin}
    write_atomically(folder / f"{STEM}.json", (json.dumps(content, indent=1) + "\n").encode())
    section = Section("Microseconds per round", (f"{NOTE} K = {config.draft_tokens}.",), tables=(table(costs),))
    return write_document(Document(TITLE, sections=(section,), provenance=[origin]), folder, STEM)[0]
