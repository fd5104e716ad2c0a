"""The profile of a round beside what its bytes and operations need: rows and JSON of a measurement on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.checks.profiling.cells import CellProfile, Profiled, profile_cells
from harness.checks.profiling.profile import Phases, RoundProfile
from harness.checks.profiling.report import HEADER, RoundResults, document, line, to_json
from harness.checks.profiling.roofline import PARTS, RoundCost
from harness.checks.timing.measured import Machine, Timing
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.models.cost import Cost
from harness.runner.plan.run_plan import RunPlan
from tests.support.profile_pages import rows_of


def timing(median_us):
    return Timing(median_us, median_us - 10, median_us + 10, median_us - 20, 50, True)


@pytest.fixture
def measured():
    """A GPU that reads 4 TB/s and multiplies at 500 TFLOP/s.

    8 GB of the target are 2 ms and its 1.5 TFLOP 3 ms; 2 GB of drafting 0.5 ms and 100 GFLOP 0.2 ms; 0.4 GB of
    extending 0.1 ms and 10 GFLOP 0.02 ms.
    """
    cost = RoundCost(
        draft=Cost(
            weight_bytes=500_000_000,
            output_bytes=1_200_000_000,
            cache_bytes=200_000_000,
            logit_bytes=100_000_000,
            num_linear=50_000_000_000,
            num_output=30_000_000_000,
            num_attention=20_000_000_000,
        ),
        target=Cost(
            weight_bytes=6_000_000_000,
            output_bytes=1_000_000_000,
            cache_bytes=1_000_000_000,
            num_linear=1_300_000_000_000,
            num_output=100_000_000_000,
            num_attention=100_000_000_000,
        ),
        extend=Cost(
            weight_bytes=300_000_000,
            cache_bytes=100_000_000,
            num_linear=6_000_000_000,
            num_attention=4_000_000_000,
        ),
    )
    phases = Phases(timing(800.0), timing(3500.0), timing(50.0), timing(200.0), timing(20.0))
    step, wall = timing(4680.0), timing(5200.0)
    profile = RoundProfile(16, 3, 256, phases, step, timing(6.0), wall, 1.25, 0, cost)
    machine = Machine("a GPU", True, "read", 60_000_000, {"torch.sum": 4e12, "other": 3e12}, 2.0, 3.0)
    cell = CellConfig(drafter=drafter_of(DrafterKind.eagle))
    ways = {"large": 5e14, "small": 4e14}
    return CellProfile(
        1, cell, machine, Profiled(profile, "bfloat16", True, "triton", ("slower than asked for",), ways)
    )


def test_the_roofline_is_the_larger_of_bytes_and_operations_over_their_rates(measured):
    plan = RunPlan("run", "run", (measured.cell,), (), Path("folder"), "command")
    page = document(RoundResults(plan, 256, 50, (measured,)), {}).to_markdown()
    (row,) = rows_of(page)
    assert row["draft (ms)"] == "0.800 [0.790, 0.810]" and row["sum of phases (ms)"] == "4.570"
    assert (row["host (ms)"], row["host (%)"]) == ("0.520", "10.0")
    bounds = [row[name] for name in HEADER if name.startswith("roofline")]
    assert bounds == ["0.500", "3.000", "0.100", "3.600"]
    assert row["bound by"] == "draft: bytes; target: operations; extend: bytes"
    assert (row["step / roofline"], row["TB/s"], row["TFLOP/s"]) == ("1.30", "4.00", "500")
    assert (row["bytes alone (ms)"], row["step / bytes"], row["operations alone (ms)"]) == ("2.600", "1.80", "3.220")
    assert (row["graphs"], row["labels"]) == ("yes", "")
    assert "a GPU, read bandwidth 4.00 TB/s, matrix rate 500 TFLOP/s in bfloat16, both measured in this run; an" in page
    assert "no measurement" not in page and "- cell 1: slower than asked for" in page
    assert line(measured, 1).endswith("host 0.520 ms, roofline 3.600 ms")


def test_the_json_of_a_measurement_has_floors_in_time(measured):
    content = to_json(measured)
    assert content["floors"] == {
        "draft": {"bytes_us": 500.0, "operations_us": 200.0, "us": 500.0, "bound_by": "bytes"},
        "target": {"bytes_us": 2000.0, "operations_us": 3000.0, "us": 3000.0, "bound_by": "operations"},
        "extend": {"bytes_us": 100.0, "operations_us": 20.0, "us": 100.0, "bound_by": "bytes"},
        "round": {"bytes_us": 2600.0, "operations_us": 3220.0, "us": 3600.0},
    }
    assert content["host_share"] == pytest.approx(0.1) and content["labels"] == []
    assert content["machine"]["matrix_rate_operations_per_s"] == 5e14


def test_a_device_that_reads_slowly_is_bound_by_bytes_everywhere(measured):
    slow = replace(measured, machine=replace(measured.machine, read_ways={"torch.sum": 1e12}))
    floors = to_json(slow)["floors"]
    assert floors["round"]["us"] == floors["round"]["bytes_us"] == 10_400.0
    assert {floors[name]["bound_by"] for name in PARTS} == {"bytes"}


def test_a_part_that_does_nothing_is_bound_by_nothing(measured):
    profile = measured.found.profile
    profile = replace(profile, cost=profile.cost._replace(draft=Cost()))
    floors = to_json(replace(measured, found=measured.found._replace(profile=profile)))["floors"]
    assert floors["draft"] == {"bytes_us": 0.0, "operations_us": 0.0, "us": 0.0, "bound_by": None}


def test_a_round_faster_than_its_step_has_no_time_of_the_host(measured):
    """The running engine finds in the L2 what the timed step does not; that is no time of the host."""
    profile = replace(measured.found.profile, round=timing(4600.0))
    assert (profile.host_us, profile.host_share) == (0.0, 0.0)


def test_a_cell_of_several_ranks_is_refused_also_where_an_experiment_asks_for_it():
    """Would catch graphs of this rank alone, whose sums wait for ranks that run nothing."""
    cell = CellConfig(backend=Local(device="cpu", tensor_parallel=2))
    with pytest.raises(ValueError, match="rejection-lab bench-ranks times whole rounds"):
        next(profile_cells([cell], 8, 2))
