"""The tables that answer a question about one axis: the best K, where speculation pays, drafting by verification."""

from math import exp, log
from statistics import mean, stdev

import pytest

from harness.analysis.comparison import series_along
from harness.analysis.estimates import Estimate
from harness.analysis.intervals import MIN_REPEATS
from harness.analysis.results import read_results
from harness.report.console import print_summary
from harness.report.latex import entry_text
from harness.report.tables.concurrency import concurrency_tables, verdict
from harness.report.tables.depth import BEST, EQUAL, WORSE, depth_tables
from harness.report.tables.drafting import drafting_tables
from harness.report.tables.lossy import distance, lossy_tables
from harness.report.tables.repeats import repeats_tables
from harness.report.write import write_results
from tests.support.synthetic_cells import analysed, baseline_settings, config, simulated_cell, simulated_run


def cell(depth=3, *, step_s=0.01, rate=0.6, method="probabilistic", sampling="sampled", seed=1, **changes):
    """A cell of depth K whose rounds take so long and accept at this rate."""
    settings = config(
        drafting__num_speculative_tokens=depth, verification__method=method, draft_sampling=sampling, **changes
    )
    return simulated_cell(settings, [rate] * depth, step_s=step_s, seed=seed, num_prompts=12, num_rounds=40)


def baseline(**changes):
    return simulated_cell(baseline_settings(**changes), [], num_prompts=12, num_rounds=80, step_s=0.01)


def repeat(seed):
    """The cell with another seed of the run, and other rounds."""
    settings = config(drafting__num_speculative_tokens=3, verification__method="probabilistic", seed=seed)
    return simulated_cell(settings, [0.6] * 3, seed=seed + 10, num_prompts=12, num_rounds=40)


def column(table, header):
    return [row[table.header.index(header)] for row in table.texts]


def test_the_best_depth_is_the_fastest_and_what_equals_it_is_named():
    """K = 2 and 3 differ by less than the prompts do; K = 1 and K = 6 are slower by design."""
    cells = analysed(baseline(), cell(1), cell(2, step_s=0.0102), cell(3, step_s=0.0118), cell(6, step_s=0.03))
    best, by_depth = depth_tables(cells)
    assert column(by_depth, "K") == ["0", "1", "2", "3", "6"]
    verdicts = dict(zip(column(by_depth, "K"), column(by_depth, "verdict"), strict=True))
    assert sorted([verdicts["2"], verdicts["3"]]) == [BEST, EQUAL]
    assert {verdicts[depth] for depth in "016"} == {WORSE}
    (number,), (equal,) = column(best, "best K"), column(best, "not told apart from it")
    assert {number, equal} == {"2", "3"}
    share = dict(zip(column(by_depth, "K"), column(by_depth, "throughput / that of the best K"), strict=True))
    assert share[number] == "1" and float(share["6"].split()[0]) < 0.6


def test_no_drafting_is_a_candidate():
    """Would catch a best K where every K is slower than plain decoding."""
    best, _ = depth_tables(analysed(baseline(), cell(1, step_s=0.05), cell(4, step_s=0.09)))
    assert (column(best, "best K"), column(best, "speedup")) == (["0"], ["1"])


def test_random_weights_choose_no_depth_but_under_synthetic_acceptance():
    """Would catch a best K that follows from how nearly flat rows of random weights are."""
    random = {"target__weights": "random", "drafter__weights": "random"}
    cells = analysed(baseline(target__weights="random"), *(cell(depth, **random) for depth in (1, 3)))
    assert depth_tables(cells) == []
    rates = {"method": "synthetic", "verification__rates": [0.6, 0.3, 0.2], "guarantee": "synthetic"}
    best, _ = depth_tables(analysed(*(cell(depth, **rates, **random) for depth in (1, 3))))
    assert column(best, "best K") == ["3"]


def test_trees_of_one_method_are_candidates_beside_chains_drafted_as_trees():
    """Each by its shape, and apart from chains. Would catch a tree that is compared with itself alone, and two shapes
    of as many tokens under one name."""
    shapes = {"1": 0.02, "1-1": 0.011, "2": 0.03, "[-1,-1,0]": 0.05}
    sizes = dict(zip(shapes, (1, 2, 2, 3), strict=True))
    trees = [
        cell(sizes[shape], step_s=step_s, method="recursive", drafting__tree=shape) for shape, step_s in shapes.items()
    ]
    best, by_depth = depth_tables(analysed(*trees, cell(1), cell(2)))
    assert column(best, "best K")[0] == "2 (tree 1-1)" and len(best.texts) == 2
    assert column(by_depth, "K") == ["1 (tree 1)", "2 (tree 1-1)", "2 (tree 2)", "3 (tree [-1,-1,0])", "1", "2"]
    assert column(best, "verification")[0] == "recursive, sampled drafts, distinct"


def test_depths_that_adapt_are_candidates_beside_fixed_ones():
    """Would catch a planner that no table holds against the baseline, and one that is called by its K alone."""
    planned = cell(3, drafting__depth="planner")
    best, by_depth = depth_tables(analysed(baseline(), cell(1), cell(3, step_s=0.011), planned))
    assert column(by_depth, "K") == ["0", "1", "3", "3 (planner)"]
    assert column(best, "best K") == ["3 (planner)"]
    assert column(best, "verification") == ["probabilistic, sampled drafts"]


def test_depths_are_compared_within_one_setting():
    cells = [cell(depth, decoding__temperature=temperature) for depth in (1, 2) for temperature in (0.5, 1.0)]
    best, by_depth = depth_tables(analysed(*cells))
    assert column(best, "T") == ["0.5", "1"] and len(by_depth.texts) == 4
    assert depth_tables(analysed(cell(2), cell(2, method="block"))) == []


def test_lines_leave_out_what_differs_in_anything_else():
    cells = analysed(cell(1), cell(2), cell(3), cell(3, method="block"))
    (line,) = series_along(cells, "drafting", "num_speculative_tokens")
    assert [item["num_speculative_tokens"] for item in line.cells] == [1, 2, 3]


def test_speculation_pays_at_low_concurrency_and_costs_at_high():
    cells = []
    for concurrency, step_s in ((1, 0.010), (16, 0.021), (64, 0.06)):
        cells.append(baseline(backend__max_concurrency=concurrency))
        cells.append(cell(3, step_s=step_s, backend__max_concurrency=concurrency))
    (table,) = concurrency_tables(analysed(*cells))
    assert column(table, "requests in flight") == ["1", "16", "64"]
    found = column(table, "speculation")
    assert found[0] == "pays" and found[2] == "costs"
    assert concurrency_tables(analysed(baseline(), cell(3))) == []


@pytest.mark.parametrize(
    ("speedup", "words"),
    [
        (Estimate(1.2, 1.1, 1.3), "pays"),
        (Estimate(0.8, 0.7, 0.9), "costs"),
        (Estimate(1.05, 0.9, 1.2), "cannot be told"),
        (Estimate(1.2, float("nan"), float("nan")), "cannot be told"),
    ],
    ids=["above", "below", "around", "no interval"],
)
def test_a_speedup_without_a_clear_interval_is_no_verdict(speedup, words):
    assert verdict(speedup) == words


SKIPPED = [
    ({"verification": "coupled", "drafting.sampling": "sampled"}, "its own noise makes it strict"),
    ({"verification": "greedy", "drafting.sampling": "greedy"}, "only at temperature 0"),
    ({"verification": "lenient", "drafting.sampling": "coupled"}, "noise must not be shared"),
]


def pairs():
    greedy = [cell(method=method, sampling="greedy", seed=index) for index, method in enumerate(("strict", "block"))]
    sampled = [cell(method=method) for method in ("strict", "block")]
    lenient = cell(method="lenient", guarantee="lossy", verification__leniency=0.5)
    return analysed(*greedy, *sampled, lenient, cell(method="strict", sampling="coupled", seed=5))


def test_pairs_of_one_law_are_marked_and_invalid_pairs_have_their_reason():
    """Would catch noise read as a difference, and a hole in the table without a word."""
    (table,) = drafting_tables(pairs(), SKIPPED)
    assert table.header == ("verification", "greedy drafts", "sampled drafts", "coupled drafts")
    rows = {row[0]: row[1:] for row in table.texts}
    assert list(rows) == ["strict", "coupled", "greedy", "block", "lenient(leniency=0.5)"]
    assert rows["strict"][0].endswith("(a)") and rows["block"][0].endswith("(a)")
    assert rows["strict"][1].endswith("(b)") and rows["strict"][2].endswith("(b)")
    assert not rows["block"][1].endswith(")") and rows["lenient(leniency=0.5)"][1].endswith("(lossy)")
    assert rows["coupled"] == ("–", "invalid (1)", "–")
    assert rows["greedy"][0] == "invalid (2)" and rows["lenient(leniency=0.5)"][2] == "invalid (3)"
    assert "(1): its own noise makes it strict" in table.notes
    assert any(
        note.startswith("(b): strict with sampled drafts, strict with coupled drafts follow") for note in table.notes
    )


def test_a_comparison_of_methods_alone_is_no_such_table():
    assert drafting_tables(analysed(cell(method="strict"), cell(method="coupled", sampling="coupled"))) == []


def test_answers_are_on_the_page_and_in_files(tmp_path):
    folder = simulated_run(tmp_path / "run", depths=(1, 3), methods=("strict", "block"), num_prompts=4)
    paths = {path.relative_to(folder).as_posix() for path in write_results(read_results(folder), folder)}
    assert {"tables/answers.md", "tables/answers/Best-draft-depth.csv"} <= paths
    page = (folder / "report.md").read_text()
    assert page.index("## Answers") < page.index("### Best draft depth") < page.index("## All cells")
    alone = simulated_run(tmp_path / "alone", methods=("strict",), num_prompts=4)
    assert not [path for path in write_results(read_results(alone), alone) if "answers" in path.name]
    assert "## Answers" not in (alone / "report.md").read_text()


def test_the_distance_of_lossy_methods_is_recorded_and_shown(tmp_path):
    """Would catch a distance that does not grow as the method loosens, or one of a lossless method."""
    from experiments import run as command

    small = ["workload.num_prompts=3", "decoding.max_new_tokens=9", "verification=probabilistic,lenient"]
    small += ["verification.leniency=0.1,0.8", "backend.device=cpu", "measurement.num_blocks=1"]
    small += ["measurement.num_warmup_requests=0", "measurement.baseline=false", f"output.folder={tmp_path}"]
    assert command.main(["experiment=lossy_tradeoff", *small]) == 0
    results = read_results(tmp_path)
    recorded = results.recording.cells
    (table,) = lossy_tables(results.cells, recorded, {tmp_path.name: "probabilistic"})
    rows = {row[0]: row for row in table.texts}
    assert rows["probabilistic, sampled drafts"][1] == "0" and rows["probabilistic, sampled drafts"][3] == "–"
    by_method = {item.cell["verification"]: distance(item).value for item in recorded}
    assert by_method["probabilistic"] == 0
    assert 0 < by_method["lenient(leniency=0.8)"] < by_method["lenient(leniency=0.1)"] < 1
    assert table.title in (tmp_path / "report.md").read_text()
    assert lossy_tables(results.cells, [], {}) == []


def test_repeats_over_seeds_have_a_mean_and_an_interval():
    """Would catch an interval over prompts in its place, seeds of two cells together, and cells without repeats."""
    seeds = [item for seed in range(MIN_REPEATS) for item in (baseline(seed=seed), repeat(seed))]
    results = analysed(*seeds, cell(2, seed=7))
    (table,) = repeats_tables(results)
    assert column(table, "drafter") == ["none", "eagle3"] and column(table, "seeds") == ["0, 1, 2, 3, 4"] * 2
    group = [item for item in results if item["num_speculative_tokens"] == 3]
    values = [item.estimate("mean_acceptance_length").value for item in group]
    found = table.rows[1][table.header.index("mean acceptance length")]
    # a length is between 1 and 1 + K = 4, and the derivative of log((x - 1) / (4 - x)) is 3 / ((x - 1) (4 - x))
    above, below = mean(values) - 1, 4 - mean(values)
    reach = 2.7764451051977987 * stdev(values) / 5**0.5 * 3 / (above * below)
    low, high = (1 + 3 / (1 + exp(-log(above / below) - end)) for end in (-reach, reach))
    assert (found.value, found.low, found.high) == pytest.approx((mean(values), low, high))
    assert repeats_tables(analysed(baseline(), cell())) == []


def test_an_interval_over_seeds_stays_within_the_range_of_its_metric():
    """Would catch an acceptance rate of -8.6 to 72.4 %, and a length above K + 1 or below 1."""
    rates = (0.01, 0.02, 0.01, 0.3, 0.02)
    for one, last in ((0, 1), (1, 0)):
        cells = [
            simulated_cell(config(seed=seed), [abs(last - rate)] * 3, num_prompts=4, seed=seed, spread=0.0)
            for seed, rate in enumerate(rates)
        ]
        (table,) = repeats_tables(analysed(*cells))
        rate, length = (
            table.rows[0][table.header.index(name)] for name in ("acceptance rate (%)", "mean acceptance length")
        )
        assert 0 < rate.low < rate.value < rate.high < 1 and 1 < length.low < length.value < length.high < 4, one


def test_few_repeats_have_a_mean_and_their_values(capsys):
    """Would catch an acceptance rate of 0.5 [-0.4, 1.4], seeds in another order than named, and a terminal, a page or
    LaTeX that shows the mean alone."""
    results = analysed(*(item for seed in (2, 0) for item in (baseline(seed=seed), repeat(seed))))
    print_summary(results)
    (table,) = repeats_tables(results)
    found = table.rows[1][table.header.index("mean acceptance length")]
    values = {item["seed"]: item.estimate("mean_acceptance_length").value for item in results if not item.is_baseline}
    texts = ", ".join(f"{values[seed]:.2f}" for seed in (0, 2))
    assert str(found) == f"{mean(values.values()):.2f} {{{texts}}}" and column(table, "seeds") == ["0, 2"] * 2
    shown = capsys.readouterr().out
    assert table.title in shown and str(found) in shown
    assert rf"\{{{texts}\}}" in entry_text(found) and f"{{{texts}}}" in table.to_csv()
