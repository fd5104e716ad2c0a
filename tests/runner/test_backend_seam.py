"""A backend outside the package goes through sweep, records, metrics, tables, figures and report."""

import math
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.analysis import load_results
from harness.analysis.results import read_results
from harness.backends.backend import backend_class
from harness.config.backend import backend_of
from harness.config.cell import CellConfig, DecodingConfig, MeasurementConfig, WorkloadConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.guarantee import guarantee
from harness.config.schema import SettingsError
from harness.config.view import plain_values
from harness.records.counts import Knowledge, added
from harness.records.files import read_cell
from harness.report.console import print_summary
from harness.report.missing_values import UNKNOWN
from harness.report.write import write_results
from harness.runner.check_prompts import check_prompts
from harness.runner.groups import groups_of
from harness.runner.plan.compose import compose_plan
from harness.runner.run_cells import run_cells
from kernels.contract import VerificationMethod
from kernels.methods import Guarantee
from kernels.verification import Verification
from tests.runner.test_sweep import Silent, plan
from tests.support.fake_servers import NUM_STEPS, FakeServer
from tests.support.prompt_files import write_lines

DEPTH = 3


def run_on(tmp_path, name, module="tests.support.fake_servers"):
    """Run a baseline and two methods on a fake server; returns the folder and the results."""
    cell = CellConfig(
        drafter=drafter_of(DrafterKind.eagle3),
        drafting=replace(CellConfig().drafting, num_speculative_tokens=DEPTH),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=8),
        workload=WorkloadConfig(num_prompts=6, num_turns=1),
        backend=backend_of(f"{module}:{name}", device="cpu", dtype="float32"),
        measurement=MeasurementConfig(num_warmup_requests=1, num_resamples=200),
    )
    methods = (VerificationMethod.strict, VerificationMethod.block)
    cells = [replace(cell, verification=Verification(method)) for method in methods]
    run_cells(plan(tmp_path, *cells), tmp_path, Silent(), [])
    return tmp_path, load_results(tmp_path).set_index("verification")


@pytest.mark.parametrize("name", ["FakeServer", "CountsOfRequests", "CountsOfBlocks", "LosesRequests"])
def test_results_of_any_knowledge_become_a_report(tmp_path, name, capsys):
    """Would catch a table, a figure or an interval that crashes, or shows 0 for what is not known."""
    folder, frame = run_on(tmp_path, name)
    results = read_results(folder)
    pages = write_results(results, folder)
    print_summary(results.cells)
    text = pages[0].read_text()
    assert UNKNOWN[Knowledge(frame.loc["block", "knowledge"])] in text
    rows = [line for line in text.splitlines() if line.startswith("| 1 | eagle3")]
    assert rows and not any(re.fullmatch(r"0(\.0+)?( \[.*)?", cell.strip()) for row in rows for cell in row.split("|"))
    assert frame["output_tokens_per_s"].notna().all() and frame["ttft_mean_ms"].notna().all()
    value, low, high = (frame.loc["strict", f"speedup{end}"] for end in ("", "_low", "_high"))
    assert math.isnan(value) if name == "LosesRequests" else 1 < low < value < high < 1 + DEPTH
    records = {item.cell_id: item for item in results.runs[0].cells}
    for cell_id, beside_s in zip(frame["cell_id"], frame["beside_s"], strict=True):
        blocks = records[cell_id].blocks
        # the server's own clock is scripted, the call's is real
        assert beside_s == sum(item.call_s - item.wall_s for item in blocks) and all(item.call_s > 0 for item in blocks)
    assert frame["num_rounds"].isna().all() and frame["num_cut_eos"].isna().all()
    assert ("failed: TimeoutError: no answer in 60 s" in text) == (name == "LosesRequests")
    capsys.readouterr()


def test_a_backend_that_cannot_be_imported_is_found_before_anything_runs():
    with pytest.raises(SettingsError, match=r"backend\.kind: .*can be imported"):
        compose_plan(["backend.kind=tests.support.fake_servers:Missing"])


def test_settings_of_a_backend_of_the_users_own_are_settings_like_others(tmp_path):
    """Would catch a field that a record, another process or a sweep does not know, and another class that runs."""
    own = ["backend=tests.support.fake_servers:Paced", "backend.pace_s=1,2", "backend.device=cpu"]
    small = ["workload.num_prompts=2", "workload.num_turns=1", "drafter=none", f"output.folder={tmp_path}"]
    cells = compose_plan([*own, *small]).cells
    assert [plain_values(cell)["backend"]["pace_s"] for cell in cells] == [1.0, 2.0]
    assert pickle.loads(pickle.dumps(cells)) == cells
    assert backend_class(cells[0].backend) is FakeServer
    run_cells(plan(tmp_path, *cells), tmp_path, Silent(), [])
    records = read_results(tmp_path).runs[0].cells
    assert sorted(record.config["backend"]["pace_s"] for record in records) == [1.0, 2.0]


def test_the_servers_that_a_run_can_start_are_named_where_none_is():
    """Would catch an option that starts nothing, such as plain, among the ways out."""
    with pytest.raises(SettingsError, match=r"found neither; server=(.*) have a command") as error:
        compose_plan(["backend=server", "server=plain", "drafter=none"])
    named = str(error.value).rpartition("server=")[2].split()[0].split("|")
    assert {"vllm", "sglang", "tensorrt_llm", "llama_cpp"} <= set(named) and "plain" not in named


@pytest.mark.parametrize("backend", ["server", "tests.support.fake_servers:FakeServer"])
def test_what_the_local_engine_alone_reads_is_no_setting_of_another(backend):
    given = [f"backend={backend}", "server.url=http://host:1", "drafter=none"][: 3 if backend == "server" else 1]
    with pytest.raises(SettingsError, match=r"backend\.graphs: .* used only with backend=local"):
        compose_plan([*given, "backend.graphs=true"])
    assert not hasattr(compose_plan(given).cells[0].backend, "graphs")


def test_counts_per_request_have_intervals_over_prompts(tmp_path):
    """Would catch counts that differ from the scripted ones, and rates by position that are lost or made up."""
    folder, frame = run_on(tmp_path, "CountsOfRequests")
    row, record = frame.loc["block"], read_results(folder).cells[-1].record
    accepted = added(item.counts for item in record.requests)
    assert row["num_accepted_tokens"] == accepted.num_accepted_tokens > 0
    assert row["num_drafts"] == NUM_STEPS * 6 and row["num_draft_tokens"] == DEPTH * NUM_STEPS * 6
    length = 1 + accepted.num_accepted_tokens / (NUM_STEPS * 6)
    assert row["mean_acceptance_length"] == pytest.approx(length) and row["mean_acceptance_length_low"] < length
    rates = [row[f"acceptance_rate_per_pos_{i}"] for i in (1, 2, 3)]
    assert rates == [pytest.approx(n / (NUM_STEPS * 6)) for n in accepted.num_accepted_tokens_per_pos]
    assert math.isnan(row["conditional_acceptance_rate_per_pos_2"]) and math.isnan(row["full_draft_length"])


def test_counts_per_block_have_values_and_no_intervals(tmp_path):
    folder, frame = run_on(tmp_path, "CountsOfBlocks")
    row, record = frame.loc["block"], read_results(folder).cells[-1].record
    accepted = sum(item.counts.num_accepted_tokens for item in record.blocks)
    assert row["num_accepted_tokens"] == accepted > 0 and len(record.blocks) == 2
    assert row["acceptance_rate"] == pytest.approx(accepted / (DEPTH * NUM_STEPS * 6))
    assert math.isnan(row["acceptance_rate_low"]) and math.isnan(row["mean_acceptance_length_macro"])
    assert record.blocks[0].reported == {"fake:steps_total": 3}


def test_arrivals_alone_tell_no_drafts(tmp_path):
    """Would catch an acceptance rate of 0 where nothing is known."""
    _, frame = run_on(tmp_path, "FakeServer")
    row = frame.loc["block"]
    assert row["knowledge"] == "arrivals" and row[["num_drafts", "num_accepted_tokens"]].isna().all()
    assert math.isnan(row["acceptance_rate"]) and math.isnan(row["mean_acceptance_length"])
    assert row["num_output_tokens"] > 6 * (NUM_STEPS + 1)


def test_the_record_holds_blocks_failures_and_who_drew(tmp_path):
    folder, frame = run_on(tmp_path, "LosesRequests")
    records = [read_cell(path) for path in sorted((folder / "cells").glob("*.json.gz"))]
    assert len({item.session for record in records for item in record.blocks}) == 1
    for record in records:
        assert record.schema_version == 3 and record.provenance["draft_core"] == "fake"
        assert [item.index for item in record.blocks] == [0, 1]
        assert sum(item.wall_s for item in record.blocks) == record.wall_s
        assert [item.error for item in record.failures] == ["TimeoutError"] * 2 and len(record.requests) == 4
    assert frame["labels"].str.contains("2 requests failed").all()


def test_no_torch_is_needed_to_know_a_backend():
    """Would catch a protocol that loads the local engine for a server elsewhere."""
    load = "from harness.backends.backend import backend_class; from harness.config.backend import backend_of"
    use = "backend_class(backend_of('tests.support.fake_servers:FakeServer'))"
    code = f"import sys; {load}; {use}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_knowledge_that_is_claimed_is_there(tmp_path):
    folder, _ = run_on(tmp_path, "FakeServer")
    record = read_results(folder).cells[-1].record
    for knowledge in (Knowledge.rounds, Knowledge.requests, Knowledge.blocks):
        with pytest.raises(ValueError, match=f"knowledge = {knowledge.value}"):
            replace(record, knowledge=knowledge)


def test_penalties_that_do_not_follow_the_drafts_are_no_lossless_verification():
    """Would catch a server's other law under the name of the target's; SGLang's source gives every position of a draft
    the penalties of the round's start."""
    given = ["backend=server", "server.url=http://host:1", "drafter=eagle3", "drafter.path=x", "target.path=x"]
    given += ["verification=probabilistic", "measurement.baseline=false"]
    found = {}
    for engine in ("sglang", "vllm"):
        for penalty in (0, 1):
            (cell,) = compose_plan([*given, f"server={engine}", f"decoding.presence_penalty={penalty}"]).cells
            found[engine, penalty] = guarantee(cell)
    biased = {key for key, promise in found.items() if promise is Guarantee.biased}
    assert biased == {("sglang", 1)}


@pytest.mark.parametrize(("engine", "is_refused"), [("sglang", True), ("vllm", False)])
def test_a_line_with_such_penalties_is_refused_before_work(engine, is_refused, tmp_path):
    """Would catch requests of another law among those of a cell that is called lossless."""
    path = write_lines(tmp_path / "own.jsonl", {"prompt": "a"}, {"prompt": "b", "sampling": {"presence_penalty": 0.5}})
    given = ["backend=server", "server.url=http://host:1", "drafter=eagle3", "drafter.path=x", f"server={engine}"]
    given += ["verification=probabilistic", "measurement.baseline=false", "target.path=x", f"workload.path={path}"]
    plan = compose_plan(given)
    groups = groups_of(plan.cells)
    if is_refused:
        with pytest.raises(SettingsError, match="prompt 2: expected sampling under which verification is lossless"):
            check_prompts(groups, downloads=False)
    else:
        check_prompts(groups, downloads=False)
