"""Heat maps: when there is one, what its cells say, and that its names have room."""

from itertools import pairwise

import matplotlib as mpl
import matplotlib.image
import pytest

from harness.report.figures.axis import DRAFTER, DRAFTING, METHOD, VERIFICATION
from harness.report.figures.heat_map import draw_heat_map
from harness.report.figures.kinds import figure_kinds
from harness.report.figures.sheet import sheet_of
from harness.report.figures.style import HEAT_COLORS
from tests.support.synthetic_cells import analysed, config, simulated_cell


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
    shown = {kind.name for kind in figure_kinds() if kind.draw(sheet_of(cells, kind.along))}
    assert shown == {"methods", "acceptance_by_position"} | names


def test_heat_maps_survive_grey():
    """Would catch a scale of colours of which two are equally light."""

    colors = mpl.colormaps[HEAT_COLORS]([0.0, 0.25, 0.5, 0.75, 1.0])[:, :3]
    light = colors @ [0.299, 0.587, 0.114]
    assert all(after - before > 0.1 for before, after in pairwise(light))
