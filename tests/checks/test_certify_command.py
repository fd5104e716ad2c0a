"""The command that certifies: what it writes, its exit codes, and subjects that are none."""

import json
import re
import sys
import textwrap
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from experiments.certify import main
from harness.checks.certification import subject
from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.controls import Control, controls
from harness.checks.certification.jobs import chosen_jobs
from harness.checks.certification.report import JSON, MARKDOWN
from harness.checks.certification.subject import Features, load_subject, project_core, reference
from harness.checks.certification.tree_cases import tree_controls
from harness.config.schema import SettingsError
from tests.support.certify_cases import CASES, CPU, SPREAD

FAST = ["--device=cpu", "--samples=8000", "--no-controls"]


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


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        pytest.param(("block",), {"block"}, id="of one method"),
        pytest.param(("strict", "kseq"), {"kseq"}, id="of those that have one"),
        pytest.param(("strict",), None, id="none of its own: all"),
        pytest.param((), None, id="all"),
    ],
)
def test_controls_are_those_of_the_methods(methods, expected):
    """Would catch controls of trees, and of other methods, that are simulated for one method."""
    jobs = chosen_jobs(CertifyConfig(methods=methods), Size.small)
    every = [*controls(), *tree_controls()]
    names = [job.name for job in jobs if isinstance(job, Control)]
    asked = [item.name for item in every if expected is None or item.case.verification.method.value in expected]
    assert names == asked and names


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
    monkeypatch.setattr("harness.checks.certification.jobs.controls", lambda: [unseen])
    monkeypatch.setattr("harness.checks.certification.jobs.tree_controls", list)
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
            "harness.checks.certification.subject:missing",
            "expected a function 'missing' in harness.checks.certification.subject",
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


ONE_CELL = ["--device=cpu", "--samples=1000", "--no-controls", "--methods=probabilistic", "--workers=1"]


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
    found = capsys.readouterr().err.rstrip()
    # between the two a place, once code in this folder has been the user's own
    assert "a_subject:make raised KeyError: 'weights'" in found and found.endswith("; --debug shows where")


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
