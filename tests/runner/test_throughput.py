"""Throughput without a checkpoint, from the command to the report: tiny sizes, exact lengths, labels everywhere."""

from __future__ import annotations

import csv
import io

import pytest

from experiments import run as command
from experiments.prompt import headline
from harness.analysis.results import read_results
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import Weights
from harness.config.sections import DecodingConfig
from harness.config.workload import WorkloadConfig
from harness.records.files import read_cell
from harness.records.request import FinishReason
from harness.report.console import print_summary
from harness.workload.conversations import Conversation, exact_length
from harness.workload.prompt import Prompt
from tests.support.tiny_shapes import GLM, shape_folder

NUM_REQUESTS, NUM_PROMPT_TOKENS, NUM_NEW_TOKENS = 3, 20, 6
SHORT = (
    f"workload.num_requests={NUM_REQUESTS}",
    f"workload.prompt_tokens={NUM_PROMPT_TOKENS}",
    f"decoding.max_new_tokens={NUM_NEW_TOKENS}",
    "measurement.num_warmup_requests=1",
    "backend.device=cpu",
)


def records_in(folder):
    return [read_cell(path) for path in sorted((folder / "cells").iterdir())]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """An experiment with every drafter that has a network, target and drafters random."""
    folder = tmp_path_factory.mktemp("throughput")
    shape = shape_folder(folder / "tiny")
    arguments = ["experiment=throughput_llama3_8b", f"target.path={shape}", "target.shape=null", "target.name=tiny"]
    arguments += ["drafter=eagle,eagle3,mtp", f"output.folder={folder / 'run'}", "--format", "md"]
    assert command.main([*arguments, *SHORT]) == 0
    return folder / "run"


def test_every_request_has_the_lengths_that_were_asked_for(run_folder):
    records = records_in(run_folder)
    assert {record.config["drafter"]["kind"] for record in records} == {"none", "eagle", "eagle3", "mtp"}
    for record in records:
        assert len(record.requests) == NUM_REQUESTS
        for request in record.requests:
            assert request.num_prompt_tokens == NUM_PROMPT_TOKENS
            assert len(request.output_token_ids) == NUM_NEW_TOKENS
            assert request.finish_reason is FinishReason.length


def test_records_say_what_is_random_synthetic_and_stands_in(run_folder):
    for record in records_in(run_folder):
        baseline = record.config["drafter"]["kind"] == "none"
        assert record.labels == (("weights: random",) if baseline else ("synthetic", "weights: random"))
        assert record.config["target"]["weights"] == "random"
        assert record.config["dtype"] == "bfloat16"
        assert record.config["workload"]["prompt_tokens"] == NUM_PROMPT_TOKENS
        assert record.fallbacks == (
            "tiny has no tokenizer: the zoo's stands in, and its tokens mean nothing to random weights",
        )
        if not baseline:
            assert record.config["drafter"]["weights"] == "random"
            assert record.config["verification"]["rates"] == [0.6, 0.37, 0.23]


def test_every_table_and_figure_and_the_page_say_it(run_folder):
    for name in ("summary", "methods", "paired"):
        text = (run_folder / "tables" / f"{name}.md").read_text()
        for words in ("weights: random: of the models named", "synthetic: drafts were accepted at given rates"):
            assert words in text
        assert "profile round_eagle_k3: acceptance rates 0.6, 0.37, 0.23 by position; EAGLE, K = 3" in text
    methods = (run_folder / "tables" / "methods.md").read_text()
    assert "### tiny (weights: random) · eagle (weights: random) · K = 3 · T = 1" in methods
    assert (
        "| metric | baseline [weights: random] | synthetic(profile=round_eagle_k3), sampled drafts [synthetic;"
        in methods
    )
    summary = (run_folder / "tables" / "summary.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(summary)))
    assert [row["labels"] for row in rows] == ["weights: random", *["synthetic; weights: random"] * 3]
    page = (run_folder / "report.md").read_text()
    assert "with intervals (cells labelled synthetic; weights: random)" in page
    cells = list(csv.DictReader((run_folder / "tables" / "cells.csv").open()))
    assert {(row["target_weights"], row["prompt_tokens"]) for row in cells} == {("random", "20")}
    assert {row["drafter"]: row["drafter_weights"] for row in cells} == {
        "none": "",
        "eagle": "random",
        "eagle3": "random",
        "mtp": "random",
    }


def test_the_summary_on_the_console_says_it(run_folder):
    stream = io.StringIO()
    print_summary(read_results(run_folder).cells, stream)
    lines = stream.getvalue().splitlines()
    assert any(line.startswith("target tiny (weights: random) · ") for line in lines)
    assert "eagle (weights: random) · K = 3 · T = 1" in lines
    shown = " ".join(stream.getvalue().split())
    for words in ("weights: random: of the models named", "are not measured", "stated by no publication"):
        assert words in shown


@pytest.mark.parametrize(
    ("experiment", "changes", "num_cells"),
    [
        ("pr35461_llama3_eagle_shapes", {}, 2),
        ("pr35461_qwen3_eagle3_shapes", {}, 2),
        ("pr35461_glm47_mtp_shapes", GLM, 3),
    ],
)
def test_the_pull_requests_settings_run_at_tiny_sizes(experiment, changes, num_cells, tmp_path, capsys):
    shape = shape_folder(tmp_path / "tiny", **changes)
    arguments = [f"experiment={experiment}", f"target.path={shape}", "target.shape=null", "target.name=tiny"]
    assert command.main([*arguments, f"output.folder={tmp_path / 'run'}", *SHORT]) == 0
    assert len(records_in(tmp_path / "run")) == num_cells
    page = (tmp_path / "run" / "report.md").read_text()
    assert "is set and not measured" in page and "acceptance rates" in page
    assert "published" in " ".join(page.split())


def test_an_answer_of_a_random_model_is_headed_as_one():
    cell = CellConfig(drafter=drafter_of(DrafterKind.eagle, weights=Weights.random))
    assert headline(cell).endswith("(lossless); drafter weights: random, so the text means nothing")


def test_a_random_drafter_beside_the_zoos_own_target_is_the_only_one_labelled(tmp_path, capsys):
    arguments = ["drafter=draft_model", "drafter.weights=random", "workload.num_turns=1", "workload.num_prompts=2"]
    assert command.main([*arguments, *SHORT, f"output.folder={tmp_path}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "draft_model (weights: random) · K = 4 · T = 1" in shown and "target zoo · " in shown
    assert "weights: random: of the models named" in shown and "synthetic:" not in shown
    labelled = {record.config["drafter"]["kind"]: record.labels for record in records_in(tmp_path)}
    assert labelled == {"none": (), "draft_model": ("drafter weights: random",)}
    assert all(record.fallbacks == () for record in records_in(tmp_path))


def test_the_same_run_again_has_the_same_ids_and_tokens(run_folder, tmp_path):
    shape = run_folder.parent / "tiny"
    arguments = ["experiment=throughput_llama3_8b", f"target.path={shape}", "target.shape=null", "target.name=tiny"]
    assert command.main([*arguments, "drafter=eagle3", *SHORT, f"output.folder={tmp_path}", "--format", "md"]) == 0
    before = {record.cell_id: record for record in records_in(run_folder)}
    for record in records_in(tmp_path):
        tokens = {item.key: item.output_token_ids for item in record.requests}
        assert tokens == {item.key: item.output_token_ids for item in before[record.cell_id].requests}


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(2, [7, 8]), (3, [7, 8, 9]), (8, [7, 8, 9, 7, 8, 9, 7, 8])],
    ids=["cut", "as is", "repeated"],
)
def test_a_prompt_is_cut_or_repeated_to_the_token(num_tokens, expected):
    assert exact_length((7, 8, 9), num_tokens) == expected


def test_prompts_of_one_length_are_the_same_for_every_arm():
    store, conversation = ModelStore(), Conversation(Prompt("short", "test", ("Name a colour.",)), 0, 7)
    read = []
    for kind in (DrafterKind.none, DrafterKind.eagle3, DrafterKind.ngram):
        cell = CellConfig(
            drafter=drafter_of(kind),
            decoding=DecodingConfig(max_new_tokens=3),
            workload=WorkloadConfig(num_turns=1, prompt_tokens=50),
            backend=Local(device="cpu", max_concurrency=2),
        )
        request = LocalBackend(cell, store).requests.first(conversation)
        read.append(request.token_ids)
    assert len(set(read)) == 1 and len(read[0]) == 50


def test_a_length_that_does_not_fit_the_target_is_refused_before_anything_runs():
    cell = CellConfig(workload=WorkloadConfig(num_turns=1, prompt_tokens=1000), backend=Local(device="cpu"))
    conversation = Conversation(Prompt("short", "test", ("Name a colour.",)), 0, 7)
    with pytest.raises(
        ValueError, match="expected a prompt of at most 960 tokens beside its answer, found none among 1"
    ):
        LocalBackend(cell).fit_slots([conversation])
