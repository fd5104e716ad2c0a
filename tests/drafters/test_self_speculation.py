"""A target without some of its layers drafts for it: its rows are those of a model that never had them."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

from harness.backends.local.local import LocalBackend
from harness.config.cell import CellConfig
from harness.config.drafter import drafter_of
from harness.config.sampling import SamplingSettings
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.models.general.target import GeneralTarget
from harness.models.target import TargetModel
from harness.models.without_layers import without_layers
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.any_models import FAMILIES, NO_TOKENIZER, tiny_config, tiny_model
from tests.support.any_models import VOCAB_SIZE as GENERAL_VOCAB_SIZE
from tests.support.tiny_engines import engine_over, requests_of, tiny_engine, tiny_requests
from tests.support.tiny_models import TOLERANCE, positions_from, random_causal_lm, random_tokens, word_tokenizer
from tests.support.toy_markov import fits

SKIPPED = (1, 3)
SHARING = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
"""The last two layers read the keys of the first two."""


def rows_over_slots(model, token_ids):
    """[B, T, V] logits: a prompt, then the rest of it from one place earlier."""
    cache, slots, width = model.new_cache(4, 16), torch.tensor([2, 0]), token_ids.shape[1]
    positions = positions_from([0, 0], width)
    model.forward(token_ids[:, :6].flip(1), positions[:, :6], cache.view(slots, positions[:, :6], 6))
    first = model.forward(token_ids[:, :6], positions[:, :6], cache.view(slots, positions[:, :6], 6)).hidden
    rest = model.forward(token_ids[:, 6:], positions[:, 6:], cache.view(slots, positions[:, 6:], width)).hidden
    return model.logits(torch.cat([first, rest], dim=1))


@pytest.mark.parametrize("fused", [False, True], ids=["layers of transformers", "fused layers"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_rows_of_our_own_layers_are_those_of_a_model_without_them(kind, fused):
    """And the target's are what they were. Would catch a layer that reads the keys of another one, and a cache or a
    stack that the target loses layers of."""
    causal_lm = random_causal_lm(kind, seed=3, num_hidden_layers=5)
    plain = copy.deepcopy(causal_lm)
    plain.model.layers = nn.ModuleList(layer for index, layer in enumerate(plain.model.layers) if index not in SKIPPED)
    target, token_ids = TargetModel(causal_lm, word_tokenizer()), random_tokens(2, 9)
    if fused:
        assert target.fuse() is None
    before = rows_over_slots(target, token_ids)
    shallow = without_layers(target, SKIPPED)
    torch.testing.assert_close(rows_over_slots(shallow, token_ids), plain(token_ids).logits, **TOLERANCE)
    assert torch.equal(rows_over_slots(target, token_ids), before) and target.num_layers == 5
    assert shallow.new_cache(1, 8).num_bytes * 5 == target.new_cache(1, 8).num_bytes * 3
    assert {id(each) for each in shallow.causal_lm.parameters()} < {id(each) for each in causal_lm.parameters()}


@pytest.mark.parametrize(
    ("model_type", "skipped", "changes"),
    [
        ("mistral", 0, {}),
        ("gemma3_text", 0, {"layer_types": ["full_attention"]}),
        ("gemma3_text", 1, {"layer_types": ["sliding_attention"]}),
        ("deepseek_v3", 1, {}),
        ("falcon", 0, {}),
        ("gpt2", 1, {}),
    ],
)
def test_rows_of_transformers_layers_are_those_of_a_model_without_them(model_type, skipped, changes):
    """A model of one layer whose weights are those of the one that is left. Windows differ between layers of gemma3,
    and layers of falcon return a tuple. Would catch the mask of another layer, and a layer that is still skipped when
    the target runs."""
    causal_lm = tiny_model(model_type)
    config = tiny_config(model_type)
    config.num_hidden_layers = 1
    for name, value in changes.items():
        setattr(config, name, value)
    alone = tiny_model(model_type, config)
    # the first number in a name is that of a layer
    names = {name: re.search(r"\.(\d+)\.", name) for name in causal_lm.state_dict()}
    kept = [name for name, found in names.items() if found is None or int(found[1]) != skipped]
    weights = {re.sub(r"\.\d+\.", ".0.", name, count=1): causal_lm.state_dict()[name] for name in kept}
    alone.load_state_dict(weights)
    target = GeneralTarget(causal_lm, None)
    token_ids = torch.randint(3, GENERAL_VOCAB_SIZE, (2, 14), generator=torch.Generator().manual_seed(2))
    before = rows_over_slots(target, token_ids)
    shallow = without_layers(target, (skipped,))
    found = rows_over_slots(shallow, token_ids)
    torch.testing.assert_close(found, alone(token_ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(rows_over_slots(target, token_ids), before)
    assert shallow.new_cache(1, 8).num_bytes < target.new_cache(1, 8).num_bytes
    assert shallow.cost.passes(1, [1], 8).weight_bytes < target.cost.passes(1, [1], 8).weight_bytes


@pytest.mark.parametrize("options", [{}, {"graphs": True}, {"fused": True, "graphs": True}], ids=str)
def test_greedy_tokens_are_the_baselines(options):
    def run(kind, **others):
        engine = tiny_engine(kind, sampling=SamplingSettings(0.0), **options, **others)
        return sorted(engine.run(tiny_requests(5, 6), lambda _: None).requests, key=lambda record: record.prompt_id)

    found, baseline = run("self_speculation", num_speculative_tokens=4), run("none")
    assert [each.output_token_ids for each in found] == [each.output_token_ids for each in baseline]
    assert sum(len(each.rounds) for each in found) < sum(len(each.rounds) for each in baseline)


@pytest.mark.parametrize("is_general", [False, True], ids=["our own layers", "transformers' layers"])
def test_sampled_tokens_follow_the_targets_law(is_general):
    """The joint law of three tokens, each among the three most likely. Would catch drafts that overwrite what the
    target has kept, and rows that are verified by others than they were drawn from."""
    causal_lm = tiny_model("gemma2" if is_general else "llama")
    prompt, top_k, num_new = (5, 9, 4), 3, 3
    law = {(): 1.0}
    for _ in range(num_new):
        kept = causal_lm(torch.tensor([(*prompt, *path) for path in law]), use_cache=False).logits[:, -1].topk(top_k)
        rows = zip(kept.indices.tolist(), kept.values.double().softmax(-1).tolist(), strict=True)
        law = {
            (*path, token): probability * share
            for (path, probability), (tokens, shares) in zip(law.items(), rows, strict=True)
            for token, share in zip(tokens, shares, strict=True)
        }
    target = (GeneralTarget if is_general else TargetModel)(copy.deepcopy(causal_lm), NO_TOKENIZER)
    shape = DrafterShape(200, 12, 2, GENERAL_VOCAB_SIZE)
    drafter = DraftModelDrafter(without_layers(target, (1,)), DraftSampling.sampled, shape)
    sampling = SamplingSettings(temperature=1.0, top_k=top_k)
    engine = engine_over(target, drafter, shape, num_new, method=VerificationMethod.block, sampling=sampling)
    found = engine.run(requests_of([prompt] * 2000, first_seed=0), lambda record: None)
    assert fits((record.output_token_ids for record in found.requests), law) > 1e-6
    rounds = [item for record in found.requests for item in record.rounds]
    assert 0 < sum(item.num_accepted_tokens for item in rounds) < sum(item.num_draft_tokens for item in rounds)


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("qwen3_next", {}, "its recurrent states"),
        ("gemma4_text", SHARING, "its layers 2, 3 read the keys and values"),
    ],
)
def test_layers_that_cannot_be_left_out_are_refused_by_name(model_type, changes, reason, monkeypatch):
    monkeypatch.setitem(FAMILIES, model_type, FAMILIES[model_type] | changes)
    target = GeneralTarget(tiny_model(model_type), None, name="mine")
    with pytest.raises(ValueError, match=f"layers can be left out, found mine: {reason}"):
        without_layers(target, (0,))


@pytest.mark.parametrize(
    ("skipped", "message"),
    [
        ((), r"found drafter.skip_layers=\[\]; name them"),
        ((3, 10), "layers of target zoo, from 0 to 9, found 10"),
        (tuple(range(10)), "some of the 10 layers of target zoo, found all"),
        ((2, 2), "different layers, counted from 0"),
    ],
)
def test_layers_that_are_not_there_are_refused_before_weights_are_loaded(skipped, message):
    with pytest.raises(ValueError, match=message):
        LocalBackend(CellConfig(drafter=drafter_of("self_speculation", skip_layers=skipped)))
