"""Targets that two ranks compute together, over gloo: the tokens of one rank."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from harness.checks.profiling.rank_cost import let_all_ranks_sum
from harness.config.backend import Local
from harness.config.models import HeadChoices, Layers
from harness.config.tree import DynamicTree
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.none_run import NoDrafter
from harness.drafters.tree import TreeHeadDrafter
from harness.models.general.random import random_general
from harness.models.general.ranks import Ranks
from harness.models.general.sharded_target import OtherRank, load_together
from harness.models.random_head import random_eagle, random_eagle3
from harness.models.target import load_target
from kernels.contract import DraftSampling
from kernels.methods import TreeMethod
from tests.support.any_models import NO_TOKENIZER, VOCAB_SIZE, save_tiny, tiny_config, tiny_model
from tests.support.tiny_engines import engine_over, prompts_of, requests_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="transformers puts ranks on the GPUs that it sees")
FAMILIES = ("llama", "qwen3_moe", "gpt_oss")
NUM_RANKS, NUM_DRAFTED, NUM_NEW, CAPACITY = 2, 3, 8, 40
TREE = DynamicTreeShape(DynamicTree(5, 3, 2))


@pytest.fixture(scope="module")
def ranks():
    found = Ranks(NUM_RANKS, "cpu", OtherRank)
    yield found
    found.close()


def loaded(folder):
    return partial(load_target, folder, tokenizer=NO_TOKENIZER, layers=Layers.transformers)


def tokens_of(target, *, graphs: bool) -> dict[str, list[list[int]]]:
    """Greedy tokens of five prompts in two slots, by drafter: slots are used again, most drafts are rejected."""
    chain = DrafterShape(2, CAPACITY, NUM_DRAFTED, VOCAB_SIZE)
    tree = DrafterShape(2, CAPACITY, TREE.num_nodes, VOCAB_SIZE)
    eagle3 = random_eagle3(target, choices=HeadChoices(aux_layers=(0, 1, 2)))
    engines = {
        "none": (NoDrafter(), chain._replace(num_speculative_tokens=0), {}),
        "eagle": (ChainDrafter(random_eagle(target), DraftSampling.sampled, chain), chain, {}),
        "eagle3": (ChainDrafter(eagle3, DraftSampling.sampled, chain), chain, {}),
        "tree": (
            TreeHeadDrafter(eagle3, DraftSampling.greedy, tree, TREE),
            tree,
            {"drafts_trees": True, "method": TreeMethod.recursive},
        ),
    }
    found = {}
    for name, (drafter, shape, options) in engines.items():
        engine = engine_over(target, drafter, shape, NUM_NEW, graphs=graphs, **options)
        run = engine.run(requests_of(prompts_of((3, 13, 5, 9, 4), VOCAB_SIZE)), lambda record: None)
        assert run.num_invalid == 0
        records = sorted(run.requests, key=lambda record: int(record.prompt_id))
        found[name] = [list(record.output_token_ids) for record in records]
    return found


@pytest.mark.parametrize("model_type", FAMILIES)
def test_two_ranks_give_the_tokens_of_one(model_type, ranks, tmp_path):
    """Would catch a cache, a tree or a slot that only rank 0 changes, logits in the order of ranks, sums that are left
    out, and sinks or experts that are split otherwise than what they belong to."""
    folder = save_tiny(tiny_model(model_type), tmp_path)
    whole = loaded(folder)()
    split = load_together(ranks, loaded(folder))
    assert split.num_parameters == whole.num_parameters
    own = (getattr(parameter, "_local_tensor", parameter) for parameter in split.causal_lm.parameters())
    assert sum(parameter.nbytes for parameter in own) == split.split.rank_bytes
    assert split.split.splits_keys == (model_type != "gpt_oss")
    assert f"splits {100 * split.split.num_split / whole.num_parameters:.3g} % of the parameters" in split.fallbacks[0]
    torch.testing.assert_close(split.output_matrix, whole.output_matrix, rtol=0, atol=0)
    for graphs in (False, True):
        assert tokens_of(split, graphs=graphs) == tokens_of(whole, graphs=graphs)
    # as of several ranks, outside of a forward that needs no gradients; what it compiles runs with the next step
    assert split.compile(is_asked=True) is None


def logits_of(target):
    """[2, 12, V] of two sequences."""
    token_ids, positions = torch.arange(24).view(2, 12), torch.arange(12).expand(2, -1)
    view = target.new_cache(2, 12).view(slice(0, 2), positions, 12)
    return target.logits(target.forward(token_ids, positions, view).hidden)


def test_sums_that_are_left_out_are_left_out_on_all_ranks_and_come_back(ranks, tmp_path):
    """Would catch a measured share of the sums that are still there, or a target that stays broken."""
    split = load_together(ranks, loaded(save_tiny(tiny_model("llama"), tmp_path)))
    wanted = logits_of(split)
    let_all_ranks_sum(split, False)
    try:
        without = logits_of(split)
    finally:
        let_all_ranks_sum(split, True)
    assert (without - wanted).abs().max() > 0.1
    torch.testing.assert_close(logits_of(split), wanted)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe"])
def test_random_weights_of_two_ranks_are_those_of_one(model_type, ranks):
    """Each rank draws its own part: would catch parts that are drawn by their own sizes, and experts that are put
    together otherwise."""
    given = {"config": tiny_config(model_type), "role": "target", "tokenizer": NO_TOKENIZER, "dtype": torch.float32}
    whole = random_general(device="cpu", **given)
    split = load_together(ranks, partial(random_general, **given))
    torch.testing.assert_close(logits_of(split), logits_of(whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "num_ranks", "message"),
    [
        ("llama", 3, "expected a number that divides num_attention_heads=4, found 3"),
        ("llama", 4, "expected a number that divides num_key_value_heads=2, found 4"),
        ("qwen3_next", 2, "expected layers that keep keys and values alone"),
        ("gpt2", 2, "expected a model with a plan of transformers for several ranks, found GPT2LMHeadModel"),
    ],
)
def test_what_cannot_be_split_is_refused_before_weights_are_read(model_type, num_ranks, message, tmp_path):
    folder = save_tiny(tiny_model(model_type), tmp_path)
    with pytest.raises(ValueError, match=message):
        loaded(folder)(device="meta", num_ranks=num_ranks)


def test_memory_is_counted_as_each_rank_has_it(tmp_path):
    folder = save_tiny(tiny_model("llama"), tmp_path)
    whole, part = (loaded(folder)(device="meta", num_ranks=num_ranks) for num_ranks in (1, NUM_RANKS))
    assert part.new_cache(2, 10).num_bytes * NUM_RANKS == whole.new_cache(2, 10).num_bytes
    total = sum(parameter.nbytes for parameter in whole.causal_lm.parameters())
    assert part.split.num_parameters == whole.num_parameters
    assert total / NUM_RANKS < part.split.rank_bytes < 0.75 * total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_dtype": "fp8"}, "backend.weight_dtype: expected auto with backend.tensor_parallel"),
        ({"device": "cuda:1"}, "backend.device: expected auto, cpu or cuda with"),
        ({"tensor_parallel": 0}, "backend.tensor_parallel: expected 1 to"),
    ],
)
def test_settings_that_do_not_fit_several_ranks_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Local(**{"tensor_parallel": NUM_RANKS} | changes)
