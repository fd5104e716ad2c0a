"""Cells whose weights or caches take 8 bits: their tokens, their models, what they are called, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from harness.backends.local import model_store
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.guarantee import labels
from harness.config.identity import determinants
from harness.config.models import TargetConfig, Weights
from harness.models.fp8_linear import FP8
from harness.models.target import TargetModel, load_target
from harness.report.tables.engines import engine_tables
from kernels.contract import VerificationMethod
from kernels.methods import TreeMethod
from tests.backends.test_zoo_decoding import cell, texts
from tests.support.synthetic_cells import analysed, config, simulated_cell
from tests.support.tiny_models import random_causal_lm, save_target_folder

IN_FP8 = {"weight_dtype": "fp8", "kv_cache_dtype": "fp8"}


@cache
def store_of(fused: bool, in_fp8: bool) -> ModelStore:
    return ModelStore()


@cache
def greedy_tokens(drafter, fused, method=VerificationMethod.probabilistic, tree=None, in_fp8=True):
    config = cell(drafter, method, fused=fused, tree=tree, max_new_tokens=40)
    backend = replace(config.backend, **IN_FP8) if in_fp8 else config.backend
    return texts(replace(config, backend=backend), store_of(fused, in_fp8))


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize(
    ("drafter", "method", "tree"),
    [
        (DrafterKind.eagle3, VerificationMethod.block, None),
        (DrafterKind.draft_model, VerificationMethod.probabilistic, None),
        (DrafterKind.eagle, TreeMethod.recursive, "2-1-1"),
    ],
    ids=["eagle3", "draft model", "tree"],
)
def test_drafts_keep_the_tokens_of_the_rounded_target(drafter, method, tree, fused):
    """At temperature 0: the baseline in 8 bits, and not that of the checkpoint."""
    in_fp8 = greedy_tokens(DrafterKind.none, fused)
    assert greedy_tokens(drafter, fused, method, tree) == in_fp8
    assert in_fp8 != greedy_tokens(DrafterKind.none, fused, in_fp8=False)


@pytest.mark.parametrize("kind", ["none", "eagle", "eagle3", "peagle", "mtp", "draft_model", "dflash"])
def test_caches_of_target_and_drafter_are_in_8_bits(kind):
    weights = {"weights": Weights.random} if kind == "dflash" else {}
    backend = Local(device="cpu", kv_cache_dtype="fp8")
    models, drafter = (
        ModelStore().models(TargetConfig(), backend).loaded,
        drafter_of(kind, **weights),
    )
    loaded = models.head(drafter)
    for model in [models.target, *([] if loaded is None else [loaded.head])]:
        cache = model.new_cache(1, 4)
        assert cache.keys[0].dtype is FP8 and cache.dtype is torch.float32


def test_a_gpu_that_cannot_convert_is_refused_before_weights_are_loaded(monkeypatch):
    monkeypatch.setattr(model_store, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ValueError, match=r"kv_cache_dtype=fp8: expected a GPU of compute capability 8.9 .*, found 8.0"):
        ModelStore().models(TargetConfig(), Local(device="cuda", kv_cache_dtype="fp8"))


def test_a_cell_in_8_bits_is_one_of_its_own():
    """Its id and its labels."""
    plain = cell(DrafterKind.eagle)
    in_fp8 = replace(plain, backend=replace(plain.backend, **IN_FP8))
    assert labels(in_fp8) == ("fp8 weights", "fp8 KV cache") and labels(plain) == ()
    assert determinants(in_fp8) != determinants(plain)


def test_rounds_that_widen_their_weights_say_so(tmp_path, monkeypatch):
    target = load_target(save_target_folder(tmp_path / "target", random_causal_lm()), in_fp8=True)
    # here every round does, and says it once
    assert target.round_fallbacks(257) == ()
    monkeypatch.setattr(TargetModel, "widens_fp8", False)
    assert target.round_fallbacks(256) == ()
    assert "rounds of more than 256 tokens (here up to 257) widen weights of 8 bits" in target.round_fallbacks(257)[0]


@pytest.mark.parametrize("name", ["weight_dtype", "kv_cache_dtype"])
def test_experts_and_latents_are_refused(name):
    target = TargetConfig(shape="glm47_flash", weights=Weights.random)
    backend = Local(device="cpu", **{name: "fp8"})
    with pytest.raises(ValueError, match=rf"backend.{name}=fp8: expected .*, found .*use backend.{name}=auto"):
        _ = ModelStore().models(target, backend).meta_models.target


def test_a_peer_stands_beside_this_engine_with_8_bits_and_without():
    """Would catch a comparison that is left out because what a server rounds is not known, and rows of one name."""
    peer = simulated_cell(config(backend__kind="server", server__engine="vllm"), [0.5], num_prompts=4)
    own = [
        simulated_cell(config(backend__weight_dtype=dtype), [0.5], num_prompts=4, step_s=step_s)
        for dtype, step_s in (("auto", 0.01), ("fp8", 0.005))
    ]
    (table,) = engine_tables(analysed(peer, *own))
    rounding, ratio = (table.header.index(name) for name in ("rounding", "ratio by prompts"))
    found = {"fp8" in str(row[rounding]): row[ratio].value for row in table.rows}
    assert found == {False: pytest.approx(1), True: pytest.approx(2)}
