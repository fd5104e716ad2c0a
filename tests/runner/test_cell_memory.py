"""Memory is counted before anything is made: the counts are what is then allocated, and too little is one error."""

from __future__ import annotations

import re
import weakref

import pytest
import torch

from harness.backends.local.cell_memory import CellMemory, check_memory
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.checks.profiling.rank_cost import rank_costs
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.cli.ending import FAILED
from harness.config.drafter import DrafterKind, drafter_of, drafter_traits
from harness.config.drafting import DraftingConfig, DraftSamplingChoice
from harness.config.models import Layers, TargetConfig, Weights
from harness.config.sections import DecodingConfig
from harness.config.workload import WorkloadConfig
from harness.models import free_memory
from harness.models.free_memory import Need, check_fits, free_bytes
from harness.models.meta import META
from harness.models.random_weights import RandomWeights
from harness.models.weight_layout import BlockedWeight
from harness.records.runs import read_runs
from harness.runner.plan.compose import compose_plan
from harness.runner.whole_run import run_and_report
from harness.workload.conversations import Conversation
from harness.workload.prompt import Prompt
from tests.support.tiny_shapes import GLM, shape_folder

CPU = torch.device("cpu")
PLAYED = [Conversation(Prompt("one", "test", ("Name a colour.",)), 0, 7)]
NUM_SLOTS, NUM_DRAFTED, NUM_PROMPT_TOKENS, NUM_NEW_TOKENS = 3, 2, 10, 4


@pytest.fixture(scope="module")
def store():
    return ModelStore()


def backend(
    store=None,
    *,
    drafter=DrafterKind.none,
    target=None,
    graphs=None,
    sampling=DraftSamplingChoice.auto,
    **settings,
):
    """A cell on the zoo, or on a target with random weights."""
    weights = Weights.checkpoint if target is None else Weights.random
    cell = CellConfig(
        target=TargetConfig() if target is None else TargetConfig(weights=weights, **target),
        drafter=drafter_of(drafter, **({"weights": weights} if drafter_traits(drafter.value).has_model else {})),
        drafting=DraftingConfig(num_speculative_tokens=NUM_DRAFTED, sampling=sampling),
        decoding=DecodingConfig(max_new_tokens=NUM_NEW_TOKENS),
        workload=WorkloadConfig(num_turns=1, prompt_tokens=NUM_PROMPT_TOKENS),
        backend=Local(device="cpu", max_concurrency=NUM_SLOTS, graphs=graphs, **settings),
    )
    return LocalBackend(cell, store)


def with_free(monkeypatch, num_bytes):
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: num_bytes)


def needs_of(memory):
    return [*memory.weights.values(), *memory.caches]


def total(memory):
    return sum(need.num_bytes for need in needs_of(memory))


def twice(module):
    """Bytes of the weights that lie in memory a second time."""
    joint = [vars(each)["joint"].num_bytes for each in module.modules() if "joint" in vars(each)]
    return sum(joint) + sum(weight.nbytes for weight in module.parameters() if isinstance(weight, BlockedWeight))


def held(*tensors):
    """Bytes of the memory behind tensors, each piece once."""
    pieces = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(pieces.values())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN, which makes blocks")
def test_layers_of_transformers_have_no_joint_products():
    """Would catch weights that lie in memory twice for products that code of transformers never asks for, while its
    own read plain ones."""
    target = TargetConfig(layers=Layers.transformers)
    meta_models, loaded = ModelStore().models(target, Local(device="cpu"))
    network, counted = loaded.target.causal_lm, meta_models.target
    assert not any("joint" in vars(module) for module in network.modules())
    assert all(type(layer.mlp.gate_proj.weight) is BlockedWeight for layer in network.model.layers)
    assert loaded.blocked_bytes(counted.causal_lm, counted) == twice(network)


@pytest.mark.parametrize(
    ("changes", "kind", "settings"),
    [
        pytest.param(None, DrafterKind.none, {"dtype": "float32"}, id="baseline"),
        pytest.param(None, DrafterKind.ngram, {"dtype": "float32"}, id="no network"),
        pytest.param(None, DrafterKind.eagle, {"dtype": "float32"}, id="eagle"),
        pytest.param(None, DrafterKind.eagle3, {"dtype": "bfloat16"}, id="eagle3"),
        pytest.param(None, DrafterKind.mtp, {"dtype": "bfloat16"}, id="mtp"),
        pytest.param(
            None, DrafterKind.mtp, {"dtype": "float32", "fused": True, "graphs": True}, id="fused, fixed sizes"
        ),
        pytest.param(None, DrafterKind.draft_model, {"dtype": "float32"}, id="draft model"),
        pytest.param({"tie_word_embeddings": True}, DrafterKind.eagle, {"dtype": "bfloat16"}, id="random, tied"),
        pytest.param({}, DrafterKind.eagle3, {"dtype": "bfloat16"}, id="random"),
        pytest.param(GLM, DrafterKind.mtp, {"dtype": "bfloat16"}, id="random GLM"),
    ],
)
def test_what_is_counted_is_what_is_then_allocated(tmp_path, changes, kind, settings):
    target = None if changes is None else {"path": str(shape_folder(tmp_path, **changes))}
    subject = backend(target=target, drafter=kind, **settings)
    subject.prepare(PLAYED)
    assert not subject.models.loaded.has_target
    weights, caches = (
        subject.engine_of_cell.memory.weights.values(),
        [need.num_bytes for need in subject.engine_of_cell.memory.caches],
    )
    subject.generate(PLAYED)
    modules = [subject.target.causal_lm] + ([subject.loaded_head.module] if subject.loaded_head else [])
    assert [need.num_bytes for need in weights] == [
        held(*each.parameters(), *each.buffers()) + twice(each) for each in modules
    ]
    engine = subject.engine_of_cell.engine()
    allocated = [held(*engine._cache.keys, *engine._cache.values)]
    if subject.loaded_head is not None:
        cache, stored = engine.drafter._cache, engine.drafter._logits
        statistics = stored._stats
        allocated.append(held(*cache.keys, *cache.values))
        allocated.append(held(stored._logits, statistics.maximum, statistics.normalizer, statistics.threshold))
    assert caches == allocated == [each for each in subject.engine_of_cell.cache_bytes if each]


def test_what_cannot_be_fused_is_refused_in_outline(tmp_path):
    with pytest.raises(ValueError, match=r"backend\.fused: expected layers that can be fused, .* activation is gelu"):
        backend(target={"path": str(shape_folder(tmp_path, **GLM, hidden_act="gelu"))}, fused=True)


def test_nothing_is_loaded_or_drawn_to_be_counted(tmp_path, monkeypatch):
    subject = backend(target={"path": str(shape_folder(tmp_path, **GLM))}, drafter=DrafterKind.mtp)
    subject.prepare(PLAYED)
    meta_models = subject.models.meta_models
    for module in (meta_models.target.causal_lm, meta_models.head(subject.cell.drafter).module):
        assert {tensor.device for tensor in (*module.parameters(), *module.buffers())} == {META}
    assert not subject.models.loaded.has_target and not subject.models.loaded.has_head(subject.cell.drafter)


def test_one_byte_too_little_is_refused_with_everything_that_is_needed(monkeypatch):
    subject = backend(drafter=DrafterKind.eagle3)
    subject.fit_slots(PLAYED)
    needed = total(subject.engine_of_cell.memory)
    with_free(monkeypatch, needed)
    subject.prepare(PLAYED)
    with_free(monkeypatch, needed - 1)
    with pytest.raises(ValueError) as caught:
        subject.prepare(PLAYED)
    message = str(caught.value)
    # prompt, answer, and two rounds that may turn out to be too many
    capacity = NUM_PROMPT_TOKENS + NUM_NEW_TOKENS + 2 * (NUM_DRAFTED + 1)
    for words in (
        r"backend\.device: expected [\d.]+ MB of free memory on cpu \(",
        r"[\d.]+ MB for [\d,]+ weights of target zoo in float32, large ones twice;",
        r"[\d.]+ MB for [\d,]+ weights of the drafter eagle3 in float32, large ones twice;",
        rf"[\d.]+ MB for the target's key-value cache \(3 slots and a spare one, of {capacity} tokens\);",
        rf"[\d.]+ MB for the drafter's key-value cache \(3 slots and a spare one, of {capacity} tokens\);",
        r"[\d.]+ MB for the draft-logit cache \(3 slots, 2 rows of 4,096 logits\)\), found [\d.]+ MB\. ",
        "CUDA graphs, the activations of a forward and rows that wait to be measured come on top",
    ):
        assert re.search(words, message), words
    for name in ("max_concurrency", "max_length", "dtype"):
        assert f"backend.{name}" in message
    assert "decoding.max_new_tokens" in message and "drafting.num_speculative_tokens" in message
    assert not subject.models.loaded.has_target


@pytest.mark.parametrize("place", range(5), ids=["target", "drafter", "target's cache", "drafter's cache", "logits"])
def test_each_need_alone_can_be_the_one_too_many(monkeypatch, place):
    """Would catch a need that is listed and not counted."""
    subject = backend(drafter=DrafterKind.draft_model)
    subject.fit_slots(PLAYED)
    needs = needs_of(subject.engine_of_cell.memory)
    with_free(monkeypatch, total(subject.engine_of_cell.memory) - needs[place].num_bytes)
    with pytest.raises(ValueError, match=re.escape(needs[place].what)):
        subject.prepare(PLAYED)


def test_greedy_drafts_need_no_draft_logits(monkeypatch):
    subject = backend(drafter=DrafterKind.eagle3, sampling=DraftSamplingChoice.greedy)
    with_free(monkeypatch, 0)
    with pytest.raises(ValueError) as caught:
        subject.prepare(PLAYED)
    assert "draft-logit" not in str(caught.value) and "drafter's key-value cache" in str(caught.value)


def test_the_sizes_of_a_public_model_are_told_without_making_it(monkeypatch):
    monkeypatch.setattr(RandomWeights, "put", _only_meta_models(RandomWeights.put))
    subject = backend(target={"shape": "glm47_flash"}, drafter=DrafterKind.mtp, dtype="bfloat16")
    with_free(monkeypatch, 40 * 10**9)
    # blocks of 16 bits are of some CPUs alone
    twice = r"2\.64 GB for 960,900,352 weights of the drafter mtp in bfloat16, large ones twice"
    once = r"1\.92 GB for 960,900,352 weights of the drafter mtp in bfloat16"
    expected = (
        r"expected 6[12]\.\d\d GB of .* \(59\.89 GB for 29,943,390,976 weights of target glm47_flash in bfloat16; "
        rf"({twice}|{once}); .*found 40\.00 GB"
    )
    with pytest.raises(ValueError, match=expected):
        subject.prepare(PLAYED)


def test_rounds_of_several_ranks_are_refused_before_anything_is_drawn(monkeypatch):
    """Would catch a length that is looked up in the loaded target: the system killed the process then."""
    monkeypatch.setattr(RandomWeights, "put", _only_meta_models(RandomWeights.put))
    with_free(monkeypatch, 20 * 10**9)
    subject = backend(target={"shape": "llama3_8b"}, dtype="float32")
    with pytest.raises(ValueError, match=r"expected 32\.\d\d GB of free memory on cpu .*found 20\.00 GB"):
        next(rank_costs([subject.cell], 32, 2))


def test_ranks_on_a_cpu_share_its_memory():
    """Would catch parts that fit one by one."""
    target = {"shape": "llama3_8b", "layers": Layers.transformers}
    for num_ranks in (1, 2, 4):
        subject = backend(target=target, dtype="bfloat16", tensor_parallel=num_ranks)
        subject.fit_slots(PLAYED)
        (weights,), (cache,) = (
            (each.num_bytes for each in needs)
            for needs in (subject.engine_of_cell.memory.weights.values(), subject.engine_of_cell.memory.caches)
        )
        if num_ranks == 1:
            alone = weights, cache
        # norms lie on every rank
        assert alone[0] <= weights < 1.001 * alone[0] and cache == alone[1]


def _only_meta_models(put):
    def check(self, name, place):
        assert place.is_meta, f"{name} was drawn before it was counted"
        put(self, name, place)

    return check


def test_nothing_is_refused_where_free_memory_cannot_be_told(monkeypatch):
    with_free(monkeypatch, None)
    backend(target={"shape": "llama3_70b"}, dtype="bfloat16").prepare(PLAYED)


def test_what_lies_there_already_is_not_needed_again(store, monkeypatch):
    first = backend(store, drafter=DrafterKind.eagle3)
    first.generate(PLAYED)
    second = backend(store, drafter=DrafterKind.mtp)
    second.fit_slots(PLAYED)
    target, drafter = second.engine_of_cell.memory.weights.values()
    assert target.is_there and not drafter.is_there
    with_free(monkeypatch, total(second.engine_of_cell.memory) - target.num_bytes)
    second.prepare(PLAYED)
    with_free(monkeypatch, total(second.engine_of_cell.memory) - target.num_bytes - 1)
    with pytest.raises(
        ValueError,
        match=r"of the drafter mtp .*; beside [\d.]+ MB for .* target zoo in float32, large ones twice, which are",
    ):
        second.prepare(PLAYED)


@pytest.mark.parametrize("graphs", [False, True], ids=["anew", "kept"])
def test_cells_that_take_turns_share_models_and_caches_that_are_not_kept(store, monkeypatch, graphs):
    kinds = (DrafterKind.none, DrafterKind.eagle, DrafterKind.draft_model)
    cells = [backend(store, drafter=kind, graphs=graphs) for kind in kinds]
    for each in cells:
        each.fit_slots(PLAYED)
    memories = [each.engine_of_cell.memory for each in cells]
    models = {model: need for memory in memories for model, need in memory.weights.items()}
    assert len(models) == 3
    weights = sum(need.num_bytes for need in models.values() if not need.is_there)
    caches = [sum(need.num_bytes for need in memory.caches) for memory in memories]
    needed = weights + (sum(caches) if graphs else max(caches))
    with_free(monkeypatch, needed)
    LocalBackend.prepare_together(cells, PLAYED)
    with_free(monkeypatch, needed - 1)
    with pytest.raises(ValueError) as caught:
        LocalBackend.prepare_together(cells, PLAYED)
    assert ("run fewer at once" in str(caught.value)) == graphs


def test_caches_that_are_alike_are_listed_once(monkeypatch):
    cells = [CellMemory({}, (Need("a cache", 10**9),), is_kept=True) for _ in range(3)]
    with_free(monkeypatch, 10**9)
    with pytest.raises(ValueError, match=r"expected 3\.00 GB .* \(3\.00 GB for 3 times a cache\), found 1\.00 GB"):
        check_memory(cells, CPU)


def test_a_run_that_does_not_fit_says_once_what_does_not_fit(tmp_path, monkeypatch, capsys):
    """Would catch a reason that is told for every cell, and a run that ends as if all were well."""
    with_free(monkeypatch, 10**6)
    plan = compose_plan(["drafter=eagle3", "workload.num_prompts=2", "backend.device=cpu", f"output.folder={tmp_path}"])
    assert run_and_report(plan, lambda results: None, in_this_process=True) == FAILED
    told, _, _ = capsys.readouterr().err.partition("note: ")
    (line,) = [line for line in told.splitlines() if "free memory" in line]
    assert "weights of target zoo" in line and "weights of the drafter eagle3" in line and "Traceback" not in told
    (run,) = read_runs(tmp_path)
    assert [record.failures[0].error for record in run.cells] == ["ValueError"] * 2


def test_another_target_frees_the_one_before_it_is_counted():
    store = ModelStore()
    first = store.models(TargetConfig(), Local(device="cpu"))
    before = weakref.ref(first.loaded.target.causal_lm)
    del first
    assert before() is not None
    store.models(TargetConfig(), Local(device="cpu", dtype="bfloat16"))
    assert before() is None


def test_the_error_lists_what_is_needed_for_what(monkeypatch):
    with_free(monkeypatch, 10**9)
    needs = [Need("this", 2 * 10**9), Need("that", 5 * 10**7), Need("others", 10**9, is_there=True), Need("none", 0)]
    expected = (
        "backend.device: expected 2.05 GB of free memory on cpu (2.00 GB for this; 50.00 MB for that; beside 1.00 GB "
        "for others, which are there), found 1.00 GB. Wait."
    )
    with pytest.raises(ValueError) as caught:
        check_fits(needs, CPU, "Wait.")
    assert str(caught.value) == expected
    check_fits(needs[1:], CPU, "Wait.")


def test_free_memory_of_a_cpu_is_what_linux_calls_available(tmp_path, monkeypatch):
    listing = tmp_path / "meminfo"
    listing.write_text("MemTotal:       16000 kB\nMemFree:  10 kB\nMemAvailable:    9000 kB\n")
    monkeypatch.setattr(free_memory, "MEMINFO", listing)
    assert free_bytes(CPU) == 9000 * 1024
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "none")
    assert free_bytes(CPU) is None
