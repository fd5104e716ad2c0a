"""Certification end to end on the reference: it passes what is right and fails what is wrong, and says so."""

import json
import re
import sys
import textwrap
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from experiments.certify import main
from harness.certification import subject
from harness.certification.cases import DRAFTS, RAGGED, full_cases, small_cases
from harness.certification.controls import controls
from harness.certification.depth_rules import DepthRule
from harness.certification.evaluate import FALSE_ALARM, laws
from harness.certification.goodness_of_fit import fit
from harness.certification.report import JSON, MARKDOWN
from harness.certification.simulate import simulate
from harness.certification.subject import Features, load_subject, project_core, reference
from harness.settings.schema import SettingsError
from kernels.methods import DraftSampling, Guarantee, methods_with

CPU = torch.device("cpu")
NUM_SAMPLES, BATCH = 60_000, 15_000
LEVEL = FALSE_ALARM / 100
CASES = {case.name: case for case in full_cases()}
FAST = ["--device=cpu", "--samples=8000", "--no-controls"]


def p_value(subject, case, num_samples: int = NUM_SAMPLES) -> float:
    simulated = simulate(subject, case, num_samples, BATCH, seed=1, device=CPU)
    assert simulated.num_faults == 0 and simulated.num_accepted > 0, "a case without drafts shows nothing"
    return fit(simulated.counts, laws(case)).p_value


@pytest.mark.parametrize("control", controls(), ids=lambda control: control.name)
def test_control_is_rejected(control):
    assert p_value(control.alter(project_core(CPU)), control.case) < LEVEL


BROKEN = [control for control in controls() if control.case.verification.guarantee is Guarantee.lossless]


@pytest.mark.parametrize("control", BROKEN, ids=lambda control: control.name)
def test_what_the_control_was_made_from_passes(control):
    sampling = control.case.draft_sampling
    right = replace(
        control.case,
        cache_dtype=None,
        draft_sampling=DraftSampling.sampled if sampling is DraftSampling.coupled else sampling,
        depth_rule=control.case.depth_rule and DepthRule.row,
    )
    assert p_value(project_core(CPU), right, BATCH) > 1e-4


@pytest.mark.parametrize(
    "name",
    [
        "block, sampled cached, float32, none",
        "block, sampled cached, bfloat16, mixed, ragged, padded slots",
        "probabilistic, sampled cached, float16, none, narrow draft",
        "coupled, coupled cached, float32, top-p",
        "block, sampled cached, float32, none, stats not kept, narrow draft, grammar",
        "probabilistic, sampled cached, float32, top-k, ragged, padded slots, wide, grammar",
        "block, sampled cached, float32, none, depth by the batch at the start of the step",
        "probabilistic, sampled cached, float32, none, depth by what the rounds before accepted",
    ],
)
def test_a_right_sampler_passes(name):
    """Of other layouts and types than the controls; `make certify` simulates all cases with more requests."""
    assert p_value(project_core(CPU), CASES[name], 2 * BATCH) > 1e-4


SPREAD = ("block, sampled cached, bfloat16, none, spread", "strict, greedy one-hot, bfloat16, top-k, spread over zeros")


@pytest.mark.parametrize("name", SPREAD)
def test_a_right_sampler_passes_in_a_spread_vocabulary(name):
    simulated = simulate(project_core(CPU), CASES[name], 640, 160, seed=1, device=CPU)
    assert simulated.num_faults == 0
    assert fit(simulated.counts, laws(CASES[name])).p_value > 1e-4


def test_a_token_that_is_none_of_the_pair_s_is_a_fault():
    """Would catch a kernel that is off by one id at the edge of a chunk."""
    right = project_core(CPU)

    def verify(target_logits, draft, sampling, verification, streams):
        verdict = right.verify(target_logits, draft, sampling, verification, streams)
        last = verdict.num_accepted[:, None]
        token_ids = verdict.token_ids.scatter(1, last, verdict.token_ids.gather(1, last) - 1)
        return replace(verdict, token_ids=token_ids)

    simulated = simulate(replace(right, verify=verify), CASES[SPREAD[0]], 64, 16, seed=1, device=CPU)
    assert simulated.num_faults > 64


def test_every_lossless_method_is_certified_and_every_kind_of_draft_and_dtype():
    for cases in (small_cases(), full_cases()):
        methods = {case.verification.method for case in cases}
        assert methods_with(lambda traits: traits.guarantee is Guarantee.lossless) <= methods
        assert {case.draft_sampling for case in cases} == set(DraftSampling)
        assert {case.dtype for case in cases} == {"float32", "bfloat16", "float16"}
        assert {case.truncation for case in cases} == {"none", "top-k", "top-p", "min-p", "mixed", "some cut"}


def test_temperatures_are_certified_where_nothing_is_cut():
    """By every way to draft and verify; a core that forgets one is among the controls. At 1 it would go unnoticed."""
    for cases in (small_cases(), full_cases()):
        warm = {
            (case.verification.method, case.draft_sampling, case.cached)
            for case in cases
            for profile in case.profiles
            if not profile.truncates and profile.temperature not in (0, 1)
        }
        assert set(DRAFTS) <= warm


def test_all_requests_are_counted_once_and_profiles_and_halves_alike():
    case = CASES["probabilistic, greedy one-hot, bfloat16, mixed, ragged, padded slots"]
    num_requests = 4 * 2 * len(RAGGED) * 7 * 4
    simulated = simulate(reference(CPU), case, num_requests, BATCH, seed=0, device=CPU)
    assert simulated.counts.sum(2).tolist() == [[num_requests // 8] * 2] * 4


def test_a_run_is_a_function_of_its_seed():
    case = CASES["block, sampled cached, float32, none"]
    first, again, other = (simulate(reference(CPU), case, 4000, 500, seed, CPU).counts for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def subject_module(monkeypatch, make) -> str:
    """The path of a subject that `make` returns."""
    module = ModuleType("a_subject")
    module.make = lambda device: make
    monkeypatch.setitem(sys.modules, "a_subject", module)
    return "a_subject:make"


def test_a_green_run_exits_with_0_and_writes_what_it_found(tmp_path, capsys):
    assert main([*FAST, "--methods=probabilistic", f"--output={tmp_path}"]) == 0
    assert "GREEN" in capsys.readouterr().out
    content = json.loads((tmp_path / JSON).read_text())
    assert content["green"] and content["subject"]["name"] == "reference"
    assert content["provenance"]["git"] is None or content["provenance"]["git"]["commit"]
    assert {outcome["verdict"] for outcome in content["outcomes"]} == {"pass"}
    assert all(outcome["num_samples"] >= 8000 and 0 < outcome["detectable"] < 0.2 for outcome in content["outcomes"])
    text = (tmp_path / MARKDOWN).read_text()
    assert all(outcome["name"] in text for outcome in content["outcomes"])


def test_the_report_says_what_its_power_is_of(tmp_path, capsys):
    """Mixed cells pool their profiles; rows of a spread vocabulary are simulated less often, and no others are long."""
    arguments = ["--device=cpu", "--no-controls", "--methods=block", "--samples=1000"]
    arguments += ["--cells=bfloat16", f"--output={tmp_path}"]
    assert main(arguments) == 0
    text = (tmp_path / MARKDOWN).read_text()
    assert "in the weakest case of all but 1 in a spread vocabulary" in text
    assert "averaged over them: of one of 4 alone it takes 2 times as much" in text
    assert re.search(r"Rows: \d+ cases have rows of a few tokens, 1 in a spread vocabulary rows of 6,149", text)
    outcomes = {outcome["name"]: outcome for outcome in json.loads((tmp_path / JSON).read_text())["outcomes"]}
    assert outcomes[SPREAD[0]]["is_spread"] and outcomes[SPREAD[0]]["num_profiles"] == 2


def test_a_lossy_subject_exits_with_1(monkeypatch, tmp_path, capsys):
    right = reference(CPU)

    def verify(target_logits, *arguments, **options):
        return right.verify(target_logits * 1.5, *arguments, **options)

    path = subject_module(monkeypatch, replace(right, verify=verify))
    arguments = [*FAST, "--cells=sampled cached, float32, none", "--methods=block"]
    assert main([*arguments, f"--subject={path}", f"--output={tmp_path}"]) == 1
    assert "RED: 0 of" in capsys.readouterr().out


def test_a_verdict_that_breaks_the_contract_fails(monkeypatch, tmp_path, capsys):
    right = reference(CPU)

    def verify(*arguments, **options):
        verdict = right.verify(*arguments, **options)
        return replace(verdict, token_ids=verdict.token_ids.clamp(min=0))

    path = subject_module(monkeypatch, replace(right, verify=verify))
    arguments = [*FAST, "--cells=greedy, greedy", f"--subject={path}", f"--output={tmp_path}"]
    assert main(arguments) == 1
    assert "flagged or malformed" in capsys.readouterr().out


def test_a_control_that_is_not_rejected_exits_with_1(monkeypatch, tmp_path, capsys):
    unseen = replace(controls()[0], alter=lambda subject: subject, case=CASES["strict, greedy one-hot, float32, none"])
    monkeypatch.setattr("harness.certification.jobs.controls", lambda: [unseen])
    monkeypatch.setattr("harness.certification.jobs.tree_controls", list)
    arguments = ["--device=cpu", "--samples=8000", "--cells=greedy, greedy"]
    assert main([*arguments, f"--output={tmp_path}"]) == 1
    output = capsys.readouterr().out
    assert "0 of 1 controls are rejected" in output and "With --samples 8,000 the power may be too small" in output


def test_what_a_subject_lacks_is_listed(monkeypatch, tmp_path, capsys):
    features = Features(truncation=False, dtypes=frozenset({torch.float32}))
    path = subject_module(monkeypatch, replace(reference(CPU), features=features))
    arguments = [*FAST, "--methods=coupled", f"--subject={path}", f"--output={tmp_path}"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "not supported: no truncation" in output
    assert "cases are not supported by the subject" in output


def test_a_subject_that_can_do_nothing_is_not_certified(monkeypatch, tmp_path, capsys):
    path = subject_module(monkeypatch, replace(reference(CPU), features=Features(methods=frozenset())))
    assert main([*FAST, f"--subject={path}", f"--output={tmp_path}"]) == 2
    output = capsys.readouterr().out
    assert "NOTHING TESTED" in output and "Power" not in output
    assert "NOTHING TESTED" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_colon", "or package.module:function, found 'no_colon'"),
        ("no.such.module:make", "cannot import 'no.such.module'"),
        (
            "harness.certification.subject:missing",
            "expected a function 'missing' in harness.certification.subject",
        ),
        ("builtins:str", "it lacks name, verify, draw, coupled_draw"),
    ],
)
def test_a_wrong_subject_is_one_clear_line(path, message, capsys):
    with pytest.raises(SettingsError, match=r"^--subject") as error:
        load_subject(path, CPU)
    assert message in str(error.value)
    assert main([*FAST, f"--subject={path}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: --subject")


ONE_CELL = ["--device=cpu", "--samples=1000", "--no-controls", "--methods=probabilistic"]


@pytest.mark.parametrize(
    ("altered", "message"),
    [
        (
            {"verify": lambda *given, **others: (1, 2)},
            "expected verify to return a kernels.contract.VerificationResult, found a tuple",
        ),
        ({"draw": lambda *given, **others: None}, "expected draw to return a kernels.contract.Drawn, found a NoneType"),
        ({"coupled_draw": None}, "expected coupled_draw of what a_subject:make returns to be a function"),
    ],
    ids=["a tuple for a verdict", "nothing drawn", "no function"],
)
def test_a_subject_that_returns_something_else_is_one_clear_line(altered, message, monkeypatch, tmp_path, capsys):
    path = subject_module(monkeypatch, replace(reference(CPU), **altered))
    assert main([*ONE_CELL, f"--subject={path}", f"--output={tmp_path}"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_verdict_of_another_shape_is_one_clear_line(monkeypatch, tmp_path, capsys):
    right = reference(CPU)

    def verify(*arguments, **options):
        verdict = right.verify(*arguments, **options)
        return replace(verdict, token_ids=verdict.token_ids[:, :-1])

    path = subject_module(monkeypatch, replace(right, verify=verify))
    assert main([*ONE_CELL, f"--subject={path}", f"--output={tmp_path}"]) == 2
    assert "a kernels.contract.VerificationResult whose token_ids is of shape (" in capsys.readouterr().err


def test_a_function_that_fails_is_one_clear_line(monkeypatch, capsys):
    subject_module(monkeypatch, None)
    sys.modules["a_subject"].make = lambda device: {}["weights"]
    assert main([*ONE_CELL, "--subject=a_subject:make"]) == 2
    assert "a_subject:make raised KeyError: 'weights'; --debug shows where" in capsys.readouterr().err


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda logits, draft: logits.mul_(1),
        lambda logits, draft: logits.mul_(2),
        lambda logits, draft: draft.logits.mul_(2),
        lambda logits, draft: draft.token_ids.clamp_(max=1),
    ],
    ids=["with the same", "target rows", "cache", "drafts"],
)
def test_a_subject_that_overwrites_its_inputs_is_at_fault(overwrite, request):
    """Would catch a sampler that scales the logits in place, after which nothing else can read them."""
    right = reference(CPU)

    def verify(target_logits, draft, *others):
        verdict = right.verify(target_logits, draft, *others)
        overwrite(target_logits, draft)
        return verdict

    case = CASES["probabilistic, sampled cached, float32, none"]
    simulated = simulate(replace(right, verify=verify), case, 640, 160, seed=1, device=CPU)
    assert (simulated.num_faults > 0) is (request.node.callspec.id != "with the same")


def test_the_example_of_the_contract_is_a_subject(monkeypatch, tmp_path, capsys):
    """Would catch an example that does not run."""
    example = subject.__doc__.split("to test:\n")[1].split("Then,")[0]
    (tmp_path / "my_core.py").write_text(textwrap.dedent(example))
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [*ONE_CELL[:3], "--methods=block", "--cells=float32"]
    assert main([*arguments, "--subject=my_core:my_core", f"--output={tmp_path}"]) == 0
    assert "my core" in (tmp_path / MARKDOWN).read_text()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--methods=blok", "did you mean block"),
        ("--samples=10", "at least 1000"),
        ("--batch=-1", "--batch: expected 0 or more, found -1"),
        ("--output=", "--output: expected a folder, found nothing"),
        ("--cells=nothing like it", "expected some lossless case"),
        ("--methods=typical", "lossy methods are controls"),
    ],
)
def test_settings_that_cannot_be_are_one_clear_line(argument, message, capsys):
    assert main([argument]) == 2
    assert message in capsys.readouterr().err


def test_a_failure_is_simulated_again_with_the_next_seed(tmp_path, monkeypatch, capsys):
    """Would catch a second run on the same random numbers, and one that is not recorded."""
    control = next(item for item in controls() if item.name == "block, no stream changes with the round")
    module = ModuleType("subject_that_fails")
    module.make = lambda device: control.alter(project_core(device))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    options = ["--cells=block, sampled cached, float32, none", "--device=cpu", "--samples=40000", "--no-controls"]
    assert main([f"--subject={module.__name__}:make", *options, f"--output={tmp_path}"]) == 1
    capsys.readouterr()
    outcomes = json.loads((tmp_path / JSON).read_text())["outcomes"]
    failed = [outcome for outcome in outcomes if outcome["verdict"] == "FAIL"]
    assert failed and all("confirmed with seed 1" in outcome["reason"] for outcome in failed)
    assert all(outcome["confirmation"]["statistic"] != outcome["statistic"] for outcome in failed)
