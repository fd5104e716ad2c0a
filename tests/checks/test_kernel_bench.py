"""The kernel benchmark as a command: settings, refusals, results, tables and the figure; on a CPU, without times."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import bench_kernels
from harness.checks.kernel_bench import bench
from harness.checks.kernel_bench.case import Case, Truncation, Work
from harness.checks.kernel_bench.cases import cases_of
from harness.checks.kernel_bench.check import Disagreement, spread_over
from harness.checks.kernel_bench.config import BenchConfig, Preset
from harness.checks.kernel_bench.measure import extra_memory, num_launches
from harness.checks.kernel_bench.questions import gathered
from harness.checks.kernel_bench.records import (
    AgreementCount,
    KernelResults,
    Measurement,
    Status,
    Variant,
    read_results,
    write_results,
)
from harness.checks.kernel_bench.report import document, to_csv
from harness.checks.kernel_bench.separate import probabilities, verify_probabilities
from harness.checks.kernel_bench.workload import make_round, verification_of
from harness.checks.timing.clock import GraphClock, WallClock
from harness.checks.timing.measured import Machine, Timing
from harness.config.device import Device
from harness.config.schema import SettingsError
from kernels.contract import VerificationMethod
from kernels.core import reference_core
from kernels.reference.truncation import process
from tests.support.own_process import output_of

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "results" / "kernel_bench_h200"
SMOKE = ["--preset=smoke", "--device=cpu", "--repeats=2"]


def timing(median_us: float) -> Timing:
    return Timing(median_us, median_us - 1, median_us + 2, median_us - 3, 50, True)


def measured(case: Case, median_us: float, implementation: str = "triton") -> Measurement:
    return Measurement(
        case,
        implementation,
        timing=timing(median_us),
        again_us=median_us + 0.5,
        mean_accepted=1.5,
        bytes_all_rows=400_000_000,
        bytes_needed=300_000_000,
        workspace_bytes=1_000_000,
        extra_bytes=2_000_000,
        num_launches=2,
        agreement=AgreementCount(16, 40, 1),
    )


@pytest.fixture
def results() -> KernelResults:
    machine = Machine("a GPU", True, "write", 60_000_000, {"torch.sum, 512 MiB": 4e12}, 2.0, 3.0)
    plain = Case()
    block = replace(plain, method=VerificationMethod.block)
    return KernelResults(
        settings={"preset": "headline"},
        machine=machine,
        measurements=(
            measured(plain, 100.0),
            measured(plain, 800.0, "eager torch"),
            measured(block, 171.0),
            measured(Case(work=Work.draw, width=0, vocab_size=151_936), 30.0),
            Measurement(Case(num_requests=1024), "triton", Status.skipped, "needs 9.0 GB, 1.0 GB are free"),
        ),
        variants=(Variant("a question", "one way", 16, timing(10.0), 5, None),),
        provenance={"python": "3"},
        wall_s=1.0,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeats": 10}, "--repeats: expected at least 50, found 10"),
        ({"repeats": 1, "preset": Preset.smoke}, "--repeats: expected at least 2, found 1"),
        ({"device": Device.cpu}, "--device cpu: expected --preset smoke, found headline"),
        ({"checked": 0}, "--checked: expected at least 1, found 0; nothing is timed unchecked"),
        ({"output": ""}, "--output: expected a folder, found nothing"),
    ],
    ids=["repeats", "repeats of smoke", "no GPU", "unchecked", "no folder"],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        BenchConfig(**settings)


def test_the_command_runs_without_hydra():
    script = (
        "import sys; sys.modules['hydra'] = sys.modules['omegaconf'] = None\n"
        "import experiments.bench_kernels, harness.checks.kernel_bench.bench, harness.checks.kernel_bench.report"
    )
    output_of(script)


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_without_a_gpu_it_says_so_in_one_line(capsys):
    assert bench_kernels.main([]) == 1
    assert "error: the kernel benchmark needs a GPU" in capsys.readouterr().err


def test_the_whole_path_runs_on_a_cpu_and_says_that_nothing_was_measured(tmp_path, capsys):
    assert bench_kernels.main([*SMOKE, f"--output={tmp_path}"]) == 0
    results = read_results(tmp_path)
    assert not results.machine.is_measurement and results.num_failed == 0
    assert len(results.variants) == 6
    assert {each.implementation for each in results.measurements} == {"reference", "eager torch"}
    assert "the times are no measurement" in (tmp_path / "table.md").read_text()
    assert "the times are no measurement" in capsys.readouterr().out
    assert (tmp_path / "roofline.png").stat().st_size > 10_000


def test_cases_beyond_the_time_limit_are_written_down(tmp_path):
    assert bench_kernels.main([*SMOKE, "--limit-s=1e-9", f"--output={tmp_path}"]) == 0
    results = read_results(tmp_path)
    assert {each.status for each in results.measurements} == {Status.skipped} and not results.variants
    assert "not begun within --limit-s 1e-09" in (tmp_path / "table.md").read_text()


def test_a_core_that_disagrees_is_not_reported(tmp_path, capsys, monkeypatch):
    def one_token_off(*arguments, **keywords):
        verdict = reference_core().verify(*arguments, **keywords)
        last = verdict.num_accepted[:, None]
        verdict.token_ids.scatter_(1, last, (verdict.token_ids.gather(1, last) + 1) % 1000)
        return verdict

    broken = replace(reference_core(), verify=one_token_off)
    monkeypatch.setattr(bench, "core_for", lambda device: broken)
    assert bench_kernels.main([*SMOKE, f"--output={tmp_path}"]) == 1
    assert "disagrees with the reference in 8 of 8 requests beyond rounding" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_draw_that_disagrees_is_not_reported(monkeypatch):
    def next_token(*arguments, **keywords):
        drawn = reference_core().draw(*arguments, **keywords)
        return replace(drawn, token_ids=(drawn.token_ids + 1) % 1000)

    broken = replace(reference_core(), draw=next_token)
    monkeypatch.setattr(bench, "core_for", lambda device: broken)
    case = Case(work=Work.draw, width=0, num_requests=4, vocab_size=1000)
    config = BenchConfig(preset=Preset.smoke, device=Device.cpu, repeats=2)
    with pytest.raises(Disagreement, match="4 of 4 requests"):
        list(bench.measurements_of(case, config, WallClock(2), CPU))


def test_a_case_that_fails_is_written_down_and_the_exit_code_says_so(tmp_path, monkeypatch):
    def fails(*arguments, **keywords):
        raise RuntimeError("out of order")

    broken = replace(reference_core(), coupled_draw=fails)
    monkeypatch.setattr(bench, "core_for", lambda device: broken)
    assert bench_kernels.main([*SMOKE, "--no-questions", f"--output={tmp_path}"]) == 1
    failed = [each for each in read_results(tmp_path).measurements if each.status is Status.failed]
    assert {each.case.method_name for each in failed} == {"coupled", "coupled_draw"}
    assert "RuntimeError: out of order" in (tmp_path / "table.md").read_text()


@pytest.mark.gpu
def test_a_gpu_clock_replays_a_graph_and_counts_its_launches():
    device = torch.device("cuda", torch.cuda.current_device())
    one = torch.zeros(1, device=device)
    for flush in ("write", "read"):
        found = GraphClock(device, 50, flush).time(lambda: one.add_(1.0))
        assert found.in_graph and 0 < found.min_us <= found.lower_us <= found.median_us <= found.upper_us
    assert num_launches(lambda: one.add_(1.0)) == 1
    assert extra_memory(lambda: torch.empty(2**20, device=device)) == 2**22


@pytest.mark.gpu
def test_the_whole_path_runs_on_a_gpu(tmp_path):
    assert bench_kernels.main(["--preset=smoke", "--repeats=5", f"--output={tmp_path}"]) == 0
    results = read_results(tmp_path)
    own = [each for each in results.measurements if each.implementation == "triton"]
    assert results.machine.is_measurement and results.machine.read_bandwidth > 0
    assert own and all(each.timing.in_graph and each.num_launches and each.workspace_bytes for each in own)


def test_a_plain_read_reads_everything():
    from harness.checks.timing.read_kernel import read

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    values = torch.arange(4096, dtype=torch.float32, device=device)
    sums = torch.full((4,), torch.nan, device=device)
    read(values, sums, block=1024, num_warps=4)
    assert torch.equal(sums, values.view(4, 1024).sum(dim=1))
    with pytest.raises(ValueError, match="whole blocks of 1000"):
        read(values, sums, block=1000, num_warps=4)


def test_results_survive_the_file(results, tmp_path):
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results


def test_results_of_another_schema_are_refused(results, tmp_path):
    path = write_results(results, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    with pytest.raises(ValueError, match="expected schema version 1, found 99"):
        read_results(tmp_path)


def test_a_saved_run_is_drawn_again_without_a_gpu(results, tmp_path, capsys):
    write_results(results, tmp_path)
    assert bench_kernels.main(["--redraw", str(tmp_path)]) == 0
    assert "4 measured, 1 skipped" in capsys.readouterr().out
    assert all((tmp_path / f"table.{suffix}").is_file() for suffix in ("md", "html", "tex", "csv"))
    first = (tmp_path / "roofline.png").read_bytes()
    bench_kernels.main(["--redraw", str(tmp_path)])
    assert (tmp_path / "roofline.png").read_bytes() == first


def test_the_table_relates_time_to_bytes(results):
    rows = list(csv.DictReader(to_csv(results).splitlines()))
    # 300 MB at 4 TB/s are 75 us, and 2 us of an empty graph
    assert float(rows[0]["floor_us"]) == pytest.approx(77.0)
    page, core = document(results).to_markdown(), " | ".join(document(results).sections[0].tables[0].texts[0])
    assert "| 100.0 [99.0, 102.0] | 100.5 | – | 77.0 | 300.0 | 3.00 | 75 | 400.0 | 4.00 | 100 |" in core
    assert "| needs 9.0 GB, 1.0 GB are free |" in page
    (peers,) = (table for item in document(results).sections for table in item.tables if "Beside" in table.title)
    assert peers.texts[1][1:5] == ("eager torch", "1.50", "800.0 [799.0, 802.0]", "8.0")


def test_a_measurement_has_a_time_if_and_only_if_it_was_made():
    with pytest.raises(ValueError, match="expected a time if and only if"):
        Measurement(Case(), "triton", Status.failed, "why", timing=timing(1.0))


def test_checked_requests_reach_from_the_first_to_the_last():
    assert spread_over(100, 4, CPU).tolist() == [0, 33, 66, 99]
    assert spread_over(3, 16, CPU).tolist() == [0, 1, 2]


@pytest.mark.parametrize("truncation", Truncation)
def test_separate_probabilities_are_the_reference_s(truncation):
    case = Case(num_requests=6, vocab_size=500, truncation=truncation)
    inputs = make_round(case, reference_core(), seed=3, device=CPU)
    # distinct values: on ties the usual top-p keeps some, the reference all
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 3
    expected = process(logits, inputs.sampling).exp()
    torch.testing.assert_close(probabilities(logits, 0.7, truncation).double(), expected, atol=1e-6, rtol=1e-5)


def test_separate_verification_accepts_as_often_as_it_should():
    generator = torch.Generator().manual_seed(1)
    target, proposed = (torch.rand(20_000, count, 5, generator=generator).softmax(dim=-1)[:1] for count in (3, 2))
    target, proposed = target.expand(20_000, -1, -1), proposed.expand(20_000, -1, -1)
    torch.manual_seed(0)
    token_ids = torch.stack([proposed[:, index].multinomial(1)[:, 0] for index in range(2)], dim=1)
    num_accepted, last = verify_probabilities(target, proposed, token_ids, None)
    overlap = torch.minimum(target[0, :2], proposed[0]).sum(dim=1)
    # five standard errors of a frequency of 20,000
    assert abs(float((num_accepted >= 1).double().mean()) - float(overlap[0])) < 5 * 0.5 / 20_000**0.5
    first = torch.where(num_accepted >= 1, token_ids[:, 0], last)
    frequencies = first.bincount(minlength=5) / len(first)
    torch.testing.assert_close(frequencies, target[0, 0], atol=5 * 0.5 / 20_000**0.5, rtol=0)


def test_gathering_changes_no_token():
    case = Case(num_requests=12, vocab_size=300)
    core = reference_core()
    inputs = make_round(case, core, seed=4, device=CPU)
    found = [
        core.verify(inputs.target_logits, draft, inputs.sampling, verification_of(case), inputs.streams).token_ids
        for draft in (inputs.draft, gathered(inputs.draft))
    ]
    assert torch.equal(*found)


def test_goals_are_set_for_cases_of_one_preset():
    """A case that is renamed must not lose its goal."""
    with (RESULTS / "goals.csv").open(encoding="utf-8", newline="") as file:
        goals = list(csv.DictReader(file))
    names = {case.name for case in cases_of(Preset.noise)}
    assert goals and {text for goal in goals for text in (goal["case"], goal["of_case"]) if text} <= names
    assert len({goal["case"] for goal in goals}) == len(goals)
