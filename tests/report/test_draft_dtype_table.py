"""Cells that differ in their draft-logit cache are told apart everywhere, and their table answers for each."""

from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.comparison import comparisons_frame, expected_difference, groups, same_law
from harness.analysis.definitions import LABEL_NOTES
from harness.analysis.recorded_terms import Recorded
from harness.config.guarantee import OTHER_DRAFTS
from harness.records.acceptance_terms import COLUMNS, DraftTerms, RequestTerms, collect_terms, measured_drafts
from harness.report.cell_names import column_name
from harness.report.figures.sheet import sheet_of
from harness.report.tables.draft_dtype import draft_dtype_tables
from harness.report.tables.drafting import drafting_tables
from harness.report.tables.lossy import lossy_tables
from harness.report.tables.methods import method_tables, paired_table
from harness.report.tables.summary import summary_table
from tests.support.synthetic_cells import analysed, config, simulated_cell

CACHES = [
    ("auto", "stored"),
    *((dtype, drawn) for dtype in ("bfloat16", "float16") for drawn in ("stored", "unrounded")),
]


def cell(cache_dtype, drawn, method="probabilistic", **changes):
    biased = drawn == "unrounded" and method in ("probabilistic", "block")
    settings = config(
        drafting__cache_dtype=cache_dtype,
        drafting__drawn_from=drawn,
        verification__method=method,
        guarantee="biased" if biased else "lossless",
        **changes,
    )
    labels = ("biased", OTHER_DRAFTS) if biased else ()
    return simulated_cell(settings, [0.6] * 3, num_prompts=6, num_rounds=10, labels=labels)


@pytest.fixture(scope="module")
def cells():
    return analysed(*(cell(*cache, method) for method in ("probabilistic", "strict") for cache in CACHES))


def recorded(cell, **columns):
    """Terms of a cell, every value of a column the same."""
    parts = []
    for request in cell.record.requests:
        drafts = []
        for index, count in measured_drafts(request):
            values = {name: np.full(count, 0.5) for name, column in COLUMNS.items() if column.is_required}
            drafts.append(DraftTerms(index, values | {name: np.array(value) for name, value in columns.items()}))
        parts.append(RequestTerms.of(request.key, drafts))
    return Recorded(cell, collect_terms(cell.record.cell_id, parts))


def test_no_two_cells_have_one_name(cells):
    assert len({column_name(item) for item in cells}) == len(cells)
    names = {column_name(item) for item in cells}
    assert "probabilistic, sampled drafts" in names and "strict, sampled drafts, float16 cache" in names
    assert f"probabilistic, sampled drafts, bfloat16 cache, drawn unrounded [biased; {OTHER_DRAFTS}]" in names


def test_tables_and_figures_tell_the_caches_apart(cells):
    """Would catch columns, rows or series of two cells under one name, and cells that are left out."""
    (methods,) = method_tables(cells)
    assert len(set(methods.header)) == len(methods.header) == 2 + 2 * (len(cells) - 1)
    assert LABEL_NOTES[OTHER_DRAFTS] in methods.notes
    paired, summary = paired_table(cells), summary_table(cells)
    comparisons = [row[paired.header.index("comparison")] for row in paired.texts]
    assert len(set(comparisons)) == len(comparisons) == len(cells) * (len(cells) - 1) // 2
    at = [summary.header.index(name) for name in ("verification", "drafts")]
    assert len({tuple(row[place] for place in at) for row in summary.texts}) == len(cells)
    sheet = sheet_of(cells)
    assert len({label for label, _ in sheet.series.values()}) == len(cells)
    sides = ["verification", "draft_cache_dtype", "drawn_from"]
    frame = comparisons_frame(cells).drop_duplicates(
        [f"{side}_{name}" for side in ("first", "second") for name in sides]
    )
    assert len(frame) == len(comparisons)


def test_drafting_by_verification_is_shown_for_each_cache():
    both = [
        cell(*cache, method, draft_sampling=sampling)
        for cache in (("auto", "stored"), ("bfloat16", "stored"))
        for method in ("strict", "block")
        for sampling in ("sampled", "coupled")
    ]
    first, second = drafting_tables(analysed(*both))
    assert second.title == f"{first.title} · bfloat16 cache" and len(first.texts) == len(second.texts) == 2
    assert drafting_tables(analysed(*(cell(*cache) for cache in CACHES))) == []


def test_laws_of_rounded_and_unrounded_drafts(cells):
    """A method that compares with the cache has another law with each; to others only what is drawn matters."""
    by_name = {item.method: item for item in cells}
    strict = "strict, bfloat16 cache, drawn unrounded"
    assert same_law(by_name["strict"], by_name[strict])
    assert not same_law(by_name["strict"], by_name["strict, float16 cache"])
    own = [item for item in cells if item["verification"] == "probabilistic"]
    assert not any(same_law(first, second) for first in own for second in own if first is not second)
    (wider,) = analysed(cell("float32", "stored", dtype="bfloat16"))
    (own_type,) = analysed(cell("auto", "stored", dtype="bfloat16"))
    assert same_law(wider, own_type) and wider.cache_text == "float32 cache" and own_type.cache_text == ""
    assert expected_difference(by_name["strict"], by_name["probabilistic"]) is not None
    assert expected_difference(by_name["strict"], by_name["probabilistic, float16 cache"]) is None


def test_each_cache_has_its_bias_bound_acceptance_and_memory(cells):
    terms = []
    for item in cells:
        is_biased, is_unrounded = item["guarantee"] == "biased", item["drawn_from"] == "unrounded"
        bound = {"draft_tv": 0.003} if is_unrounded else {}
        terms.append(recorded(item, output_tv=0.001 if is_biased else 0.0, **bound))
    (table,) = draft_dtype_tables(cells, terms)
    rows = {row[:3]: row[3:] for row in table.texts}
    assert len(rows) == len(cells)
    first = rows["probabilistic, sampled drafts", "float32", "the cache"]
    assert first[:3] == ("lossless", "0", "0") and first[4] == "–"
    biased = rows[f"probabilistic, sampled drafts [biased; {OTHER_DRAFTS}]", "bfloat16", "unrounded logits"]
    assert biased[0] == "biased" and biased[1].startswith("10.00 ") and biased[2].startswith("30.00 ")
    assert biased[4] != "–"
    control = rows["strict, sampled drafts", "float16", "unrounded logits"]
    assert control[:2] == ("lossless", "0") and control[2].startswith("30.00 ")
    assert lossy_tables(cells, terms, {}) == [], "a bias is no trade"


def test_what_was_not_recorded_is_a_dash(cells):
    (table,) = draft_dtype_tables(cells, [])
    biased = [row for row in table.texts if row[3] == "biased"]
    assert len(biased) == 2 and all(row[4] == row[5] == "–" for row in biased)


def test_one_cache_is_no_question(cells):
    assert draft_dtype_tables([item for item in cells if not item.cache_text], []) == []
    assert len(groups(cells)) == 1


def test_records_that_do_not_name_a_cache_have_the_drafters_own():
    record = cell("auto", "stored")
    drafting = {"num_speculative_tokens": 3, "sampling": "auto"}
    (old,) = analysed(replace(record, config={**record.config, "drafting": drafting}))
    (greedy,) = analysed(cell("auto", "stored", draft_sampling="greedy"))
    assert (old["draft_cache_dtype"], old["drawn_from"]) == ("float32", "stored")
    assert (greedy["draft_cache_dtype"], greedy["drawn_from"], greedy.drafts) == ("", "", "greedy")


def test_the_experiment_has_every_cache_once(capsys):
    from experiments import run as command

    assert command.main(["experiment=draft_logits_dtype", "backend.device=cpu", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 42 and len({line.split(maxsplit=1)[1] for line in lines[1:]}) == 42
