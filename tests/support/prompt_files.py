"""Files of prompts: written line by line, or public ones that are there."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


def write_lines(path: Path, *values: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def shared_file(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs the public prompt sets in ../shared/data, found no {name}")
    return path


def make_prompts(**counts: int) -> list[dict]:
    return [
        {"prompt_id": f"{category}{index}", "category": category, "text": f"Say {index}."}
        for category, count in counts.items()
        for index in range(count)
    ]
