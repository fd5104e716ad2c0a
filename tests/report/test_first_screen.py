"""What is read first of a report: which method keeps most, at which position, how surely, and what it buys."""

import io

import pytest

from harness.analysis.estimates import paired_difference
from harness.analysis.results import read_results
from harness.records.schema import Failure
from harness.report.blocks import blocks
from harness.report.console import WIDTH, print_summary
from harness.report.first_screen import MAX_ANSWERS, MAX_ROWS, FirstScreen
from harness.report.page import run_page
from harness.report.sections import make_tables
from harness.report.tables.by_position import differences_table, rows_table
from harness.report.verdicts import verdict
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
    assert len(found.answers) <= MAX_ANSWERS + 1
    assert sum(len(block.shown) for block in found.in_full[1:]) <= MAX_ROWS
    num_left = len([cell for cell in found.cells if not cell.is_baseline])
    num_left -= sum(len(block.shown) for block in found.in_full)
    assert any(line.startswith(f"{num_left} more cells") for line in found.below) == (num_left > 0)


def test_the_first_forty_lines_of_a_page_answer(tmp_path):
    """Would catch answers below warnings, settings and tables, as once "fastest: no drafts" stood there alone."""
    folder = simulated_run(tmp_path, drafters=("eagle", "eagle3"), num_prompts=8)
    results = read_results(folder)
    page = "\n".join(run_page(results, make_tables(results), []).to_markdown().splitlines()[:40])
    found = {(cell["drafter"], cell["verification"], cell["temperature"]): cell for cell in results.cells}
    for drafter in ("eagle", "eagle3"):
        block, strict = (found[drafter, method, 1.0] for method in ("block", "strict"))
        gain = paired_difference(strict.estimates, block.estimates, "acceptance_rate_per_pos_1")
        rates = [item.estimate("acceptance_rate_per_pos_1").value for item in (strict, block)]
        if drafter == "eagle":
            assert f"{100 * rates[0]:.1f} → {100 * rates[1]:.1f}: {100 * gain.value:+.1f} [" in page
        (line,) = (line for line in page.splitlines() if line.startswith(f"- {drafter} · K = 3 · T = 1"))
        cells = [item for key, item in found.items() if key[0] == drafter and key[2] == 1]
        fastest = max(cells, key=lambda item: item.speedup.value)
        assert "keep" in line and "position" in line and f"{fastest.speedup.value:.2f} [" in line
    assert page.count("(same law)") == 2, "a line for each drafter at temperature 0"


def test_the_order_of_the_answer_follows_what_is_certain():
    """Would catch a lead that chance explains told as a fact, and one that it does not as chance."""
    clear = blocks(analysed(baseline(), *each()[:2]))[0]
    assert verdict(clear).startswith("probabilistic keeps most: ")
    close = blocks(analysed(baseline(), *each()[1:]))[0]
    assert " keep most and are not told apart: " in verdict(close)
    # on the same drafts block is ahead in these cells, whatever chance made of what was accepted
    assert "on the same drafts block is expected to keep more, +" in verdict(close)
    assert "not told apart in speed: " in verdict(close)


def test_a_method_that_is_not_lossless_does_not_keep_most():
    """Would catch a rule that changes the output named as the best."""
    text = verdict(blocks(screen("lossy").cells)[0])
    leader, _, rest = text.partition("keep")
    assert "lenient" not in leader
    assert "more, but not the target's distribution: lenient(leniency=0.5) (lossy) 3." in rest
    assert "Fastest with drafts: lenient" not in text


def test_random_weights_and_set_acceptance_answer_nothing():
    assert "acceptance says nothing here, weights are random" in verdict(blocks(screen("random weights").cells)[0])
    assert "position" not in " ".join(screen("random weights").tables[0].header)
    synthetic = drafted("synthetic", verification__rates=[0.6, 0.5, 0.4], guarantee="synthetic")
    text = verdict(blocks(analysed(baseline(), synthetic))[0])
    assert text.startswith("acceptance was set, not measured. Speed: ")


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
    text = " ".join(screen("no baseline").below)
    assert "speedup: the run has no baseline" in text and "speedup" not in screen("no baseline").tables[0].header
    depths = rows_table(blocks(analysed(baseline(), *(drafted("block", depth=depth) for depth in (1, 3))))[0], "")
    assert [str(entry) for entry in column_of(depths, "position 3 (%)")][:2] == ["–", "–"]


@pytest.mark.parametrize(("lengths", "is_said"), [((1, 3), True), ((3,), False)])
def test_rates_of_positions_that_few_rounds_drafted_are_called_so(lengths, is_said):
    """Would catch "100 / 100 % by position" of a drafter that rarely comes to the second, read as of every draft."""
    (block,) = blocks(analysed(baseline(), with_matches_of(*lengths)))
    assert ("% by position (each of the rounds that drafted it), " in verdict(block)) == is_said
