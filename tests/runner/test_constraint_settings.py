"""The policy at the end of reasoning: one way to choose it, its own settings alone, and one of the user's own."""

import pickle

import pytest

from harness.config.constraint import PolicyKind
from harness.config.guarantee import guarantee
from harness.config.schema import SettingsError
from harness.config.view import plain_values
from harness.runner.plan.compose import compose_plan
from kernels.contract import Guarantee

REASONING = ["workload=reasoning_json", "drafter=eagle3", "measurement.baseline=false"]
OWN = "tests.support.own_policies:Switched"


def cells(*arguments):
    return compose_plan([*REASONING, *arguments]).cells


@pytest.mark.parametrize("policy", [item.value for item in PolicyKind])
def test_the_option_and_the_setting_of_a_policy_are_one(policy):
    """Would catch drafts that are drawn under masks by one of them and freely by the other."""
    assert cells(f"constraint={policy}") == cells(f"constraint.policy={policy}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["constraint=none", "constraint.drafts=masked"],
            "constraint.drafts: .* used only with constraint=late, commit",
        ),
        (["constraint.parser=qwen3"], "constraint.parser: .* used only with constraint=none, late, commit or mask"),
        (["constraint=mas"], r"constraint=mas: no such option \(did you mean mask\?\)"),
        (["constraint=mask", "constraint.cuts=true"], "unknown setting 'constraint.cuts'"),
    ],
    ids=["of another policy", "without a policy", "misspelt", "of no policy"],
)
def test_a_setting_that_the_policy_lacks_is_refused(arguments, message):
    with pytest.raises(SettingsError, match=message):
        cells(*arguments)


def test_a_sweep_over_policies_has_an_axis_where_a_policy_has_the_setting():
    found = cells("constraint=free_text,none,mask", "constraint.drafts=free,masked")
    drafts = [(cell.constraint.policy.value, getattr(cell.constraint, "drafts", None)) for cell in found]
    assert [(name, item and item.value) for name, item in drafts] == [
        ("free_text", None),
        ("none", None),
        ("mask", "free"),
        ("mask", "masked"),
    ]


def test_a_policy_of_the_users_own_is_an_option_like_another():
    """Would catch a policy that another process knows by no name, or that is taken for a lossless one."""
    found = cells(f"constraint=mask,{OWN}", "constraint.cuts=false")
    assert [plain_values(cell)["constraint"].get("cuts") for cell in found] == [None, False]
    assert [guarantee(cell) for cell in found] == [Guarantee.lossless, Guarantee.biased]
    assert [cell.imported.get("constraint.policy") for cell in found] == [None, OWN]
    assert pickle.loads(pickle.dumps(found)) == found
