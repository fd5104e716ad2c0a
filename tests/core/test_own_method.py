"""A verification method outside the package goes through settings, engine, records, tables, figures and certification.

Would catch: a place that takes built-in methods only, an id that two methods share, a rule that runs on another core
than the record says, or a rule that is certified though it lies.
"""

import json
import pickle
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.certify import main as certify
from experiments.replay import main as replay
from harness.analysis import load_results
from harness.backends.local.engine_of_cell import EngineOfCell
from harness.checks.certification.report import JSON
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.guarantee import OWN_METHOD, labels
from harness.config.identity import determinants, plain_values
from harness.config.schema import SettingsError
from harness.config.verification import verification_of
from harness.records.files import identity
from harness.records.runs import read_runs
from harness.records.same_tokens import same_tokens
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.from_records import recorded_cell
from kernels.contract import Guarantee
from kernels.methods import MethodTraits, OwnMethod
from tests.support import own_methods
from tests.support.small_run import SMALL, small_run

HALF, LOSSY = "tests.support.own_methods:half_strict", "tests.support.own_methods:lossy"
ON_GPU = [item.replace("device=cpu", "device=cuda") for item in SMALL]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    sweep = [f"verification.method={HALF},{LOSSY},strict", "decoding.temperature=0,1", "measurement.round_terms=true"]
    return small_run(tmp_path_factory.mktemp("own"), "drafter=draft_model", *sweep)


def test_records_name_the_method_its_promise_and_its_core(run):
    (found,) = read_runs(run)
    by_method = {record.config["verification"]["method"]: record for record in found.cells if record.labels}
    assert sorted(by_method) == [HALF, LOSSY]
    assert by_method[HALF].config["guarantee"] == "lossless" and by_method[HALF].labels == (OWN_METHOD,)
    assert by_method[LOSSY].config["guarantee"] == "lossy" and by_method[LOSSY].labels == ("lossy", OWN_METHOD)
    assert all(record.provenance["sampling_core"] == "reference" for record in by_method.values())
    digest = sha256(Path(own_methods.__file__).read_bytes()).hexdigest()
    assert all(record.provenance["imported"] == {name: digest} for name, record in by_method.items())
    assert all("imported" not in record.provenance for record in found.cells if not record.labels)


def test_a_changed_source_is_said_of_cells_run_again(run):
    cells = read_runs(run)[0].cells
    edited = [replace(cell, provenance=cell.provenance | {"imported": {HALF: "other"}}) for cell in cells]
    assert same_tokens(cells, cells).changed == ()
    found = same_tokens(cells, edited)
    assert found.is_same and found.changed == (HALF,) and found.lines[0].startswith(f"{HALF}: its source file")


def test_it_changes_no_greedy_token_and_accepts_by_its_own_odds(run):
    rows = load_results(run).set_index(["verification", "temperature"])
    answers = {}
    for record in read_runs(run)[0].cells:
        if record.config["decoding"]["temperature"] == 0:
            method = record.config["verification"]["method"]
            answers[method] = {item.prompt_id: item.output_token_ids for item in record.requests}
    assert answers[HALF] == answers["strict"]
    assert rows.loc[(HALF, 1.0), "acceptance_rate"] < rows.loc[("strict", 1.0), "acceptance_rate"]


def test_the_report_shows_it_with_a_label_and_in_figures(run):
    assert HALF in (run / "report.md").read_text(encoding="utf-8")
    assert OWN_METHOD in (run / "report.md").read_text(encoding="utf-8")
    assert list((run / "figures").glob("*.png"))


def test_its_drafts_can_be_replayed(run, tmp_path):
    """Would catch a figure that knows the looks of our methods only."""
    assert replay([str(run), f"--output={tmp_path}"]) == 0
    assert list(tmp_path.rglob("replay.png"))


def test_its_name_is_part_of_the_id_and_its_traits_decide_the_drafts():
    one, other = compose_plan(
        [f"verification.method={HALF},{LOSSY}", "measurement.baseline=false", "drafter=draft_model", *SMALL]
    ).cells
    assert determinants(one)["verification"]["method"] == HALF
    assert determinants(one) != determinants(other)
    assert labels(other) == ("lossy", OWN_METHOD)


def test_its_fields_are_settings_as_those_of_a_built_in_method():
    """Would catch an own rule that a sweep, a record or another process knows with its defaults alone."""
    rule = own_path("Generous")
    given = [f"verification={rule},strict", "verification.bonus=1.1,1.5", "measurement.baseline=false", *SMALL]
    cells = compose_plan(["drafter=draft_model", *given]).cells
    assert [plain_values(cell)["verification"] for cell in cells] == [
        {"method": rule, "bonus": 1.1},
        {"method": rule, "bonus": 1.5},
        {"method": "strict"},
    ]
    assert len({identity(determinants(cell)) for cell in cells}) == 3
    assert pickle.loads(pickle.dumps(cells)) == cells
    record = SimpleNamespace(cell_id="own", config=plain_values(cells[1]))
    assert recorded_cell(record).verification == cells[1].verification


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("verification.bonus=much", "verification.bonus: expected a number, found much"),
        ("verification.bouns=1", r"unknown setting 'verification.bouns' \(did you mean verification.bonus\?\)"),
        ("verification.epsilon=0.1", "used only with verification=typical"),
    ],
)
def test_a_wrong_setting_of_it_is_refused(setting, words):
    with pytest.raises(SettingsError, match=words):
        compose_plan([f"verification={own_path('Generous')}", "drafter=draft_model", setting])


def test_an_object_brings_its_parameters():
    assert verification_of(own_path("lossy")).rule.bonus == 1.3
    (cell,) = compose_plan(["drafter=mtp", f"verification={own_path('mean')}", "measurement.baseline=false"]).cells
    assert cell.verification.rule.bonus == 1.05


def own_path(name: str) -> str:
    return f"tests.support.own_methods:{name}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.at_all:NAME", "can be imported"),
        ("tests.support.own_methods:Missing", "can be imported"),
        ("tests.support.own_methods:NUMBER", "a kernels.methods.Rule, found 7"),
        ("probabilistc", "or PACKAGE.MODULE:NAME, found probabilistc"),
    ],
)
def test_a_wrong_name_is_found_before_anything_is_loaded(name, words):
    with pytest.raises(SettingsError, match=f"verification.method: .*{words}"):
        compose_plan([f"verification.method={name}"])


@pytest.mark.parametrize("trait", ["greedy_only", "decided_by_noise", "ignores_tokens"])
def test_traits_that_need_code_of_ours_are_refused(trait):
    with pytest.raises(ValueError, match=f"found {trait}"):
        OwnMethod(type("Own", (own_methods.Half,), {"traits": MethodTraits(Guarantee.lossless, **{trait: True})})())


@pytest.mark.parametrize(("name", "passes"), [("half_strict", True), ("liar", False), ("forgets_its_emission", False)])
def test_certification_takes_it_and_a_lie_fails(name, passes, tmp_path):
    """Several rounds, its drafts cached and one-hot; `forgets_its_emission` is wrong only in the token after."""
    options = [
        f"--methods={own_path(name)}",
        "--samples=8000",
        "--no-controls",
        "--device=cpu",
        "--cells=float32, none",
    ]
    assert certify([*options, f"--output={tmp_path}"]) == (0 if passes else 1)
    cells = json.loads((tmp_path / JSON).read_text())["outcomes"]
    assert len(cells) >= 2 and all(own_path(name) in cell["name"] for cell in cells)
    assert any(cell["verdict"] == "FAIL" for cell in cells) is not passes


@pytest.mark.parametrize("graphs", [None, True, False])
def test_on_a_gpu_it_asks_for_a_run_without_graphs(graphs):
    """Would catch a cell whose baseline has graphs, and is therefore not found."""
    cell = CellConfig(
        drafter=drafter_of(DrafterKind.ngram),
        verification=verification_of(HALF),
        backend=Local(graphs=graphs),
    )
    models = SimpleNamespace(loaded=SimpleNamespace(device=torch.device("cuda")))
    words = "null" if graphs is None else str(graphs).lower()
    arguments = [f"verification.method={HALF}", "drafter=draft_model", *ON_GPU, f"backend.graphs={words}"]
    if graphs is False:
        assert not EngineOfCell(cell, models).uses_graphs
        assert {cell.backend.graphs for cell in compose_plan(arguments).cells} == {False}
        return
    with pytest.raises(ValueError, match=r"backend\.graphs: expected false"):
        EngineOfCell(cell, models)
    with pytest.raises(SettingsError, match=rf"backend\.graphs: expected false .* found {words}"):
        compose_plan(arguments)


def test_only_a_promise_of_losslessness_can_be_certified(tmp_path):
    assert certify([f"--methods={LOSSY}", f"--output={tmp_path}"]) == 2
