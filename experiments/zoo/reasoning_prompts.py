"""The prompts of the workload reasoning_json: tasks as the zoo was trained on, drawn anew, with the schema of each.

python -m experiments.zoo.reasoning_prompts     # writes harness/workload/prompts/reasoning_json.jsonl again
"""

from __future__ import annotations

import json
import random

from experiments.zoo.json_text import TASKS, Task, schema_of
from harness.workload.prompt_files import prompt_file

FILE = prompt_file("builtin:reasoning_json.jsonl")
SEED = 20261121
"""Not a seed of training."""
PROMPTS_PER_TASK = 8


def reasoning_prompts() -> str:
    """The lines of the file."""
    rng = random.Random(SEED)
    lines = []
    for make in dict.fromkeys(TASKS):
        for number in range(1, PROMPTS_PER_TASK + 1):
            task = make(rng)
            lines.append(_line(f"{make.__name__}-{number:02d}", make.__name__, task))
    return "".join(f"{line}\n" for line in lines)


def _line(prompt_id: str, category: str, task: Task) -> str:
    schema = schema_of(task)
    text = f"{task.instruction}\nAnswer with a JSON object that matches this schema: {json.dumps(schema)}"
    return json.dumps({"prompt_id": prompt_id, "category": category, "prompt": text, "json_schema": schema})


if __name__ == "__main__":
    FILE.write_text(reasoning_prompts(), encoding="utf-8")
