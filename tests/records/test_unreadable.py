"""A file that cannot be used costs the other cells nothing: it is named, and they are reported."""

import gzip
import json
import os

import numpy as np
import pandas as pd
import pytest

from experiments import report as command
from experiments import reproduce as reproduce_command
from harness.analysis import load_results
from harness.analysis.results import read_results
from harness.records.acceptance_terms import (
    COLUMNS,
    DraftTerms,
    RequestTerms,
    collect_terms,
    measured_drafts,
    write_terms,
)
from harness.records.files import read_cell
from harness.report.run_comparison import read_two_runs
from harness.report.warnings import warnings
from tests.support.synthetic_cells import simulated_run


@pytest.fixture
def folder(tmp_path):
    return simulated_run(tmp_path / "run", methods=("strict", "block"), temperatures=(1.0,), num_prompts=3)


def a_folder(path):
    path.unlink()
    path.mkdir()


def without_permission(path):
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("needs a user who may not read every file")


def a_link_to_itself(path):
    """It cannot be read, not even by root."""
    path.unlink()
    path.symlink_to(path.name)


BY_BYTES = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "random": lambda data: np.random.default_rng(0).bytes(len(data)),
    "one bit": lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
}
BY_FILE = {"folder": a_folder, "no permission": without_permission, "no file to open": a_link_to_itself}


def with_first_request(**values):
    return lambda record: record | {"requests": [record["requests"][0] | values, *record["requests"][1:]]}


def with_first_round(name, value):
    def change(record):
        rounds = record["requests"][0]["rounds"]
        return with_first_request(rounds=rounds | {name: [value, *rounds[name][1:]]})(record)

    return change


BY_CONTENT = {
    "no object": lambda record: [record],
    "another schema": lambda record: record | {"schema_version": 99},
    "a field missing": lambda record: {name: record[name] for name in record if name != "provenance"},
    "a type": lambda record: record | {"wall_s": "1.5"},
    "a time": lambda record: record | {"wall_s": -1.0},
    "no rounds": with_first_request(rounds={}),
    "more accepted than drafted": with_first_round("num_accepted_tokens", 5),
    "a token": with_first_request(output_token_ids=[-1]),
    "a request twice": lambda record: record | {"requests": [record["requests"][0], *record["requests"]]},
    "no settings": lambda record: record | {"config": {}},
    "a setting": lambda record: record | {"config": record["config"] | {"decoding": {"temperature": "warm"}}},
    "a setting missing": lambda record: record | {"config": {**record["config"], "drafter": {}}},
}


def damage_record(path, name):
    if name in BY_FILE:
        BY_FILE[name](path)
    elif name in BY_BYTES:
        path.write_bytes(BY_BYTES[name](path.read_bytes()))
    else:
        content = BY_CONTENT[name](json.loads(gzip.decompress(path.read_bytes())))
        path.write_bytes(gzip.compress(json.dumps(content).encode()))


@pytest.mark.parametrize("name", [*BY_BYTES, *BY_FILE, *BY_CONTENT])
def test_whatever_is_wrong_with_a_record_the_others_are_read(name, folder):
    """Would catch an error of a reader that ends the report of all cells, and a cell that is missing without a word."""
    *others, path = sorted((folder / "cells").iterdir())
    damage_record(path, name)
    results = read_results(folder)
    (told,) = results.unreadable
    assert told.startswith(f"{path}: ") and "\n" not in told
    assert {f"{cell.record.cell_id}.json.gz" for cell in results.cells} == {item.name for item in others}
    (line,) = [line for line in warnings(results) if path.name in line]
    assert line == f"left out: {told}" and not any("no record" in line for line in warnings(results))


def test_every_command_names_what_it_leaves_out(folder, capsys):
    """And ends with 1: a result is missing."""
    cells = folder / "cells"
    path = cells / f"{read_results(folder).cells[-1].record.cell_id}.json.gz"
    damage_record(path, "truncated")
    with pytest.warns(UserWarning, match=path.name):
        assert len(load_results(folder)) == 2
    for arguments in ([str(folder)], [str(cells), "--format", "csv"]):
        assert command.main(arguments) == 1
        assert f"note: left out: {path}: " in capsys.readouterr().err
    assert path.name in read_two_runs(folder, cells)[1].unreadable[0]
    assert path.name in (folder / "report.md").read_text() and len(pd.read_csv(folder / "tables" / "cells.csv")) == 2
    for other in cells.iterdir():
        damage_record(other, "truncated")
    assert command.main([str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert reproduce_command.main([str(folder)]) == 2


def test_a_manifest_that_cannot_be_read_costs_no_other_run_its_report(tmp_path, capsys):
    for name in ("one", "two"):
        simulated_run(tmp_path / name, methods=("strict",), temperatures=(1.0,), num_prompts=2)
    path = tmp_path / "one" / "run.json"
    path.write_text("[]")
    results = read_results(tmp_path)
    assert {cell["run"] for cell in results.cells} == {"two"} and str(path) in results.unreadable[0]
    assert command.main([str(path.parent)]) == 2
    assert f"give {path.parent / 'cells'}" in capsys.readouterr().err
    assert command.main([str(path.parent / "cells"), "--format", "csv"]) == 0


def record_terms(path):
    """Write terms beside a record, all probabilities of which are 1, as far as the record expects that."""
    record = read_cell(path)
    found = []
    for request in record.requests:
        drafts = [
            DraftTerms(index, {name: np.ones(count) for name, column in COLUMNS.items() if column.is_required})
            for index, count in measured_drafts(request)
        ]
        found.append(RequestTerms.of(request.key, drafts))
    return write_terms(collect_terms(record.cell_id, found), path.parent)


@pytest.mark.parametrize("name", [*BY_BYTES, *BY_FILE, "of another cell", "of fewer drafts"])
def test_whatever_is_wrong_with_the_terms_of_a_cell_it_is_reported_without_them(name, folder, capsys):
    """Would catch terms that end the report of all cells, and terms that are used although they are of other drafts."""
    first, second = (
        folder / "cells" / f"{cell.record.cell_id}.json.gz"
        for cell in read_results(folder).cells
        if not cell.is_baseline
    )
    kept, path = record_terms(first), record_terms(second)
    if name == "of another cell":
        path.write_bytes(kept.read_bytes())
    elif name == "of fewer drafts":
        record = read_cell(second)
        (key, *_) = (request.key for request in record.requests)
        write_terms(collect_terms(record.cell_id, [RequestTerms.of(key, ())]), path.parent)
    else:
        damage_record(path, name)
    results = read_results(folder)
    (told,) = results.unreadable
    assert told.startswith(f"{path}: ") and len(results.cells) == 3
    assert [item.cell.record.cell_id for item in results.recording.cells] == [kept.name.partition(".")[0]]
    assert f"left out: {told}" in warnings(results)
