"""A drafter outside the package goes through settings, memory, engine, records and tables, and keeps the law.

Would catch: a place that takes built-in drafters only, an id that two drafters share, or a mistake found too late.
"""

import json
import pickle

import pytest
import torch

from experiments.run import main
from experiments.status import main as status
from harness.analysis import load_results
from harness.backends.local.local import LocalBackend
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.identity import determinants
from harness.config.imported import ImportPath
from harness.config.schema import SettingsError
from harness.config.view import plain_values
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED
from harness.drafters.own_drafter import OwnDrafter
from harness.drafters.registry import DrafterSetup, build_drafter, check_capture
from harness.records.runs import read_runs
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.from_records import recorded_cell
from harness.runner.plan.run_plan import cell_table
from kernels.contract import DraftSampling, VerificationMethod
from tests.engine.test_engine_law import FALSE_ALARM, NUM_REQUESTS, NUM_TOKENS, fit
from tests.support.own_drafters import FixedLogits, LastToken, OutsideVocabulary, RubbishBehind
from tests.support.small_run import SMALL, small_run
from tests.support.toy_markov import LONGEST_PROMPT, ToyTarget, outputs, toy_engine, toy_requests, transitions

OURS, SHARP = "tests.support.own_drafters:LastToken", "tests.support.own_drafters:FixedLogits"
TARGET = transitions(3, seed=12)


def own_cell(name: str) -> CellConfig:
    return CellConfig(drafter=drafter_of(ImportPath(f"tests.support.own_drafters:{name}")))


def build(name: str):
    shape = DrafterShape(4, 20, 2, len(TARGET))
    return build_drafter(own_cell(name), ToyTarget(TARGET), None, shape)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    sweep = [f"drafter.kind={OURS},ngram", "decoding.temperature=0,1", "measurement.round_terms=true"]
    return small_run(tmp_path_factory.mktemp("größe"), "name=größe", *sweep)


def test_records_name_it_and_it_changes_no_greedy_token(run):
    (found,) = read_runs(run)
    answers = {}
    for record in found.cells:
        if record.config["decoding"]["temperature"] == 0:
            kind = record.config["drafter"]["kind"]
            answers[kind] = {item.prompt_id: item.output_token_ids for item in record.requests}
            assert recorded_cell(record).drafter.kind.value == kind
    assert list(sorted(answers)) == ["ngram", "none", OURS]
    assert answers[OURS] == answers["none"]


def test_the_run_has_a_name_in_any_letters(run, capsys):
    """Would catch a file that cannot be written or read again under it."""
    assert status([str(run)]) == 0 and f"{run.name}: done" in capsys.readouterr().out
    assert "größe" in (run / "report.md").read_text(encoding="utf-8")


def test_tables_show_it_under_its_name_with_its_acceptance_and_speedup(run):
    rows = load_results(run).set_index(["drafter", "temperature"]).loc[OURS]
    assert (rows["draft_sampling"] == "greedy").all() and (rows["drafter_weights"] == "").all()
    assert (rows["num_draft_tokens"] > 0).all() and (rows["speedup"] > 0).all()
    assert OURS in (run / "report.md").read_text(encoding="utf-8")


def test_a_drafter_with_logits_is_drawn_from_counted_and_recorded(tmp_path):
    sampled = ["drafting.sampling=sampled", "drafting.cache_dtype=bfloat16", "drafting.drawn_from=unrounded"]
    settings = [f"drafter.kind={SHARP}", *sampled, "backend.dtype=float32", "measurement.baseline=false", *SMALL]
    plan = compose_plan(settings)
    backend = LocalBackend(plan.cells[0])
    assert main([*settings, f"output.folder={tmp_path}"]) == 0
    (row,) = load_results(tmp_path).to_dict("records")
    vocab_size = backend.models.meta_models.target.vocab_size
    assert (row["draft_sampling"], row["num_drafter_parameters"]) == ("sampled", vocab_size)
    assert row["draft_logit_cache_bytes"] >= 16 * 4 * 2 * vocab_size
    assert (row["draft_cache_dtype"], row["drawn_from"]) == ("bfloat16", "unrounded")


def test_its_name_is_a_setting_like_others():
    cells = compose_plan([f"drafter.kind={OURS},ngram", "measurement.baseline=false"]).cells
    ours = cells[0]
    assert OURS in cell_table(cells)
    assert determinants(ours)["drafter"]["kind"] == OURS
    assert determinants(own_cell("FixedLogits")) != determinants(own_cell("LastToken"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.at_all:NAME", "expected an object PACKAGE.MODULE:NAME that can be imported"),
        ("tests.support.own_drafters:Missing", "can be imported"),
        ("unknown", "or PACKAGE.MODULE:NAME, found unknown"),
    ],
)
def test_a_wrong_name_is_found_before_anything_is_loaded(name, words):
    with pytest.raises(SettingsError, match=f"drafter.kind: .*{words}"):
        compose_plan([f"drafter.kind={name}"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Incomplete", "found a Incomplete without num_parameters, cache_bytes"),
        ("broken", "failed while it was made: RuntimeError: no such file"),
        ("NUMBER", "a function of a DrafterSetup, or a class made with one, found .*NUMBER: 7"),
    ],
)
def test_an_object_that_is_no_drafter_is_refused_with_what_it_lacks(name, words):
    with pytest.raises(ValueError, match=words):
        build(name)


@pytest.mark.parametrize(
    ("name", "sampling", "found"),
    [
        ("NoDraft", "greedy", "found a list"),
        ("TooWide", "greedy", "token_ids [1, 4] int64 as its batch says, found [1, 5] int64"),
        ("LastToken", "sampled", "since drafting.sampling=sampled, found none; draw by harness.drafters.draft_logits"),
        ("LogitsOfCertain", "greedy", "since drafting.sampling=greedy makes drafts one-hot, found logits [1, 4, 6144]"),
        ("OutsideVocabulary", "greedy", "in 0..6143, the target's vocabulary, found 6144 as draft token 2 of round 1"),
        ("Placeholder", "greedy", "in 0..6143, the target's vocabulary, found -1 as draft token 4 of round 1"),
        (
            "OutsideVocabulary",
            "greedy workload=reasoning_json constraint=commit",
            "found 6144 as draft token 2 of round",
        ),
        ("LessThanNone", "greedy", "of 0 or more, found -1 for round 1 of prompt"),
        ("MoreThanAsked", "greedy", "of 4 at most, found 6 for row 0 of its batch"),
        (
            "NarrowLogits",
            "sampled",
            "with logits [1, 4, 6144] of numbers with a point, one for each of its ",
        ),
        (
            "WholeLogits",
            "sampled",
            "with logits [1, 4, 6144] of numbers with a point, one for each of its ",
        ),
    ],
)
def test_what_is_no_draft_of_its_batch_is_refused_in_a_line(name, sampling, found, tmp_path, capsys):
    """Would catch a draft token that the target reads in the place of a prompt's, an index error of an embedding, and
    one-hot drafts that are recorded as sampled."""
    kind = f"tests.support.own_drafters:{name}"
    given = f"drafting.sampling={sampling}".split()
    settings = [f"drafter.kind={kind}", "measurement.baseline=false", *SMALL, *given]
    assert main([*settings, f"output.folder={tmp_path}"]) != 0
    errors = capsys.readouterr().err
    assert "drafter.kind: expected " in errors and f" of {kind} " in errors and found in errors
    assert "Traceback" not in errors


def test_logits_without_a_distribution_are_laid_to_its_own_drafter(tmp_path, capsys):
    """Would catch a message that sends the user to weights which the drafter does not have."""
    kind = "tests.support.own_drafters:NoNumbers"
    settings = [f"drafter.kind={kind}", "drafting.sampling=sampled", "measurement.baseline=false", *SMALL]
    assert main([*settings, f"output.folder={tmp_path}"]) != 0
    assert f"check the logits of drafter.kind={kind}, the weights of target" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "limit"), [(-1, "0 or more"), (4, "3 at most")])
def test_a_count_that_comes_from_a_device_is_checked_on_the_host(count, limit):
    """As on a GPU, where counts are not looked at while a step is launched."""
    with pytest.raises(ValueError, match=f"num_draft_tokens of tests:it of {limit}, found {count} for"):
        OwnDrafter("tests:it", DraftSampling.greedy, 9).check_count(count, 3, "round 2")


@pytest.mark.parametrize("graphs", [False, True])
def test_what_lies_behind_its_draft_is_not_read(graphs):
    """Would catch an embedding that is asked for it."""
    setup = DrafterSetup(drafter_of("none"), ToyTarget(TARGET), None, DraftSampling.greedy, None, AS_DRAFTED)
    plain, own = (
        toy_engine(
            TARGET, TARGET, VerificationMethod.greedy, DraftSampling.greedy, num_speculative_tokens=3,
            max_new_tokens=8, num_slots=2, temperature=0.0, drafter=drafter, graphs=graphs,
            own_drafter=OwnDrafter("tests:it", DraftSampling.greedy, len(TARGET)),
        )
        for drafter in (LastToken(setup), RubbishBehind(setup))
    )  # fmt: skip
    assert outputs(plain, toy_requests(3)) == outputs(own, toy_requests(3))


@pytest.mark.parametrize("graphs", [False, True])
def test_a_token_outside_the_vocabulary_is_found_however_steps_run(graphs):
    setup = DrafterSetup(drafter_of("none"), ToyTarget(TARGET), None, DraftSampling.greedy, None, AS_DRAFTED)
    engine = toy_engine(
        TARGET, TARGET, VerificationMethod.strict, DraftSampling.greedy, num_speculative_tokens=3, max_new_tokens=8,
        num_slots=2, drafter=OutsideVocabulary(setup), graphs=graphs,
        own_drafter=OwnDrafter("tests:it", DraftSampling.greedy, len(TARGET)),
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r"of tests:it in 0\.\.\d+, .* as draft token 2 of round 1 of prompt 0, turn 0"
    ):
        outputs(engine, toy_requests(3))


def test_a_drafter_that_cannot_be_made_fails_its_own_cell_alone(tmp_path, capsys):
    """Would catch a baseline and drafters of others that fail with it, since a group gets ready together."""
    broken = "tests.support.own_drafters:CannotBeMade"
    assert main([f"drafter.kind={broken},{OURS}", *SMALL, f"output.folder={tmp_path}"]) == 1
    (found,) = read_runs(tmp_path)
    failures = {record.config["drafter"]["kind"]: record.failures for record in found.cells}
    assert {kind: len(items) for kind, items in failures.items()} == {"none": 0, OURS: 0, broken: 1}
    assert f"{broken} failed while it was made: OSError: no such table" in failures[broken][0].message
    assert load_results(tmp_path).set_index("drafter").loc[OURS, "speedup"] > 0


def test_one_with_settings_goes_as_a_built_in_one(tmp_path):
    """Would catch fields that a sweep, a record, a worker or a summary knows with their defaults alone."""
    repeats = "tests.support.own_drafters:Repeats"
    folder = small_run(tmp_path, f"drafter={repeats},ngram", "drafter.most=1,3", "drafter.ngram_max=3")
    (found,) = read_runs(folder)
    given = {json.dumps(record.config["drafter"]): record for record in found.cells}
    mine = [given[json.dumps({"kind": repeats, "most": most})] for most in (1, 3)]
    assert len(given) == 4 and json.dumps(plain_values(drafter_of("ngram", ngram_max=3))) in given
    for record, most in zip(mine, (1, 3), strict=True):
        assert {item.num_draft_tokens for request in record.requests for item in request.rounds} <= {*range(most + 1)}
        assert recorded_cell(record).drafter == drafter_of(repeats, most=most)
        assert pickle.loads(pickle.dumps(recorded_cell(record))) == recorded_cell(record)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("drafter.most=0", "drafter.most: expected 1 or more, found 0"),
        ("drafter.mots=1", "did you mean drafter.most"),
        ("drafter.ngram_max=2", "used only with drafter=ngram"),
    ],
)
def test_a_wrong_setting_of_it_is_refused(setting, words):
    with pytest.raises(SettingsError, match=words):
        compose_plan(["drafter=tests.support.own_drafters:Repeats", setting])


def test_only_a_drafter_that_says_so_is_captured_on_a_gpu():
    cuda = torch.device("cuda")
    check_capture(drafter_of(DrafterKind.ngram), True, cuda)
    check_capture(own_cell("LastToken").drafter, True, cuda)
    check_capture(own_cell("FixedLogits").drafter, False, cuda)
    with pytest.raises(ValueError, match=r"backend\.graphs: expected false"):
        check_capture(own_cell("FixedLogits").drafter, True, cuda)


@pytest.mark.parametrize(
    ("make", "method", "sampling", "graphs"),
    [
        (LastToken, VerificationMethod.probabilistic, DraftSampling.greedy, False),
        (LastToken, VerificationMethod.block, DraftSampling.greedy, True),
        (LastToken, VerificationMethod.strict, DraftSampling.greedy, False),
        (FixedLogits, VerificationMethod.probabilistic, DraftSampling.sampled, True),
        (FixedLogits, VerificationMethod.block, DraftSampling.sampled, False),
        (FixedLogits, VerificationMethod.coupled, DraftSampling.coupled, False),
    ],
)
def test_the_law_of_the_output_is_the_targets(make, method, sampling, graphs):
    """With `graphs` in steps of fixed sizes, as they would be captured."""
    num_slots, num_tokens = 1500, 3
    shape = DrafterShape(num_slots, LONGEST_PROMPT + 20, num_tokens, len(TARGET))
    drafter = make(DrafterSetup(drafter_of("none"), ToyTarget(TARGET), None, sampling, shape, AS_DRAFTED))
    engine = toy_engine(
        TARGET,
        TARGET,
        method,
        sampling,
        num_speculative_tokens=num_tokens,
        max_new_tokens=NUM_TOKENS,
        num_slots=num_slots,
        drafter=drafter,
        graphs=graphs,
    )
    assert fit(outputs(engine, toy_requests(NUM_REQUESTS)).values(), TARGET, NUM_TOKENS) > FALSE_ALARM
