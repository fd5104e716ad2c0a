"""The engine on a GPU: the tokens of a CPU, out of CUDA graphs, without allocating once it runs."""

import gc
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from harness.backends.local import engine_of_cell
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.imported import ImportPath
from harness.config.sections import MeasurementConfig
from harness.drafters.draft_model import Vocabulary
from harness.engine import measuring
from harness.engine.settings import EngineSettings
from harness.workload.conversations import conversations, load_prompts
from kernels.contract import VerificationMethod
from kernels.methods import TreeMethod
from tests.backends.test_zoo_decoding import DRAFTERS, cell, texts
from tests.support.renumbered_model import renumbered

pytestmark = pytest.mark.gpu
LAST_TOKEN = ImportPath("tests.support.own_drafters:LastToken")
WAYS = pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "graphs"])
FUSED = pytest.mark.parametrize("fused", [False, True], ids=["layers of transformers", "fused layers"])


@pytest.fixture(scope="module")
def stores() -> dict[object, ModelStore]:
    return {}


@pytest.fixture(scope="module")
def on_cpu() -> dict[tuple[str, int], tuple[int, ...]]:
    return texts(cell(DrafterKind.none, num_prompts=8), ModelStore())


def on_gpu(config, graphs, fused, dtype="float32"):
    backend = Local(device="cuda", dtype=dtype, max_concurrency=3, graphs=graphs, fused=fused)
    return replace(config, backend=backend)


@WAYS
@FUSED
@pytest.mark.parametrize("drafter", [DrafterKind.none, *DRAFTERS, LAST_TOKEN], ids=lambda item: item.value)
def test_greedy_tokens_equal_the_cpus(drafter, fused, graphs, stores, on_cpu):
    store = stores.setdefault(fused, ModelStore())
    assert texts(on_gpu(cell(drafter, num_prompts=8), graphs, fused), store) == on_cpu


@WAYS
@FUSED
@pytest.mark.parametrize(
    ("drafter", "tree"), [(DrafterKind.none, None), (DrafterKind.eagle3, None), (DrafterKind.eagle, "2-1-1")], ids=str
)
def test_greedy_tokens_in_8_bits_equal_the_cpus(drafter, tree, fused, graphs):
    """Weights and caches of 8 bits, where the two round the same numbers."""
    method = VerificationMethod.probabilistic if tree is None else TreeMethod.recursive
    config, in_fp8 = cell(drafter, method, num_prompts=8, tree=tree), {"weight_dtype": "fp8", "kv_cache_dtype": "fp8"}
    on_both = (on_gpu(config, graphs, fused), config)
    found, expected = (texts(replace(each, backend=replace(each.backend, **in_fp8)), ModelStore()) for each in on_both)
    # a key that another order of sums moves over a boundary of 8 bits may decide a near tie
    assert sum(found[key] != expected[key] for key in expected) <= 1


@WAYS
def test_a_draft_model_of_another_tokenizer_changes_no_token(graphs, tmp_path, stores, on_cpu):
    """Other ids of the same tokens; drafts are drawn over shared tokens alone, and their mass is counted."""
    drafter = drafter_of("draft_model", path=str(renumbered(tmp_path)), vocabulary=Vocabulary.shared)
    config = on_gpu(replace(cell(DrafterKind.draft_model, num_prompts=8), drafter=drafter), graphs, False)
    backend = LocalBackend(config, stores.setdefault(False, ModelStore()))
    played = conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    found = {(item.prompt_id, item.turn): item.output_token_ids for item in backend.generate(played).requests}
    assert found == on_cpu and backend.facts().shared_mass == pytest.approx(1.0, abs=1e-3)


@WAYS
def test_window_and_pool_of_lookahead_give_the_tokens_of_the_cpu(graphs, stores, on_cpu):
    config = cell(DrafterKind.lookahead, TreeMethod.recursive, tree="dynamic:20-6-10", num_prompts=8)
    assert texts(on_gpu(config, graphs, False), stores.setdefault(False, ModelStore())) == on_cpu


def test_prompts_in_portions_give_the_tokens_of_the_cpu(stores, on_cpu):
    config = on_gpu(cell(DrafterKind.eagle, num_prompts=8), True, True)
    config = replace(config, backend=replace(config.backend, prompt_tokens_beside_rounds=5))
    assert texts(config, stores.setdefault(True, ModelStore())) == on_cpu


@pytest.mark.parametrize("drafter", [DrafterKind.none, DrafterKind.eagle, DrafterKind.draft_model], ids=str)
def test_nothing_is_allocated_once_the_engine_runs(drafter):
    """Would catch a tensor made for every round: its memory is found again, its time is not."""
    config = on_gpu(cell(drafter, VerificationMethod.block, temperature=1.0, num_prompts=12), True, None, "bfloat16")
    config = replace(config, measurement=MeasurementConfig(expected_acceptance=False))
    played = conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    backend = LocalBackend(config, ModelStore())
    backend.prepare(played)
    backend.generate(played)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    backend.generate(played)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_memory_does_not_grow_in_10_000_rounds():
    """Of the device, and of the host, by what Python's own allocator holds between two runs of as many requests."""
    config = cell(DrafterKind.eagle, temperature=1.0, num_prompts=40, max_new_tokens=200)
    config = replace(on_gpu(config, True, None, "bfloat16"), measurement=MeasurementConfig(expected_acceptance=False))
    played = conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    backend = LocalBackend(config, ModelStore())
    backend.prepare(played)
    held, num_rounds = [], 0
    while num_rounds < 10_000:
        requests = backend.generate(played).requests
        # a round of the engine is one of every slot that is taken
        num_rounds += sum(len(request.rounds) for request in requests) // config.backend.max_concurrency
        del requests
        gc.collect()
        stats = torch.cuda.memory_stats()
        held.append((sys.getallocatedblocks(), stats["allocation.all.allocated"], stats["reserved_bytes.all.current"]))
    assert len(held) >= 3 and backend.engine_of_cell.graph_bytes > 0
    blocks = [each[0] for each in held[1:]]
    assert {each[1:] for each in held} == {held[0][1:]}
    assert max(blocks) - min(blocks) < 0.01 * blocks[0]


@WAYS
@FUSED
@pytest.mark.parametrize("tree", ["2-2", "dynamic:6-3-3"])
@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda item: item.value)
@pytest.mark.parametrize(
    "drafter",
    [DrafterKind.eagle3, DrafterKind.draft_model, DrafterKind.medusa, DrafterKind.self_speculation],
    ids=lambda item: item.value,
)
def test_greedy_tokens_of_trees_equal_the_cpus(drafter, method, tree, fused, graphs, stores, on_cpu):
    config = on_gpu(cell(drafter, method, num_prompts=8, tree=tree), graphs, fused)
    assert texts(config, stores.setdefault(fused, ModelStore())) == on_cpu


def test_sampled_tokens_of_trees_do_not_depend_on_how_steps_are_run(stores):
    """Would catch memory of a captured step that another one has written, and siblings of another round."""
    config = cell(DrafterKind.eagle3, TreeMethod.recursive, temperature=1.0, num_prompts=8, tree="3-1-1")
    store = stores.setdefault(True, ModelStore())
    assert texts(on_gpu(config, True, True), store) == texts(on_gpu(config, False, True), store)


@pytest.mark.parametrize(("max_concurrency", "tolerance"), [(1, 0.0), (3, 1e-3)], ids=["one slot", "three slots"])
@pytest.mark.parametrize(
    ("drafter", "method", "tree"),
    [
        (DrafterKind.eagle, VerificationMethod.block, None),
        (DrafterKind.draft_model, VerificationMethod.strict, None),
        (DrafterKind.ngram, VerificationMethod.block, None),
        (DrafterKind.eagle3, TreeMethod.recursive, "2-2"),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_what_is_measured_does_not_depend_on_launching_ahead(
    drafter, method, tree, max_concurrency, tolerance, monkeypatch
):
    """Would catch rows that the next graph overwrote, or that are copied before their own graph has written them.

    In one slot every step has the same size and the same rows either way, so that every bit is the same. In several, a
    request that ended is one step longer in the batch, which moves the sums of the layers.
    """
    config = on_gpu(cell(drafter, method, temperature=1.0, num_prompts=8, tree=tree), True, tree is None)
    config = replace(config, measurement=MeasurementConfig(round_terms=tree is None))
    config = replace(config, backend=replace(config.backend, max_concurrency=max_concurrency))
    played = conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    found, copy, num_copies, store = [], measuring.copied, [], ModelStore()
    # fewer steps than a request has: the device stops for some in the middle of all
    monkeypatch.setattr(measuring, "MAX_STEPS", 3)
    monkeypatch.setattr(measuring, "copied", lambda rows: num_copies.append(rows) or copy(rows))
    for overlaps in (False, None):
        monkeypatch.setattr(engine_of_cell, "EngineSettings", partial(EngineSettings, overlaps=overlaps))
        assert not num_copies
        run = LocalBackend(config, store).generate(played)
        found.append((sorted(run.requests, key=lambda item: item.key), {item.key: item for item in run.terms}))
    assert len(num_copies) > 10, "steps were launched ahead"
    (one_by_one, terms_one_by_one), (ahead, terms_ahead) = found
    assert [item.output_token_ids for item in ahead] == [item.output_token_ids for item in one_by_one]
    for first, second in zip(one_by_one, ahead, strict=True):
        for before, after in zip(first.rounds, second.rounds, strict=True):
            assert (before.expected_accepted is None) is (after.expected_accepted is None)
            if before.expected_accepted is not None:
                assert after.expected_accepted == pytest.approx(before.expected_accepted, rel=0, abs=tolerance)
            assert (before.position_bounds is None) is (after.position_bounds is None)
            if before.position_bounds is not None:
                assert after.position_bounds == pytest.approx(before.position_bounds, rel=0, abs=tolerance)
    assert terms_ahead.keys() == terms_one_by_one.keys() and bool(terms_ahead) is (tree is None)
    for key, terms in terms_one_by_one.items():
        assert terms.round_index.tolist() == terms_ahead[key].round_index.tolist()
        for name, values in terms.values.items():
            np.testing.assert_allclose(terms_ahead[key].values[name], values, rtol=0, atol=tolerance, err_msg=name)


def test_sampled_tokens_do_not_depend_on_how_steps_are_run():
    """The same layers and random streams; in float32, where the order of a sum moves none of these draws."""
    config = cell(DrafterKind.eagle3, VerificationMethod.probabilistic, temperature=1.0, num_prompts=8)
    store = ModelStore()
    assert texts(on_gpu(config, True, True), store) == texts(on_gpu(config, False, True), store)
