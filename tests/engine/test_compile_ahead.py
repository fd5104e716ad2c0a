"""Kernels that are compiled ahead are those that launches ask for, and what goes wrong there leaves results alone."""

import shutil
from pathlib import Path

import pytest
import torch

from harness.backends.local.kernels_ahead import kernels_ahead_of
from harness.backends.local.local import LocalBackend
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.engine.compile_ahead.known_calls import FOLDER
from harness.runner.whole_run import run
from tests.support.small_run import SMALL
from tests.support.toy_kernel_calls import CALLS, in_process_of_its_own

STEPS = """
import json, pickle, sys
import torch
import harness.engine.engine as engines
import harness.engine.graph_runner as graph_runner
import harness.models.fused.layer as layer
import harness.models.layer_forward as layer_forward
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.engine.compile_ahead.variant import recorded
from harness.runner.plan.compose import compose_plan
from harness.models.fused.operations import named_operations
from harness.runner.turns import groups_of
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
        # as processes that compile are given them
        assert [item.constants for item in pickle.loads(pickle.dumps(on_meta))] == [item.constants for item in on_meta]
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


def test_launches_find_what_was_compiled_ahead(tmp_path: Path):
    """Would catch a script that runs a second time; a variant that another process compiles with other types,
    constants, alignments or options; keys of kernels with a callee in common that depend on their order; and a cache
    that is not looked at before processes are started."""
    without = in_process_of_its_own(CALLS, tmp_path, "nothing")
    assert without["summary"] == "" and without["num_compiled_later"] == 8
    (tmp_path / "cache").rename(tmp_path / "earlier")
    found = in_process_of_its_own(CALLS, tmp_path, "found")
    assert found["summary"].startswith("8 of 8 kernels compiled in ") and found["num_compiled_later"] == 0
    shutil.rmtree(tmp_path / "cache" / FOLDER)
    for _ in ("found in the cache", "known from the note of the process before"):
        again = in_process_of_its_own(CALLS, tmp_path, "found")
        assert again["summary"] == "8 kernels were compiled before" and again["num_compiled_later"] == 0


def test_what_goes_wrong_ahead_is_told_and_costs_nothing_else(tmp_path: Path):
    """Would catch a process that waits for one that died, and an error of one kernel that takes others with it."""
    found = in_process_of_its_own(CALLS, tmp_path, "failing")
    assert found["num_compiled_later"] == 0
    assert found["summary"].startswith("8 of 10 kernels compiled in ")
    assert "some kernels of a cell are not known: " in found["summary"]
    assert "wrong_kernel: CompileTimeAssertionFailure" in found["summary"]


def test_steps_in_memory_launch_nothing_that_the_meta_device_has_not_told(tmp_path: Path):
    """Would catch steps that take another way on the meta device than on a GPU, views whose memory begins elsewhere
    there, and constants that no process that compiles can be given."""
    found = in_process_of_its_own(
        STEPS,
        tmp_path,
        "drafter=eagle3 decoding.top_p=0.9 drafting.min_confidence=0.2",
        "drafter=mtp verification=recursive drafting.tree=dynamic:8-4-3 decoding.logprobs=2",
        "drafter=eagle3 constraint=commit workload=reasoning_json",
    )
    assert {name: missed for name, (_, missed) in found.items() if missed} == {}
    assert len(found) == 6 and sum(num for num, _ in found.values()) > 50


HOOK_KEYS = """
import json, sys
from kernels.methods import VerificationMethod
from kernels.methods.hooks import hooks_of, runs_on_kernels
order = sys.argv[2:] or [method.value for method in VerificationMethod if runs_on_kernels(method)]
print(json.dumps({name: repr(hooks_of(VerificationMethod(name))) for name in order}))
"""


def test_hooks_have_one_key_in_every_process(tmp_path: Path):
    """Would catch a key that depends on which hooks the process has looked at before: what is compiled ahead would not
    be found."""
    found = in_process_of_its_own(HOOK_KEYS, tmp_path, "")
    assert len(found) > 5
    assert in_process_of_its_own(HOOK_KEYS, tmp_path, "", *reversed(found)) == found


def test_a_cpu_compiles_nothing_ahead():
    """Would catch processes that are started where nothing is captured."""
    backend = LocalBackend(CellConfig(backend=Local(device="cpu", graphs=True)))
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
