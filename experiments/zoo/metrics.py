"""The numbers of a run, one JSON file a stage, so that stages and parallel processes never write the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record(out: Path, stage: str, values: dict[str, Any]) -> None:
    """Write a stage's numbers to <out>/metrics/<stage>.json and print them."""
    path = out / "metrics" / f"{stage}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    print(f"{stage}: {json.dumps(values)}", flush=True)


def recorded(out: Path) -> dict[str, dict[str, Any]]:
    """Stage -> numbers, of every stage that has finished."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((out / "metrics").glob("*.json"))}
