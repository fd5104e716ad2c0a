"""The figure of acceptance by draft position: what its legend and caption say."""

from harness.report.figures.by_position import draw_by_position
from harness.report.figures.sheet import sheet_of
from harness.report.figures.write import write_figures
from harness.report.page import figure_caption
from tests.synthetic_cells import analysed, config, simulated_cell


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def captions_of(cells, folder):
    return {figure.kind.name: figure_caption(figure) for figure in write_figures(cells, folder)}


def test_the_legend_says_which_rules_the_bars_bound(tmp_path):
    """Would catch a bar that block exceeds called the most of any lossless rule, a legend that is cut off, and a
    caption that gives the bars intervals."""
    cells = analysed(simulated_cell(config(), [0.6, 0.5, 0.4], num_prompts=3))
    figure = draw_by_position(sheet_of(cells))
    text = legend_of(figure)[-1].replace("\n", " ")
    assert "decides one position at a time" in text and "own drafts" in text and "traversal may exceed it" in text
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1
    caption = captions_of(cells, tmp_path)["acceptance_by_position"]
    assert caption == "Unconditional acceptance rate by draft position, with intervals"
