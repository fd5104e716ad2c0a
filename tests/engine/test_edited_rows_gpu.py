"""Penalties, biases and min_tokens on a GPU: the greedy tokens of a CPU, out of CUDA graphs, drafts or none."""

from dataclasses import replace

import pytest

from harness.backends.local.model_store import ModelStore
from harness.config.drafter import DrafterKind
from kernels.contract import VerificationMethod
from kernels.methods import TreeMethod
from tests.backends.test_engine_gpu import on_gpu
from tests.backends.test_zoo_decoding import cell, texts

pytestmark = pytest.mark.gpu
EDITS = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "min_tokens": 15}


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "graphs"])
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [(DrafterKind.none, None), (DrafterKind.eagle3, None), (DrafterKind.ngram, None), (DrafterKind.eagle, "2-1-1")],
    ids=str,
)
def test_greedy_tokens_with_edits_equal_the_cpus(drafter, tree, graphs):
    """Would catch a captured step that keeps what a slot's first request had, and lists that a replay does not bring up
    to date."""
    method = VerificationMethod.probabilistic if tree is None else TreeMethod.recursive
    plain, config = cell(DrafterKind.none, num_prompts=8), cell(drafter, method, num_prompts=8, tree=tree)
    decoding = replace(plain.decoding, **EDITS, logit_bias="17:-3/40:1.5")
    store = ModelStore()
    expected = texts(replace(plain, decoding=decoding), store)
    assert expected != texts(plain, store)
    assert texts(on_gpu(replace(config, decoding=decoding), graphs, False), ModelStore()) == expected
