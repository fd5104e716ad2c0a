"""The command that times parsers: what it writes, and how mistakes are reported. No time is tested."""

import json
import re

from experiments.bench_reasoning import main
from harness.checks.profiling.reasoning_cost import MARKER, PARSERS
from harness.config.cli.ending import SUCCESS


def test_every_parser_is_timed_at_every_context(tmp_path, capsys):
    arguments = ["--contexts=0,100", "--rounds=3", "--draft-tokens=2", f"--output={tmp_path}"]
    assert main(arguments) == SUCCESS
    content = json.loads((tmp_path / "bench_reasoning.json").read_text())
    assert [(item["parser"], item["context"]) for item in content["costs"]] == [
        (name, context) for name in PARSERS for context in (0, 100)
    ]
    assert all(item["median_us"] > 0 for item in content["costs"]) and content["provenance"]
    shown = capsys.readouterr().out
    page = (tmp_path / "bench_reasoning.md").read_text()
    for line in shown.splitlines()[-len(PARSERS) :]:
        assert f"| {' | '.join(re.split(' {2,}', line))} |" in page


def test_the_control_finds_what_the_others_find():
    text = [9, 8, *MARKER]
    for parser in PARSERS.values():
        state = parser.after(text[:1], parser.start())
        assert parser.end_index_in(text[1:], state) in (1, 3)


def test_a_wrong_setting_is_refused(capsys):
    assert main(["--contexts=1.5"]) != SUCCESS
    assert "expected whole numbers of tokens" in capsys.readouterr().err
