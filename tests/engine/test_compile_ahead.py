"""Kernels compiled ahead, in processes of their own and once, and the calls that are known to need none."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from harness.backends.local.kernels_ahead import kernels_ahead_of
from harness.backends.local.local import LocalBackend
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.models import TargetConfig
from harness.engine.compile_ahead import known_calls
from harness.engine.compile_ahead.known_calls import FOLDER
from harness.runner.whole_run import run
from tests.support.small_run import SMALL
from tests.support.tiny_models import edit_config, random_causal_lm, save_target_folder
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
from harness.runner.groups import groups_of
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
        "drafter=eagle3 decoding.top_p=0.9 drafting.min_confidence=0.2 decoding.presence_penalty=0.5",
        "drafter=mtp verification=recursive drafting.tree=dynamic:8-4-3 decoding.logprobs=2 decoding.min_tokens=2",
        "drafter=eagle3 constraint=commit workload=reasoning_json",
    )
    assert {name: missed for name, (_, missed) in found.items() if missed} == {}
    assert len(found) == 6 and sum(num for num, _ in found.values()) > 50


ALIKE = """
import json, sys
from contextlib import nullcontext
import harness.engine.graph_runner as graph_runner
from harness.backends.local.local import LocalBackend
from harness.engine.compile_ahead.variant import recorded
from harness.models.general.target import GeneralTarget
from harness.runner.groups import groups_of
from harness.runner.plan.compose import compose_plan

graph_runner.MAX_PREFILL_TOKENS = 16
found = []
for line in sys.argv[1:]:
    group = groups_of(compose_plan(line.split()).cells)[0]
    backend = LocalBackend(group.cells[-1])
    backend.fit_slots(group.played)
    engine, rehearsed = backend.engine_of_cell, GeneralTarget.rehearsed
    num_runs, kernels = [], []
    for layer in backend.models.meta_models.target.network.layers:
        layer.mlp.register_forward_hook(lambda *_: num_runs.append(num_runs.pop() + 1))
    for way in (rehearsed, lambda target: nullcontext()):
        GeneralTarget.rehearsed = way
        num_runs.append(0)
        with recorded(90) as launched:
            engine.rehearse_on_meta()
        kernels.append([item.kernel for item in launched])
    GeneralTarget.rehearsed = rehearsed
    found.append([kernels, num_runs])
print(json.dumps(found))
"""


def test_a_layer_of_each_kind_launches_all_kernels_of_layers(tmp_path: Path):
    """Would catch layers taken for alike that are not, of another window or without experts among those with; and a
    start that runs all layers of transformers at every size, or for every cache, which takes seconds."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"num_hidden_layers": 6, "head_dim": 16, "vocab_size": 6144, "max_position_embeddings": 512}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    lines = []
    for fields, drafter in (
        ({"model_type": "gemma3_text", "sliding_window": 400, "sliding_window_pattern": 3}, "none"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]} | experts, "self_speculation drafter.skip_layers=[0,5]"),
    ):
        folder = tmp_path / str(len(lines))
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(sizes | fields))
        lines.append(
            f"target=zoo target.path={folder} target.weights=random backend.device=cpu backend.graphs=true "
            "backend.dtype=bfloat16 backend.max_concurrency=1 workload.num_requests=1 workload.num_turns=1 "
            f"decoding.max_new_tokens=8 drafter={drafter}"
        )
    # two of six layers run, and two of the four of drafts
    found = in_process_of_its_own(ALIKE, tmp_path, *lines)
    for kernels, (num_some, num_all) in found:
        assert "_slot_attention_kernel" in kernels[0] and kernels[1] == []
        assert 0 < num_some < 0.6 * num_all
    assert found[0][1][1] == 3 * found[0][1][0]


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


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What processes tell that are given the same calls one after another, six of which launch the same kernel."""
    folder = tmp_path_factory.mktemp("starts")

    def start() -> dict:
        told = in_process_of_its_own(CALLS, folder, "six and one")
        notes = [json.loads(path.read_text()) for path in (folder / "cache" / FOLDER).iterdir()]
        return told | {"notes": sorted(sorted(kernel for _, kernel in note.values()) for note in notes)}

    found = {"cold": start(), "warm": start()}
    shutil.rmtree(folder / "cache" / FOLDER)
    return found | {"without notes": start(), "warm again": start()}


def test_all_calls_are_run_unless_the_first_ones_lack_nothing(starts: dict[str, dict]):
    """Would catch a cold start that stops looking at cells that share the kernels of earlier ones, and one that looks
    at all of many though their kernels are there."""
    assert starts["cold"]["num_looked_at"] == 6
    assert starts["without notes"]["num_looked_at"] == 3


def test_calls_are_not_run_again_while_code_and_cache_are_the_same(starts: dict[str, dict]):
    """Would catch notes that nothing reads, and calls that get none because they were not tried."""
    assert starts["warm"]["num_looked_at"] == starts["warm again"]["num_looked_at"] == 0


def test_a_note_names_the_kernels_of_its_call_alone(starts: dict[str, dict]):
    """Would catch notes that name what other calls of the process launch, which grow from process to process, and
    kernels that are counted twice because two notes name them."""
    expected = [6 * ["scaling_kernel"] + 2 * ["shifting_kernel"], *6 * [["shifting_kernel"]]]
    assert [start["notes"] for start in starts.values()] == 4 * [expected]
    assert starts["cold"]["summary"].startswith("8 of 8 kernels compiled in ")
    assert {start["summary"] for name, start in starts.items() if name != "cold"} == {"8 kernels were compiled before"}
    assert {start["num_compiled_later"] for start in starts.values()} == {0}


def test_a_note_is_of_one_target_and_one_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Would catch a note that vouches for kernels of code that has changed since, or of another GPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    known_calls.remember("a call", 90, {})
    assert [known_calls.known("a call", target) for target in (90, 100)] == [set(), None]
    assert known_calls.known("another", 90) is None
    monkeypatch.setattr(known_calls, "_code", lambda: "of another commit")
    assert known_calls.known("a call", 90) is None


def test_notes_do_not_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Would catch notes on code of long ago that stay for ever, and one that goes though every start reads it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(known_calls, "MAX_NOTES", 3)
    for number, name in enumerate(("used", "first", "second")):
        known_calls.remember(name, 90, {})
        os.utime(known_calls._note(name, 90), (number, number))
    assert known_calls.known("used", 90) == set()
    known_calls.remember("third", 90, {})
    found = [name for name in ("used", "first", "second", "third") if known_calls.known(name, 90) is not None]
    assert found == ["used", "second", "third"]


def test_steps_of_a_model_whose_files_were_edited_are_others(tmp_path: Path):
    """Would catch a note that outlives the config.json that its kernels follow from."""
    folder = save_target_folder(tmp_path / "target", random_causal_lm())
    cell = CellConfig(target=TargetConfig(path=str(folder)), backend=Local(device="cpu"))

    def steps() -> str:
        return LocalBackend(cell).engine_of_cell.steps

    before = steps()
    assert steps() == before
    edit_config(folder, rms_norm_eps=1e-3)
    assert steps() != before
