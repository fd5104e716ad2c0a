"""What the GPU did beside a block: sampled through NVML, recorded, and told where it explains a difference."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from harness.analysis.cell import GPU_SHARED
from harness.analysis.results import read_results
from harness.records import InconsistentRecordError
from harness.records.gpu_samples import GpuSamples
from harness.report.cell_names import DISTURBED, DISTURBED_NOTE
from harness.report.tables.summary import summary_table
from harness.report.warnings import warnings
from harness.runner import arm, gpu_watch, own_processes
from harness.runner.gpu_watch import Gpu, watched
from tests.support.resumed_runs import run

IDLE, POWER, THERMAL = 0x1, 0x4, 0x20


class FakeNvml:
    """A driver with one GPU, whose answers change from sample to sample; the last ones stay."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def __init__(self, *samples, refused=(), is_mig=False):
        """samples: SM clock, reasons, number of processes or their ids; refused: names of functions."""
        self.samples, self.refused, self.is_mig = chain(samples, repeat(samples[-1])), refused, is_mig
        self.asked, self.third_sample = [], threading.Event()
        self.now = samples[0]

    def __getattr__(self, name):
        if name in self.refused:
            raise self.NVMLError("Insufficient Permissions")
        return lambda *arguments: self.answer(name, *arguments)

    def answer(self, name, *arguments):
        self.asked.append((name, *arguments))
        match name, *arguments:
            case "nvmlDeviceGetHandleByUUID", uuid:
                if uuid.startswith("GPU-") == self.is_mig:
                    raise self.NVMLError("Not Found")
                return "part" if self.is_mig else "gpu"
            case "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "part":
                return "gpu"
            case "nvmlDeviceGetCurrentClocksThrottleReasons", "gpu":
                # a sample begins here
                self.now = next(self.samples)
                if sum(each[0] == name for each in self.asked) == 3:
                    self.third_sample.set()
                return self.now[1]
            case "nvmlDeviceGetClockInfo", "gpu", kind:
                return self.now[0] if kind == self.NVML_CLOCK_SM else 2619
            case "nvmlDeviceGetComputeRunningProcesses", "gpu":
                found = self.now[2]
                # ids of a host, of which no process here has one
                pids = [2**22 + index for index in range(found)] if isinstance(found, int) else found
                return [SimpleNamespace(pid=pid) for pid in pids]


def seen(nvml):
    """The samples of a block in which nothing happens."""
    with watched(Gpu("7", nvml), every_s=1000) as watch:
        return watch.samples()


def test_clocks_are_of_a_gpu_at_work_and_the_most_processes_count():
    """Would catch the clock of an idle GPU as that of a block, and a process that was there for a moment."""
    nvml = FakeNvml((345, IDLE, 3), (1980, 0, 1), (1410, POWER | THERMAL, 1), (1200, POWER, 1))
    with watched(Gpu("7", nvml), every_s=1000) as watch:
        watch.take()
        watch.take()
        found = watch.samples()
    assert (found.num_samples, found.num_busy_samples) == (4, 3)
    assert (found.min_sm_clock_mhz, found.mean_sm_clock_mhz, found.max_sm_clock_mhz) == (1200, 1530, 1980)
    assert found.min_memory_clock_mhz == 2619 and found.num_other_processes == 2 and not found.unknown
    assert found.clock_reasons == {"sw_power_cap": 2, "sw_thermal_slowdown": 1}


def test_a_thread_samples_while_the_block_runs_and_ends_with_it():
    """Would catch samples of the ends alone, and a thread that goes on beside the next cell."""
    nvml, before = FakeNvml((1980, 0, 1)), threading.active_count()
    with watched(Gpu("7", nvml), every_s=0.001):
        assert threading.active_count() == before + 1 and nvml.third_sample.wait(60)
    assert threading.active_count() == before


def test_a_driver_that_does_not_answer_holds_up_nothing(monkeypatch):
    """Would catch a round, or the end of a block, that waits for NVML."""
    monkeypatch.setattr(gpu_watch, "ANSWER_S", 0.01)
    monkeypatch.setattr(gpu_watch, "END_S", 0.01)
    answers = threading.Event()

    class Hangs(FakeNvml):
        def answer(self, name, *arguments):
            answers.wait()
            return super().answer(name, *arguments)

    found = seen(Hangs((1980, 0, 1)))
    answers.set()
    assert found.num_samples == 0 and "no answer" in found.unknown["nvml"]


def test_the_first_sample_is_whole_where_the_library_is_imported_for_it(monkeypatch):
    """Would catch a first sample that asks before there is a library."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml((1980, 0, 1)))
    gpu = Gpu("7")
    assert gpu.sample().sm_clock_mhz == 1980 and not gpu.unknown


@pytest.fixture
def server(tmp_path):
    """The id of a process that another one, which this one started, has started, and that has a file open; the file."""
    opened = tmp_path / "nvidia0"
    opened.touch()
    end = "import sys; sys.stdin.read()"
    holder = f"import sys; file = open({str(opened)!r}); print(__import__('os').getpid(), flush=True); {end}"
    starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holder!r}])"
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield int(process.stdout.readline()), str(opened).removesuffix("0")
        process.stdin.close()


def test_the_runs_own_processes_are_no_foreign_ones(server, monkeypatch):
    """Would catch a run beside its own server that reads as one beside another job, and the reverse."""
    pid, opened = server
    here = [os.getpid(), pid]
    for pids, foreign in ((here, 0), ([*here, 1], 1), ([os.getpid(), os.getppid()], 0), ([os.getpid()], 0)):
        found = seen(FakeNvml((1980, 0, pids)))
        assert (found.num_other_processes, found.num_foreign_processes) == (len(pids) - 1, foreign)
    # by the host's numbers, as many may be its own as have a GPU open
    assert seen(FakeNvml((1980, 0, 2))).num_foreign_processes == 1
    monkeypatch.setattr(own_processes, "DEVICES", opened)
    assert [seen(FakeNvml((1980, 0, number))).num_foreign_processes for number in (1, 2, 3)] == [0, 0, 1]


def test_a_thread_that_ends_meanwhile_takes_no_process_from_the_run(tmp_path, monkeypatch):
    """Would catch a server whose own processes read as foreign ones for a whole run."""
    server, rank = 2**22, 2**22 + 1
    for pid, child in ((os.getpid(), server), (server, rank)):
        # a thread that has ended is listed, and cannot be read
        for thread in range(20):
            (tmp_path / str(pid) / "task" / str(thread)).mkdir(parents=True)
        (tmp_path / str(pid) / "task" / "7" / "children").write_text(f"{child} ")
    monkeypatch.setattr(own_processes, "PROC", tmp_path)
    found = seen(FakeNvml((1980, 0, [os.getpid(), server, rank])))
    assert (found.num_other_processes, found.num_foreign_processes) == (2, 0) and not found.unknown


def test_where_the_system_does_not_tell_the_runs_own_processes_foreign_ones_are_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr(own_processes, "PROC", tmp_path)
    found = seen(FakeNvml((1980, 0, 2)))
    assert (found.num_other_processes, found.num_foreign_processes) == (1, None)
    assert found.unknown.keys() == {"num_foreign_processes"}


def test_without_a_gpu_nothing_is_watched():
    before = threading.active_count()
    with watched(None) as watch:
        assert watch is None and threading.active_count() == before


@pytest.mark.parametrize(
    ("refused", "unknown", "known"),
    [
        ("nvmlInit", {"nvml"}, (None, None)),
        ("nvmlDeviceGetHandleByUUID", {"nvml"}, (None, None)),
        ("nvmlDeviceGetComputeRunningProcesses", {"num_other_processes"}, (1980, None)),
        # whether it was idle is not known then
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"clock_reasons"}, (None, 0)),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz", "memory_clock_mhz"}, (None, 0)),
    ],
)
def test_what_the_driver_refuses_is_named_and_the_rest_is_kept(refused, unknown, known):
    """Would catch a cell that is lost because NVML is not there, and an unknown that reads as none."""
    found = seen(FakeNvml((1980, 0, 1), refused=(refused,)))
    assert found.unknown.keys() == unknown and "Insufficient Permissions" in next(iter(found.unknown.values()))
    assert (found.mean_sm_clock_mhz, found.num_other_processes) == known


def test_a_list_without_this_process_tells_nothing():
    """Would catch -1 other processes, and none where a container hides them all."""
    found = seen(FakeNvml((1980, 0, 0)))
    assert found.num_other_processes is None and found.unknown.keys() == {"num_other_processes"}


def test_of_a_part_of_a_gpu_the_whole_is_watched():
    """Would catch a MIG instance that is looked for among whole GPUs, or asked for clocks that it does not have."""
    nvml = FakeNvml((1980, 0, 1), is_mig=True)
    assert seen(nvml).mean_sm_clock_mhz == 1980
    assert ("nvmlDeviceGetHandleByUUID", "MIG-7") in nvml.asked


@pytest.mark.parametrize(
    "fields",
    [
        {"num_samples": 1, "num_busy_samples": 2},
        {"num_other_processes": -1},
        {"num_other_processes": 1, "num_foreign_processes": 2},
        {"min_sm_clock_mhz": 2.0, "mean_sm_clock_mhz": 1.0, "max_sm_clock_mhz": 3.0},
        {"mean_sm_clock_mhz": 1.0},
    ],
)
def test_inconsistent_samples_cannot_be_built(fields):
    with pytest.raises(InconsistentRecordError):
        GpuSamples(**fields)


def told(folder):
    return [line for line in warnings(read_results(folder)) if line.startswith("GPU: ")]


def test_records_keep_what_was_seen_and_reports_tell_what_explains_a_difference(tmp_path, monkeypatch):
    """Would catch a report that is silent about a throttled or shared GPU, and one that warns of a quiet GPU."""
    monkeypatch.setattr(arm, "own_gpu", lambda: Gpu("7", FakeNvml((1980, 0, 1))))
    _, records = run(tmp_path / "quiet")
    blocks = [block for record in records.values() for block in record.blocks]
    assert len(blocks) == 6 and {block.gpu.mean_sm_clock_mhz for block in blocks} == {1980}
    assert {block.gpu.num_other_processes for block in blocks} == {0} and not told(tmp_path / "quiet")

    # turns: none, strict, block; then backwards
    turns = iter([(1980, 0, 1), (1980, 0, 2), (1980, 0, 1), (1410, POWER, 1), (1980, 0, 1), (1980, 0, 1)])
    monkeypatch.setattr(arm, "own_gpu", lambda: Gpu("7", FakeNvml(next(turns))))
    run(tmp_path / "busy")
    others, held, clock = told(tmp_path / "busy")
    assert "in 1 of 2 blocks" in others and "strict" in others and "block)" not in others
    cells = {cell["verification"]: cell for cell in read_results(tmp_path / "busy").cells}
    assert {name: cell.disturbed for name, cell in cells.items()} == {"": "", "strict": GPU_SHARED, "block": ""}
    table = summary_table(list(cells.values()))
    marked = [str(row[table.header.index("output throughput (tok/s)")]).endswith(DISTURBED) for row in table.rows]
    assert marked == [False, True, False] and DISTURBED_NOTE in table.notes
    baseline = replace(cells["block"], baseline=cells["strict"])
    assert baseline.disturbed == GPU_SHARED, "a speedup over times that others may have slowed"
    assert "sw_power_cap" in held and "strict" not in held and "1410 to 1980 MHz" in clock

    monkeypatch.setattr(arm, "own_gpu", lambda: Gpu("7", FakeNvml((1980, 0, 1), refused=("nvmlInit",))))
    run(tmp_path / "without")
    (line,) = told(tmp_path / "without")
    assert "nvml not known" in line and "all cells" in line
