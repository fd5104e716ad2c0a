"""Files that a run reads or leaves, with one thing changed: read as they stand, or refused in one line."""

import gzip
import io
import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import save_file

from harness.analysis.frame import results_frame
from harness.analysis.results import read_results
from harness.config.workload import Layout
from harness.models.checkpoint import INDEX, Checkpoint
from harness.models.target import load_target
from harness.records.acceptance_terms import read_terms, write_terms
from harness.records.files import read_cell, write_cell
from harness.records.request import CutReason
from harness.records.schema import Failure
from harness.records.strict_json import Int64, parse_json, typed
from harness.report.page import run_page
from harness.workload.conversations import fingerprint
from harness.workload.prompt_files import read_prompts
from tests.runner.test_round_terms import terms_of_two
from tests.support.damaged_json import at_place, damaged
from tests.support.example_records import coarse_cell, example_cell
from tests.support.synthetic_cells import simulated_run
from tests.support.tiny_models import positions_from, random_causal_lm, random_tokens, save_target_folder

often = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_or_refused(read, *names):
    """What `read` returns; None where it refuses with a line that holds one of the names."""
    try:
        return read()
    except ValueError as error:
        message = str(error)
        assert any(name in message for name in names) and "\n" not in message and len(message) < 600, message
    return None


def json_of(cell, folder):
    return json.loads(gzip.decompress(write_cell(cell, folder).read_bytes()))


@pytest.mark.parametrize("cell", [example_cell(), coarse_cell()], ids=["rounds", "counts"])
def test_a_damaged_record_is_read_as_it_stands_or_refused(cell, tmp_path):
    """Would catch a wrong type that becomes a number, a traceback of a reader, and a value that is lost."""
    document, path = json_of(cell, tmp_path / "whole"), tmp_path / "damaged.json.gz"

    @often
    @given(damaged(document))
    def check(found):
        path.write_bytes(gzip.compress(found.text, compresslevel=1))
        record = read_or_refused(lambda: read_cell(path), str(path))
        if record is not None:
            # what is empty or 0 may be left out as a default
            if found.change:
                assert at_place(json_of(record, tmp_path / "again"), found.place) == found.change
            read_or_refused(lambda: results_frame(read_results(path).cells), str(path), f"cell {record.cell_id}")

    check()


def test_a_damaged_manifest_is_read_or_refused(tmp_path):
    """Would catch a list of cells that is none, and a text in the place of a count that a report calculates with."""
    folder = simulated_run(tmp_path / "run", methods=("strict",), temperatures=(1.0,), num_prompts=2)
    path = folder / "run.json"

    @often
    @given(damaged(json.loads(path.read_text())))
    def check(found):
        path.write_bytes(found.text)
        read_or_refused(lambda: run_page(read_results(folder), (), ()), str(folder))

    whole = json.loads(path.read_text())
    check()
    path.write_text(json.dumps(whole | {"skipped": [{"cell": True}]}))
    assert read_or_refused(lambda: read_results(folder), f"{path}: ") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": NaN}', "NaN"),
        (b"[1e999]", "float64"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "'c' again"),
        (b'{"a" : 1, "a"\n: 2}', "'a' again"),
        (b'{"a": 1, "\\u0061": 1}', "'a' again"),
        # a colon that is written as an escape is one more in the value than in the text
        (b'{"a": 1, "a": "\\u003a"}', "'a' again"),
        (b'[{"a:": ":"}, {"a:": ":", "a:": ":"}]', "'a:' again"),
        (b"[" * 100_000, "nested"),
        (b'"\xff"', "UTF-8"),
        (b'"\\ud800"', "UTF-8"),
        (b"[1, 2", "delimiter"),
    ],
)
def test_json_that_may_mean_several_things_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Int64, True, "whole number"),
        (Int64, 1.0, "whole number"),
        (Int64, 2**63, "64 bits"),
        (float, "1", "finite number"),
        (float, 10**400, "finite number"),
        (bool, 1, "true or false"),
        (tuple[Int64, ...], [1, 2, None], r"\[2\]: expected a whole number"),
        (tuple[Int64 | None, ...], [1, None, "x"], r"\[2\]: expected a whole number"),
        (tuple[float, float], [1.0], "2 values"),
        (Failure, {"error": "E"}, "^expected message, found none"),
        (Failure, {"error": "E", "message": "", "where": 1}, "^expected error, .*, found also 'where'"),
        (Failure, {"error": "E", "message": "", "request": ["a", 0, "x"]}, r"^request\[2\]: expected a whole number"),
        (tuple[Failure, ...], [{"error": "E", "message": 1}], r"^\[0\]\.message: expected text, found 1"),
        (tuple[CutReason | None, ...], [None, "end"], r"^\[1\]: expected one of eos, length, .*, found 'end'"),
        (dict[str, dict[str, bool]], {"a": {"b": True, "c": 1}}, r"^\[\.\.\.\]: expected true or false"),
        (dict[str, bool], {"a": True, "b": 1}, "^b: expected true or false, found 1"),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_stands(hint, value, message):
    with pytest.raises(ValueError, match=message):
        typed(hint, value)


LINES = {
    Layout.mt_bench: {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    Layout.gsm8k: {"question": "How many?", "answer": "4"},
    Layout.humaneval: {"task_id": "HumanEval/0", "prompt": "def f():"},
    Layout.json_schemas: {"id": 1, "split": "easy", "schema": {"type": "object"}},
    Layout.plain: {
        "prompt": "Hello",
        "prompt_id": "a",
        "category": "chat",
        "sampling": {"temperature": 0.5, "seed": 3},
    },
}


@pytest.mark.parametrize("layout", LINES, ids=lambda layout: layout.value)
def test_a_damaged_line_of_a_workload_is_read_or_refused(layout, tmp_path):
    """Would catch a number out of range that reaches the sampler, and a name that stands twice."""
    path = tmp_path / "prompts.jsonl"

    @often
    @given(damaged(LINES[layout]))
    def check(found):
        path.write_bytes(found.text)
        for prompt in read_or_refused(lambda: read_prompts(path, layout), str(path)) or ():
            assert isinstance(prompt.prompt_id, str) and all(isinstance(turn, str) for turn in prompt.turns)
            fingerprint([prompt])

    check()


def test_a_damaged_index_of_shards_gives_the_same_tensors_or_is_refused(tmp_path):
    """Would catch a shard outside of the checkpoint's folder, and one that is not there."""
    names = {name: f"model-0000{index}-of-00002.safetensors" for index, name in enumerate("ab", start=1)}
    folder, tensors = tmp_path / "checkpoint", {name: torch.full((2,), float(ord(name))) for name in names}
    folder.mkdir()
    for name, file in names.items():
        save_file({name: tensors[name]}, folder / file)
    save_file({"a": torch.zeros(2)}, tmp_path / "x")

    def read(text):
        (folder / INDEX).write_bytes(text)
        with Checkpoint(folder) as checkpoint:
            return {name: checkpoint.take(name, (2,)) for name in names}

    @often
    @given(damaged({"metadata": {"total_size": 16}, "weight_map": names}))
    def check(found):
        taken = read_or_refused(lambda: read(found.text), str(folder))
        assert taken is None or all(torch.equal(taken[name], tensors[name]) for name in names)

    check()


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"], ids=lambda name: name
)
def test_a_damaged_configuration_of_a_checkpoint_is_taken_or_refused(name, tmp_path):
    """Would catch what transformers and tokenizers raise, without a file, and an end of sequence that is no token."""
    folder = save_target_folder(tmp_path, random_causal_lm("llama3_rope"))
    tokens = random_tokens(1, 5)

    def load():
        target = load_target(folder)
        target.forward(tokens, positions_from([0], 5), None)
        assert all(type(token) is int and token >= 0 for token in target.eos_token_ids)
        return target.tokenizer.encode("w3 w4")

    @settings(often, max_examples=30)
    @given(damaged(json.loads((folder / name).read_text())))
    def check(found):
        (folder / name).write_bytes(found.text)
        read_or_refused(load, str(folder))

    check()


def test_damaged_terms_are_the_same_or_refused(tmp_path):
    """Would catch what zlib, zipfile and NumPy raise for bytes that were changed, and values of another type."""
    path = write_terms(terms_of_two(), tmp_path)
    whole, before = path.read_bytes(), read_terms(path)
    with np.load(path) as file:
        arrays = dict(file)

    def check(content):
        path.write_bytes(content)
        found = read_or_refused(lambda: read_terms(path), str(path))
        assert found is None or found.keys == before.keys
        assert found is None or all((found.values[name] == before.values[name]).all() for name in before.values)

    for place in range(0, len(whole), 23):
        check(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        check(whole[:place])
    for name, values in arrays.items():
        for other in ({}, {name: values.astype("U9")}, {name: values[None]}, {name: np.array([1j, 2])}):
            stream = io.BytesIO()
            np.savez(stream, **{key: item for key, item in arrays.items() if key != name} | other)
            if name not in ("cell_id", "prompt_id", "version") or not other:
                check(stream.getvalue())
