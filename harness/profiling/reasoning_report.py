"""Writes the times of reasoning parsers: bench_reasoning.md for people, bench_reasoning.json for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.profiling.reasoning_config import ReasoningCostConfig
from harness.profiling.reasoning_cost import RoundCost
from harness.records.files import write_atomically
from harness.records.provenance import provenance

TITLE = "# What looking for the end of reasoning costs"
NOTE = (
    "Median microseconds that the host spends on one round of one request while reasoning goes on: the drafts looked "
    "at before verification, and the tokens that were emitted. Columns: tokens of the sequence so far."
)


def table(costs: Sequence[RoundCost]) -> str:
    """One row per parser, one column per context, as Markdown."""
    contexts = list(dict.fromkeys(item.context for item in costs))
    rows = [["parser", *(f"{context:,}" for context in contexts)], ["---"] * (len(contexts) + 1)]
    for name in dict.fromkeys(item.parser for item in costs):
        found = {item.context: item.median_us for item in costs if item.parser == name}
        rows.append([name, *(f"{found[context]:.1f}" for context in contexts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_costs(config: ReasoningCostConfig, costs: Sequence[RoundCost]) -> Path:
    """Write both files; returns the path of the page."""
    folder = Path(config.output)
    origin = provenance()
    content = {"settings": asdict(config), "costs": [item._asdict() for item in costs], "provenance": origin}
    write_atomically(folder / "bench_reasoning.json", (json.dumps(content, indent=1) + "\n").encode())
    lines = [f"- {name}: {value}" for name, value in origin.items()]
    text = "\n\n".join([TITLE, f"{NOTE} K = {config.draft_tokens}.", table(costs), "## Provenance", "\n".join(lines)])
    page = folder / "bench_reasoning.md"
    write_atomically(page, (text + "\n").encode())
    return page
