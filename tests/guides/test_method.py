"""guides/method.md, followed as it stands there: its rule on both cores, certified, compared and run.

Would catch a guide that no longer fits the code.
"""

import importlib
import json
import sys

import pytest

from harness.analysis import load_results
from harness.checks.agreement.report import JSON as AGREEMENT
from harness.checks.certification.report import JSON as CERTIFICATION
from kernels.contract import Verification
from kernels.methods import OwnMethod
from tests.support.guide_pages import follow, written
from tests.support.kernel_rounds import LENGTHS, MIXED, assert_same_verdict, kernel_round

RULE = "my_rules:reluctant"


@pytest.fixture
def my_rules(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The module of the guide, on the path of this process."""
    list(written("method.md", tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
    yield importlib.import_module("my_rules")
    sys.modules.pop("my_rules", None)


@pytest.mark.parametrize(
    ("one_hot", "lengths"),
    [(False, LENGTHS), (True, LENGTHS), (False, [0] * len(LENGTHS))],
    ids=["drafts", "one-hot drafts", "no drafts"],
)
def test_its_rule_runs_on_the_kernels_as_on_the_reference(my_rules, one_hot: bool, lengths: list[int]):
    batch = kernel_round(MIXED, lengths, 301, one_hot=one_hot, seed=5)
    for rule in (my_rules.reluctant, my_rules.Reluctant()):
        verification = Verification(OwnMethod(rule, RULE))
        assert_same_verdict(batch.found(verification), batch.expected(verification))


def test_its_rule_is_certified_compared_and_run(tmp_path):
    follow("method.md", tmp_path)
    outcomes = json.loads((tmp_path / "law" / CERTIFICATION).read_text(encoding="utf-8"))["outcomes"]
    assert len(outcomes) >= 2 and (tmp_path / "kernels" / AGREEMENT).exists()
    rows = load_results(tmp_path / "results" / "runs" / "reluctant").set_index("verification")
    own = rows.loc["my_rules:Reluctant(share=0.8)"]
    assert own["num_accepted_tokens"] / own["num_drafts"] < rows.loc["strict", "mean_acceptance_length"] - 1
