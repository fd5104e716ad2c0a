"""Kernels that are compiled ahead are those that launches ask for, and what goes wrong there leaves results alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.backends.local.kernels_ahead import kernels_ahead_of
from harness.backends.local.local import LocalBackend
from harness.compile_ahead import known_calls
from harness.compile_ahead.known_calls import FOLDER
from harness.settings.cell import CellConfig
from harness.settings.sections import BackendConfig
from harness.sweep.whole_run import run
from tests.small_run import SMALL

ROOT = Path(__file__).parents[1]
TOYS = """
import os
import sys
from typing import NamedTuple

import triton
import triton.language as tl
from triton.compiler import ASTSource

class Sizes(NamedTuple):
    num_values: int
    limit: int

OTHER = tl.constexpr(0.5)

@triton.jit
def read(values, offsets, sizes):
    return tl.load(values + offsets, mask=offsets < sizes.num_values, other=OTHER)

@triton.jit
def scaling_kernel(values, sizes, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(values + offsets, read(values, offsets, sizes) * sizes.limit, mask=offsets < sizes.num_values)

@triton.jit
def shifting_kernel(values, sizes, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(values + offsets, read(values, offsets, sizes) + sizes.limit, mask=offsets < sizes.num_values)

@triton.jit
def wrong_kernel(values):
    tl.static_assert(False, "never right")

@triton.jit
def deadly_kernel(values):
    pass

if any("compiling_processes" in each for each in sys.orig_argv):
    # where kernels are compiled ahead
    make_ir = ASTSource.make_ir
    ASTSource.make_ir = lambda asked, *given: os._exit(3) if asked.name == "deadly_kernel" else make_ir(asked, *given)
"""
CALLS = '''
import json, sys
import torch
from triton.runtime.driver import driver
from harness.compile_ahead.compilation import Compilation
from harness.compile_check.compile import CompileOnlyDriver
from toys import Sizes, deadly_kernel, scaling_kernel, shifting_kernel, wrong_kernel

def scale(device, launch):
    """Two types, a size that is a multiple of 16 and one that is not, and memory that begins anywhere."""
    for dtype in (torch.float32, torch.float16):
        values = torch.zeros(100, dtype=dtype, device=device)
        for given, sizes in ((values, Sizes(96, 7)), (values, Sizes(99, 7)), (values[1:], Sizes(99, 7))):
            launch(scaling_kernel)(given, sizes, BLOCK=128)
        launch(shifting_kernel)(values, sizes, BLOCK=128)

def rest(device, launch):
    values = torch.zeros(100, device=device)
    launch(wrong_kernel)(values)
    launch(deadly_kernel)(values)

def run(kernel):
    return kernel[(1,)]

def only_compile(kernel):
    return lambda *given, **named: kernel.warmup(*given, grid=(1,), **named)

looked_at = []

def unknown():
    torch.zeros(3, device="meta").tolist()

calls = {
    "found": [lambda: scale("meta", run)],
    "failing": [unknown, lambda: rest("meta", run), lambda: scale("meta", run)],
    "nothing": [],
    "many, warm": 6 * [lambda: looked_at.append(1)],
    "many, cold": [lambda: scale("meta", run), *6 * [lambda: looked_at.append(1)]],
}[sys.argv[1]]
compilation = Compilation({f"{sys.argv[1]} {number}": call for number, call in enumerate(calls)}, 90)
compilation.wait()
driver.set_active(CompileOnlyDriver(90))
with compilation.counting() as compiled_s:
    scale("cpu", only_compile)
told = {"summary": compilation.summary, "num_compiled_later": len(compiled_s)}
print(json.dumps(told | ({"num_looked_at": len(looked_at)} if looked_at else {})))
'''
STEPS = """
import json, sys
import torch
import harness.engine.engine as engines
import harness.engine.graph_runner as graph_runner
import harness.models.fused.layer as layer
import harness.models.layer_forward as layer_forward
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.compile_ahead.variant import recorded
from harness.compose.compose import compose_plan
from harness.models.fused.operations import named_operations
from harness.sweep.turns import groups_of
from kernels.core import triton_core

of_device = layer.operations_for
uninitialized = torch.empty, torch.empty_like, torch.Tensor.new_empty
graph_runner.MAX_PREFILL_TOKENS = 64
engines.core_for = lambda device: triton_core()
found = {}
for line in sys.argv[1:]:
    common = "device=cpu", "graphs=true", "fused=true", "dtype=bfloat16", "max_concurrency=2"
    common = [f"backend.{each}" for each in common]
    group = groups_of(compose_plan([*line.split(), *common, "workload.num_requests=4"]).cells)[0]
    store = ModelStore()
    for cell in group.cells:
        backend = LocalBackend(cell, store)
        backend.fit_slots(group.played)
        with recorded(90) as on_meta:
            backend.engine_of_cell.rehearse_on_meta()
        engine = backend.engine_of_cell.engine()
        # launches compute nothing, so what they leave must be valid: all zeros
        torch.empty, torch.empty_like, torch.Tensor.new_empty = torch.zeros, torch.zeros_like, torch.Tensor.new_zeros
        layer.operations_for = layer_forward.operations_for = lambda device: named_operations("triton")
        with recorded(90) as in_memory:
            engine.rehearse_on_meta()
        torch.empty, torch.empty_like, torch.Tensor.new_empty = uninitialized
        layer.operations_for = layer_forward.operations_for = of_device
        found[f"{line} {cell.drafter.kind.value}"] = len(on_meta), [item.kernel for item in in_memory]
print(json.dumps(found))
"""


def in_process_of_its_own(code: str, folder: Path, *arguments: str) -> dict:
    """What code prints as JSON, where kernels are compiled and not interpreted, with a cache of its own."""
    (folder / "toys.py").write_text(TOYS)
    (folder / "asked.py").write_text(code)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(folder / "asked.py"), *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_launches_find_what_was_compiled_ahead(tmp_path: Path):
    """Would catch a script that runs a second time; a variant that another process compiles with other types,
    constants, alignments or options; keys of kernels with a callee in common that depend on their order; and a cache
    that is not looked at before processes are started."""
    without = in_process_of_its_own(CALLS, tmp_path, "nothing")
    assert without == {"summary": "", "num_compiled_later": 8}
    (tmp_path / "cache").rename(tmp_path / "earlier")
    found = in_process_of_its_own(CALLS, tmp_path, "found")
    assert found["summary"].startswith("8 of 8 kernels compiled in ") and found["num_compiled_later"] == 0
    shutil.rmtree(tmp_path / "cache" / FOLDER)
    for _ in ("found in the cache", "known from the note of the process before"):
        again = in_process_of_its_own(CALLS, tmp_path, "found")
        assert again == {"summary": "8 kernels were compiled before", "num_compiled_later": 0}


def test_all_cells_are_looked_at_unless_the_first_ones_lack_nothing(tmp_path: Path):
    """Would catch a cold start that stops looking at cells that share the kernels of earlier ones, and a warm start
    that looks at all of many."""
    assert in_process_of_its_own(CALLS, tmp_path, "many, cold")["num_looked_at"] == 6
    assert in_process_of_its_own(CALLS, tmp_path, "many, warm")["num_looked_at"] == 4


def test_calls_are_not_run_again_while_code_and_cache_are_the_same(tmp_path: Path):
    """Would catch notes that nothing reads, and notes on a cache that is not there any more."""
    assert in_process_of_its_own(CALLS, tmp_path, "many, cold")["num_looked_at"] == 6
    assert "num_looked_at" not in in_process_of_its_own(CALLS, tmp_path, "many, cold")
    shutil.rmtree(tmp_path / "cache")
    assert in_process_of_its_own(CALLS, tmp_path, "many, cold")["num_looked_at"] == 6


def test_a_note_is_of_one_target_and_one_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Would catch a note that vouches for kernels of code that has changed since, or of another GPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(known_calls, "_launched", {})
    known_calls.remember("a call", 90)
    assert [known_calls.known("a call", target) for target in (90, 100)] == [set(), None]
    assert known_calls.known("another", 90) is None
    monkeypatch.setattr(known_calls, "_code", lambda: "of another commit")
    assert known_calls.known("a call", 90) is None


def test_what_goes_wrong_ahead_is_told_and_costs_nothing_else(tmp_path: Path):
    """Would catch a process that waits for one that died, and an error of one kernel that takes others with it."""
    found = in_process_of_its_own(CALLS, tmp_path, "failing")
    assert found["num_compiled_later"] == 0
    assert found["summary"].startswith("8 of 10 kernels compiled in ")
    assert "some kernels of a cell are not known: " in found["summary"]
    assert "wrong_kernel: CompileTimeAssertionFailure" in found["summary"]
    assert not (tmp_path / "cache" / FOLDER).exists()


def test_steps_in_memory_launch_nothing_that_the_meta_device_has_not_told(tmp_path: Path):
    """Would catch steps that take another way on the meta device than on a GPU, and views whose memory begins
    elsewhere there."""
    found = in_process_of_its_own(
        STEPS,
        tmp_path,
        "drafter=eagle3 decoding.top_p=0.9 drafting.min_confidence=0.2",
        "drafter=mtp verification=recursive drafting.tree=dynamic:8-4-3 decoding.logprobs=2",
        "drafter=eagle3 constraint=commit workload=reasoning_json",
    )
    assert {name: missed for name, (_, missed) in found.items() if missed} == {}
    assert len(found) == 6 and sum(num for num, _ in found.values()) > 50


def test_a_cpu_compiles_nothing_ahead():
    """Would catch processes that are started where nothing is captured."""
    backend = LocalBackend(CellConfig(backend=BackendConfig(device="cpu", graphs=True)))
    assert kernels_ahead_of([backend.engine_of_cell], torch.device("cpu")) is None
    assert backend.start_note is None


def test_what_getting_ready_took_is_told_before_the_first_measured_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys
):
    """Would catch a line that no display gets, and one that is told again in every turn."""
    monkeypatch.setattr(LocalBackend, "start_note", "20 kernels were compiled before")
    run("drafter=none", *SMALL, "measurement.num_blocks=2", f"output.folder={tmp_path / 'run'}")
    told = capsys.readouterr().err
    assert told.count(": 20 kernels were compiled before; measured from ") == 1
