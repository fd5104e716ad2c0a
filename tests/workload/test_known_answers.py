"""Tasks with known answers: what counts as right, and what a program of a model may do."""

import gzip
import json

import pytest

from harness.workload.prompt import KnownAnswer
from harness.workload.prompt_files import read_prompts
from harness.workload.tasks import gsm8k, humaneval, sandbox
from tests.support.prompt_files import shared_file, write_lines


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("She sells 9 eggs, so 9 * 2 = 18.", True),
        ("#### 1,018\nCheck: 2", True),
        (r"It is \boxed{18.00}, in 3 steps.", True),
        ("The total is $18", True),
        ("Of 18 eggs 3 are left: 15", False),
        ("-18", False),
        ("no number", False),
        ("#### 1. Find\n9 * 2\n#### 2. Sum up\nThat makes 18.", True),
        ("#### 2) Add up: 18", True),
        ("#### 18 eggs", True),
        (r"#### 2" "\n" r"so \boxed{18}", True),
        (r"\boxed{1{,}018} of 3", True),
        (r"1\,018", True),
        ("they are 16-18", True),
    ],
)
def test_an_answer_is_right_by_the_number_that_it_ends_with(answer, is_right):
    """Would catch a number from the working or from a heading that counts, and 1,018 that is another than 1018."""
    number = "1018" if "018" in answer else "18"
    assert gsm8k.is_right(number, answer) is is_right


def test_every_answer_of_the_public_set_is_right_and_the_next_one_s_mostly_wrong():
    prompts = read_prompts(shared_file("gsm8k/test.jsonl"))
    rows = [json.loads(line) for line in shared_file("gsm8k/test.jsonl").read_text().splitlines()]
    assert all(gsm8k.is_right(item.known.given, row["answer"]) for item, row in zip(prompts, rows, strict=True))
    others = [gsm8k.is_right(item.known.given, row["answer"]) for item, row in zip(prompts, rows[1:], strict=False)]
    assert sum(others) < len(others) / 10


ADD = {
    "task_id": "t",
    "prompt": 'import math\n\n\ndef add(a, b):\n    """Add."""\n',
    "test": "def check(f):\n    assert f(1, 2) == 3 and math.pi > 3\n",
    "entry_point": "add",
}
GIVEN = humaneval.known(ADD["prompt"], ADD["test"], ADD["entry_point"])


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("    return a + b\n", True),
        ("    return a + b\n\n\ndef more():\n    return nowhere(", True),
        ("Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nOr not:\n```\nadd(1, 2)\n```", True),
        ("```python\n    return a + b\n```", True),
        ("def add(a, b):\n    return a + b", True),
        ("```python\nfrom __future__ import annotations\n\ndef add(a: X, b):\n    return a + b\n```", True),
        ("    return a - b\n", False),
        ("    return a +\n", False),
        ("I would rather not.", False),
    ],
    ids=["continued", "cut", "block", "block of the body", "whole", "future", "wrong", "broken", "prose"],
)
def test_a_function_is_right_if_it_passes_the_tests(answer, is_right):
    assert humaneval.judge(GIVEN, answer).is_right is is_right


def test_public_solutions_pass_and_empty_ones_fail():
    prompts = read_prompts(shared_file("humaneval/HumanEval.jsonl.gz"))[::40]
    packed = shared_file("humaneval/HumanEval.jsonl.gz").read_bytes()
    rows = [json.loads(line) for line in gzip.decompress(packed).splitlines()][::40]
    for prompt, row in zip(prompts, rows, strict=True):
        assert humaneval.judge(prompt.known.given, row["canonical_solution"]).is_right, prompt.prompt_id
        assert not humaneval.judge(prompt.known.given, "    pass\n").is_right, prompt.prompt_id


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os\nos._exit(0)", "its process ended early"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("kept = bytearray(2 ** 32)", "MemoryError"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "PermissionError"),
        ("import subprocess\nsubprocess.run(['true'])", "PermissionError"),
        ("import os\nos.fork()", "PermissionError"),
        ("open('x', 'w')", "PermissionError"),
        ("import pathlib\npathlib.Path('.').rmdir()", "PermissionError"),
        ("import sqlite3\nsqlite3.connect('x')", "PermissionError"),
        ("import os\nos.mkfifo('x')", "AttributeError"),
        ("import numpy", "ModuleNotFoundError"),
    ],
    ids=[
        "exit at once",
        "exit",
        "memory",
        "network",
        "process",
        "fork",
        "file",
        "folder",
        "data base",
        "pipe",
        "package",
    ],
)
def test_a_program_cannot_reach_out_nor_pass_by_ending(source, error):
    """Would catch an answer that counts as right because its process ended well, and one that does damage."""
    found = sandbox.run_program(source)
    assert not found.is_right and found.error.startswith(error)
    if "memory" in found.not_confined:
        pytest.skip("needs a system that limits memory")


def test_a_program_that_does_not_end_is_killed():
    endless = "while True:\n    pass"
    assert sandbox.run_program(endless, wall_s=0.5) == sandbox.Outcome(False, "it took longer than 0.5 s")
    assert not sandbox.run_program(endless, cpu_s=1).is_right


def test_what_is_known_stands_beside_the_prompt_and_a_record_without_it_is_read(tmp_path):
    path = write_lines(tmp_path / "maths.jsonl", {"question": "1 + 1?", "answer": "so\n#### 2"})
    assert read_prompts(path)[0].known == KnownAnswer("gsm8k", "2")
    rows = [ADD, {name: ADD[name] for name in ("task_id", "prompt")} | {"task_id": "u"}]
    tested, plain = read_prompts(write_lines(path, *rows))
    assert tested.known == KnownAnswer("humaneval", GIVEN) and plain.known is None
