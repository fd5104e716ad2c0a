"""Targets that two GPUs compute together, over NCCL, in CUDA graphs and without, compiled too: the tokens of one."""

from __future__ import annotations

import pytest
import torch

from harness.models.general.ranks import Ranks
from harness.models.general.sharded_target import OtherRank, load_together
from tests.models.test_tensor_parallel import NUM_RANKS, loaded, tokens_of
from tests.support.any_models import save_tiny, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < NUM_RANKS, reason=f"needs {NUM_RANKS} GPUs"),
]


@pytest.fixture(scope="module")
def ranks():
    found = Ranks(NUM_RANKS, "cuda", OtherRank)
    yield found
    found.close()


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "gpt_oss"])
def test_two_gpus_give_the_tokens_of_one(model_type, ranks, tmp_path):
    """Would catch a collective that no graph holds, and a replay that the other rank does not follow."""
    folder = save_tiny(tiny_model(model_type), tmp_path)
    whole = loaded(folder)(device="cuda:0")
    split = load_together(ranks, loaded(folder))
    for graphs in (False, True):
        assert tokens_of(split, graphs=graphs) == tokens_of(whole, graphs=graphs)
    assert split.compile(is_asked=True) is None
    assert tokens_of(split, graphs=True) == tokens_of(whole, graphs=True)
