"""Times from commit to commit: what became slower by more than its scatter, and the case that is run alone."""

from dataclasses import replace

import pytest

from experiments import bench_kernels
from harness.checks.kernel_bench.case import Case
from harness.checks.kernel_bench.cases import case_named, cases_of
from harness.checks.kernel_bench.config import Preset
from harness.checks.kernel_bench.history import add_to_history, commit_in, compared, lines_of, read_history
from harness.checks.kernel_bench.records import KernelResults, Measurement, Status, write_results
from harness.checks.timing.measured import Machine, Timing
from kernels.contract import VerificationMethod

pytestmark = pytest.mark.fast

Method = VerificationMethod
FIRST, SECOND = "1" * 40, "2" * 40
SMALL, LARGE = Case(num_requests=16), Case()


def results(
    commit: str,
    medians: dict[Case, float],
    is_measurement: bool = True,
    device: str = "a GPU",
    left: tuple[Case, ...] = (),
    has_changes: bool = False,
) -> KernelResults:
    """Medians with a scatter of 0.5 us; the cases that are left were not begun."""
    return KernelResults(
        settings={},
        machine=Machine(device, is_measurement, "write", 60_000_000, {"torch.sum": 4e12}, 2.0, 3.0),
        measurements=(
            *(
                Measurement(case, "triton", timing=Timing(us, us - 0.5, us + 0.5, us, 50, True), again_us=us)
                for case, us in medians.items()
            ),
            *(Measurement(case, "triton", Status.skipped, "no time") for case in left),
        ),
        variants=(),
        provenance={"git": {"commit": commit, "dirty": True, **({"diff": "5eed"} if has_changes else {})}},
        wall_s=1.0,
    )


def test_only_what_takes_longer_by_more_than_its_scatter_is_slower(tmp_path):
    """Would catch scatter that is called a loss, and a loss that is lost between cases or commits."""
    path = tmp_path / "history.csv"
    add_to_history(results(FIRST, {SMALL: 20.0, LARGE: 100.0}), path)
    now = results(SECOND, {SMALL: 20.9, LARGE: 101.1})
    history = read_history(path)
    found = compared(FIRST, lines_of(now), history, {SMALL.name, LARGE.name})
    assert found.slower == [f"{LARGE.name}: 101.1 us, 100.0 before (1.01 times)"]
    assert (found.num_compared, found.missing) == (2, [])
    assert len(add_to_history(now, path)) == 4


def test_a_case_that_one_side_lacks_is_named(tmp_path):
    """Would catch a case that fails, is renamed or is new, and passes as not slower."""
    renamed, block, elsewhere = replace(SMALL, row_gap=77), replace(LARGE, method=Method.block), Case(num_requests=64)
    path = tmp_path / "history.csv"
    history = add_to_history(results(FIRST, {SMALL: 20.0, renamed: 21.0, LARGE: 100.0, elsewhere: 40.0}), path)
    now = results(SECOND, {LARGE: 100.0, block: 150.0}, left=(SMALL,))
    found = compared(FIRST, lines_of(now), history, {each.case.name for each in now.measurements})
    assert (found.num_compared, found.slower) == (1, [])
    assert sorted(found.missing) == [
        f"not at 1111111: {block.name}",
        "only at 1111111: 1 cases that these settings leave out",
        f"only at 1111111: {SMALL.name}",
        f"only at 1111111: {renamed.name}",
    ]


def test_one_model_of_gpu_is_compared(tmp_path):
    path = tmp_path / "history.csv"
    add_to_history(results(FIRST, {SMALL: 20.0}), path)
    history = add_to_history(results(FIRST, {SMALL: 10.0}, device="a faster GPU"), path)
    now = lines_of(results(SECOND, {SMALL: 20.0}))
    assert compared(commit_in(history, "1111111", "a GPU"), now, history, {SMALL.name}).slower == []
    with pytest.raises(ValueError, match=r"expected one commit with times on a third GPU, found none; the history has "
                       r"1111111 \(a GPU\), 1111111 \(a faster GPU\)"):  # fmt: skip
        commit_in(history, "1111111", "a third GPU")


def test_a_commit_is_told_from_its_changed_checkout_and_from_others(tmp_path):
    path, other = tmp_path / "history.csv", "1" * 8 + "2" * 32
    for each in (results(FIRST, {SMALL: 20.0}), results(FIRST, {SMALL: 30.0}, has_changes=True)):
        history = add_to_history(each, path)
    assert commit_in(history, "1111111", "a GPU") == FIRST
    assert commit_in(history, "1111111+", "a GPU") == f"{FIRST}+"
    history = add_to_history(results(other, {SMALL: 20.0}), path)
    with pytest.raises(ValueError, match="found several; the history has 1111111"):
        commit_in(history, "1111111", "a GPU")


def test_the_command_compares_results_with_what_the_history_held_before(tmp_path, capsys):
    """Measured again, a commit is compared with its old times, not with those that take their place."""
    path, folder = tmp_path / "history.csv", tmp_path / "results"
    add_to_history(results(FIRST, {LARGE: 100.0}), path)
    write_results(results(FIRST, {LARGE: 103.0}), folder)
    again = [f"--redraw={folder}", f"--history={path}", "--against=1111111"]
    assert bench_kernels.main(again) == 1
    assert f"slower: {LARGE.name}: 103.0 us, 100.0 before (1.03 times)\n" in capsys.readouterr().out
    assert bench_kernels.main(again) == 0
    assert "0 of 1 cases are slower than at 1111111" in capsys.readouterr().err


def test_the_names_that_a_case_goes_by_are_listed(capsys):
    assert bench_kernels.main(["--preset=full", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [case.name for case in cases_of(Preset.full)]


def test_a_commit_has_one_line_for_a_case(tmp_path):
    path = tmp_path / "history.csv"
    add_to_history(results(FIRST, {SMALL: 20.0, LARGE: 100.0}), path)
    lines = add_to_history(results(FIRST, {SMALL: 19.0}), path)
    assert sorted(line.median_us for line in lines) == [19.0, 100.0]


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = tmp_path / "history.csv"
    history = add_to_history(results(FIRST, {SMALL: 20.0}), path)
    with pytest.raises(ValueError, match=r"found none; the history has 1111111 \(a GPU\)"):
        commit_in(history, "3333333", "a GPU")
    with pytest.raises(ValueError, match="7 characters of a commit or more, found '1'"):
        commit_in(history, "1", "a GPU")
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
