"""The smaller size of an experiment without a GPU: applied there only, below the command line, and said."""

import json

import pytest
import torch

from experiments import run as command
from harness.config.schema import SettingsError
from harness.records.files import read_cell
from harness.runner.plan.compose import compose_plan

EXPERIMENT = "experiment=best_depth"


def sizes(plan):
    depths = {cell.drafting.num_speculative_tokens for cell in plan.cells if not cell.is_baseline}
    return plan.cells[0].workload.num_requests, plan.cells[0].decoding.max_new_tokens, depths


@pytest.mark.parametrize(
    ("has_gpu", "device", "is_small"),
    [(False, "auto", True), (True, "auto", False), (True, "cpu", True), (False, "cuda", False)],
    ids=["none", "there", "there but not asked for", "asked for"],
)
def test_the_size_follows_the_device(has_gpu, device, is_small, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    plan = compose_plan([EXPERIMENT, f"backend.device={device}"])
    assert sizes(plan) == ((32, 32, {1, 3, 6}) if is_small else (256, 64, {1, 2, 3, 4, 6}))
    assert len(plan.warnings) == int(is_small)


def test_the_command_line_wins_over_the_smaller_size():
    arguments = ["workload.num_requests=48", "drafting.num_speculative_tokens=2,4", "decoding.temperature=1"]
    plan = compose_plan([EXPERIMENT, *arguments, "backend.device=cpu"])
    assert sizes(plan) == (48, 32, {2, 4})
    assert plan.warnings == (
        "reduced size, because there is no GPU: backend.max_concurrency=1,16 instead of 1,4,16,64, "
        "decoding.max_new_tokens=32 instead of 64",
    )


@pytest.mark.parametrize("sweep", [[], ["backend=server"]], ids=["of a group", "of no group"])
def test_options_of_groups_are_smaller_too(sweep):
    """Would catch a shape of billions of weights on a CPU where nothing that is swept composes the files again."""
    plan = compose_plan(["experiment=side_by_side", *sweep, "backend.device=cpu"])
    assert {cell.target.name for cell in plan.cells} == {"zoo"}
    assert ["{vllm_cpu}" in str(cell.server.command) for cell in plan.cells if cell.is_served] == [True, True]
    assert {cell.verification.method.value for cell in plan.cells if not cell.is_baseline} == {"probabilistic"}


@pytest.mark.parametrize(
    ("argument", "is_told"), [("verification.profile=round_eagle_k3", True), ("decoding.top_k=-1", False)]
)
def test_an_error_says_where_only_the_smaller_size_has_it(argument, is_told):
    """Would catch an error about a value that was not given, and a long remark on one that is wrong at any size."""
    with pytest.raises(SettingsError) as raised:
        compose_plan(["experiment=side_by_side", argument, "backend.device=cpu"])
    assert ("reduced size, because there is no GPU: target=zoo, " in str(raised.value)) is is_told
    assert str(raised.value).endswith("; backend.device=cuda plans it in full") is is_told


def test_records_and_report_say_what_the_run_is(tmp_path, capsys):
    """Would catch a reduced run, or one on the zoo, that reads like the one asked for."""
    folder = tmp_path / "run"
    small = ["workload.num_requests=2", "verification=coupled,strict", "backend.device=cpu"]
    small += ["measurement.num_warmup_requests=0", "measurement.num_blocks=1", f"output.folder={folder}"]
    assert command.main(["experiment=pr35461_glm47_mtp", *small]) == 0
    told = capsys.readouterr().err
    warnings = ["reduced size, because there is no GPU: decoding.max_new_tokens=64 instead of 256"]
    warnings += ["the zoo's models stand in for zai-org/GLM-4.7-Flash"]
    for path in (folder / "cells").iterdir():
        fallbacks = read_cell(path).fallbacks
        assert all(any(text.startswith(remark) for text in fallbacks) for remark in warnings)
    page = (folder / "report.md").read_text()
    for text in ("What this shows: How the two methods", "What it does not show: pr35461 is biased", *warnings):
        assert text in page
    assert all(remark in told for remark in warnings) and "(all cells)" in page
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["reference"] == "coupled" and manifest["does_not_show"].startswith("pr35461 is biased")
    assert (
        "| metric | baseline | coupled, coupled drafts | strict, sampled drafts"
        in (folder / "tables" / "methods.md").read_text()
    )
