"""Running recorded cells again: the same cells and tokens, and the report where they differ."""

from dataclasses import replace

import pytest

from experiments import reproduce as command
from experiments import run as run_command
from harness.records.runs import read_runs
from harness.records.same_tokens import same_tokens
from harness.records.shared_cores import shared_cores
from harness.runner.plan.from_records import recorded_cell, recorded_plan
from harness.runner.plan.run_plan import with_baselines
from tests.support.tiny_shapes import shape_folder

SHORT = (
    "decoding.max_new_tokens=5",
    "workload.num_requests=3",
    "measurement.num_warmup_requests=0",
    "backend.device=cpu",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One experiment on the zoo whose cells, order and methods vary, one with random weights and a profile."""
    folder = tmp_path_factory.mktemp("again")
    shape = shape_folder(folder / "shape")
    zoo = [
        "experiment=methods",
        "verification=coupled,block,lenient",
        "verification.leniency=0.5",
        "workload.num_turns=1",
    ]
    random = ["experiment=throughput_llama3_8b", f"target.path={shape}", "target.shape=null", "target.name=tiny"]
    random += ["workload.prompt_tokens=9"]
    for name, arguments in (("zoo", zoo), ("random", random)):
        assert run_command.main([*arguments, *SHORT, f"output.folder={folder / name}"]) == 0
    return folder


def records_of(folder):
    (run,) = read_runs(folder)
    return run.cells


@pytest.mark.parametrize("name", ["zoo", "random"])
def test_a_run_from_recorded_settings_gives_the_same_cells_and_tokens(name, folders, capsys):
    """Would catch a setting that is not recorded, or that the record cannot be turned back into."""
    recorded = records_of(folders / name)
    capsys.readouterr()
    assert command.main([str(folders / name)]) == 0
    num_requests = sum(len(record.requests) for record in recorded)
    verdict = f"the same tokens: {num_requests} of {num_requests} requests in {len(recorded)} cells"
    assert capsys.readouterr().out.splitlines()[-1] == verdict
    new = records_of(folders / f"{name}-again")
    assert {record.cell_id for record in new} == {record.cell_id for record in recorded}
    tokens = {(record.cell_id, item.key): item.output_token_ids for record in recorded for item in record.requests}
    assert tokens == {(record.cell_id, item.key): item.output_token_ids for record in new for item in record.requests}
    page = (folders / f"{name}-again" / "report.md").read_text()
    assert f"- Command: `rejection-lab reproduce {folders / name}`" in page and "What it does not show" in page
    fallbacks = {record.cell_id: record.fallbacks for record in recorded}
    assert {record.cell_id: record.fallbacks for record in new} == fallbacks
    assert any(fallbacks.values()) is (name == "random") is ("- fallback: " in page)


def test_the_plan_is_one_that_a_sweep_could_have_made(folders):
    """Would catch baselines after the cells that they are for, and cells in another form than the composed ones."""
    records = records_of(folders / "zoo")
    plan = recorded_plan(records[::-1], {}, folders / "new", "command")
    assert plan.cells[0].is_baseline and len(plan.cells) == len(records)
    assert set(map(repr, plan.cells)) == set(map(repr, with_baselines(plan.cells)))


def test_what_a_run_has_instead_of_what_was_asked_goes_on_and_its_workers_do_not(folders):
    """Would catch cells that share no core, labelled with the workers of the run that they repeat."""
    beside = shared_cores(2, "cpu", {"torch_threads": 1, "cpu": {"num_cores": 2}})
    records = [replace(record, fallbacks=("reduced size", *beside)) for record in records_of(folders / "zoo")]
    assert recorded_plan(records, {}, folders / "new", "command").warnings == ("reduced size",)


def test_other_tokens_and_cells_that_are_not_there_are_named(folders):
    first, second, *others = records_of(folders / "zoo")
    request, *rest = first.requests
    token, *tokens = request.output_token_ids
    changed = replace(first, requests=(replace(request, output_token_ids=(token + 1, *tokens)), *rest))
    found = same_tokens((first, second, *others), (changed, *others))
    assert not found.is_same and found.missing == (second.cell_id,)
    assert found.different == ((first.cell_id, 1, len(first.requests)),)
    assert found.lines[0] == f"cell {first.cell_id}: 1 of {len(first.requests)} requests have other tokens"
    assert same_tokens((first,), (replace(first, requests=tuple(rest), blocks=()),)).different[0][1] == 1


def test_settings_that_this_version_does_not_have_are_an_error(folders):
    """Would catch a record of another version that runs with its unknown settings left out."""
    record = records_of(folders / "zoo")[0]
    unknown = replace(record, config={**record.config, "decoding": {**record.config["decoding"], "warmth": 1}})
    with pytest.raises(ValueError, match=f"cell {record.cell_id}: expected settings that this version takes.*warmth"):
        recorded_cell(unknown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: PATH"),
        (["{zoo}", "--output", "{zoo}"], "expected another folder than that of the records"),
        (["{zoo}/nothing"], "no such file or folder"),
        (["{zoo}/.."], "name one of its folders"),
        (["--outptu"], "did you mean --output?"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, folders, capsys):
    assert command.main([item.format(zoo=folders / "zoo") for item in arguments]) == 2
    assert message in capsys.readouterr().err
