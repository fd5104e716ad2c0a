"""results/plugin_vllm_h200: the tables of its page are those of the tracked measurements."""

import json
import shutil
from collections import Counter
from pathlib import Path

from experiments.plugin_vllm import tables
from harness.analysis.replay.estimators import replayed_rules
from harness.backends.recordings.cells import write_cells
from harness.report.replay.write import read_replay

FOLDER = Path(__file__).parents[2] / "results" / "plugin_vllm_h200"


def test_the_page_holds_the_tables_of_the_measurements():
    page = (FOLDER / "README.md").read_text()
    found = tables(FOLDER / "measured.jsonl") + tables(FOLDER / "measured_two_arms.jsonl", 1)
    assert len(found) == 3 and all(table in page for table in found)


def test_the_page_holds_what_the_recording_gives_and_the_session_measured(tmp_path):
    shutil.copy(FOLDER / "recording" / "block.recording", tmp_path)
    write_cells(tmp_path)
    rows = [line.split(" | ") for line in read_replay(tmp_path, replayed_rules()).markdown.splitlines()]
    replayed = {row[1]: row[3] for row in rows if row[0] == "| 1"}
    drafts, accepted = Counter(), Counter()
    for row in map(json.loads, (FOLDER / "recording" / "session.jsonl").read_text().splitlines()):
        if row["event"] == "run":
            drafts[row["arm"]] += row["drafts"]
            accepted[row["arm"]] += row["accepted"]
    page = (FOLDER / "README.md").read_text()
    assert f"| strict | {replayed['strict']} | not run |" in page
    for ours, own in (("probabilistic", "standard"), ("block", "block")):
        told = [f"{1 + accepted[arm] / drafts[arm]:.2f} ({drafts[arm]:,}" for arm in (f"vllm:{own}", ours)]
        assert f"| {ours} | {replayed[ours]} | vLLM's {own} {told[0]}), ours {told[1]}) |" in page
