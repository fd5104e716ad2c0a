"""The figure of acceptance by draft position: what its legend and caption say."""

import pytest

from harness.report.figures.by_position import BAND, BAR, SAME_LAW, draw_by_position
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import SAME_LAW_TEXT
from harness.report.figures.write import write_figures
from harness.report.page import figure_caption
from tests.support.synthetic_cells import analysed, config, drafted, simulated_cell


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def captions_of(cells, folder):
    return {figure.kind.name: figure_caption(figure) for figure in write_figures(cells, folder)}


def test_the_legend_says_which_rules_the_bars_bound(tmp_path):
    """Would catch a bar that block exceeds called the most of any lossless rule, a legend that is cut off,
    and a band that is not the interval of its bar."""
    cells = analysed(simulated_cell(config(), [0.6, 0.5, 0.4], num_prompts=3))
    figure = draw_by_position(sheet_of(cells))
    text = legend_of(figure)[-1].replace("\n", " ")
    assert "decides one position at a time" in text and "own drafts" in text and "traversal may exceed it" in text
    figure.draw_without_rendering()
    (bands,) = [each for each in figure.axes[0].collections if each.get_alpha() == BAND["alpha"]]
    found = [(float(low), float(high)) for (_, low), (_, high) in bands.get_segments()]
    bounds = [cells[0].estimate(f"acceptance_bound_per_pos_{position}") for position in (1, 2, 3)]
    assert found == [pytest.approx((100 * low, 100 * high)) for _, low, high in bounds]
    # beside the markers, which would hide them
    bars, rates = (
        next(line for line in figure.axes[0].lines if line.get_marker() == marker)
        for marker in (BAR.style["marker"], "^")
    )
    points = [
        figure.axes[0].transData.transform((line.get_xdata()[0], 0))[0] * 72 / figure.dpi for line in (bars, rates)
    ]
    assert points[0] - points[1] > rates.get_markersize() / 2 + bars.get_markersize() / 2 - 1
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1
    caption = captions_of(cells, tmp_path)["acceptance_by_position"]
    assert caption == "Acceptance by draft position, of the rounds that drafted it, with intervals"


def test_methods_of_the_same_law_are_marked():
    """Would catch noise between equal laws that looks like a result, a mark on methods that differ, and on other K."""
    trees = [drafted(method, rates=(1.0, 0.5), drafting__tree="1-2") for method in ("recursive", "traversal")]
    chains = [
        drafted("block", "greedy"),
        drafted("strict", "greedy"),
        drafted("strict"),
        drafted("block", "greedy", depth=2),
    ]
    for records, marked in ((chains, 2), (chains[1:], 0), (trees, 0)):
        figure = draw_by_position(sheet_of(analysed(*records)))
        marks = [line for line in figure.axes[0].lines if line.get_marker() == SAME_LAW.style["marker"]]
        assert len(marks) == marked and (SAME_LAW_TEXT in legend_of(figure)) is bool(marked)
    cold = [
        drafted(item, temperature=0.0, rates=(1.0, 0.5), drafting__tree="1-2") for item in ("recursive", "traversal")
    ]
    figure = draw_by_position(sheet_of(analysed(*cold, *trees)))
    marks = [sum(line.get_marker() == SAME_LAW.style["marker"] for line in axes.lines) for axes in figure.axes]
    assert marks == [2, 0], "one row per temperature"


def test_a_caption_names_what_a_figure_does_not_draw(tmp_path):
    """Would catch a tree of another K, and the temperatures between, dropped without a word."""
    trees = [drafted("recursive", "greedy", depth=4, rates=(0.6, 0.5), drafting__tree="dynamic:4-2-2")]
    trees += [drafted("recursive", depth=3, rates=(0.6, 0.5), drafting__tree="1-2")]
    caption = captions_of(analysed(*trees), tmp_path / "trees")["acceptance_by_position"]
    assert caption.endswith("with intervals; not drawn: K = 3 (tree 1-2)")
    warm = [drafted("strict", temperature=value) for value in (0.2, 0.4, 0.6, 0.8)]
    captions = captions_of(analysed(*warm, drafted("strict", depth=2, rates=(0.6, 0.5))), tmp_path / "temperatures")
    assert captions["acceptance_by_position"].endswith("; not drawn: K = 2; T = 0.4, 1")
    assert captions["by_temperature"].endswith("; not drawn: K = 2; T = 1")
    all_drawn = captions_of(analysed(warm[0]), tmp_path / "one")
    assert not any("not drawn" in text for text in all_drawn.values())
