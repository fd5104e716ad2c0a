"""The rule of the guide in kernels/README.md runs as it stands there: on both cores, certified, and compared.

Would catch a guide that no longer fits the code.
"""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from experiments.agreement import main as agreement
from experiments.certify import main as certify
from harness.checks.agreement.report import JSON as AGREEMENT
from harness.checks.certification.report import JSON as CERTIFICATION
from kernels.contract import Verification
from kernels.methods import OwnMethod
from tests.support.kernel_rounds import LENGTHS, MIXED, assert_same_verdict, kernel_round

GUIDE = Path(__file__).parents[2] / "kernels" / "README.md"
RULE = "my_rules:reluctant"


@pytest.fixture
def my_rules(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The module of the guide, on the path of this process and of those that it starts."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "(Rule):" in block]
    (tmp_path / "my_rules.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
    yield importlib.import_module("my_rules")
    sys.modules.pop("my_rules", None)


@pytest.mark.parametrize("one_hot", [False, True])
def test_it_runs_on_the_kernels_as_on_the_reference(my_rules, one_hot: bool):
    batch = kernel_round(MIXED, LENGTHS, 301, one_hot=one_hot, seed=5)
    for rule in (my_rules.reluctant, my_rules.Reluctant()):
        verification = Verification(OwnMethod(rule, RULE))
        assert_same_verdict(batch.found(verification), batch.expected(verification))


def test_it_is_certified(my_rules, tmp_path):
    arguments = [f"--methods={RULE}", "--samples=8000", "--no-controls", "--device=cpu", "--cells=float32, none"]
    assert certify([*arguments, "--workers=1", f"--output={tmp_path}"]) == 0
    assert len(json.loads((tmp_path / CERTIFICATION).read_text())["outcomes"]) >= 2


@pytest.mark.parametrize("fuzz", [True, False])
def test_agreement_runs_it_on_the_kernels(my_rules, tmp_path, fuzz: bool):
    """In the interpreter: random calls, and the combinations of the settings."""
    sizes = ["--vocab-size=70", "--requests=3", "--draft-tokens=2"]
    what = (
        ["--fuzz", "--fuzz-cases=4"]
        if fuzz
        else ["--no-law", "--decisions=20", "--truncations=none", "--dtypes=float32"]
    )
    options = ["--core=triton", "--device=cpu", f"--methods={RULE}", *sizes, *what, f"--output={tmp_path}"]
    assert agreement(options) == 0
    assert (tmp_path / AGREEMENT).exists()
