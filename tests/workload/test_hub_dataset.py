"""Prompts from a Hugging Face data set, read from a local folder."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
from huggingface_hub.errors import HfHubHTTPError

from harness.config.workload import WorkloadConfig
from harness.runner.plan.compose import compose_plan
from harness.workload.conversations import load_prompts
from harness.workload.hub_dataset import PLACEHOLDER
from harness.workload.hub_lookup import Repository, asked_at_once, not_on_hub
from harness.workload.prompt import Prompt
from tests.support.own_process import output_of
from tests.support.prompt_files import write_lines

SYSTEM = {"role": "system", "content": "Be brief."}
MESSAGES = [
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
        ("messages", ("Who are you?", "And I?")),
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


USER = {"role": "user", "content": "Why?"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "tool", "content": "42"}, USER], "expected a tool's message behind the call of it"),
        ([USER, SYSTEM], "expected a system message in front of all others"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}], "workload.history=given or last"),
        ([USER, {"role": "critic", "content": "No."}], "expected a role among system, user, assistant, tool"),
        ([USER | {"name": "Ann"}], "found name; take it out"),
        ([USER | {"content": [{"type": "image_url"}]}], "found a part of type image_url: .* leave such prompts out"),
        ([{"from": "observation", "value": "42"}], "expected from as one of human, user, gpt"),
        ([{"role": "assistant", "content": "Hello."}], "expected at least one message of the user"),
    ],
    ids=["tool", "system", "call of a tool", "role", "unknown key", "image", "ShareGPT", "no user"],
)
def test_messages_that_would_lose_something_are_refused(messages, message, dataset):
    """Would catch a prompt that is measured without a part of it, or with its system message in the user's mouth."""
    (dataset / "test.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(ValueError, match=rf"row test/0: .*{message}"):
        read(dataset, "messages")


@pytest.mark.parametrize("files", [None, "*.jsonl"], ids=["split", "files"])
@pytest.mark.parametrize(
    ("column", "beside", "found"),
    [
        ("instruction", {"input": ["", "A list."]}, "column input: instruction and input are read together of lines"),
        ("prompt", {"tools": [[], [{"name": "add"}]]}, "column tools: tools are read of lines with messages"),
        ("prompt", {"system": [None, "Be brief."]}, "column system: a system message is the text"),
        ("prompt", {"stop": [None, ["x"]]}, "column stop: a line of a file, or a row that workload.layout reads"),
        ("prompt", {"n": [None, 4]}, "column n: a prompt has one answer a play"),
        ("prompt", {"temperature": [None, 1.9]}, "column temperature: a line gives its sampling in one object"),
        ("question", {"context": ["", "A text."]}, "column context: a prompt in parts is not read yet"),
        ("prompt", {"messages": [MESSAGES] * 2, "input": ["a", "b"], "completion": ["a", "b"]}, None),
    ],
    ids=["Alpaca", "tools", "system", "stop", "n", "temperature", "context", "other columns"],
)
def test_a_column_that_would_change_a_request_is_not_left_out(column, beside, found, files, dataset):
    """Would catch an instruction without its input, and a row that asks for a stop; what else a table has, such as the
    same prompt in another form, is not the request's."""
    rows = [{column: "Why?"} | {name: values[row] for name, values in beside.items()} for row in range(2)]
    (dataset / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = WorkloadConfig(dataset=str(dataset), column=column, shuffle=False, files=files)
    if found is None:
        assert len(load_prompts(config, seed=0)) == 2
        return
    with pytest.raises(ValueError, match=rf"{'test.jsonl:2' if files else 'row test/1'}: .*{found}"):
        load_prompts(config, seed=0)


def test_an_unknown_split_names_the_splits_there_are(dataset):
    with pytest.raises(ValueError, match=r"workload\.dataset: expected .* split dev, found .*test"):
        read(dataset, split="dev")


def test_a_subset_that_a_folder_lacks_names_those_there_are(dataset):
    """Would catch an error of the library's own, BuilderConfig, where a copy of a public set lies in a plain folder."""
    with pytest.raises(ValueError, match=r"subset main .* the subset default; use workload\.subset=null"):
        load_prompts(WorkloadConfig(dataset=str(dataset), subset="main", split="test", column="prompt"), 0)


def test_a_data_set_that_is_not_there_is_refused(dataset):
    with pytest.raises(ValueError, match=r"workload\.dataset: expected a data set .* found for '.*nowhere'"):
        read(dataset.parent / "nowhere")


def test_datasets_is_imported_only_when_a_data_set_is_named():
    code = "import sys, harness.workload.conversations; sys.exit('datasets' in sys.modules)"
    output_of(code)


SPEED_BENCH_ROWS = [
    {"question_id": f"q{index}", "category": category, "sub_category": "", "turns": ["One?", "Two?"], "multiturn": True}
    for index, category in enumerate(("coding", "math", "coding"))
]
CARD = """---
configs:
- config_name: qualitative
  data_files:
  - split: test
    path: qualitative/test.jsonl
- config_name: throughput_1k
  data_files:
  - split: test
    path: throughput_1k/test.jsonl
---
"""


def workload_of(*settings):
    """The workload that some settings name, of which no cell is run."""
    return compose_plan(["drafter=none", *settings]).cells[0].workload


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local Hub cache with data sets of the two public layouts, and no network; returns its folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(hub, dataset, files):
    """Put files into the cache as a download does; returns their folder."""
    repository = hub / f"datasets--{dataset.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    for name, content in files.items():
        path = repository / "snapshots" / ("0" * 40) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))
    return repository / "snapshots" / ("0" * 40)


def test_speed_bench_is_read_from_the_hub_cache(hub):
    """Would catch a subset that is lost, first turns alone, and categories that are those of the data set."""
    others = [dict(row, turns=["Long?"]) for row in SPEED_BENCH_ROWS]
    files = {"README.md": CARD, "qualitative/test.jsonl": SPEED_BENCH_ROWS, "throughput_1k/test.jsonl": others}
    put(hub, "nvidia/SPEED-Bench", files)
    prompts = load_prompts(workload_of("workload=speed_bench", "workload.shuffle=false"), seed=0)
    assert prompts[1] == Prompt("test/1", "math", ("One?", "Two?")) and len(prompts) == 3
    config = workload_of("workload=speed_bench", "workload.subset=throughput_1k", "workload.categories=[coding]")
    assert [prompt.turns for prompt in load_prompts(config, seed=0)] == [("Long?",)] * 2


def test_speed_bench_that_is_not_filled_in_is_refused_and_the_filled_one_is_taken(hub):
    """Would catch placeholders that are measured as prompts."""
    rows = [*SPEED_BENCH_ROWS, dict(SPEED_BENCH_ROWS[0], turns=[f"{PLACEHOLDER} USING SPECDEC_BENCH\n\n{{question}}"])]
    folder = put(hub, "nvidia/SPEED-Bench", {"README.md": CARD, "qualitative/test.jsonl": rows})
    with pytest.raises(ValueError, match=r"placeholders in 1 of the 4; .*prepare_data\.py .* workload\.dataset="):
        load_prompts(workload_of("workload=speed_bench"), seed=0)
    (folder / "qualitative" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SPEED_BENCH_ROWS))
    filled = workload_of(
        "workload=speed_bench", f"workload.dataset={folder / 'qualitative'}", "workload.subset=null",
    )  # fmt: skip
    assert len(load_prompts(filled, seed=0)) == 3


def test_speed_bench_as_nemo_skills_prepares_it_is_read_as_a_file(tmp_path):
    """Would catch a column of the prepared form that is refused, turns that are lost, and rows left to be filled in."""
    beside = {"sub_category": "", "source": "x", "src_id": "x_1", "difficulty": "easy", "multiturn": True}
    rows = [
        {
            "question_id": f"q{number}",
            "category": "coding",
            "messages": [{"role": "user", "content": turn} for turn in asked],
        }
        | beside
        for number, asked in enumerate((["One?", "Two?"], ["Three?"]))
    ]
    path = write_lines(tmp_path / "qualitative.jsonl", *rows)
    config = WorkloadConfig(path=str(path), shuffle=False)
    assert load_prompts(config, seed=0) == [
        Prompt("1", "coding", ("One?", "Two?")), Prompt("2", "coding", ("Three?",)),
    ]  # fmt: skip
    rows[1]["messages"][0]["content"] = f"{PLACEHOLDER} USING SPECDEC_BENCH"
    with pytest.raises(ValueError, match=r"workload\.path: expected prompts, found placeholders in 1 of the 2; .*Ski"):
        load_prompts(WorkloadConfig(path=str(write_lines(path, *rows))), seed=0)


def test_rows_of_a_named_layout_are_read_whole(tmp_path):
    """Would catch a data set that loses what its file keeps: id, category and the answer beside it."""
    rows = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "2 + 2?", "answer": "#### 4"}]
    file = write_lines(tmp_path / "maths" / "test.jsonl", *rows)
    of_file = load_prompts(WorkloadConfig(path=str(file)), seed=0)
    for settings in ({}, {"files": "test.jsonl"}):
        config = WorkloadConfig(dataset=str(file.parent), layout="gsm8k", **settings)
        assert load_prompts(config, seed=0) == of_file
    with pytest.raises(ValueError, match=r"row test/0: layout humaneval: expected fields task_id, prompt, found"):
        load_prompts(WorkloadConfig(dataset=str(file.parent), layout="humaneval"), seed=0)


def test_speculator_benchmarks_are_read_by_file(hub):
    """Would catch categories that get lost, and files whose other columns differ, which `datasets` refuses."""
    files = {
        "HumanEval.jsonl": [{"prompt": "def f():", "task_id": 1}],
        "qa.jsonl": [{"prompt": "Who?", "question_id": "a"}, {"prompt": "Why?", "question_id": "b"}],
        "README.md": "a card",
    }
    put(hub, "RedHatAI/speculator_benchmarks", files)
    prompts = load_prompts(workload_of("workload=speculator_benchmarks", "workload.shuffle=false"), seed=0)
    assert [(item.prompt_id, item.category, item.turns) for item in prompts] == [
        ("HumanEval/0", "HumanEval", ("def f():",)), ("qa/0", "qa", ("Who?",)), ("qa/1", "qa", ("Why?",)),
    ]  # fmt: skip
    one = workload_of("workload=speculator_benchmarks", "workload.files=qa.jsonl")
    assert {prompt.category for prompt in load_prompts(one, seed=0)} == {"qa"}
    with pytest.raises(ValueError, match=r"HumanEval\.jsonl:1: expected an object with text .* found prompt, task_id"):
        load_prompts(workload_of("workload=speculator_benchmarks", "workload.column=text"), seed=0)
    with pytest.raises(ValueError, match=r"workload\.files: expected files \*\.csv in RedHatAI"):
        load_prompts(workload_of("workload=speculator_benchmarks", "workload.files=*.csv"), seed=0)


@pytest.mark.parametrize("name", ["speed_bench", "speculator_benchmarks"])
def test_a_public_set_that_is_not_there_says_how_to_get_it(hub, name):
    with pytest.raises(ValueError, match=r"get it with `hf download --repo-type dataset \w+/[\w-]+`") as caught:
        load_prompts(workload_of(f"workload={name}"), seed=0)
    assert "\n" not in str(caught.value)


def answer(status):
    """What the Hub's interface raises for an answer."""
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return HfHubHTTPError(f"{status} for url\nsecond line", response=response)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, "404 for url"), (401, "401 for url"), (429, None), (503, None)],
)
def test_an_answer_of_the_hub_decides_unless_it_asks_for_patience(status, expected, monkeypatch):
    """Would catch a data set that is refused because the Hub is busy, and a retry for one that is not there."""

    def refuse(*_, **__):
        raise answer(status)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    assert not_on_hub("owner/data", is_dataset=True) == expected


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch):
    """Would catch a minute of retries where packets are dropped, and a host whose name is not found."""
    never = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: never.wait())
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.01")
    try:
        assert not_on_hub("owner/model") == "no answer from the Hub within 0.01 s (HF_HUB_ETAG_TIMEOUT waits longer)"
    finally:
        never.set()


def test_what_is_asked_for_at_once_is_waited_for_together(monkeypatch):
    """Would catch waits that add up: each question waits here for the other two."""
    together = threading.Barrier(3)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: together.wait(timeout=60))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: together.wait(timeout=60))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")
    names = [Repository("owner/target"), Repository("owner/drafter", "v1"), Repository("owner/data", is_dataset=True)]
    with asked_at_once([*names, *names]):
        assert not_on_hub("owner/drafter", "v1") is not_on_hub("owner/target") is None
        assert not_on_hub("owner/data", is_dataset=True) is not_on_hub("owner/target") is None


def test_a_hub_that_was_silent_once_is_not_asked_again(monkeypatch):
    """Would catch a wait for every name of a plan; the next plan asks again."""
    never, asked = threading.Event(), []
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda _, name, **__: asked.append(name) or never.wait())
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.01")
    try:
        with asked_at_once([]):
            reasons = {not_on_hub(name) for name in ("owner/a", "owner/b", "owner/c")}
        assert asked == ["owner/a"] and len(reasons) == 1 and "no answer from the Hub" in reasons.pop()
        not_on_hub("owner/b")
        assert asked == ["owner/a", "owner/b"]
    finally:
        never.set()


def test_what_the_caches_have_is_taken_where_the_hub_cannot_be_reached(hub, monkeypatch):
    """Would catch a run on a host without a network that has what it needs, and one that retries before it takes it."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    asked = []

    def refuse(*given, **_):
        asked.append(given)
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    put(hub, "nvidia/SPEED-Bench", {"README.md": CARD, "qualitative/test.jsonl": SPEED_BENCH_ROWS})
    put(hub, "RedHatAI/speculator_benchmarks", {"qa.jsonl": [{"prompt": "Who?"}]})
    assert len(load_prompts(workload_of("workload=speed_bench"), seed=0)) == 3
    assert len(load_prompts(workload_of("workload=speculator_benchmarks"), seed=0)) == 1
    assert len(asked) == 2 and not huggingface_hub.constants.HF_HUB_OFFLINE


def test_prompts_of_several_files_are_told_apart_and_ids_that_repeat_are_refused(tmp_path):
    """Would catch two prompts under one id, of whose requests one hides the other, and a data set without rows."""
    files = {"files": "*.jsonl", "dataset": str(tmp_path)}
    for name in "ab":
        write_lines(tmp_path / f"{name}.jsonl", {"question": f"{name}?", "answer": "#### 1"})
    prompts = load_prompts(WorkloadConfig(**files, layout="gsm8k"), seed=0)
    assert [prompt.prompt_id for prompt in prompts] == ["a/gsm8k/1", "b/gsm8k/1"]
    write_lines(tmp_path / "a.jsonl", *[{"task_id": "t", "prompt": "def f():"}] * 2)
    with pytest.raises(ValueError, match=r"files a\.jsonl: expected prompts whose ids differ, found 't' 2 times"):
        load_prompts(WorkloadConfig(dataset=str(tmp_path), files="a.jsonl", layout="humaneval"), seed=0)
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match="expected at least one row, found none"):
        load_prompts(WorkloadConfig(dataset=str(tmp_path), files="a.jsonl", layout="humaneval"), seed=0)
