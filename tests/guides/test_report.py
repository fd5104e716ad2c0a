"""guides/report.md: every word that it explains stands in a report of the run that it starts.

Would catch a report that is worded otherwise than its guide.
"""

import re

from tests.support.guide_pages import GUIDES, follow

WORDS = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def test_the_words_of_the_guide_are_those_of_a_report(tmp_path):
    follow("report.md", tmp_path)
    run = tmp_path / "results" / "runs" / "reading"
    report = (run / "report.md").read_text(encoding="utf-8")
    first = "\n".join(report.splitlines()[:40])
    words = WORDS.findall((GUIDES / "report.md").read_text(encoding="utf-8"))
    assert len(words) >= 9
    for word in words:
        if word.startswith("tables/"):
            assert (run / word).exists() and word in report
        elif word != "[low, high]":
            assert word in report
    assert all(word in first for word in ("keep", "most at position", "More, but", "times as fast as without drafts"))
    assert "total variation" in first and (run / "report.html").exists()
