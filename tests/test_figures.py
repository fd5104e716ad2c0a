"""Figures: which are drawn, that they are images with every method in them, and that styles cannot be confused."""

from dataclasses import replace
from itertools import islice, pairwise

import matplotlib as mpl
import matplotlib.image
import pytest
from matplotlib.figure import Figure

from harness.metrics.cell import analyse
from harness.metrics.estimates import Estimate
from harness.records.runs import read_runs
from harness.report.figures.axis import CONTEXT_AXES, DEPTH, DRAFTER, DRAFTING, METHOD, TEMPERATURE, VERIFICATION
from harness.report.figures.by_position import draw_by_position
from harness.report.figures.heat_map import draw_heat_map
from harness.report.figures.kinds import FIGURES
from harness.report.figures.methods import draw_methods
from harness.report.figures.panels import wrap_settings
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import HEAT_COLORS, LOOKS, RC, SPARE_LOOKS, spare_looks
from harness.report.figures.sweep import LENGTH, draw_sweep
from harness.report.figures.tradeoff import draw_tradeoff
from harness.report.figures.write import save_figure, write_figures
from harness.report.page import figure_caption
from kernels.method_names import NAMED_METHODS
from tests.synthetic_cells import analysed, baseline_settings, config, shortened_cell, simulated_cell, simulated_run


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
    labelled = {name for name, text in captions.items() if text.endswith("with intervals (cells labelled biased)")}
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


def test_the_length_that_is_drawn_is_that_of_full_drafts():
    """Would catch a figure of lengths that fall because requests end, not because acceptance does."""
    record = shortened_cell("strict", (1, 2, 3))
    (cell,) = analysed(record)
    sheet = sheet_of([cell])
    axes = draw_methods(sheet).axes[0]
    assert axes.get_xlabel() == "mean acceptance length (full drafts)"
    assert axes.containers[0].lines[0].get_xdata() == [3.0] != [cell.estimate("mean_acceptance_length").value]
    warmer = shortened_cell("strict", (1, 2, 3))
    warmer.config["decoding"]["temperature"] = 0.5
    sheet = sheet_of(analysed(record, warmer))
    axes = draw_sweep(sheet, TEMPERATURE).axes[0]
    assert axes.get_ylabel() == "mean acceptance length\n(full drafts)"
    assert list(axes.containers[0].lines[0].get_ydata()) == [3.0, 3.0]


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
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["eagle3\n(weights: random)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["probabilistic [weights: random]"]


def luminance(color):
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_every_method_has_a_style_of_its_own_that_survives_grey():
    """Would catch two methods that only differ in colour, or a method without a style."""
    assert set(LOOKS) == set(NAMED_METHODS)
    looks = [*LOOKS.values(), *SPARE_LOOKS]
    assert len({look.marker for look in looks}) == len({look.color for look in looks}) == len(looks)
    assert all(luminance(look.color) < 0.75 for look in looks)


def test_many_series_are_told_apart():
    """Would catch two of more than eight series of one method drawn alike, in colour or in grey."""
    looks = list(islice(spare_looks(), 4 * len(SPARE_LOOKS)))
    assert tuple(looks[: len(SPARE_LOOKS)]) == SPARE_LOOKS
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
    assert len({(look.marker, look.linestyle) for look in looks}) == len(looks)


def test_a_marker_shows_on_an_interval():
    """Would catch a plus, whose arms lie on the lines of the intervals."""
    assert not {"+", "|", "_", ",", ""} & {look.marker for look in (*LOOKS.values(), *SPARE_LOOKS)}


def test_series_of_one_method_are_told_apart_and_labelled():
    """Would catch greedy and sampled drafts of one method drawn as one line, and a lossy method without its label."""
    records = [
        simulated_cell(config(), [0.6, 0.5, 0.4], num_prompts=3),
        simulated_cell(config(draft_sampling="greedy"), [0.6, 0.5, 0.4], num_prompts=3),
        simulated_cell(config(verification__method="typical", guarantee="lossy"), [0.6, 0.5, 0.4], num_prompts=3),
    ]
    sheet = sheet_of(analysed(*records))
    labels, looks = zip(*sheet.series.values(), strict=True)
    assert labels == (
        "probabilistic, greedy drafts",
        "probabilistic, sampled drafts",
        "typical(epsilon=0.09, delta=0.3) [lossy]",
    )
    assert len(set(looks)) == 3


def test_settings_that_do_not_compare_get_panels_of_their_own(tmp_path):
    """Would catch cells with other prompts or other concurrency mixed into one line, and a file for each of them."""
    records = [
        simulated_cell(config(backend__max_concurrency=number), [0.6, 0.5, 0.4], num_prompts=3) for number in (1, 16)
    ]
    cells = analysed(*records)
    assert [path.stem for path in drawn(cells, tmp_path)] == ["methods", "acceptance_by_position"]
    axes = draw_by_position(sheet_of(cells)).axes
    assert [panel.get_title() for panel in axes] == ["max_concurrency = 1", "max_concurrency = 16"]
    assert all(len(panel.containers) == 1 for panel in axes)


def test_a_disturbed_cell_is_hollow_where_its_times_are_drawn():
    """Would catch a warning in the text and a point that looks like any other, and a length that is marked for it."""
    records = [simulated_cell(baseline_settings(), [], num_prompts=4)]
    records += [simulated_cell(config(), [0.6, 0.5, 0.4], num_prompts=4)]
    cells = analysed(*records)
    vars(cells[1])["drift"] = 0.3
    length, speedup = draw_methods(sheet_of(cells)).axes
    hollow = [[line.get_markerfacecolor() for line in axes.lines].count("white") for axes in (length, speedup)]
    assert hollow == [0, 1]


def test_nothing_is_drawn_without_drafts(tmp_path):
    assert write_figures([], tmp_path / "figures") == []


def texts_of(figure):
    """The numbers in the cells of a figure's first panel, and its legend."""
    written = [text.get_text() for text in figure.axes[0].texts]
    return written, [text.get_text() for text in figure.legends[0].get_texts()]


def crossed(**missing):
    """Greedy and sampled drafts of four methods; those named in `missing` are not run."""
    records = []
    for sampling in ("greedy", "sampled"):
        for seed, method in enumerate(("strict", "probabilistic", "typical")):
            if missing.get(method) != sampling:
                guarantee = "lossy" if method == "typical" else "lossless"
                settings = config(verification__method=method, draft_sampling=sampling, guarantee=guarantee)
                records.append(simulated_cell(settings, [0.6, 0.5, 0.4], num_prompts=4, seed=seed))
    return records


def test_a_heat_map_prints_values_with_half_their_intervals_and_marks_cells():
    """Would catch a cell that was not run taken for a value, noise between equal laws that looks like a result, and a
    lossy number without its label."""
    cells = analysed(*crossed(typical="sampled"))
    sheet = sheet_of(cells)
    written, legend = texts_of(draw_heat_map(sheet, VERIFICATION, DRAFTING, "full_draft_length"))
    assert len(written) == len(cells) == 5
    for cell in cells:
        value, low, high = cell.estimate("full_draft_length")
        mark = " ≡" if cell["draft_sampling"] == "greedy" else ""
        mark = "*" if cell["guarantee"] == "lossy" else mark
        assert f"{value:.2f}{mark}\n±{(high - low) / 2:.2f}" in written
    assert legend == [
        "±: half the width of the interval",
        "≡ same law as another method at these settings",
        "* lossy",
        "not run",
    ]


def test_names_below_a_heat_map_do_not_run_into_each_other():
    """Would catch cells narrower than the parameters of the methods below them."""
    sheet = sheet_of(analysed(*crossed()))
    figure = draw_heat_map(sheet, VERIFICATION, DRAFTING, "full_draft_length")
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_many_methods_go_down_the_side_of_a_heat_map():
    """Would catch a figure of ten methods across that no page is wide enough for."""
    records = [
        simulated_cell(
            config(
                drafter__kind=drafter,
                verification__method="lenient",
                verification__leniency=0.1 * (index + 1),
                guarantee="lossy",
            ),
            [0.6, 0.5, 0.4],
            num_prompts=3,
            seed=index,
        )
        for drafter in ("eagle", "mtp")
        for index in range(9)
    ]
    sheet = sheet_of(analysed(*records))
    figure = draw_heat_map(sheet, METHOD, DRAFTER, "full_draft_length")
    assert figure.get_figwidth() < 7 and len(figure.axes[0].get_yticklabels()) == 9
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(boxes))


def test_lossy_methods_are_drawn_against_their_distance():
    """Would catch a cell at the distance of another, and a lossless one away from 0 by rounding."""
    (lossless, lossy) = cells = analysed(
        *(
            simulated_cell(config(verification__method=method, guarantee=guarantee), [0.6, 0.5, 0.4], num_prompts=4)
            for method, guarantee in (("probabilistic", "lossless"), ("typical", "lossy"))
        )
    )
    found = {lossless.record.cell_id: Estimate(1e-17, 0, 1e-17), lossy.record.cell_id: Estimate(0.2, 0.1, 0.4)}
    sheet = sheet_of(cells, distances=found)
    axes = draw_tradeoff(sheet).axes[0]
    points = {tuple(line.get_xydata()[0]) for line, _, _ in axes.containers}
    assert points == {(0.0, lossless.estimate(LENGTH).value), (20.0, lossy.estimate(LENGTH).value)}
    (across,) = axes.containers[1].lines[2][0].get_segments()
    assert [point[0] for point in across] == [10, 40]
    for fewer in ({}, {lossless.record.cell_id: found[lossless.record.cell_id]}):
        assert draw_tradeoff(sheet_of(cells, distances=fewer)) is None


def test_error_bars_of_many_series_stand_apart():
    """Would catch fifteen series drawn into the width of a few, where no interval can be told from the next."""
    records = [
        simulated_cell(
            config(verification__method="lenient", verification__leniency=0.05 * (index + 1), guarantee="lossy"),
            [0.6, 0.5, 0.4],
            num_prompts=3,
            seed=index,
        )
        for index in range(15)
    ]
    sheet = sheet_of(analysed(*records))
    figure = draw_by_position(sheet)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    places = sorted(line.get_xdata()[0] for line, _, _ in axes.containers)
    pixels = [axes.transData.transform((place, 0))[0] for place in places]
    gaps = [after - before for before, after in pairwise(pixels)]
    caps = 2 * RC["errorbar.capsize"] * figure.dpi / 72
    assert len(gaps) == 14 and min(gaps) > caps


def swept(name, values, depths=(3,)):
    """One method at every value of a setting and every K."""
    return [
        simulated_cell(
            config(**{name: value}, drafting__num_speculative_tokens=depth), [0.6, 0.5, 0.4][:depth], num_prompts=3
        )
        for value in values
        for depth in depths
    ]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        pytest.param(crossed, {"length_by_verification_and_drafting"}, id="methods and drafts"),
        pytest.param(lambda: crossed()[:3], set(), id="methods alone"),
        pytest.param(
            lambda: swept("decoding__temperature", (0.3, 0.6, 1.0), (1, 2, 3)),
            {"length_by_depth_and_temperature", "by_temperature", "by_depth"},
            id="K and temperature",
        ),
        pytest.param(lambda: swept("decoding__top_p", (0.5, 0.9, 1.0)), {"by_top_p"}, id="truncation"),
    ],
)
def test_two_way_sweeps_become_heat_maps_and_one_way_sweeps_lines(make, names):
    """Would catch a heat map of one row, and a sweep of truncation or concurrency that is only drawn value by value."""
    cells = analysed(*make())
    shown = {kind.name for kind in FIGURES if kind.draw(sheet_of(cells, kind.along))}
    assert shown == {"methods", "acceptance_by_position"} | names


def test_a_tick_says_where_a_setting_is_off_and_puts_it_last():
    records = [simulated_cell(config(decoding__top_k=top_k), [0.6], num_prompts=2) for top_k in (0, 50, 5)]
    axis = next(axis for axis in CONTEXT_AXES if axis.name == "top_k")
    assert [axis.text(value) for value in axis.values(analysed(*records))] == ["5", "50", "off"]


def test_heat_maps_survive_grey():
    """Would catch a scale of colours of which two are equally light."""
    import matplotlib as mpl

    colors = mpl.colormaps[HEAT_COLORS]([0.0, 0.25, 0.5, 0.75, 1.0])[:, :3]
    light = colors @ [0.299, 0.587, 0.114]
    assert all(after - before > 0.1 for before, after in pairwise(light))
