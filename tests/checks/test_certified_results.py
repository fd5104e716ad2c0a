"""results/certified: the verdicts follow from the tracked statistics, and the page says what they are."""

import json
import shutil
from pathlib import Path

import pytest

from harness.checks.certification.evaluate import POWER, VARIATION
from harness.checks.certification.goodness_of_fit import detectable_variation, p_value_of, power_at
from harness.checks.certification.implementations import page
from harness.checks.server_certification import page as served_page

CERTIFIED = Path(__file__).parents[2] / "results" / "certified"
FOLDERS = sorted(path.parent for path in CERTIFIED.glob("*/certification.json"))
SERVED = sorted(path.parent for path in (CERTIFIED / "served").glob("*/certification.json"))
MANY_REQUESTS = ("flashinfer", "sglang", "transformers", "vllm")
"""Engines that many run; the others' rows name a larger deviation that they would have shown."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_verdicts_follow_from_the_statistics(folder):
    """Would catch a verdict, a p-value or a level that was edited, or written by another version of the test."""
    found = json.loads((folder / "certification.json").read_text())
    items = page.tested(found)
    level = page.level_of(found)
    assert items and found["level"] == pytest.approx(level)
    for item in items:
        assert item["p_value"] == pytest.approx(page.p_value(item), rel=1e-9)
        assert (item["verdict"] == "FAIL") == page.fails(item, level)
        assert item["power"] == pytest.approx(power_at(VARIATION, item["num_samples"], level, item["df"]))
        fewest = 1_000_000 if found["config"]["subject"] in MANY_REQUESTS else 100_000
        assert item["num_samples"] >= fewest or item["is_spread"] or item["df"] == 0
    assert found["green"] == all(item["verdict"] == "pass" for item in items)


def test_the_page_holds_the_table_of_the_tracked_files():
    """Would catch results that changed under the page, and a page that was edited."""
    text = (CERTIFIED / "README.md").read_text()
    assert FOLDERS and page.table(CERTIFIED).join(page.MARKS) in text


def test_a_failure_in_the_statistics_shows_in_the_table(tmp_path):
    folder = tmp_path / FOLDERS[0].name
    shutil.copytree(FOLDERS[0], folder)
    found = json.loads((folder / "certification.json").read_text())
    item = page.tested(found)[0]
    item["statistic"] += 1000
    item["confirmation"] = {name: item[name] for name in ("df", "statistic", "num_impossible")}
    (folder / "certification.json").write_text(json.dumps(found))
    (tmp_path / "README.md").write_text("above\n{}old\n{}\nbelow\n".format(*page.MARKS))
    page.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "**FAIL** in 1 of" in text and "1 confirmed" in text and "old" not in text
    assert text.startswith("above\n") and text.endswith("\nbelow\n")


@pytest.mark.parametrize("folder", SERVED, ids=lambda folder: folder.name)
def test_verdicts_on_servers_follow_from_the_statistics(folder):
    """Would catch a verdict, a p-value or a resolution that was edited, or written by another version of the test."""
    found = json.loads((folder / "certification.json").read_text())
    level = served_page.level_of(found)
    assert found["outcomes"] and found["level"] == pytest.approx(level)
    for item in found["outcomes"]:
        fits = [item, *([item["confirmation"]] if "confirmation" in item else [])]
        assert all(fit["p_value"] == pytest.approx(p_value_of(fit["statistic"], fit["df"], item["tolerated"]), rel=1e-6)
                   for fit in fits)  # fmt: skip
        expected = detectable_variation(item["num_samples"], level, item["df"], POWER, item["tolerated"])
        assert item["detectable"] == pytest.approx(expected)
        assert served_page.verdict(found, item).startswith("**FAIL**") == (item["verdict"] == "FAIL")
        assert ("confirmation" in item) == served_page.differs(item, item["tolerated"], level)
    assert found["green"] == all(item["verdict"] == "pass" for item in found["outcomes"])


def test_the_page_holds_the_table_of_the_tracked_servers():
    text = (CERTIFIED / "README.md").read_text()
    assert SERVED and served_page.table(CERTIFIED).join(served_page.MARKS) in text
