"""Times from commit to commit: what became slower by more than its scatter, and the case that is run alone."""

from dataclasses import replace

import pytest

from harness.kernel_bench.case import Case
from harness.kernel_bench.cases import case_named, cases_of
from harness.kernel_bench.config import Preset
from harness.kernel_bench.history import add_to_history, lines_of, read_history, slower_since
from harness.kernel_bench.records import KernelResults, Measurement
from harness.timing.measured import Machine, Timing

FIRST, SECOND = "1" * 40, "2" * 40
SMALL, LARGE = Case(num_requests=16), Case()


def results(commit: str, medians: dict[Case, float], is_measurement: bool = True) -> KernelResults:
    """Medians with a scatter of 0.5 us."""
    return KernelResults(
        settings={},
        machine=Machine("a GPU", is_measurement, "write"),
        measurements=tuple(
            Measurement(case, "triton", timing=Timing(us, us - 0.5, us + 0.5, us, 50, True), again_us=us)
            for case, us in medians.items()
        ),
        variants=(),
        provenance={"git": {"commit": commit, "dirty": False}},
        wall_s=1.0,
    )


def test_only_what_takes_longer_by_more_than_its_scatter_is_slower(tmp_path):
    """Would catch scatter that is called a loss, and a loss that is lost between cases or commits."""
    path = tmp_path / "history.csv"
    add_to_history(results(FIRST, {SMALL: 20.0, LARGE: 100.0}), path)
    now = results(SECOND, {SMALL: 20.9, LARGE: 101.1})
    history = add_to_history(now, path)
    assert history == read_history(path) and len(history) == 4
    assert slower_since("1111111", lines_of(now), history) == [f"{LARGE.name}: 101.1 us, 100.0 before (1.01 times)"]
    assert slower_since(SECOND, lines_of(now), history) == []


def test_a_commit_has_one_line_for_a_case(tmp_path):
    path = tmp_path / "history.csv"
    add_to_history(results(FIRST, {SMALL: 20.0, LARGE: 100.0}), path)
    lines = add_to_history(results(FIRST, {SMALL: 19.0}), path)
    assert sorted(line.median_us for line in lines) == [19.0, 100.0]


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = tmp_path / "history.csv"
    history = add_to_history(results(FIRST, {SMALL: 20.0}), path)
    now = lines_of(results(SECOND, {SMALL: 20.0}))
    with pytest.raises(ValueError, match=r"found none; commits: 1111111"):
        slower_since("3333333", now, history)
    with pytest.raises(ValueError, match="7 characters of a commit or more, found '1'"):
        slower_since("1", now, history)
    with pytest.raises(ValueError, match="expected results from a GPU"):
        lines_of(results(FIRST, {SMALL: 20.0}, is_measurement=False))
    path.write_text("commit,case\n1,2\n")
    with pytest.raises(ValueError, match="expected a CSV with the columns commit, device, case"):
        read_history(path)


def test_a_case_goes_by_its_whole_name():
    names = [case.name for preset in Preset for case in dict.fromkeys(cases_of(preset))]
    of_full = [case.name for case in cases_of(Preset.full)]
    assert len(of_full) == len(set(of_full))
    assert case_named(names[0]).name == names[0]
    with pytest.raises(
        ValueError, match=r"expected the name of a case, found none; the nearest: .*probabilistic R=16 K=3"
    ):
        case_named("probabilistic R=16 K=3")
    changed = [replace(LARGE, keeps_statistics=False), replace(LARGE, row_gap=1)]
    assert len({LARGE.name, *(case.name for case in changed)}) == 3
