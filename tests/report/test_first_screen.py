"""What is read first of a report: which method keeps most, at which position, how surely, and what it buys."""

import io
from dataclasses import replace
from itertools import pairwise

import pytest

from harness.analysis.comparison import expected_difference
from harness.analysis.estimates import Estimate, paired_difference
from harness.analysis.results import read_results
from harness.records.schema import Failure
from harness.report.blocks import LENGTHS, blocks
from harness.report.console import WIDTH, print_summary
from harness.report.figures.write import write_figures
from harness.report.first_screen import LEGEND, MAX_ANSWERS, MAX_ROWS, TITLE, FirstScreen
from harness.report.page import run_page
from harness.report.sections import make_tables
from harness.report.tables.by_position import differences_table, rows_table
from harness.report.text_table import text_lines
from harness.report.verdicts import sentences
from tests.support.synthetic_cells import (
    analysed,
    baseline_settings,
    cell_record,
    config,
    drafted,
    request_record,
    round_record,
    simulated_cell,
    simulated_run,
)
from tests.support.table_columns import column_of

RATES = {"strict": (0.4, 0.2, 0.2), "probabilistic": (0.6, 0.5, 0.4), "block": (0.6, 0.52, 0.42)}
METHODS = tuple(RATES)
LATER = (0.3,) * 13
LOSSY = {"verification__leniency": 0.5, "guarantee": "lossy"}
TREE = {"drafting__siblings": "distinct", "depth": 4}


def baseline(**changes):
    return simulated_cell(baseline_settings(**changes), [], num_prompts=10, num_rounds=60)


def each(**changes):
    """The three methods."""
    return [drafted(method, seed=seed, rates=RATES[method] + LATER, **changes) for seed, method in enumerate(METHODS)]


def with_matches_of(*lengths):
    """Rounds that draft so many tokens in turn and accept all."""
    rounds, now = [round_record(0, 0, 0.1)], 0.1
    for length in lengths * 8:
        now += 0.1
        rounds.append(round_record(length, length, now))
    requests = [request_record(rounds, prompt_id) for prompt_id in "abcd"]
    return cell_record(requests, now, config(drafter__kind="ngram", verification__method="strict"))


def lenient():
    return drafted("lenient", rates=(0.9, 0.8, 0.7), **LOSSY)


def failed():
    settings = config(verification__method="coupled", draft_sampling="coupled")
    return cell_record((), 0.0, settings, failures=(Failure("RuntimeError", "no memory"),))


RUNS = {
    "one method": lambda: [baseline(), *each()[:1]],
    "K": lambda: [baseline(), *(item for depth in (1, 2, 4, 8) for item in each(depth=depth))],
    "long drafts": lambda: [baseline(), *each(depth=16)],
    "temperatures": lambda: [item for hot in (0.0, 0.5, 1.0) for item in _at(hot)],
    "loads": lambda: [
        item
        for size in range(1, 10)
        for item in (baseline(backend__max_concurrency=size), *each(backend__max_concurrency=size)[:2])
    ],
    "trees": lambda: [
        baseline(),
        *(drafted("recursive", rates=(0.6, 0.5), seed=3, drafting__tree=tree, **TREE) for tree in ("2-1", None)),
        drafted("traversal", rates=(0.6, 0.5), drafting__tree="2-1", **TREE),
    ],
    "drafts": lambda: [baseline(), *(drafted(name, drawn) for name in METHODS for drawn in ("greedy", "sampled"))],
    "no baseline": each,
    "lossy": lambda: [baseline(), *each(), lenient()],
    "random weights": lambda: [
        baseline(target__weights="random"), *each(target__weights="random", drafter__weights="random")
    ],
    "a failed cell": lambda: [baseline(), *each(), failed()],
    "all failed": lambda: [baseline(), failed()],
    "no drafts": lambda: [baseline()],
}  # fmt: skip


def _at(temperature):
    """At temperature 0 all accept the same."""
    cells = [
        drafted(name, temperature=temperature, seed=seed if temperature else 0) for seed, name in enumerate(METHODS)
    ]
    return [baseline(decoding__temperature=temperature), *cells]


def screen(name, reference=None):
    return FirstScreen(tuple(analysed(*RUNS[name]())), {"run": reference})


@pytest.mark.parametrize("name", RUNS)
def test_no_line_is_too_long_and_no_two_rows_of_a_table_have_one_name(name):
    """Would catch a sweep that wraps at 100 columns, cells that cannot be told apart, and a page without an end."""
    found = screen(name)
    stream = io.StringIO()
    print_summary(found.cells, stream)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= WIDTH
    for table in found.tables:
        names = [row[0] for row in table.rows]
        assert len(set(names)) == len(names) and table.is_number_column(len(table.header) - 1)
    assert len(found.answers) <= MAX_ANSWERS
    assert sum(len(block.shown) for block in found.in_full[1:]) <= MAX_ROWS
    num_left = len([cell for cell in found.cells if not cell.is_baseline])
    num_left -= sum(len(block.shown) for block in found.in_full)
    assert any(line.startswith(f"{num_left} more cells") for line in found.below) == (num_left > 0)


def answer(block):
    return " ".join(sentences(block))


def leaders(block):
    """What is named before the first number."""
    return {method for method in METHODS if method in answer(block).partition(":")[0]}


def test_the_first_forty_lines_of_a_page_answer(tmp_path):
    """Would catch answers below warnings, settings and tables, as once "fastest: no drafts" stood there alone."""
    folder = simulated_run(tmp_path, drafters=("eagle", "eagle3"), num_prompts=8)
    results = read_results(folder)
    page = run_page(results, make_tables(results), []).to_markdown().splitlines()[:40]
    found = {(cell["drafter"], cell["verification"], cell["temperature"]): cell for cell in results.cells}
    hot = [page.index(f"- **{drafter} · K = 3 · T = 1**") for drafter in ("eagle", "eagle3")]
    cold = [page.index(f"- **{drafter} · K = 3 · T = 0**") for drafter in ("eagle", "eagle3")]
    assert max(hot) < min(cold) < page.index("### eagle · K = 3 · T = 1"), "the highest temperature first"
    for drafter, start in zip(("eagle", "eagle3"), hot, strict=True):
        own = "\n".join(page[start + 1 : start + 5]).partition("- **")[0]
        cells = {key[1]: item for key, item in found.items() if key[0] == drafter and key[2] == 1}
        fastest = max(cells.values(), key=lambda item: item.speedup.value)
        longest = max(cells.values(), key=lambda item: item.estimate("full_draft_length").value)
        gains = {
            name: paired_difference(cells["strict"].estimates, longest.estimates, name).value
            for name in (f"acceptance_rate_per_pos_{position}" for position in (1, 2, 3))
        }
        most = max(gains, key=gains.get)
        rates = " → ".join(f"{100 * item.estimate(most).value:.1f}" for item in (cells["strict"], longest))
        assert f"position {most[-1]}: {rates} % ({100 * gains[most]:+.1f} [" in own
        assert f"{fastest.speedup.value:.2f} [" in own and f"{longest.estimate('full_draft_length').value:.2f} [" in own
    for row in RATES:
        line = next(line for line in page if line.startswith(f"| {row} | "))
        cell = found["eagle", row, 1.0]
        assert [
            f"{100 * cell.estimate(f'acceptance_rate_per_pos_{position}').value:.1f}" for position in (1, 2, 3)
        ] == [entry.split()[0] for entry in line.split("|")[2:5]]


def test_marks_and_the_level_of_brackets_stand_before_the_first_number():
    """Would catch a mark that is explained behind all tables, and brackets of an unknown level."""
    cells = analysed(baseline(), *each())
    vars(cells[1])["drift"] = 0.3
    stream = io.StringIO()
    print_summary(cells, stream)
    before = " ".join(stream.getvalue().partition("[")[0].split())
    assert "95 % intervals over prompts" in before and LEGEND in before
    assert LEGEND not in screen("K").reading


def test_what_keeps_most_and_is_not_the_fastest_is_told_with_what_its_rounds_cost():
    """Would catch "fastest is strict" beside "block keeps most", without a word on why."""
    slow = simulated_cell(config(verification__method="block"), (0.9, 0.8, 0.7), num_prompts=10, step_s=0.05)
    (block,) = blocks(analysed(baseline(), drafted("strict", rates=(0.5, 0.2, 0.1), seed=1), slow))
    (longest,) = (cell for cell in block.cells if cell["verification"] == "block")
    assert "Fastest with drafts is strict" in sentences(block)[-1]
    told = sentences(block)[-1].partition(". block keeps more and is ")[2]
    assert told.startswith(f"{longest.speedup.value:.2f} [") and "a round takes as long as" in told
    assert "keeps more" not in answer(blocks(analysed(baseline(), *each()[:2]))[0])


def test_a_length_over_few_rounds_stands_beside_that_over_all():
    """Would catch a long acceptance of a drafter that rarely drafts, read as what a forward brings."""
    (block,) = blocks(analysed(baseline(), with_matches_of(3, 0, 0)))
    (cell,) = block.cells
    assert f"over all rounds {cell.estimate('tokens_per_forward').value:.2f} [" in answer(block)
    assert "over all rounds" not in answer(screen("K").blocks[0]) and "All rounds" not in screen("K").reading


def test_figures_follow_the_answers_and_warnings_the_figures(tmp_path):
    """Would catch a page whose first screen is settings, warnings and remarks."""
    results = read_results(simulated_run(tmp_path, temperatures=(1.0,), num_prompts=2))
    figures = write_figures(results.cells, tmp_path / "figures")
    titles = [section.title for section in run_page(results, make_tables(results), figures).sections]
    assert titles[:3] == [TITLE, "Figures", "Warnings"]
    first = run_page(results, make_tables(results), figures).sections[0]
    assert any(text.startswith("Warnings: ") for text in first.paragraphs), "they are announced where they are not seen"


def test_the_order_of_the_answer_follows_what_is_certain():
    """Would catch a lead that chance explains told as a fact, and one that it does not as chance."""
    clear = blocks(analysed(baseline(), *each()[:2]))[0]
    assert leaders(clear) == {"probabilistic"}
    close = blocks(analysed(baseline(), *each()[1:]))[0]
    assert leaders(close) == {"probabilistic", "block"}
    # on the same drafts block is ahead in these cells, whatever chance made of what was accepted
    worse, better = close.cells
    expected = expected_difference(better, worse) or expected_difference(worse, better)
    assert expected.low * expected.high > 0 and "block is expected to keep +0" in answer(close)
    # what is as fast is named beside what is fastest
    speed = sentences(close)[-1]
    assert "block" in speed and "probabilistic" in speed


def test_blocks_that_keep_the_same_share_what_is_said_of_it():
    """Would catch the same acceptance told once a load, and a speed under another load than its own."""
    found = screen("loads")
    (only,) = found.answers
    own = [sentences(block) for block in found.blocks[:MAX_ANSWERS]]
    assert only.sentences[: len(own[0]) - 1] == own[0][:-1]
    speeds = only.sentences[len(own[0]) - 1 :]
    assert [speed.split(": ", 1) for speed in speeds] == [
        [f"{block.first['max_concurrency']} in flight", texts[-1]]
        for block, texts in zip(found.blocks, own, strict=False)
    ]
    assert len(found.not_answered) == 1 and f"{len(found.blocks) - MAX_ANSWERS} " in found.not_answered[0]
    apart = FirstScreen(tuple(analysed(baseline(), *each(), *each(drafter__kind="eagle"))), {})
    assert len(apart.answers) == 2, "drafters have answers of their own"


def test_a_method_that_is_not_lossless_does_not_keep_most():
    """Would catch a rule that changes the output named as the best."""
    (block,) = blocks(screen("lossy").cells)
    assert "lenient" not in answer(block).partition(":")[0] and "lenient" not in sentences(block)[-1]
    (cell,) = (item for item in block.cells if item["guarantee"] == "lossy")
    assert f"lenient (lossy) {cell.estimate('full_draft_length').value:.2f} [" in answer(block)


def test_what_a_lossy_method_costs_stands_beside_what_it_keeps():
    """Would catch more tokens without their price, and the price of another cell."""
    found = screen("lossy")
    (block,) = found.blocks
    (cell,) = (item for item in block.cells if item["guarantee"] == "lossy")
    (text,) = (text for text in sentences(block) if text.startswith("More, but not the target's distribution"))
    assert f"{cell.speedup.value:.2f} [" in text and "was not recorded (measurement.round_terms=true)" in text
    known = {item.record.cell_id: Estimate(0.05, 0.04, 0.06) for item in block.cells} | {
        cell.record.cell_id: Estimate(0.1252, 0.1069, 0.1433)
    }
    (answer,) = replace(found, distances=known).answers
    (text,) = (text for text in answer.sentences if text.startswith("More, but"))
    assert "total variation 12.52 [10.69, 14.33] % in a round's first token" in text and "not recorded" not in text


def test_settings_of_a_drafter_stand_in_rows_and_not_in_the_title_of_a_block():
    """Would catch a block that is called by the setting of its first row, and "of every K" where there is one."""
    own = {"drafter__kind": "tests.support.own_drafters:Repeats"}
    cells = [drafted("block", seed=most, drafter__most=most, **own) for most in (1, 3)]
    found = FirstScreen(tuple(analysed(baseline(), *cells)), {})
    (block,) = found.blocks
    assert "most" not in block.title(found.cells)
    assert sum("drafter.most=" in str(row[0]) for row in found.tables[0].rows) == 2
    assert "Of every setting, " in answer(block) and "K" not in answer(block).replace("K =", "")


def test_random_weights_and_set_acceptance_answer_nothing():
    assert "weights are random" in answer(blocks(screen("random weights").cells)[0])
    assert "position" not in " ".join(screen("random weights").tables[0].header)
    synthetic = drafted("synthetic", verification__rates=[0.6, 0.5, 0.4], guarantee="synthetic")
    first, last = sentences(blocks(analysed(baseline(), synthetic))[0])
    assert "set, not measured" in first and "times as fast" in last


def cold(method, step_s, **changes):
    settings = config(verification__method=method, decoding__temperature=0.0, **changes)
    return simulated_cell(settings, (0.6, 0.5, 0.4), num_prompts=10, step_s=step_s)


def test_methods_that_temperature_0_makes_equal_share_a_row():
    """Would catch noise of the machine in rows of its own, and methods of another guarantee in the same row."""
    times = {"strict": 0.01, "probabilistic": 0.02, "block": 0.016}
    records = [baseline(decoding__temperature=0.0), *(cold(method, step_s) for method, step_s in times.items())]
    (block,) = blocks(analysed(*records))
    table = rows_table(block, "")
    assert [row[0].removesuffix(" ≡") for row in table.rows] == ["no drafts", "strict, probabilistic, block"]
    entries = dict(zip(table.header, table.rows[1], strict=True))
    shown = {"position 2 (%)": "acceptance_rate_per_pos_2", "acceptance length of full drafts": LENGTHS[0]}
    for name, metric in shown.items():
        assert {cell.estimate(metric).value for cell in block.cells} == {entries[name].value}
    speedups = [cell.speedup.value for cell in block.cells]
    assert str(entries["speedup"]) == f"{min(speedups):.2f} to {max(speedups):.2f}"
    assert f"{min(speedups):.2f} to {max(speedups):.2f}" in sentences(block)[-1]
    assert any("≡" in text for text in FirstScreen(block.cells, {}).below), "the mark is explained"
    (block,) = blocks(analysed(*records, cold("typical", 0.01, guarantee="lossy")))
    assert [row[0].removesuffix(" ≡") for row in rows_table(block, "").rows][1:] == [", ".join(times), "typical"]
    fly = cold("fly", 0.01, guarantee="lossy", draft_sampling="coupled")
    (block,) = blocks(analysed(*records, fly))
    assert "drafts: " not in rows_table(block, "").above, "at temperature 0 all are drawn alike"
    assert [row[0] for row in differences_table(block, "").rows] == ["fly"], "equal methods gain nothing"
    warm = screen("temperatures").blocks[0]
    assert len(rows_table(warm, "").rows) == 1 + len(METHODS)


def test_equal_methods_do_not_hide_which_depth_is_fastest():
    """Would catch "differences in speed are noise" of a sweep of K at temperature 0."""
    cells = [drafted(name, temperature=0.0, depth=depth) for depth in (1, 2, 3) for name in ("strict", "block")]
    (block,) = blocks(analysed(baseline(decoding__temperature=0.0), *cells))
    fastest = max(block.cells, key=lambda cell: cell.speedup.value)
    assert f"K = {fastest['num_speculative_tokens']}" in sentences(block)[-1]
    longest = max(block.cells, key=lambda cell: cell.estimate("full_draft_length").value)
    (every,) = (text for text in sentences(block) if f", K = {longest['num_speculative_tokens']} keeps most" in text)
    assert "strict" not in every and "block" not in every, "neither can keep more than the other"


def test_a_long_sweep_of_few_methods_shows_the_best_of_each_depth():
    """Would catch one arbitrary K shown of many, and a lossy method as the best of its K."""
    cells = [item for depth in (1, 2, 3, 4, 5, 6, 8) for item in each(depth=depth)[:2]]
    (block,) = blocks(analysed(baseline(), *cells))
    assert {cell["num_speculative_tokens"] for cell in block.shown} == {1, 2, 3, 4, 5, 6, 8}
    assert {cell["verification"] for cell in block.shown} == {"probabilistic"}
    lossy = [drafted("lenient", depth=depth, rates=(0.9,) * depth, **LOSSY) for depth in (1, 2, 3, 4, 5, 6, 8)]
    (block,) = blocks(analysed(baseline(), *(item for item in cells if "strict" in str(item.config)), *lossy))
    assert {cell["guarantee"] for cell in block.shown} == {"lossless"}


def test_parameters_of_a_method_stand_in_its_rows_only_where_they_differ():
    """Would catch names of methods so long that tables break, and rows of one name."""
    lossy = [
        drafted("typical", verification__epsilon=0.1, verification__delta=delta, guarantee="lossy")
        for delta in (0.2, 0.4)
    ]
    (block,) = blocks(analysed(baseline(), *lossy, lenient()))
    table = rows_table(block, "")
    assert [row[0] for row in table.rows[1:]] == ["typical(delta=0.2)", "typical(delta=0.4)", "lenient"]
    assert "typical: epsilon=0.1" in table.above and "lenient: leniency=0.5" in table.above


def test_an_interval_is_not_broken_at_the_end_of_a_line():
    stream = io.StringIO()
    print_summary(screen("lossy").cells, stream)
    assert all(line.count("[") == line.count("]") for line in stream.getvalue().splitlines())


def test_a_table_that_is_too_wide_breaks_into_few_parts_of_one_width():
    """Would catch a last column alone behind all rows again, and more parts than needed."""
    table = screen("K").tables[0]
    for width, most in ((100, 3), (160, 2), (300, 1)):
        lines = text_lines(table, width)
        parts = [index for index, line in enumerate(lines) if line.startswith("no drafts")]
        assert len(parts) <= most and max(map(len, lines)) <= width
        heights = {after - before for before, after in pairwise(parts)}
        widths = [max(map(len, lines[start : start + len(table.rows)])) for start in parts]
        assert len(heights) <= 2 and min(widths) > max(widths) / 2


def test_differences_are_to_the_reference_of_the_run_at_every_position():
    found = screen("K", reference="block")
    block = found.in_full[0]
    table = differences_table(block, "title")
    assert table.title == "title: gained on block" and "block" not in {row[0].split(" at ")[0] for row in table.rows}
    first = next(item for item in block.shown if item["verification"] == "block")
    second = next(item for item in block.shown if block.label(item) == table.rows[0][0])
    for position in range(1, first["num_speculative_tokens"] + 1):
        name = f"acceptance_rate_per_pos_{position}"
        entry = table.rows[0][table.header.index(f"position {position} (%)")]
        assert entry.value == paired_difference(first.estimates, second.estimates, name).value


def test_what_never_changes_is_said_once():
    """Would catch a column of one word, labels in every row, and dashes for what cannot be as if it were missing."""
    found = screen("one method")
    (table,) = found.tables
    assert table.compact.above == "guarantee: lossless" and "guarantee" not in table.compact.header
    assert "target zoo" in found.shared and "zoo" not in table.title
    alone = screen("no baseline")
    assert "the run has no baseline" in answer(alone.blocks[0]) and "speedup" not in alone.tables[0].header
    assert "no baseline" not in " ".join(alone.below)
    served = FirstScreen(tuple(analysed(drafted("block", device="auto", dtype="auto"))), {})
    assert "zoo" in served.shared and "auto" not in served.shared, "a server that does not tell its device"
    depths = rows_table(blocks(analysed(baseline(), *(drafted("block", depth=depth) for depth in (1, 3))))[0], "")
    assert [str(entry) for entry in column_of(depths, "position 3 (%)")][:2] == ["–", "–"]


@pytest.mark.parametrize(("lengths", "is_said"), [((1, 3), True), ((3,), False)])
def test_rates_of_positions_that_few_rounds_drafted_are_called_so(lengths, is_said):
    """Would catch "100 / 100 % by position" of a drafter that rarely comes to the second, read as of every draft."""
    (block,) = blocks(analysed(baseline(), with_matches_of(*lengths)))
    assert ("of the rounds that drafted it" in answer(block)) == is_said
