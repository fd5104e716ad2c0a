"""Prompts: layouts, data sets, subset, order, oversampling and seeds."""

import gzip
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.settings.sampling import GivenSampling, SamplingSettings
from harness.settings.workload import Layout, WorkloadConfig
from harness.workload.conversations import BUILTIN_PROMPTS, Conversation, conversations, fingerprint, load_prompts
from harness.workload.formats import MT_BENCH_CATEGORIES, detect_layout, read_prompts
from harness.workload.prompt import Prompt

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"


def write_lines(path: Path, *values: object) -> Path:
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


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.prompt_id for prompt in prompts]


def test_gaps_between_arrivals_follow_the_rate():
    """Mean and standard deviation of an exponential law, from 4,000 conversations."""
    prompt = Prompt("one", "writing", ("Say 1.",))
    gaps = [Conversation(prompt, sample, sample).gap_s(2.5) for sample in range(4000)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    # 5 standard errors of the mean of an exponential law
    assert abs(mean - 0.4) < 5 * 0.4 / 4000**0.5 and spread == pytest.approx(0.4, rel=0.1)
    assert min(gaps) > 0 and gaps == [Conversation(prompt, sample, sample).gap_s(2.5) for sample in range(4000)]


def test_builtin_set_has_ten_prompts_of_two_turns_in_each_category():
    prompts = load_prompts(WorkloadConfig(), seed=0)
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(MT_BENCH_CATEGORIES, 10)
    assert {len(prompt.turns) for prompt in prompts} == {2}
    assert len({turn for prompt in prompts for turn in prompt.turns}) == 160


def test_builtin_prompts_are_short_enough_for_small_models():
    assert max(len(turn) for prompt in read_prompts(BUILTIN_PROMPTS) for turn in prompt.turns) <= 320


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


def test_builtin_prompts_share_no_five_words_with_mt_bench():
    def windows(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}

    public = [turn for prompt in read_prompts(shared_file("mt_bench/question.jsonl")) for turn in prompt.turns]
    own = [turn for prompt in read_prompts(BUILTIN_PROMPTS) for turn in prompt.turns]
    assert set.union(*map(windows, public)).isdisjoint(set.union(*map(windows, own)))


MT_BENCH_ROW = {"question_id": 7, "category": "stem", "turns": ["Why?", "And then?"], "reference": ["Because."]}


@pytest.mark.parametrize(
    ("row", "layout", "expected"),
    [
        (MT_BENCH_ROW, Layout.mt_bench, Prompt("7", "stem", ("Why?", "And then?"))),
        (MT_BENCH_ROW | {"category": "qa"}, Layout.spec_bench, Prompt("7", "qa", ("Why?", "And then?"))),
        ({"question": "1 + 1?", "answer": "2"}, Layout.gsm8k, Prompt("gsm8k/1", "gsm8k", ("1 + 1?",))),
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
        ('{"prompt": "a"}\n\n{"other": 1}\n', r"prompts.jsonl:3: layout plain: expected .*prompt, text, turns; found"),
        ('{"prompt": "a"}\n{"prompt": 5}\n', r"prompts.jsonl:2: .*expected prompt to be text .* found 5"),
        ('{"prompt": "a"}\n{"turns": []}\n', r"prompts.jsonl:2: .*one or more texts, found \[\]"),
        ('{"prompt": "a", "text": "b"}\n', r"prompts.jsonl:1: .*exactly one of prompt, text, turns"),
        ('"a"\n7\n', r"prompts.jsonl:2: .*expected text, or an object .* found int"),
        ('{"answer": 1}\n', r"prompts.jsonl:1: expected a record of a known layout \(mt_bench, .* found fields answer"),
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


def test_a_prompt_without_text_cannot_be_built():
    with pytest.raises(ValueError, match="prompt x: expected one or more turns with text"):
        Prompt("x", "plain", ("Hello", " "))


def test_categories_filter_and_an_unknown_one_names_the_choices(tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=2, b=3, c=1))
    config = WorkloadConfig(path=str(path), categories=["c", "a"])
    assert sorted(ids(load_prompts(config, seed=0))) == ["a0", "a1", "c0"]
    with pytest.raises(ValueError, match=r"workload\.categories: expected some of a, b, c, found d, e"):
        load_prompts(replace(config, categories=["a", "d", "e"]), seed=0)


def test_order_depends_on_the_seed_only_and_covers_every_prompt(tmp_path):
    rows = make_prompts(a=20)
    path = write_lines(tmp_path / "prompts.jsonl", *rows)
    reversed_path = write_lines(tmp_path / "reversed.jsonl", *reversed(rows))
    config = WorkloadConfig(path=str(path))
    first = ids(load_prompts(config, seed=1))
    assert first == ids(load_prompts(replace(config, path=str(reversed_path)), seed=1))
    assert first != ids(load_prompts(config, seed=2))
    assert sorted(first) == sorted(row["prompt_id"] for row in rows)


def test_without_shuffle_the_order_is_the_files(tmp_path):
    rows = make_prompts(b=3, a=3)
    config = WorkloadConfig(path=str(write_lines(tmp_path / "prompts.jsonl", *rows)), shuffle=False)
    assert ids(load_prompts(config, seed=1)) == [row["prompt_id"] for row in rows]
    assert ids(load_prompts(replace(config, num_prompts=4), seed=1)) == ["b0", "b1", "a0", "a1"]


@pytest.mark.parametrize("num_prompts", [1, 3, 5, 7, 11])
def test_subset_is_even_over_the_categories_as_far_as_they_reach(num_prompts, tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=8, b=2, c=8))
    config = WorkloadConfig(path=str(path), num_prompts=num_prompts)
    counts = Counter(prompt.category for prompt in load_prompts(config, seed=3))
    expected = {1: [0, 0, 1], 3: [1, 1, 1], 5: [1, 2, 2], 7: [2, 2, 3], 11: [2, 4, 5]}[num_prompts]
    assert sorted(counts[category] for category in "abc") == expected
    assert counts["b"] <= 2


def test_a_smaller_subset_is_part_of_a_larger_one_in_the_same_order():
    """Every number of prompts beside the next one, so that none may break ties in a way of its own."""
    larger = ids(load_prompts(WorkloadConfig(), seed=5))
    for num_prompts in range(len(larger) - 1, 0, -1):
        smaller = ids(load_prompts(WorkloadConfig(num_prompts=num_prompts), seed=5))
        assert smaller == [name for name in larger if name in set(smaller)] and len(smaller) == num_prompts
        larger = smaller


def test_more_prompts_than_there_are_is_refused(tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=3))
    with pytest.raises(ValueError, match=r"expected at most 3, .* found 4; use workload\.num_requests"):
        load_prompts(WorkloadConfig(path=str(path), num_prompts=4), seed=0)


def test_num_turns_cuts_every_prompt():
    prompts = load_prompts(WorkloadConfig(num_turns=1, num_prompts=8), seed=0)
    assert [len(prompt.turns) for prompt in prompts] == [1] * 8


PROMPTS = [Prompt(name, "plain", ("Hello",)) for name in ("a", "b", "c")]


def test_oversampling_goes_through_the_prompts_in_order_and_numbers_the_copies():
    played = conversations(PROMPTS, WorkloadConfig(num_requests=7), seed=0)
    found = [(item.prompt.prompt_id, item.sample) for item in played]
    assert found == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1), ("a", 2)]
    assert len(conversations(PROMPTS, WorkloadConfig(), seed=0)) == 3
    assert len(conversations(PROMPTS, WorkloadConfig(num_requests=2), seed=0)) == 2


def test_without_prompts_there_is_nothing_to_play():
    with pytest.raises(ValueError, match="expected at least one prompt"):
        conversations([], WorkloadConfig(), seed=0)


def test_seeds_differ_between_runs_prompts_samples_and_turns():
    played = [item for seed in (0, 1) for item in conversations(PROMPTS, WorkloadConfig(num_requests=9), seed)]
    seeds = [item.seed for item in played] + [item.turn_seed(turn) for item in played for turn in (0, 1)]
    assert len(set(seeds)) == 54
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_depend_on_the_prompt_and_not_on_its_place():
    config = WorkloadConfig(num_requests=6)
    seeds = {(item.prompt.prompt_id, item.sample): item.seed for item in conversations(PROMPTS, config, seed=4)}
    other = {(item.prompt.prompt_id, item.sample): item.seed for item in conversations(PROMPTS[::-1], config, seed=4)}
    assert seeds == other


def test_order_and_seeds_are_the_same_in_every_process():
    code = (
        "from harness.settings.cell import WorkloadConfig as C; from harness.workload.conversations import *; "
        "p = load_prompts(C(), 9); "
        "print(fingerprint(p), [(c.seed, c.turn_seed(1)) for c in conversations(p, C(), 9)][:3])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    prompts = load_prompts(WorkloadConfig(), seed=9)
    seeds = [(item.seed, item.turn_seed(1)) for item in conversations(prompts, WorkloadConfig(), seed=9)][:3]
    assert outputs == {f"{fingerprint(prompts)} {seeds}\n"}


def test_seed_is_pinned_so_that_old_records_stay_comparable():
    (only,) = conversations(PROMPTS[:1], WorkloadConfig(), seed=0)
    assert (only.seed, only.turn_seed(0)) == (7513112033359884413, 3397020994999489604)


@pytest.mark.parametrize(
    "changed",
    [
        [Prompt("z", "plain", ("Hello",)), *PROMPTS[1:]],
        [Prompt("a", "plain", ("Hello!",)), *PROMPTS[1:]],
        [Prompt("a", "plain", ("Hel", "lo")), *PROMPTS[1:]],
        PROMPTS[::-1],
        PROMPTS[:2],
    ],
    ids=["id", "text", "turns", "order", "fewer"],
)
def test_fingerprint_changes_with_what_is_run(changed):
    assert fingerprint(PROMPTS) == fingerprint(list(PROMPTS))
    assert fingerprint(changed) != fingerprint(PROMPTS)
    assert len(fingerprint(PROMPTS)) == 16 and int(fingerprint(PROMPTS), 16) >= 0


def test_a_line_may_carry_sampling_of_its_own(tmp_path: Path):
    """Part of the fingerprint only where given; its seed takes the place of the run's."""
    lines = [{"prompt": "a"}, {"prompt": "b", "sampling": {"temperature": 0, "top_k": 5, "seed": 3}}]
    plain, own = read_prompts(write_lines(tmp_path / "own.jsonl", *lines))
    assert plain.sampling is None and own.sampling is not None
    assert own.sampling.over(SamplingSettings(0.7, top_p=0.9)) == SamplingSettings(0, 5, 0.9)
    assert fingerprint([own]) != fingerprint([replace(own, sampling=None)])
    seeds = [[item.seed for item in conversations([plain, own], WorkloadConfig(), seed)] for seed in (0, 1)]
    assert seeds[0][0] != seeds[1][0] and seeds[0][1] == seeds[1][1]


def test_sampling_is_read_in_every_layout(tmp_path: Path):
    """Would catch a line's sampling that is dropped without a word."""
    path = tmp_path / "own.jsonl"
    fields = {"question_id": 1, "category": "qa", "turns": ["b"], "task_id": "c", "prompt": "c", "question": "d"}
    for layout in set(Layout) - {Layout.auto, Layout.plain}:
        write_lines(path, {**fields, "id": "e", "split": "f", "schema": {}, "sampling": {"top_k": 5}})
        assert read_prompts(path, layout)[0].sampling == GivenSampling(top_k=5), layout


def test_numbers_of_one_value_have_one_fingerprint(tmp_path: Path):
    """Would catch a cell that is another one where a line says 1 in the place of 1.0."""
    files = [write_lines(tmp_path / f"{name}.jsonl", {"prompt": "a", "sampling": {"temperature": number, "top_p": 1}})
             for name, number in (("whole", 1), ("real", 1.0))]  # fmt: skip
    assert len({fingerprint(read_prompts(path)) for path in files}) == 1


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
