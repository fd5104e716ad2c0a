"""The examples of experiments/README.md: every command has one, and those that a CPU runs in seconds run as they stand.

Would catch a command without an example, and an example with an option that its command no longer has.
"""

import re

from experiments.__main__ import COMMANDS
from tests.support.guide_pages import ROOT, follow

PAGE = "experiments/README.md"


def test_every_command_has_an_example():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    shown = "\n".join(re.findall(r"^    [^\n]+|^```bash\n.*?^```$", page, re.MULTILINE | re.DOTALL))
    examples = set(re.findall(r"^ *(?:\.venv/bin/)?rejection-lab ([\w-]+)", shown, re.MULTILINE))
    assert sorted(examples) == sorted(COMMANDS)


def test_the_examples_of_a_cpu_run(tmp_path):
    (said,) = follow(f"../{PAGE}", tmp_path)
    run = tmp_path / "results" / "runs" / "first"
    assert "6 of 6 cells done, 0 failed, 0 left" in said and "the same tokens: 24 of 24 requests" in said
    assert (run / "report.html").exists() and (run / "tables" / "replay.md").exists()
