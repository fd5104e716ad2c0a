"""The page of a report as text: its policy, what it refers to, and what its columns sort by."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from harness.analysis.results import read_results
from harness.report.html.page import html_page, table_view
from harness.report.number_format import Number, count
from harness.report.page import whole_report
from harness.report.sections import make_tables
from harness.report.table import Table
from tests.support.synthetic_cells import simulated_run


class Reader(HTMLParser):
    """The elements of a page, and the text of its style and script."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.own = [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] in ("style", "script"):
            self.own.setdefault(self.elements[-1][0], data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = simulated_run(tmp_path_factory.mktemp("page") / "<b>run", methods=("strict",), num_prompts=2)
    results = read_results(folder)
    return html_page(whole_report(results, make_tables(results), []))


def test_the_policy_names_the_very_style_and_script_of_the_page(page):
    """Would catch a page whose own script is blocked after an edit, and one that lets others in."""
    found = Reader(page)
    (policy,) = (
        attrs["content"] for _, attrs in found.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    for name in ("style", "script"):
        digest = b64encode(sha256(found.own[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert [tag for tag, _ in found.elements].count("script") == 1


def test_the_page_refers_to_nothing_outside_itself(page):
    found = Reader(page)
    targets = [attrs[name] for _, attrs in found.elements for name in ("src", "href", "action") if name in attrs]
    assert targets and all(target.startswith(("#", "data:")) for target in targets)
    assert not re.search(r"url\(|@import|\bon\w+=", page)
    identities = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert {target[1:] for target in targets if target.startswith("#")} <= set(identities)
    assert len(identities) == len(set(identities))


def test_names_are_escaped(page):
    assert "<b>" not in page and "&lt;b&gt;run" in page


def test_a_column_is_one_of_numbers_where_all_that_is_there_is_a_number():
    """Would catch K = 10 before K = 9, and text such as 8 of 8 taken for 8."""
    rows = (
        (count(10), "8 of 8", "–", Number(2.0, 1.0, 3.0, decimals=1)),
        (count(9), "7 of 8", "", Number(0.5, sign="×", decimals=1)),
        ("–", "n/a", "n/a", count(0, "same law")),
    )
    view = table_view(Table("", ("K", "same", "none", "value"), rows), "x")
    assert [kind for _, kind in view.columns] == ["number", "text", "text", "number"]
    assert [[cell.sort_key for cell in row] for row in view.rows] == [
        ["10.0", "8 of 8", "", "2.0"],
        ["9.0", "7 of 8", "", "0.5"],
        ["", "", "", "0.0"],
    ]
    assert [(cell.text, cell.interval) for cell in view.rows[0]][-1] == ("2.0", "[1.0, 3.0]")
    assert [(row[-1].text, row[-1].interval) for row in view.rows[1:]] == [("× 0.5", ""), ("0", "(same law)")]
