"""Prompts in files: layouts, sampling and schemas of a line, and what is refused."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.sampling import GivenSampling, SamplingSettings
from harness.config.workload import History, Layout, WorkloadConfig
from harness.workload.chat import chat_messages, tools_of
from harness.workload.conversations import conversations, fingerprint, load_prompts
from harness.workload.formats.record import Format
from harness.workload.line_keys import LEFT_ALONE, REFUSED
from harness.workload.prompt import Prompt
from harness.workload.prompt_files import LAYOUTS, detect_layout, format_of, read_prompts
from tests.support.prompt_files import make_prompts, shared_file, write_lines

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("name", "layout", "num_prompts", "num_turns", "num_categories"),
    [
        ("mt_bench/question.jsonl", Layout.mt_bench, 80, 160, 8),
        ("spec_bench/question.jsonl", Layout.spec_bench, 480, 560, 6),
        ("gsm8k/test.jsonl", Layout.gsm8k, 1319, 1319, 1),
        ("humaneval/HumanEval.jsonl.gz", Layout.humaneval, 164, 164, 1),
    ],
    ids=["mt_bench", "spec_bench", "gsm8k", "humaneval"],
)
def test_public_sets_read_alike_with_the_layout_named_and_detected(
    name, layout, num_prompts, num_turns, num_categories
):
    path = shared_file(name)
    prompts = read_prompts(path, layout)
    assert len(prompts) == num_prompts
    assert sum(len(prompt.turns) for prompt in prompts) == num_turns
    assert len({prompt.category for prompt in prompts}) == num_categories
    assert read_prompts(path) == prompts


MT_BENCH_ROW = {"question_id": 7, "category": "stem", "turns": ["Why?", "And then?"], "reference": ["Because."]}


@pytest.mark.parametrize(
    ("row", "layout", "expected"),
    [
        (MT_BENCH_ROW, Layout.mt_bench, Prompt("7", "stem", ("Why?", "And then?"))),
        (MT_BENCH_ROW | {"category": "qa"}, Layout.spec_bench, Prompt("7", "qa", ("Why?", "And then?"))),
        ({"question": "1 + 1?", "answer": "one"}, Layout.gsm8k, Prompt("gsm8k/1", "gsm8k", ("1 + 1?",))),
        ({"task_id": "H/0", "prompt": "def f():\n"}, Layout.humaneval, Prompt("H/0", "humaneval", ("def f():\n",))),
        ({"prompt": "Hello"}, Layout.plain, Prompt("1", "plain", ("Hello",))),
        ({"text": "Hello", "prompt_id": "a", "category": "x"}, Layout.plain, Prompt("a", "x", ("Hello",))),
        ({"turns": ["Hello", "Bye"]}, Layout.plain, Prompt("1", "plain", ("Hello", "Bye"))),
        ("Line\u2028still the same line", Layout.plain, Prompt("1", "plain", ("Line\u2028still the same line",))),
    ],
    ids=["mt_bench", "spec_bench", "gsm8k", "humaneval", "prompt", "text", "turns", "bare string"],
)
def test_each_layout_is_detected_and_read(row, layout, expected, tmp_path):
    assert detect_layout([row]) is layout
    # Not escaped, so that a separator inside the string reaches the reader as it is.
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_prompts(path) == [expected]


def test_spec_bench_layout_folds_the_mt_bench_categories_into_one_task(tmp_path):
    rows = [MT_BENCH_ROW, MT_BENCH_ROW | {"question_id": 8, "category": "rag"}]
    path = write_lines(tmp_path / "prompts.jsonl", *rows)
    assert [prompt.category for prompt in read_prompts(path)] == ["mt_bench", "rag"]


def test_compressed_files_and_blank_lines_read_like_plain_ones(tmp_path):
    plain = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=3))
    packed = tmp_path / "prompts.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes().replace(b"\n", b"\r\n\n")))
    assert read_prompts(packed) == read_prompts(plain)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', r"prompts.jsonl:2: expected one JSON value on the line, found '{\"prompt\""),
        ('{"prompt": "a"}\n\n{"other": 1}\n', r"prompts.jsonl:3: layout plain: expected .*prompt, text, turns, found"),
        ('{"prompt": "a"}\n{"prompt": 5}\n', r"prompts.jsonl:2: .*expected prompt to be text .* found 5"),
        ('{"prompt": "a"}\n{"turns": []}\n', r"prompts.jsonl:2: .*one or more texts, found \[\]"),
        ('{"prompt": "a", "text": "b"}\n', r"prompts.jsonl:1: .*exactly one of prompt, text, turns"),
        ('"a"\n7\n', r"prompts.jsonl:2: .*expected text, or an object .* found int"),
        (
            '{"answer": 1}\n',
            r"prompts.jsonl:1: expected a record of a known layout \(spec_bench.* found fields answer",
        ),
        (
            '{"prompt_id": "x", "text": "a"}\n{"prompt_id": "x", "text": "b"}\n',
            r":2: .*found 'x' again \(first on line 1",
        ),
        ("\n\n", r"prompts.jsonl: expected JSON Lines with at least one prompt, found an empty file"),
    ],
    ids=[
        "broken JSON",
        "no prompt field",
        "prompt not text",
        "no turns",
        "two fields",
        "number",
        "unknown layout",
        "id twice",
        "empty",
    ],
)
def test_a_bad_line_is_named_with_what_was_expected_and_found(content, message, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


@pytest.mark.parametrize("name", ["prompts.jsonl.gz", "prompts.jsonl"], ids=["not gzip", "not UTF-8"])
def test_an_unreadable_file_is_refused_with_its_path(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b'"\xff"\n')
    with pytest.raises(ValueError, match=f"{name}: expected a readable file of JSON Lines in UTF-8"):
        read_prompts(path)


def test_a_named_layout_is_held_against_the_fields(tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", {"prompt": "a"})
    with pytest.raises(ValueError, match=r":1: layout gsm8k: expected fields question, found prompt \(no question\)"):
        read_prompts(path, Layout.gsm8k)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"workload\.path: expected a JSON Lines file, found nothing at"):
        load_prompts(WorkloadConfig(path=str(tmp_path / "none.jsonl")), seed=0)


def test_several_files_are_read_in_order_and_told_apart_by_their_names(tmp_path):
    """Would catch ids that clash, a layout that is taken from the first file alone, and two files of one name."""
    plain = write_lines(tmp_path / "mine.jsonl", "Hello", {"text": "Hi", "category": "chat"})
    maths = write_lines(tmp_path / "maths.jsonl", {"question": "1 + 1?", "answer": "#### 2"})
    config = WorkloadConfig(path=[str(plain), str(maths)], shuffle=False)
    found = [(item.prompt_id, item.category, item.turns) for item in load_prompts(config, seed=0)]
    assert found == [
        ("mine/1", "mine", ("Hello",)),
        ("mine/2", "chat", ("Hi",)),
        ("maths/gsm8k/1", "gsm8k", ("1 + 1?",)),
    ]
    assert WorkloadConfig(path=[str(plain)]) == WorkloadConfig(path=str(plain))
    again = tmp_path / "again" / "mine.jsonl.gz"
    again.parent.mkdir()
    again.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(ValueError, match=r"workload\.path: expected files of different names, .* found .*mine"):
        load_prompts(replace(config, path=[str(plain), str(again)]), seed=0)


OWN_LAYOUT = Format(("ask",), lambda row, place, _: Prompt(f"own/{place.line}", place.category, (row["ask"],)))


def test_a_layout_of_one_s_own_is_named_by_its_module(tmp_path):
    path = write_lines(tmp_path / "own.jsonl", {"ask": "Why?"}, {"ask": "How?", "tone": "kind"})
    config = WorkloadConfig(path=str(path), layout=f"{__name__}:OWN_LAYOUT")
    with pytest.raises(
        ValueError, match=r"own\.jsonl:2: layout .*:OWN_LAYOUT: expected the keys ask, sampling, stop .*tone"
    ):
        load_prompts(config, seed=0)
    write_lines(path, {"ask": "Why?"})
    assert load_prompts(config, seed=0) == [Prompt("own/1", "OWN_LAYOUT", ("Why?",))]
    with pytest.raises(ValueError, match=r"workload\.layout: expected .*:SHARED to be a .*Format"):
        load_prompts(replace(config, layout="tests.support.prompt_files:SHARED"), seed=0)
    with pytest.raises(ValueError, match=r"workload\.layout: expected one of auto, spec_bench, .*, or PACKAGE"):
        WorkloadConfig(path=str(path), layout="csv")


def test_a_prompt_without_text_cannot_be_built():
    with pytest.raises(ValueError, match="prompt x: expected one or more turns with text"):
        Prompt("x", "plain", ("Hello", " "))


def test_a_line_may_carry_sampling_of_its_own(tmp_path: Path):
    """Part of the fingerprint only where given; its seed takes the place of the run's."""
    lines = [{"prompt": "a"}, {"prompt": "b", "sampling": {"temperature": 0, "top_k": 5, "seed": 3}}]
    plain, own = read_prompts(write_lines(tmp_path / "own.jsonl", *lines))
    assert plain.sampling is None and own.sampling is not None
    assert own.sampling.over(SamplingSettings(0.7, top_p=0.9)) == SamplingSettings(0, 5, 0.9)
    assert fingerprint([own]) != fingerprint([replace(own, sampling=None)])
    seeds = [[item.seed for item in conversations([plain, own], WorkloadConfig(), seed)] for seed in (0, 1)]
    assert seeds[0][0] != seeds[1][0] and seeds[0][1] == seeds[1][1]


def test_a_line_may_have_stop_strings_of_its_own(tmp_path: Path):
    """As requests of the OpenAI interface do. Would catch prompts that differ in them alone taken for the same."""
    lines = [{"prompt": "a", "stop": []}, {"prompt": "b", "stop": "\n"}, {"prompt": "c", "stop": ["x", "\n"]}]
    path = write_lines(tmp_path / "own.jsonl", *lines)
    found = read_prompts(path)
    # an empty list takes the place of decoding.stop
    assert [item.stop for item in found] == [(), ("\n",), ("x", "\n")]
    assert fingerprint([found[2]]) != fingerprint([replace(found[2], stop=("x",))])
    for value, message in (([1], r"a text or a list of texts, found \[1\]"), (["a", "a"], "each string once")):
        write_lines(path, {"prompt": "a", "stop": value})
        with pytest.raises(ValueError, match=rf"own\.jsonl:1: .*stop: expected {message}"):
            read_prompts(path)


def test_biases_of_a_line_are_an_object_as_others_write_it(tmp_path: Path):
    """Would catch ids that are read as text, and an empty object that turns a cell's biases off or on."""
    given = {"presence_penalty": 1, "logit_bias": {"11": -100, "5": 2.5}}
    path = write_lines(tmp_path / "own.jsonl", {"prompt": "a", "sampling": given})
    (prompt,) = read_prompts(path)
    assert prompt.sampling is not None
    own = prompt.sampling.over(SamplingSettings(min_tokens=3))
    assert own.biases == {11: -100.0, 5: 2.5} and own.edits.keys() == {"presence_penalty", "min_tokens", "logit_bias"}
    ways = {"11": -100.0, "5": 2.5}, {"5": 2.5, "11": -100}, {"5": 2.5, "11": -100.0}
    write_lines(path, *({"prompt": "a", "sampling": {"presence_penalty": 1, "logit_bias": way}} for way in ways))
    assert {item.sampling for item in read_prompts(path)} == {prompt.sampling}
    write_lines(path, {"prompt": "a", "sampling": {"logit_bias": {}}})
    (none,) = read_prompts(path)
    assert none.sampling.over(SamplingSettings(logit_bias="5:1")).edits == {}
    for wrong in ({"5": "3/6:4"}, {"5_0": 1}, {" 5": 1}, {"5": True}):
        write_lines(path, {"prompt": "a", "sampling": {"logit_bias": wrong}})
        with pytest.raises(ValueError, match=r"sampling\.logit_bias: expected an object of token ids and biases"):
            read_prompts(path)


def test_sampling_is_read_in_every_layout(tmp_path: Path):
    """Would catch a line's sampling that is dropped without a word."""
    path = tmp_path / "own.jsonl"
    for layout, record in RECORDS.items():
        write_lines(path, {**record, "sampling": {"top_k": 5}})
        assert read_prompts(path, layout)[0].sampling == GivenSampling(top_k=5), layout


FIELDS = {layout: (*format_of(layout).fields, "stop") for layout in LAYOUTS}
RECORDS = {
    Layout.mt_bench: {"question_id": 1, "category": "stem", "turns": ["b"]},
    Layout.spec_bench: {"question_id": 1, "category": "qa", "turns": ["b"]},
    Layout.gsm8k: {"question": "d"},
    Layout.humaneval: {"task_id": "c", "prompt": "c"},
    Layout.json_schemas: {"id": "e", "split": "f", "schema": {}},
    Layout.messages: {"messages": [{"role": "user", "content": "g"}]},
    Layout.share_gpt: {"conversations": [{"from": "human", "value": "h"}]},
    Layout.alpaca: {"instruction": "i"},
    Layout.plain: {"prompt": "a"},
}
EVERY_LAYOUT = pytest.mark.parametrize("layout", RECORDS, ids=lambda layout: layout.value)


@EVERY_LAYOUT
def test_a_key_that_nothing_reads_is_refused_with_its_line_and_what_to_do(layout, tmp_path: Path):
    """Would catch a number of answers or a system message that is dropped without a word."""
    record, unread = RECORDS[layout], {**REFUSED, "mood": "take it out of the lines"}
    for name, advice in unread.items():
        if name not in FIELDS[layout]:
            path = write_lines(tmp_path / "own.jsonl", record | {name: ["x"]})
            with pytest.raises(ValueError, match=rf"own\.jsonl:1: layout {layout.value}: .*{name}.*") as caught:
                read_prompts(path, layout)
            assert advice in str(caught.value), name


@EVERY_LAYOUT
def test_what_no_request_follows_from_is_left_alone_and_null_is_absence(layout, tmp_path: Path):
    record, path = RECORDS[layout], tmp_path / "own.jsonl"
    expected = read_prompts(write_lines(path, record), layout)
    aside = {name: "x" for name in LEFT_ALONE if name not in FIELDS[layout]}
    absent = dict.fromkeys(["sampling", "json_schema", "prompt_id", "category", "text", "mood", *REFUSED])
    empty = {"tools": [], "system": "", "response_format": {}}
    for beside in (aside, absent, empty, {"sampling": {"temperature": None}}):
        assert read_prompts(write_lines(path, {**beside, **record}), layout) == expected
    others = dict.fromkeys(name for names in FIELDS.values() for name in names)
    full = record if layout is not Layout.gsm8k else record | {"answer": "not known"}
    assert read_prompts(write_lines(path, others | full)) == expected


def system(text):
    return json.dumps([{"role": "system", "content": text}])


ASKED, ANSWERED = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
TALK = [{"role": "system", "content": "Be brief."}, ASKED, ANSWERED, {"role": "user", "content": "And?"}]


@pytest.mark.parametrize(
    ("row", "layout", "expected"),
    [
        ({"messages": TALK}, Layout.messages, Prompt("1", "messages", ("Why?", "And?"), opening=system("Be brief."))),
        (
            {"messages": [ASKED | {"content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}]}]},
            Layout.messages,
            Prompt("1", "messages", ("Why?",)),
        ),
        (
            {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}], "id": "x"},
            Layout.share_gpt,
            Prompt("1", "share_gpt", ("Why?",)),
        ),
        (
            {"conversation": [{"from": "gpt", "value": "Hello."}, {"from": "human", "value": "Why?"}]},
            Layout.share_gpt,
            Prompt("1", "share_gpt", ("Why?",), opening=json.dumps([{"role": "assistant", "content": "Hello."}])),
        ),
        (
            {"instruction": "Sort.", "input": "b, a", "output": "a, b", "system": "Be brief."},
            Layout.alpaca,
            Prompt("1", "alpaca", ("Sort.\n\nb, a",), opening=system("Be brief.")),
        ),
        ({"instruction": "Sing.", "input": ""}, Layout.alpaca, Prompt("1", "alpaca", ("Sing.",))),
        ({"prompt": "Why?", "system": "Hm."}, Layout.plain, Prompt("1", "plain", ("Why?",), opening=system("Hm."))),
    ],
    ids=["messages", "parts", "ShareGPT", "greeting", "Alpaca", "Alpaca without input", "system"],
)
def test_conversations_are_read_with_their_roles(row, layout, expected, tmp_path):
    """Would catch a system message, a greeting or an input that is lost or comes out of the user's mouth."""
    assert detect_layout([row]) is layout
    assert read_prompts(write_lines(tmp_path / "prompts.jsonl", row)) == [expected]


def test_given_answers_are_context_and_each_turn_is_a_request(tmp_path):
    """Would catch a history that holds the answer to be measured, and calls of tools that are lost."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    found = {"role": "tool", "content": "42", "name": "f"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    row = {"messages": [ASKED, call, found, ANSWERED], "tools": tools}
    path = write_lines(tmp_path / "traces.jsonl", row)
    config = WorkloadConfig(path=str(path), history=History.given)
    (prompt,) = load_prompts(config, seed=0)
    assert prompt.turns == ("Why?", "42") and prompt.num_generated_between == 0
    assert [chat_messages(prompt, ["x"] * turn) for turn in (0, 1)] == [[ASKED], [ASKED, call, found]]
    assert tools_of(prompt) == tools
    (last,) = load_prompts(replace(config, history=History.last), seed=0)
    assert last.turns == ("42",) and chat_messages(last, []) == [ASKED, call, found]
    (cut,) = load_prompts(replace(config, num_turns=1), seed=0)
    assert cut.turns == ("Why?",) and len(cut.histories) == 1
    assert len({fingerprint([each]) for each in (prompt, last, cut, replace(prompt, tools=None))}) == 4
    with pytest.raises(ValueError, match=r"found a call of a tool: workload\.history=given or last"):
        load_prompts(WorkloadConfig(path=str(path)), seed=0)


def test_a_history_that_no_prompt_has_is_refused(tmp_path):
    path = write_lines(tmp_path / "plain.jsonl", {"turns": ["Why?", "And?"]})
    with pytest.raises(ValueError, match=r"workload\.history=given: expected conversations with answers of their own"):
        load_prompts(WorkloadConfig(path=str(path), history=History.given), seed=0)


def test_a_json_array_reads_like_lines(tmp_path):
    lines = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=3))
    array = tmp_path / "prompts.json"
    array.write_text(json.dumps([json.loads(line) for line in lines.read_text().splitlines()], indent=1))
    assert read_prompts(array) == read_prompts(lines)
    array.write_text('[{"prompt": "a"},')
    with pytest.raises(
        ValueError, match=r"prompts\.json: expected JSON Lines or one JSON array, found .*mend the file"
    ):
        read_prompts(array)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (0.7, "expected an object"),
        ({}, "expected an object"),
        ({"temp": 1}, "expected an object"),
        ({"temperature": "1"}, r"sampling\.temperature: expected a number"),
        ({"top_k": 2.5}, r"sampling\.top_k: expected a whole number"),
        ({"seed": True}, r"sampling\.seed: expected a whole number"),
        ({"top_p": 0}, r"sampling\.top_p: expected a value in"),
        ({"top_k": 10**20}, r"sampling\.top_k: expected 0 .* below"),
        ({"temperature": 10**400}, r"sampling\.temperature: expected 0, or a positive"),
        ({"min_p": 1e-46}, r"sampling\.min_p: expected a value in"),
        ({"presence_penalty": 3}, r"sampling\.presence_penalty: expected a number from -2 to 2"),
        ({"min_tokens": 1.5}, r"sampling\.min_tokens: expected a whole number"),
        ({"logit_bias": {"5": 200}}, r"sampling\.logit_bias: expected TOKEN:BIAS"),
        ({"logit_bias": [5]}, r"sampling\.logit_bias: expected an object of token ids"),
    ],
)
def test_wrong_sampling_is_refused_with_its_line(tmp_path: Path, sampling: object, message: str):
    path = write_lines(tmp_path / "wrong.jsonl", {"prompt": "a"}, {"prompt": "b", "sampling": sampling})
    with pytest.raises(ValueError, match=rf"wrong\.jsonl:2: .*{message}"):
        read_prompts(path)


def test_a_prompt_asks_for_an_object_of_its_schema(tmp_path: Path):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    path = write_lines(tmp_path / "schemas.jsonl", {"id": "x", "split": "easy", "schema": schema, "valid": []})
    (prompt,) = read_prompts(path)
    assert (prompt.prompt_id, prompt.category, json.loads(prompt.schema)) == ("x", "easy", schema)
    assert prompt.turns[0].endswith(prompt.schema)


def test_a_plain_prompt_may_carry_a_schema(tmp_path: Path):
    path = write_lines(tmp_path / "plain.jsonl", {"prompt": "Say 1.", "json_schema": {"type": "integer"}})
    prompts = read_prompts(path)
    assert prompts[0].schema == '{"type": "integer"}'
    assert fingerprint(prompts) != fingerprint([Prompt("1", "plain", ("Say 1.",))])
    with pytest.raises(ValueError, match="expected a JSON schema"):
        read_prompts(write_lines(tmp_path / "wrong.jsonl", {"prompt": "Say 1.", "json_schema": "integer"}))


def test_public_schemas_are_read_with_a_validator_s_help():
    jsonschema = pytest.importorskip("jsonschema", reason="needs the extra grammar")
    prompts = read_prompts(shared_file("json_schemas/jsonschemabench_subset.jsonl"))
    assert len(prompts) == 815 and len({prompt.category for prompt in prompts}) == 13
    for prompt in prompts[::50]:
        schema = json.loads(prompt.schema)
        jsonschema.validators.validator_for(schema).check_schema(schema)
