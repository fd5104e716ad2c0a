"""Prompts from a Hugging Face data set, read from a local folder."""

import json
from pathlib import Path

import pytest

from harness.settings.workload import WorkloadConfig
from harness.workload.conversations import load_prompts
from harness.workload.prompt import Prompt
from tests.own_process import output_of

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A model."},
    {"role": "user", "content": "And I?"},
]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A local data set of two rows; returns its folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "greetings"
    folder.mkdir()
    rows = [
        {"prompt": f"Say {index}.", "turns": ["One?", "Two?"], "messages": MESSAGES, "number": index, "empty": []}
        for index in range(2)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def read(folder: Path, column: str = "prompt", split: str = "test") -> list[Prompt]:
    config = WorkloadConfig(dataset=str(folder), column=column, split=split, shuffle=False)
    return load_prompts(config, seed=0)


@pytest.mark.parametrize(
    ("column", "turns"),
    [
        ("prompt", ("Say 0.",)),
        ("turns", ("One?", "Two?")),
        ("messages", ("Be brief.\n\nWho are you?", "And I?")),
    ],
    ids=["text", "list of texts", "messages"],
)
def test_a_column_may_hold_text_turns_or_messages(column, turns, dataset):
    prompts = read(dataset, column)
    assert prompts[0] == Prompt("test/0", "greetings", turns)
    assert [prompt.prompt_id for prompt in prompts] == ["test/0", "test/1"]


def test_a_text_column_category_is_used(dataset):
    rows = [{"prompt": "Sing.", "category": "music"}, {"prompt": "Add.", "category": "maths"}]
    (dataset / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [prompt.category for prompt in read(dataset)] == ["music", "maths"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("question", r"workload\.column: expected a column of .*\(prompt, turns, .*\), found 'question'"),
        ("number", r"column number, row test/0: expected text, a list of texts, or a list of messages.* found '0'"),
        ("empty", r"column empty, row test/0: expected text, a list of texts"),
    ],
    ids=["missing column", "number", "empty list"],
)
def test_a_column_that_holds_no_prompt_is_refused(column, message, dataset):
    with pytest.raises(ValueError, match=message):
        read(dataset, column)


def test_a_message_of_another_role_is_refused(dataset):
    row = {"messages": [{"role": "tool", "content": "42"}, {"role": "user", "content": "Why?"}]}
    (dataset / "test.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="expected messages of system, user and assistant, found tool"):
        read(dataset, "messages")


def test_an_unknown_split_names_the_splits_there_are(dataset):
    with pytest.raises(ValueError, match=r"workload\.dataset: expected .* split dev, found .*test"):
        read(dataset, split="dev")


def test_a_data_set_that_is_not_there_is_refused(dataset):
    with pytest.raises(ValueError, match=r"workload\.dataset: expected a data set .* found for '.*nowhere'"):
        read(dataset.parent / "nowhere")


def test_datasets_is_imported_only_when_a_data_set_is_named():
    code = "import sys, harness.workload.conversations; sys.exit('datasets' in sys.modules)"
    output_of(code)
