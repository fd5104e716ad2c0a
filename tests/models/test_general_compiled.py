"""Layers of transformers that torch compiles: the tokens of layers as they are, shared code, and refusals.

Torch's own passes run, and what they give is run by torch without kernels of its own (`aot_eager`): those take minutes
to build here, and the GPU suite has them.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.models import Layers, TargetConfig
from harness.drafters.chain import DrafterShape
from harness.drafters.ngram_run import NgramDrafter
from harness.models import weight_layout
from harness.models.general.compiled import CompiledLayers, LayerView
from harness.models.general.compiled_states import StateView
from harness.models.general.target import GeneralTarget
from harness.runner.plan.compose import compose_plan
from harness.workload.conversations import conversations, load_prompts
from tests.support.any_models import VOCAB_SIZE, tiny_config, tiny_model
from tests.support.tiny_engines import engine_over, requests_of

COMPILE = torch.compile


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend="aot_eager"))


def tokens(target: GeneralTarget, num_drafted: int = 3, num_slots: int = 2, length: int = 40) -> list[tuple[int, ...]]:
    """Of three requests in slots of a length, by steps of fixed sizes; drafts are rejected."""
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, VOCAB_SIZE, (size,), generator=generator).tolist() for size in (3, 13, 5)]
    shape = DrafterShape(num_slots, length, num_drafted, VOCAB_SIZE)
    engine = engine_over(target, NgramDrafter(3, 1), shape, 8, graphs=True)
    found = engine.run(requests_of(prompts), lambda record: None)
    assert found.num_invalid == 0
    return [record.output_token_ids for record in sorted(found.requests, key=lambda record: int(record.prompt_id))]


@pytest.mark.parametrize(
    ("model_type", "num_kinds", "devices"),
    [
        *(("llama", 1, ()), ("llama", 1, ("cpu",)), ("gemma3_text", 2, ("cpu",)), ("gpt_oss", 2, ("cpu",))),
        *(("gemma2", 2, ("cpu",)), ("qwen3_next", 2, ("cpu",)), ("mamba2", 1, ())),
    ],
    ids=["copies", "in place", "with windows", "with sinks", "with soft caps", "with states", "with states alone"],
)
def test_the_tokens_are_those_of_layers_as_they_are(model_type, num_kinds, devices, monkeypatch):
    """Would catch a layer that writes another one's keys or states, layers of one kind that are compiled one by one,
    and sizes of steps that are."""
    found = []
    for compiled in (False, True):
        monkeypatch.setattr("harness.models.general.target.DEVICES", frozenset(devices if compiled else ()))
        target = GeneralTarget(tiny_model(model_type), None)
        assert not compiled or target.compile(is_asked=True) is None
        found.append(tokens(target))
    assert found[0] == found[1] and target.is_compiled and target.compile_s > 0 and target.fallbacks == ()
    assert target.new_cache(2, 40).is_in_place is bool(devices)
    # for steps of one row, and of more; of layers with states one for all steps, and one of their mixers
    assert counters["stats"]["unique_graphs"] == 2 * num_kinds


def test_no_graph_is_of_a_number_of_drafts_or_of_layers_with_states():
    """Would catch mixers that are compiled for each depth, layer or ring of states."""
    num_graphs = []
    for num_drafted, num_periods in ((2, 1), (5, 3)):
        config = tiny_config("qwen3_next")
        config.layer_types = ["linear_attention", "linear_attention", "full_attention"] * num_periods
        config.num_hidden_layers = len(config.layer_types)
        plain, target = (GeneralTarget(tiny_model("qwen3_next", config), None) for _ in range(2))
        assert target.compile(is_asked=True) is None
        assert tokens(target, num_drafted) == tokens(plain, num_drafted) and target.fallbacks == ()
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs == [4, 4]


@pytest.mark.parametrize("is_in_place", [False, True], ids=["copies", "in place"])
def test_engines_of_other_sizes_share_graphs(is_in_place, monkeypatch):
    """Would catch layers that are compiled for a number of slots, or for their length where no mask is of it."""
    monkeypatch.setattr("harness.models.general.target.DEVICES", frozenset(["cpu"] if is_in_place else ()))
    plain, target = (GeneralTarget(tiny_model("llama"), None) for _ in range(2))
    assert target.compile(is_asked=True) is None
    num_graphs = []
    for num_slots, length in ((2, 40), (3, 48 if is_in_place else 40), (7, 56 if is_in_place else 40)):
        found = [tokens(each, num_slots=num_slots, length=length) for each in (plain, target)]
        assert found[0] == found[1]
        num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs == [2, 2, 2]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN, which makes blocks")
def test_weights_in_blocks_stay_so_in_compiled_layers(monkeypatch):
    """Would catch blocks that torch's compiler looks into, and compiled products that read the plain weights."""
    monkeypatch.setattr(weight_layout, "MAX_SMALL", 0)
    monkeypatch.setattr(weight_layout, "MAX_SINGLE", 0)
    plain, target = (GeneralTarget(tiny_model("qwen3"), None) for _ in range(2))
    for each in (plain, target):
        weight_layout.lay_out(each.causal_lm)
    assert target.compile(is_asked=True) is None
    expected, num_products = tokens(plain), []
    through = weight_layout._through
    monkeypatch.setattr(weight_layout, "_through", lambda *given: num_products.append(1) or through(*given))
    assert tokens(plain) == expected and (in_blocks := len(num_products))
    assert tokens(target) == expected and target.fallbacks == ()
    assert len(num_products) == 2 * in_blocks and counters["stats"]["unique_graphs"]


def broken(*_, **__):
    raise Unsupported("a call that torch does not know")


def assert_refused_where_asked(model_type, why):
    """Whoever asks for compiling gets an error instead of layers as they are."""
    asked = GeneralTarget(tiny_model(model_type), None)
    asked.compile(is_asked=True)
    with pytest.raises(ValueError, match=f"backend.compile: {why}; use backend.compile=false"):
        tokens(asked)


def test_a_layer_that_cannot_be_compiled_runs_as_it_is_and_that_is_told(monkeypatch):
    monkeypatch.setattr(LayerView, "update", broken)
    plain, target = tokens(GeneralTarget(tiny_model("llama"), None)), GeneralTarget(tiny_model("llama"), None)
    monkeypatch.setattr("harness.models.general.target.MIN_PARAMETERS", 1)
    assert target.compile(is_asked=False) is None
    assert tokens(target) == plain and not target.is_compiled
    (note,) = target.fallbacks
    assert "could not compile the layers" in note
    assert_refused_where_asked("llama", "torch could not compile .*")


def looks_into_a_number(view, key_states, value_states, *_, **__):
    return (key_states + 1, value_states) if key_states.sum().item() > 3 else (key_states, value_states)


def prints(view, key_states, value_states, *_, **__):
    print("a word")
    return key_states, value_states


@pytest.mark.parametrize(
    ("update", "place"),
    [
        (looks_into_a_number, ": return .* if .* > 3 else .*"),
        (prints, r': print\("a word"\)'),
    ],
)
def test_the_line_that_torch_cannot_compile_is_named(update, place, monkeypatch):
    """Would catch torch's first line alone, which names no file."""
    monkeypatch.setattr(LayerView, "update", update)
    where = rf"\(at tests/models/test_general_compiled.py:\d+ in {update.__name__}{place}\)"
    assert_refused_where_asked("llama", f"torch could not compile the layers of target: [^\n]* {where}")


@pytest.mark.parametrize(
    ("model_type", "is_compiled", "words"),
    [
        ("mamba2", False, "torch could not compile the layers of"),
        ("qwen3_next", True, "not compiled: they have states, and torch failed"),
    ],
)
def test_layers_with_states_that_cannot_be_compiled_are_told_or_refused(model_type, is_compiled, words, monkeypatch):
    """Would catch a target that was to be compiled, is not, and says nothing."""
    monkeypatch.setattr(StateView, "run", broken)
    monkeypatch.setattr("harness.models.general.target.MIN_PARAMETERS", 1)
    plain, target = (GeneralTarget(tiny_model(model_type), None) for _ in range(2))
    assert target.compile(is_asked=False) is None
    assert tokens(target) == tokens(plain) and target.is_compiled is is_compiled
    (note,) = target.fallbacks
    assert words in note
    assert_refused_where_asked(model_type, "torch could not compile .*")


def test_a_layer_of_more_variants_than_torch_keeps_runs_as_it_is(monkeypatch):
    """Would catch a cell that ends where torch refuses one variant more."""
    monkeypatch.setattr("harness.models.general.compiled.MAX_VARIANTS", 1)
    monkeypatch.setattr("harness.models.general.target.MIN_PARAMETERS", 1)
    plain, target = (GeneralTarget(tiny_model("llama"), None) for _ in range(2))
    assert target.compile(is_asked=False) is None
    assert tokens(target) == tokens(plain) and not target.is_compiled
    (note,) = target.fallbacks
    assert "more than 1 variants of one layer" in note
    assert_refused_where_asked("llama", ".* more than 1 variants .*")


def test_layers_without_a_cache_are_not_said_to_keep_more():
    """Would catch one reason for all layers that run as they are, of which some keep nothing at all."""
    target = GeneralTarget(tiny_model("nemotron_h"), None)
    assert target.compile(is_asked=True) is None
    assert target.fallbacks == ("2 of 4 layers are not compiled: they ask the cache for nothing",)
    obstacle = GeneralTarget(tiny_model("falcon_h1"), None).compile(is_asked=True)
    assert obstacle == "its layers keep more than keys and values"


def test_a_mixer_that_is_given_tensors_in_a_tuple_is_not_compiled():
    """Would catch rotary tensors of the first token that a compiled mixer takes for those of every token."""
    target = GeneralTarget(tiny_model("bailing_hybrid"), None)
    reason = "give their mixers tensors beside states"
    assert reason in (target.compile(is_asked=True) or " ".join(target.fallbacks))


def test_small_models_are_compiled_only_if_asked_for():
    assert "fewer than" in GeneralTarget(tiny_model("llama"), None).compile(is_asked=False)


def test_layers_of_our_own_are_refused_before_anything_is_loaded():
    backend = Local(device="cpu", graphs=True, compile=True)
    with pytest.raises(ValueError, match=r"backend.compile: .* its layers are our own"):
        _ = ModelStore().models(TargetConfig(), backend).meta_models.target
    _ = ModelStore().models(TargetConfig(layers=Layers.transformers), backend).meta_models.target


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"graphs": False}, "false; set backend.graphs=true"),
        ({"device": "cpu"}, "null on a CPU; set backend.graphs=true"),
    ],
)
def test_steps_of_any_size_are_not_compiled(settings, found):
    """Would catch a word on graphs that were never set, and a cell that a GPU could run."""
    with pytest.raises(ValueError, match=f"backend.compile: expected false, .* found true with backend.graphs={found}"):
        Local(compile=True, **settings)
    assert Local(compile=True).on("cuda").graphs
    with pytest.raises(ValueError, match=r"backend\.graphs=null on a CPU"):
        Local(compile=True).on("cpu")


@pytest.mark.parametrize(
    ("settings", "is_compiled", "words"),
    [
        ("drafter=self_speculation drafter.skip_layers=[1]", True, ()),
        ("drafter=eagle3 verification=recursive drafting.tree=2-1", False, ("layers are not compiled",)),
        ("drafter=eagle3", True, ()),
    ],
)
def test_what_ran_compiled_is_what_the_record_says(settings, is_compiled, words, monkeypatch):
    """Would catch drafts of the target's own layers through what its steps compiled, and trees beside a compiled
    baseline without a word."""
    num_compiled = []
    running = CompiledLayers.running
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(CompiledLayers, "running", lambda *given: num_compiled.append(1) or running(*given))
    given = "target.layers=transformers backend.graphs=true backend.compile=true backend.device=cpu"
    sizes = "workload.num_prompts=2 workload.num_turns=1 decoding.max_new_tokens=6 decoding.temperature=0"
    *_, cell = compose_plan(f"{given} {sizes} {settings}".split()).cells
    backend = LocalBackend(cell, ModelStore())
    played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
    assert backend.generate(played).requests
    facts = backend.facts()
    assert facts.backend.compile is is_compiled is bool(num_compiled)
    assert all(any(word in note for note in facts.fallbacks) for word in words)
