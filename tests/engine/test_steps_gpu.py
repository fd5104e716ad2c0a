"""Steps on a GPU: what a CUDA graph cannot hold, kernels compiled ahead, and constrained answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.zoo.reasoning_prompts import FILE
from harness.backends.local.local import LocalBackend
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerDrafts, PolicyKind, constraint_of
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.models import Layers
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import Layout, WorkloadConfig
from harness.drafters.chain import DrafterShape
from harness.drafters.ngram_run import NgramDrafter
from harness.engine.request import Request
from harness.models.target import load_target
from harness.workload.conversations import conversations, load_prompts
from tests.support.any_models import NO_TOKENIZER, save_tiny, tiny_model
from tests.support.own_process import ROOT
from tests.support.tiny_engines import engine_over

pytestmark = pytest.mark.gpu


def test_modeling_code_that_copies_from_the_host_is_refused_by_name(tmp_path):
    """falcon divides by a tensor that it makes on the CPU: would catch torch's own message about streams."""
    folder = save_tiny(tiny_model("falcon"), tmp_path)
    device = torch.device("cuda")
    target = load_target(folder, tokenizer=NO_TOKENIZER, layers=Layers.transformers, device=device, dtype=torch.float32)
    shape = DrafterShape(1, 32, 2, target.vocab_size)
    engine = engine_over(target, NgramDrafter(3, 1), shape, 4, graphs=True)
    with pytest.raises(ValueError, match=r"a step that a CUDA graph can hold.*take backend\.graphs=false"):
        engine.run([Request("0", "toy", 0, 0, 1, (5, 6, 7))], lambda record: None)


CELLS = (
    "drafter=eagle3,mtp",
    "verification=probabilistic,coupled",
    "workload.num_prompts=3",
    "workload.num_turns=1",
    "decoding.max_new_tokens=8",
    "backend.device=cuda",
    "measurement.num_resamples=100",
)


def told_by_a_run(folder: Path) -> str:
    """Standard error of a run of its own that shares Triton's cache with the others of a folder."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "experiments", "run", *CELLS, "--fresh", f"output.folder={folder / 'run'}"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_no_kernel_of_a_run_is_compiled_where_it_is_launched(tmp_path: Path):
    """Would catch a step that launches on a GPU what it does not launch on the meta device, and processes that compile
    for another GPU."""
    first, second = told_by_a_run(tmp_path), told_by_a_run(tmp_path)
    assert re.search(r": (\d+) of \1 kernels compiled in ", first), first
    assert re.search(r": \d+ kernels were compiled before; steps captured in .*; measured from ", second), second
    for told in (first, second):
        assert "one after another" not in told


pytest.importorskip("llguidance", reason="needs the extra grammar")
pytest.importorskip("jsonschema", reason="needs the extra grammar")


def config_of(policy, drafter, temperature=1.0, parser="zoo", **backend):
    return CellConfig(
        drafter=drafter_of(drafter),
        drafting=DraftingConfig(4),
        decoding=DecodingConfig(temperature=temperature, max_new_tokens=160),
        workload=WorkloadConfig(path=str(FILE), layout=Layout.plain, num_prompts=40),
        constraint=constraint_of(policy, parser=parser, drafts=AnswerDrafts.masked),
        backend=Local(device="cuda", max_concurrency=12, **backend),
        measurement=MeasurementConfig(expected_acceptance=False),
    )


def play(*arguments, **settings):
    config = config_of(*arguments, **settings)
    engine = LocalBackend(config)
    return engine, engine.generate(conversations(load_prompts(config.workload, 0), config.workload, 0))


def paths(run):
    """(rounds of whole steps, rounds with the host, steps deferred)."""
    rounds = [item for request in run.requests for item in request.rounds]
    is_whole = [item.is_whole for item in rounds]
    return is_whole.count(True), is_whole.count(False), sum(item.num_held_steps for item in rounds)


@pytest.mark.parametrize("policy", [PolicyKind.commit, PolicyKind.mask], ids=lambda item: item.value)
def test_no_kernel_is_compiled_while_requests_run(policy, monkeypatch):
    """Would catch a kernel that only rounds in the answer use and that is compiled while a request waits. First in its
    file: what another test has compiled in this process is not compiled again."""
    from triton.runtime.jit import JITFunction

    config = config_of(policy, DrafterKind.eagle3)
    played = conversations(load_prompts(config.workload, 0), config.workload, 0)
    backend = LocalBackend(config)
    backend.prepare(played)
    engine = backend.engine_of_cell.engine()
    with torch.inference_mode():
        engine._runner.prepare()
    compiled, compile_kernel = [], JITFunction._do_compile

    def seen(kernel, *arguments, **options):
        compiled.append(kernel.fn.__name__)
        return compile_kernel(kernel, *arguments, **options)

    monkeypatch.setattr(JITFunction, "_do_compile", seen)
    run = backend.generate(played)
    assert paths(run)[1] > 0 and compiled == []


@pytest.mark.parametrize("drafter", [DrafterKind.eagle3, DrafterKind.draft_model, DrafterKind.ngram, DrafterKind.none])
@pytest.mark.parametrize("policy", [PolicyKind.commit, PolicyKind.mask], ids=lambda item: item.value)
def test_every_finished_answer_is_valid(policy, drafter):
    """Would catch a graph that reads masks, drafts or counts of another round, or sees reasoning end too late."""
    backend, run = play(policy, drafter)
    assert backend.engine_of_cell.uses_graphs
    finished = [item for item in run.requests if item.finish_reason.value == "grammar"]
    assert len(finished) >= 30 and all(item.answer_is_valid for item in finished)
    assert all(item.num_reasoning_tokens is not None for item in finished)


@pytest.mark.parametrize("drafter", [DrafterKind.eagle3, DrafterKind.none])
@pytest.mark.parametrize("policy", [PolicyKind.commit, PolicyKind.mask], ids=lambda item: item.value)
def test_greedy_tokens_are_those_of_steps_with_the_host(policy, drafter):
    """Would catch a deferred step that moved a length, a stream or a drafter's state, and a missed end of reasoning."""
    _, found = play(policy, drafter, temperature=0.0, dtype="float32")
    _, expected = play(policy, drafter, temperature=0.0, dtype="float32", graphs=False)
    tokens = [
        {(item.prompt_id, item.sample): item.output_token_ids for item in run.requests} for run in (found, expected)
    ]
    assert tokens[0] == tokens[1]
    assert min(paths(found)) > 0 and paths(expected)[0] == 0


@pytest.mark.parametrize("policy", [PolicyKind.commit, PolicyKind.mask], ids=lambda item: item.value)
def test_in_front_of_the_boundary_every_step_is_whole(policy):
    _, run = play(policy, DrafterKind.eagle3, parser="never")
    assert paths(run) == (sum(len(request.rounds) for request in run.requests), 0, 0)
