"""What the files of a model do not say, from the file to `--list`, the record, the tables and the report."""

from __future__ import annotations

from shutil import copytree

import pytest

from experiments.run import main
from harness.analysis.frame import load_results
from harness.models.zoo import zoo_path
from harness.records.files import read_cell
from tests.support.small_run import small_run
from tests.support.tiny_models import edit_config

VOUCHED = (
    "drafter: output_multiplier = 0.5 in config.json, which would change the scale of embeddings, residuals, attention "
    "or logits: left out, because drafter.accept_unknown vouches for it"
)
ASSUMED = (
    "drafter: its file does not state norm_before_residual, and false is taken as speculators does, while vLLM takes "
    "true"
)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A head whose file leaves out what readers disagree on, and asks for what is not computed."""
    folder = copytree(zoo_path("eagle3"), tmp_path_factory.mktemp("heads") / "silent")
    edit_config(folder, drop=("norm_before_residual",), output_multiplier=0.5)
    return folder


def test_what_was_assumed_of_a_head_is_told_wherever_its_cell_is_seen(head, tmp_path, capsys):
    """Would catch a default that only standard error sees, or that reads as one of the other cells."""
    settings = ("drafter=eagle3", f"drafter.path={head}", "drafter.accept_unknown=[output_multiplier]")
    assert main([*settings, f"output.folder={tmp_path}", "--list"]) == 0
    listed = capsys.readouterr().err
    assert f"assumed: {VOUCHED} (cells 2)" in listed and f"assumed: {ASSUMED} (cells 2)" in listed
    folder = small_run(tmp_path, *settings)
    records = [read_cell(path) for path in (folder / "cells").glob("*.json.gz")]
    assumed = {item.config["drafter"]["kind"]: item.assumptions for item in records}
    assert assumed == {"none": (), "eagle3": (VOUCHED, ASSUMED)}
    page = (folder / "report.md").read_text().splitlines()
    told = [f"- assumed: {text} (eagle3 (silent) probabilistic, sampled drafts)" for text in (VOUCHED, ASSUMED)]
    assert set(told) <= set(page)
    summary = (folder / "tables" / "summary.md").read_text()
    assert f"assumed: {ASSUMED}." in summary and f"assumed: {VOUCHED}." in summary
    # what is read of the target is told of every head, assumed or not
    read = "eagle3 (silent) reads the states that enter layers 2, 5, 7 of the target, counted from 0."
    assert read in summary and f"- Layers: {read}" in (folder / "report.md").read_text().splitlines()
    assert {item.config["drafter"]["kind"]: item.aux_layers for item in records} == {"none": (), "eagle3": (2, 5, 7)}
    frame = load_results(folder)
    column = dict(zip(frame["drafter"], frame["assumptions"], strict=True))
    assert column == {"none": "", "eagle3": f"{VOUCHED}; {ASSUMED}"}
    assert dict(zip(frame["drafter"], frame["aux_layers"], strict=True)) == {"none": "", "eagle3": "2/5/7"}
    assert not frame["fallbacks"].str.contains("norm_before_residual").any()
