"""Constrained requests on a GPU: steps run as one CUDA graph, launched ahead, until a request may be in its answer."""

import pytest

pytest.importorskip("llguidance", reason="needs the extra grammar")
pytest.importorskip("jsonschema", reason="needs the extra grammar")

import torch

from experiments.zoo.reasoning_prompts import FILE
from harness.backends.local.local import LocalBackend
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerDrafts, PolicyKind, constraint_of
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import Layout, WorkloadConfig
from harness.workload.conversations import conversations, load_prompts

pytestmark = pytest.mark.gpu


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
