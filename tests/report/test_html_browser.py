"""The page of a report in a real browser: nothing fetched, no errors, tables that sort, figures that show."""

import json
from math import nan

import pytest

from experiments import report as command
from harness.report.document import Document, Section
from harness.report.html.page import html_page
from harness.report.number_format import Number, count
from harness.report.table import Table
from tests.runner.test_security import make_hostile
from tests.support.installed_browser import browser
from tests.support.synthetic_cells import simulated_run

HOSTILE = '<script>document.hacked = 1</script><img src="http://127.0.0.1:9/x" onerror="document.hacked = 1">&"\''

running_browser = pytest.fixture(browser, scope="module")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The page of a run whose manifest is hostile, and the page of two runs."""
    folder = tmp_path_factory.mktemp("runs")
    first, second = (
        simulated_run(folder / name, temperatures=(1.0,), methods=methods, num_prompts=3)
        for name, methods in (("a", ("strict", "block")), ("b", ("strict",)))
    )
    manifest = json.loads((first / "run.json").read_text())
    manifest |= {"title": HOSTILE, "command": HOSTILE, "shows": [HOSTILE], "does_not_show": "Nothing else."}
    manifest["skipped"] = [{"cell": {"drafter": HOSTILE}, "reason": "it was left out for a reason"}]
    (first / "run.json").write_text(json.dumps(manifest))
    assert command.main([str(first), "--html"]) == 0
    assert command.main([str(first), str(second), "--html"]) == 0
    third = simulated_run(folder / "c", temperatures=(1.0,), methods=("strict",), num_prompts=2)
    make_hostile(third)
    assert command.main([str(third), "--html"]) == 0
    pages = {"report": first / "report.html", "comparison": second / "comparison.html"}
    return pages | {"hostile": third / "report.html"}


class Opened:
    """A page, and everything that it said and asked for."""

    def __init__(self, running, path, **settings):
        self.page = running.new_page(**settings)
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url.split(":")[0]))
        self.page.goto(path.as_uri(), wait_until="load")


@pytest.fixture
def opened(running_browser, reports):
    pages = []

    def open_page(name, **settings):
        pages.append(Opened(running_browser, reports[name], **settings))
        return pages[-1]

    yield open_page
    for item in pages:
        item.page.close()


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_a_page_shows_its_figures_without_errors_and_fetches_nothing(opened, name):
    """Would catch a figure that the policy blocks, a script that fails, and anything that needs a network."""
    found = opened(name)
    assert found.said == []
    assert found.asked.count("file") == 1 and set(found.asked) <= {"file", "data"}
    sizes = found.page.eval_on_selector_all(
        "figure img", "all => all.map(img => [img.complete, img.naturalWidth, img.naturalHeight, img.clientWidth])"
    )
    assert len(sizes) >= 2 and all(complete and min(rest) > 200 for complete, *rest in sizes)
    assert found.page.eval_on_selector_all("img", "all => all.every(img => img.alt.length > 10)")


def test_text_from_outside_stays_text(opened):
    """Would catch a title, command, setting or remark that becomes markup."""
    page = opened("report").page
    assert page.title() == page.inner_text("h1") == HOSTILE
    assert page.evaluate("document.hacked") is None
    assert page.locator("script").count() == 1 and page.locator("[onerror]").count() == 0
    assert f"drafter={HOSTILE}: it was left out for a reason" in page.inner_text(".warnings")
    assert f"What this shows: {HOSTILE}" in page.inner_text("main") and "Nothing else." in page.inner_text("main")


def test_names_in_records_stay_text(opened):
    """Would catch a target, label, fallback or failure that becomes markup in a table, a warning or a caption."""
    page = opened("hostile").page
    assert page.evaluate("document.hacked") is None and page.locator("script").count() == 1
    assert page.inner_text("main").count("<script>document.hacked = 1</script>") > 5


def test_the_policy_stops_what_would_leave_the_page(opened):
    """Would catch a policy that allows the network or another script than the page's own."""
    blocked = opened("report").page.evaluate(
        """async () => {
          const found = [];
          document.addEventListener("securitypolicyviolation", (event) => found.push(event.effectiveDirective));
          document.body.append(Object.assign(new Image(), { src: "http://127.0.0.1:9/x.png" }));
          document.body.append(Object.assign(document.createElement("script"), { textContent: "document.hacked = 1" }));
          await fetch("http://127.0.0.1:9/").catch(() => {});
          await new Promise((resolve) => setTimeout(resolve));
          return [found.sort(), document.hacked];
        }"""
    )
    assert blocked == [["connect-src", "img-src", "script-src-elem"], None]


def test_a_column_of_numbers_sorts_as_numbers(running_browser, tmp_path):
    """Would catch an order of text (100 before 9), intervals that are read along, and missing values in between."""
    numbers = (9.6, 9.2, 9.9), (12346, 12000, 12700), (-3.0, nan, nan), (100, 98, 101)
    first, second, third, fourth = (Number(*number) for number in numbers)
    shown = [first, "–", second, third, fourth, count(0, "same law"), "n/a"]
    table = Table("Numbers", ("name", "value"), tuple((f"row {index}", entry) for index, entry in enumerate(shown)))
    path = tmp_path / "page.html"
    path.write_text(html_page(Document("Title", sections=(Section("Numbers", tables=(table,)),))))
    page = Opened(running_browser, path).page
    header = page.locator("#table-1-1 thead th").nth(1)

    def order():
        return [int(text.removeprefix("row ")) for text in page.locator("#table-1-1 tbody th").all_inner_texts()]

    header.locator("button").click()
    assert order() == [3, 5, 0, 4, 2, 1, 6] and header.get_attribute("aria-sort") == "ascending"
    header.locator("button").press("Enter")
    assert order() == [2, 4, 0, 5, 3, 1, 6] and header.get_attribute("aria-sort") == "descending"
    page.locator("#table-1-1 thead th button").first.click()
    assert order() == list(range(7)) and header.get_attribute("aria-sort") == "none"
    page.close()


def test_every_column_of_every_table_sorts(opened):
    """Would catch a header without its button, and a row that is lost on the way."""
    page = opened("report").page
    before = sorted(page.locator("tbody tr").all_inner_texts())
    for button in page.locator("thead th button").all():
        button.dispatch_event("click")
    assert sorted(page.locator("tbody tr").all_inner_texts()) == before
    wrong = page.evaluate(
        """() => [...document.querySelectorAll("table")].filter((table) => {
          const sorted = [...table.tHead.rows[0].cells].map((cell) => cell.getAttribute("aria-sort"));
          return !table.caption || sorted.at(-1) !== "ascending" || !sorted.slice(0, -1).every((it) => it === "none")
            || [...table.querySelectorAll("th")].some((cell) => !cell.scope);
        }).length"""
    )
    assert wrong == 0


CONTRAST = """(selector) => {
  const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((part) => {
    const value = Number(part) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const light = (text) => parse(text).reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const text = light(getComputedStyle(document.querySelector(selector)).color);
  return [ground, (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05)];
}"""


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_text_can_be_read_on_light_and_dark_ground(opened, scheme, is_dark):
    """The contrast that the Web Content Accessibility Guidelines ask of text: 4.5 to 1."""
    page = opened("report", color_scheme=scheme).page
    for selector in ("body", ".interval", "nav a", "figcaption"):
        ground, contrast = page.evaluate(CONTRAST, selector)
        assert (ground < 0.1) is is_dark and contrast >= 4.5, selector


def test_a_narrow_screen_scrolls_tables_not_the_page(opened):
    page = opened("comparison", viewport={"width": 390, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("[...document.querySelectorAll('.scroll')].some((it) => it.scrollWidth > it.clientWidth)")


def test_a_phone_shows_positions_and_length_beside_the_names_of_methods(opened):
    """Would catch a first table of which 420 pixels show a name and a number."""
    page = opened("report", viewport={"width": 420, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    edges = page.eval_on_selector(
        "table",
        """table => [...table.tHead.rows[0].cells].filter(cell => /^(position|acceptance)/.test(cell.innerText))
          .map(cell => cell.getBoundingClientRect().right)""",
    )
    assert len(edges) == 4 and max(edges) <= 420, edges


def test_differences_of_two_runs_are_shown(opened):
    page = opened("comparison").page
    assert page.inner_text("[id$=differences-b-a-title]") == "Differences: b − a"
    text = page.inner_text("section[id$=differences-b-a]")
    assert "Settings that differ" in text and "verification.method" in text
    assert "Paired differences, b − a" in text and "3 of 3" in text and "Cells without a partner" in text
