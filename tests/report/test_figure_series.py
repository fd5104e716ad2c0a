"""The series of a figure: which cells they hold, and that no two of them are confused."""

from itertools import islice, pairwise

import pytest

from harness.analysis.estimates import Estimate
from harness.report.figures.axis import DEPTH, TEMPERATURE
from harness.report.figures.by_position import BAR_BELOW, draw_by_position
from harness.report.figures.methods import draw_methods
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import LOOKS, RC, SPARE_LOOKS, spare_looks
from harness.report.figures.sweep import LENGTH, draw_sweep
from harness.report.figures.tradeoff import draw_tradeoff
from harness.report.figures.write import write_figures
from kernels.methods import NAMED_METHODS
from tests.support.synthetic_cells import analysed, baseline_settings, config, drafted, shortened_cell, simulated_cell


def test_the_length_that_is_drawn_is_that_of_full_drafts():
    """Would catch a figure of lengths that fall because requests end, not because acceptance does."""
    record = shortened_cell("strict", (1, 2, 3))
    (cell,) = analysed(record)
    sheet = sheet_of([cell])
    axes = draw_methods(sheet).axes[0]
    assert axes.get_xlabel() == "acceptance length of full drafts"
    assert axes.containers[0].lines[0].get_xdata() == [3.0] != [cell.estimate("mean_acceptance_length").value]
    warmer = shortened_cell("strict", (1, 2, 3))
    warmer.config["decoding"]["temperature"] = 0.5
    sheet = sheet_of(analysed(record, warmer))
    axes = draw_sweep(sheet, TEMPERATURE).axes[0]
    assert axes.get_ylabel() == "acceptance length\nof full drafts"
    assert list(axes.containers[0].lines[0].get_ydata()) == [3.0, 3.0]


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


def of_rates(*rates, **changes):
    """A cell by synthetic verification with as many draft tokens as rates."""
    settings = config(
        verification__method="synthetic",
        verification__rates=list(rates),
        drafting__num_speculative_tokens=len(rates),
        guarantee="synthetic",
        **changes,
    )
    return simulated_cell(settings, list(rates), num_prompts=3)


def lines_of(cells):
    """The places along K of each line of a figure by depth, by the text of its series."""
    sheet = sheet_of(cells, (DEPTH.name,))
    axes = draw_sweep(sheet, DEPTH).axes[0]
    labels = [label for label, _ in sheet.series.values()]
    return dict(zip(labels, [[round(x) for x in line.get_xdata()] for line, _, _ in axes.containers], strict=True))


def test_one_list_of_rates_is_one_series_over_all_k():
    """Would catch three points without a line where one list serves every K, another list drawn into it, and cells
    that take another id for it."""
    cells = analysed(*(of_rates(*rates) for rates in ([0.8], [0.8, 0.6], [0.8, 0.6, 0.4], [0.7, 0.6, 0.5])))
    assert lines_of(cells) == {
        "synthetic(rates=0.8/0.6/0.4) [synthetic]": [1, 2, 3],
        "synthetic(rates=0.7/0.6/0.5) [synthetic]": [3],
    }
    assert len({cell["verification"] for cell in cells}) == len({cell.record.cell_id for cell in cells}) == 4


def test_rates_that_begin_two_lists_belong_to_neither():
    """Would catch a line whose first point was measured for another list."""
    cells = analysed(of_rates(0.8), of_rates(0.8, 0.6), of_rates(0.8, 0.6, 0.4), of_rates(0.8, 0.6, 0.5))
    assert [sorted(places) for places in lines_of(cells).values()] == [[1], [2], [3], [3]]


def test_lists_of_other_drafts_stay_apart():
    """Would catch a line from greedy drafts at one K to sampled ones at the next."""
    cells = analysed(of_rates(0.8, draft_sampling="greedy"), of_rates(0.8, 0.6))
    assert sorted(lines_of(cells).values()) == [[1], [2]]


def test_settings_that_do_not_compare_get_panels_of_their_own(tmp_path):
    """Would catch cells with other prompts or other concurrency mixed into one line, and a file for each of them."""
    records = [
        simulated_cell(config(backend__max_concurrency=number), [0.6, 0.5, 0.4], num_prompts=3) for number in (1, 16)
    ]
    cells = analysed(*records)
    assert [figure.path.stem for figure in write_figures(cells, tmp_path)] == ["methods", "acceptance_by_position"]
    axes = draw_by_position(sheet_of(cells)).axes
    assert [panel.get_title() for panel in axes] == ["1 in flight", "16 in flight"]
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


def many_series(**changes):
    return [
        simulated_cell(
            config(
                verification__method="lenient", verification__leniency=0.05 * (index + 1), guarantee="lossy", **changes
            ),
            [0.6, 0.5, 0.4],
            num_prompts=3,
            seed=index,
        )
        for index in range(15)
    ]


def caps_of(figure):
    return 2 * RC["errorbar.capsize"] * figure.dpi / 72


def test_many_series_have_rows_with_names_of_their_own():
    """Would catch fifteen series in the width of a few, rates of another position, and a bound that a marker hides."""
    sheet = sheet_of(analysed(*many_series()))
    figure = draw_by_position(sheet)
    figure.draw_without_rendering()
    assert len(figure.axes) == 3, "a column a position"
    for position, axes in enumerate(figure.axes, start=1):
        rates = [(line.get_ydata()[0], line.get_xdata()[0]) for line, _, _ in axes.containers]
        known = [cell.estimate(f"acceptance_rate_per_pos_{position}").value for cell in sheet.cells]
        assert sorted(rates) == [(row, pytest.approx(100 * rate)) for row, rate in enumerate(known)]
        # caps of error bars have the same marker
        drawn = [line.get_xydata()[0] for line in axes.lines if line.get_marker() == BAR_BELOW.style["marker"]]
        bars = sorted((float(place), float(value)) for value, place in drawn if place % 1)
        bounds = [cell.estimate(f"acceptance_bound_per_pos_{position}").value for cell in sheet.cells]
        assert [value for _, value in bars] == [pytest.approx(100 * bound) for bound in bounds]
        places = [place for place, _ in bars]
        points = [axes.transData.transform((0, place))[1] * 72 / figure.dpi for place in (0, places[0])]
        assert points[0] - points[1] > RC["lines.markersize"] / 2 + BAR_BELOW.style["markersize"] / 2 - 1
    rows = [figure.axes[0].transData.transform((0, row))[1] for row in range(15)]
    assert min(before - after for before, after in pairwise(rows)) > caps_of(figure)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(set(names)) == 15
    assert names == [label.get_text() for label in draw_methods(sheet).axes[0].get_yticklabels()]
    assert all(label.get_window_extent().x0 >= 0 for label in figure.axes[0].get_yticklabels())


def test_error_bars_of_many_series_of_a_sweep_stand_apart():
    sheet = sheet_of(analysed(*many_series(), *many_series(decoding__temperature=0.5)))
    figure = draw_sweep(sheet, TEMPERATURE)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    places = sorted(place for line, _, _ in axes.containers for place in line.get_xdata())
    pixels = [axes.transData.transform((place, 0))[0] for place in places]
    assert len(pixels) == 30 and min(after - before for before, after in pairwise(pixels)) > caps_of(figure)


def test_drafters_of_one_name_have_rows_and_panels_of_their_own():
    """Would catch two heads in folders of one name drawn over each other, and tables that do not tell them apart."""
    paths = ("runs/first/head", "runs/second/head", "other")
    cells = analysed(*(drafted("block", drafter__path=path) for path in paths))
    assert sheet_of(cells).drafters == ["eagle3 (first/head)", "eagle3 (second/head)", "eagle3 (other)"]
    figure = draw_methods(sheet_of(cells))
    assert len({axes.get_title("left") for axes in figure.axes} - {""}) == 3


def test_a_head_in_a_folder_named_after_its_kind_is_not_taken_for_the_built_in_one():
    """Would catch both drawn as one series; a public model's built-in head has a path too, which says no more."""
    built_in = "cache/unpacked/0123456789abcdef/eagle3"
    for paths, names in (
        ((None, "build/eagle3"), ["eagle3", "eagle3 (eagle3)"]),
        ((built_in,), ["eagle3"]),
        ((built_in, "build/eagle3"), ["eagle3 (0123456789abcdef/eagle3)", "eagle3 (build/eagle3)"]),
    ):
        assert sheet_of(analysed(*(drafted("block", drafter__path=path) for path in paths))).drafters == names
