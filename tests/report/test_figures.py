"""Figures: which are drawn, where their panels lie, and what titles, captions and files hold."""

from dataclasses import replace

import matplotlib as mpl
import matplotlib.image
import pytest
from matplotlib.figure import Figure

from harness.analysis.cell import analyse
from harness.records.runs import read_runs
from harness.report.figures.axis import CONTEXT_AXES, DEPTH
from harness.report.figures.methods import draw_methods
from harness.report.figures.panels import wrap_settings
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import HEAT_COLORS, LOOKS, RC, SPARE_LOOKS
from harness.report.figures.sweep import draw_sweep
from harness.report.figures.write import save_figure, write_figures
from harness.report.page import figure_caption
from tests.support.synthetic_cells import analysed, config, simulated_cell, simulated_run


def drawn(*arguments):
    """The paths of the figures of some cells."""
    return [figure.path for figure in write_figures(*arguments)]


def cells_of(folder, **settings):
    return analyse(read_runs(simulated_run(folder, methods=("strict", "block"), num_prompts=4, **settings)))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param({"temperatures": (1.0,)}, [], id="one setting"),
        pytest.param({"temperatures": (0.0, 1.0)}, ["by_temperature"], id="temperatures"),
        pytest.param({"temperatures": (1.0,), "depths": (1, 3)}, ["by_depth"], id="depths"),
    ],
)
def test_sweeps_are_drawn_where_there_is_one(tmp_path, settings, names):
    """Would catch a figure against a setting with a single value, and a sweep without its figure."""
    paths = drawn(cells_of(tmp_path / "run", **settings), tmp_path / "figures")
    assert [path.stem for path in paths] == ["methods", "acceptance_by_position", *names]
    for path in paths:
        image = matplotlib.image.imread(path)
        assert min(image.shape[:2]) > 300 and image[..., :3].std() > 0.02


def test_panels_below_each_other_share_their_axis(tmp_path):
    """Would catch one depth at two places: a method without a speedup at the last K ends its lower panel before it."""
    cells = cells_of(tmp_path / "run", temperatures=(1.0,), depths=(1, 3))
    cells = [replace(cell, baseline=None) if cell["num_speculative_tokens"] == 3 else cell for cell in cells]
    upper, lower = draw_sweep(sheet_of(cells, (DEPTH.name,)), DEPTH).axes
    assert upper.get_xlim() == lower.get_xlim() and lower.get_xlim()[0] < 1 and lower.get_xlim()[1] > 3


def test_the_same_records_give_the_same_file(tmp_path):
    """Would catch dates in the files, which make every rebuild a change of tracked figures."""
    cells = cells_of(tmp_path / "run", temperatures=(1.0,))
    first, second = (drawn(cells, tmp_path / name)[0] for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_caption_names_the_labels_of_the_cells_in_its_figure_only(tmp_path):
    """Would catch "cells labelled biased" below a figure that leaves those cells out: here at another temperature."""

    def cell_at(depth, temperature, **changes):
        settings = config(drafting__num_speculative_tokens=depth, decoding__temperature=temperature)
        return simulated_cell(settings, [0.5] * depth, num_prompts=3, **changes)

    cells = analysed(cell_at(2, 1.0), cell_at(3, 1.0), cell_at(2, 0.5, labels=("biased",)))
    captions = {figure.kind.name: figure_caption(figure) for figure in write_figures(cells, tmp_path)}
    assert set(captions) == {"methods", "acceptance_by_position", "by_temperature", "by_depth"}
    labelled = {
        name
        for name, text in captions.items()
        if text.partition("; not drawn: ")[0].endswith("with intervals (cells labelled biased)")
    }
    assert labelled == {"acceptance_by_position", "by_temperature"}


def test_a_png_is_light_and_keeps_its_colors(tmp_path):
    """Would catch colours lost to the palette, and a file of full colours again."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(4, 3))
        axes = figure.subplots()
        axes.imshow([[i / 63 for i in range(64)]] * 8, cmap=HEAT_COLORS, aspect="auto")
        for index, look in enumerate((*LOOKS.values(), *SPARE_LOOKS)):
            axes.plot([5, 40], [index / 3, index / 4], color=look.color, marker=look.marker)
        save_figure(figure, tmp_path / "light.png")
        figure.savefig(tmp_path / "full.png")
    light, full = (matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3] for name in ("light", "full"))
    assert abs(light - full).mean() < 0.005
    assert (tmp_path / "light.png").stat().st_size < 0.7 * (tmp_path / "full.png").stat().st_size


def test_pdf_beside_png(tmp_path):
    paths = drawn(cells_of(tmp_path / "run", temperatures=(1.0,)), tmp_path / "figures", ("png", "pdf"))
    assert all(path.suffix == ".png" and path.with_suffix(".pdf").read_bytes().startswith(b"%PDF") for path in paths)


@pytest.mark.parametrize("width", range(26, 46))
def test_no_line_of_a_title_ends_within_a_setting(width):
    text = "(zoo, workload.request_rate=2, K = 3, T = 0.5, top_p = 0.9)"
    lines = wrap_settings(text, width).split("\n")
    assert " ".join(lines) == text and len(lines) > 1
    assert not any(line.endswith(("=", "K", "T", "top_p")) for line in lines)


def test_the_title_and_the_panels_say_whose_weights_are_random():
    settings = config(target__weights="random", drafter__weights="random")
    (cell,) = analysed(simulated_cell(settings, [0.6, 0.5], num_prompts=3))
    sheet = sheet_of([cell])
    figure = draw_methods(sheet)
    assert figure.get_suptitle().replace("\n", " ") == "Verification methods (zoo (weights: random), K = 3, T = 1)"
    assert figure.axes[0].get_title("left") == "eagle3 (weights: random)"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["probabilistic [weights: random]"]


def test_nothing_is_drawn_without_drafts(tmp_path):
    assert write_figures([], tmp_path / "figures") == []


def test_a_tick_says_where_a_setting_is_off_and_puts_it_last():
    records = [simulated_cell(config(decoding__top_k=top_k), [0.6], num_prompts=2) for top_k in (0, 50, 5)]
    axis = next(axis for axis in CONTEXT_AXES if axis.name == "top_k")
    assert [axis.text(value) for value in axis.values(analysed(*records))] == ["5", "50", "off"]
