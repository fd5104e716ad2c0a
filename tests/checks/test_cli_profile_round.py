"""The profile of a round as a command: settings to table and JSON on a CPU, and mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from experiments import profile_round as command
from experiments import report, reproduce, status
from harness.checks.profiling.report import HEADER, JSON, PHASES
from harness.config.schema import all_settings
from harness.records.runs import PROFILE
from tests.support.own_process import output_of
from tests.support.profile_pages import rows_of
from tests.support.tiny_shapes import shape_folder

ROOT = Path(__file__).parents[2]
LENGTH = 12
ON_A_CPU = ("backend.device=cpu", "backend.max_concurrency=2", "--length", str(LENGTH), "--repeats", "2")


def median_ms(text):
    return float(text.partition(" ")[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The zoo with a head and with a draft model, and the baseline that is added."""
    folder = tmp_path_factory.mktemp("profile")
    assert command.main(["drafter=eagle3,draft_model", f"output.folder={folder}", *ON_A_CPU]) == 0
    return folder


@pytest.mark.parametrize("module", [status, report, reproduce], ids=lambda module: module.__name__)
def test_its_folder_is_told_from_that_of_a_run(module, folder, capsys):
    """Would catch a profile that other commands take for a run that never began."""
    assert module.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert "found a profile of a round" in error and f"its table is {folder / PROFILE}" in error


def test_on_a_cpu_few_tokens_and_repeats_are_the_default(monkeypatch, tmp_path, capsys):
    """Would catch minutes for times that are no measurement, and a GPU that is measured as briefly."""
    asked = []

    def profile(cells, *sizes):
        asked.append(sizes)
        raise ValueError("seen enough")

    monkeypatch.setattr("harness.checks.profiling.cells.profile_cells", profile)
    monkeypatch.setattr(command, "asks_for_gpu", lambda name: name != "cpu")
    for device, sizes in (("cpu", []), ("cpu", ["--repeats", "7"]), ("cpu,cuda", []), ("cuda", ["--length", "9"])):
        assert command.main([f"backend.device={device}", f"output.folder={tmp_path}", *sizes]) == 1
    assert asked == [(32, 3), (32, 7), (256, 50), (9, 50)]
    assert "1 cells, 32 tokens in each slot, 3 repeats of each piece" in capsys.readouterr().err


def test_every_cell_has_a_row_with_times_of_all_phases(folder):
    rows = rows_of((folder / PROFILE).read_text())
    assert [row["drafter"] for row in rows] == ["none", "eagle3", "draft_model"]
    assert [row["K"] for row in rows] == ["0", "4", "4"]
    for row in rows:
        assert (row["slots"], row["tokens per slot"]) == ("2", str(LENGTH))
        for name in (*PHASES, "step", "round"):
            assert re.fullmatch(r"\d+\.\d{3} \[\d+\.\d{3}, \d+\.\d{3}\]", row[f"{name} (ms)"])
            assert median_ms(row[f"{name} (ms)"]) > 0
        # each of six numbers is rounded to a thousandth
        parts = sum(median_ms(row[f"{name} (ms)"]) for name in PHASES)
        assert float(row["sum of phases (ms)"]) == pytest.approx(parts, abs=0.003)


def test_on_a_cpu_every_row_says_that_it_is_no_measurement_and_claims_neither_roofline_nor_host(folder):
    page = (folder / PROFILE).read_text()
    assert "the times are no measurement, there is no bandwidth" in page
    for row in rows_of(page):
        assert row["labels"] == "no measurement"
        since = HEADER.index("host (ms)")
        assert {row[name] for name in HEADER[since : HEADER.index("TFLOP/s") + 1]} == {"–"}
    assert "no time of the host beside the device's, because they are one" in page
    for cell in json.loads((folder / JSON).read_text())["cells"]:
        assert cell["machine"]["is_measurement"] is False and cell["machine"]["read_bandwidth_bytes_per_s"] is None
        assert cell["floors"] is cell["host_us"] is cell["host_share"] is None
        assert cell["machine"]["matrix_rate_operations_per_s"] == max(cell["machine"]["matrix_ways"].values()) > 0


def test_the_json_holds_settings_parts_and_provenance(folder):
    content = json.loads((folder / JSON).read_text())
    assert content["length"] == LENGTH and content["repeats"] == 2
    assert content["provenance"]["sampling_core"] == "reference" and "--length 12" in content["command"]
    baseline, head, model = content["cells"]
    for cell in content["cells"]:
        profile = cell["profile"]
        assert cell["sum_of_phases_us"] == pytest.approx(sum(profile["phases"][name]["median_us"] for name in PHASES))
        assert profile["round"]["num_repeats"] == profile["step"]["num_repeats"] == 2
        assert cell["dtype"] == "float32" and cell["graphs"] is False
    assert baseline["profile"]["floor"]["draft_output_bytes"] == 0 == model["profile"]["floor"]["extend_weight_bytes"]
    assert head["profile"]["floor"]["extend_weight_bytes"] > 0
    assert head["config"]["drafter"]["kind"] == "eagle3"


def test_the_page_ends_with_definitions_and_provenance(folder):
    page = (folder / PROFILE).read_text()
    for words in (
        "- Roofline of a part: the larger",
        "- Bytes: what a round must read",
        "- Operations: two for each weight",
        "- Round: wall time",
        "| provenance.git.commit |",
    ):
        assert words in page


def test_random_weights_are_labelled_and_each_line_says_that_nothing_is_measured(tmp_path, capsys):
    shape = shape_folder(tmp_path / "tiny")
    asked = ["experiment=throughput_llama3_8b", f"target.path={shape}", "target.shape=null", "target.name=tiny"]
    assert command.main([*asked, f"output.folder={tmp_path / 'run'}", *ON_A_CPU]) == 0
    rows = rows_of((tmp_path / "run" / PROFILE).read_text())
    assert [row["labels"] for row in rows] == [
        "no measurement; weights: random",
        "no measurement; synthetic; weights: random",
    ]
    assert "cell 1: tiny has no tokenizer: the zoo's stands in" in (tmp_path / "run" / PROFILE).read_text()
    lines = capsys.readouterr().out.splitlines()
    assert [text[:5] for text in lines] == ["[1/2]", "[2/2]"]
    assert all(text.endswith("(no measurement)") and "[weights: random]" in text for text in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", "1"], "--length: expected a whole number, 2 or more, found '1'"),
        (["--length", "1e0.5"], "--length: expected a whole number, 2 or more, found '1e0.5'"),
        (["--repeats", "1"], "--repeats: expected a whole number, 2 or more, found '1'"),
        (["--lenght", "9"], "unknown option --lenght (did you mean --length?)"),
        (["drafter=eagel3"], "no such option (did you mean eagle3?)"),
        (["decoding.max_new_tokens=8"], "decoding.max_new_tokens is not used here: every slot gets a prompt of one"),
        (["measurement.num_blocks=3"], "measurement.num_blocks is not used here; of measurement only"),
        (["workload.path=nowhere.jsonl"], "found none at 'nowhere.jsonl'"),
        (["output.folder=pyproject.toml/x"], "expected a folder that can be made and written to"),
        (["verification=coupled", "drafting.sampling=sampled", "drafter=mtp"], "or verification=strict"),
    ],
    ids=["length", "number", "repeats", "option", "group", "output", "measurement", "file", "folder", "combination"],
)
def test_a_mistake_is_one_line_before_anything_is_loaded(arguments, message, monkeypatch, capsys):
    def loads(*_):
        raise AssertionError("a mistake was seen only after models were loaded")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("harness.checks.profiling.cells.profile_cells", loads)
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", "1022"], "--length: expected at most 1021 tokens in a slot of target zoo, which holds 1024"),
        (["backend.max_length=20"], "and 4 of them while the engine runs, found 30"),
    ],
    ids=["positions", "slots"],
)
def test_a_length_that_does_not_fit_the_target_is_one_line(arguments, message, tmp_path, capsys):
    given = ["backend.device=cpu", "backend.max_concurrency=1", "--length", "30", "--repeats", "2"]
    assert command.main([*given, *arguments, f"output.folder={tmp_path}"]) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path, capsys):
    assert command.main(["backend.device=cuda", f"output.folder={tmp_path}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: backend.device: expected a GPU for cuda")


def test_help_list_and_mistakes_come_without_torch():
    code = (
        "import sys; from experiments.profile_round import main; "
        "assert main(['--help']) == 0; assert not {'torch', 'hydra'} & set(sys.modules); "
        "assert main(['--list', 'drafter=mtp']) == 0; assert main(['drafter=unknown']) == 2; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    output_of(code)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["drafting.depth=1:4/8:2"], "drafting.depth: expected null or a number"),
        (["drafting.tree=2-2", "verification=recursive"], "drafting.tree: expected null"),
    ],
    ids=["depth", "tree"],
)
def test_rounds_that_differ_are_not_profiled(settings, message, capsys):
    """Would catch times of K drafts under the name of fewer."""
    assert command.main(["drafter=mtp", "backend.device=cpu", *settings]) == 1
    assert message in capsys.readouterr().err


def test_the_help_lists_no_setting_that_is_refused(capsys):
    assert command.main(["--help"]) == 0
    listed = set(re.findall(r"^  ([a-z_.]+)=", capsys.readouterr().out, re.M))
    assert {"decoding.temperature", "measurement.baseline", "backend.graphs", "name"} <= listed
    assert listed == {key for key in all_settings() if command.takes(key)} < set(all_settings())
    for key in sorted(set(all_settings()) - listed):
        value = "[a]" if isinstance(all_settings()[key].default, list) else (*all_settings()[key].choices, 1)[0]
        # a kind is given by the option of its group
        named = key.removesuffix(".kind")
        assert command.main([f"{key}={value}"]) == 2 and f"{named} is not used here" in capsys.readouterr().err
