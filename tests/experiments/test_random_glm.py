"""GLM-4.7-Flash with random weights: which layers have experts, how they are drawn, where tokens go, a whole run."""

from __future__ import annotations

import math

import pytest
import torch

from experiments import run as command
from harness.models.decoder_layer import layer_types
from harness.models.expert_weights import stored_tensors
from harness.models.meta import META
from harness.models.random_head import random_eagle, random_mtp
from harness.models.random_target import architecture, random_target
from harness.models.random_weights import LOGIT_DEVIATION, RandomWeights
from harness.models.target import load_target
from harness.records.files import read_cell
from harness.records.request import FinishReason
from tests.support.tiny_glm import mtp_tensors, save_shards
from tests.support.tiny_models import positions_from, word_tokenizer
from tests.support.tiny_shapes import GLM, SHAPE, shape_folder

NUM_LAYERS, NUM_DENSE, NUM_EXPERTS = GLM["num_hidden_layers"], GLM["first_k_dense_replace"], GLM["n_routed_experts"]
MANY_LAYERS = 40
NUM_ROWS, NUM_TOKENS = 8, 48
SIX_SIGMA = 6.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shape_folder(tmp_path_factory.mktemp("shape") / "tiny", **GLM)


@pytest.fixture(scope="module")
def target(folder):
    return random_target(folder, dtype=torch.float32, name="tiny")


def tokens() -> torch.Tensor:
    """[B, T] int64 ids of the zoo's tokenizer."""
    return torch.randint(6144, (NUM_ROWS, NUM_TOKENS), generator=torch.Generator().manual_seed(0))


def positions() -> torch.Tensor:
    return positions_from([0] * NUM_ROWS, NUM_TOKENS)


def layers_with_experts(target) -> list[bool]:
    return [hasattr(layer.mlp, "experts") for layer in target.causal_lm.model.layers]


def put_names(monkeypatch) -> list[str]:
    """The names of all tensors drawn from here on."""
    names, put = [], RandomWeights.put

    def remember(self, name, place):
        names.append(name)
        put(self, name, place)

    monkeypatch.setattr(RandomWeights, "put", remember)
    return names


@pytest.mark.parametrize("num_dense", [0, 1, 2, 5])
def test_the_first_layers_are_dense_as_the_published_field_says(tmp_path, num_dense):
    """transformers alone would take one dense layer, whatever the field says."""
    given = architecture(shape_folder(tmp_path, **GLM | {"first_k_dense_replace": num_dense}), None)
    drawn = random_target(tmp_path, device=META)
    expected = [index >= num_dense for index in range(NUM_LAYERS)]
    assert layers_with_experts(drawn) == expected
    assert given.config.mlp_layer_types == ["sparse" if each else "dense" for each in expected]


def test_the_published_shape_has_one_dense_layer_its_ends_and_its_mtp_layer():
    drawn = random_target(shape="glm47_flash", device=META)
    assert layers_with_experts(drawn) == [False] + [True] * 46
    assert drawn.eos_token_ids == {154820, 154827, 154829} and drawn.dtype is torch.bfloat16
    head = random_mtp(drawn)
    assert head.vocab_size == drawn.vocab_size == 154880
    assert head.num_parameters == 960_900_352


def test_the_experts_of_a_layer_are_drawn_in_two_tensors_and_nothing_twice(folder, monkeypatch):
    """Would catch 192 small draws a layer for the published shape."""
    names = put_names(monkeypatch)
    drawn = random_target(folder)
    assert sorted(names) == sorted(drawn.causal_lm.state_dict())
    assert len([name for name in names if ".experts." in name]) == 2 * (NUM_LAYERS - NUM_DENSE)
    names.clear()
    head = random_mtp(drawn)
    assert sorted(names) == sorted(head.state_dict())


def test_experts_differ_and_each_has_the_deviation_of_the_rule(target):
    experts = target.causal_lm.model.layers[NUM_DENSE].mlp.experts
    width, hidden_size = GLM["moe_intermediate_size"], SHAPE["hidden_size"]
    expected = [
        (experts.gate_up_proj, 1 / math.sqrt(hidden_size)),
        (experts.down_proj, 1 / math.sqrt(2 * NUM_LAYERS * width)),
    ]
    for merged, deviation in expected:
        assert not torch.equal(merged[0], merged[1])
        for weight in merged:
            rel = SIX_SIGMA / math.sqrt(2 * weight.numel())
            assert weight.std().item() == pytest.approx(deviation, rel=rel)


def test_routers_have_no_bias_and_keep_it_in_float32(folder):
    drawn = random_target(folder)
    head = random_mtp(drawn)
    biases = [
        buffer
        for module in (drawn.causal_lm, head)
        for name, buffer in module.named_buffers()
        if name.endswith("e_score_correction_bias")
    ]
    assert len(biases) == NUM_LAYERS - NUM_DENSE + 1
    for bias in biases:
        assert bias.dtype is torch.float32 and not bias.any()
    for module in (drawn.causal_lm, head):
        assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


def test_a_checkpoint_of_the_same_weights_is_the_same_model(folder, target, tmp_path):
    stored = {
        name: part.clone()
        for key, tensor in target.causal_lm.state_dict().items()
        for name, part in stored_tensors(key, tensor)
    }
    save_shards(tmp_path, stored)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    word_tokenizer().save_pretrained(tmp_path)
    loaded = load_target(tmp_path)
    outputs = [each.forward(tokens(), positions(), None).hidden for each in (target, loaded)]
    assert torch.equal(*outputs)


def test_other_dense_layers_make_another_model(folder, target, tmp_path):
    other = random_target(shape_folder(tmp_path, **GLM | {"first_k_dense_replace": 1}), device=META)
    again = random_target(folder, device=META)
    assert again.random_fingerprint == target.random_fingerprint != other.random_fingerprint


def test_random_tokens_spread_over_the_experts_of_every_layer(target):
    """A share p of a quarter of the tokens goes to each expert, in this many standard deviations:

    sqrt(n p (1 - p)) of drawing n tokens; n phi(z) z / sqrt(2 H) of the length of an expert's row, z = .674 being the
    threshold of a quarter; and n phi(z) c / sqrt(B) of what the tokens of a row share. That are attention's means over
    the tokens before: of its variance of at most 1 / (2 L) a layer two tokens share below 2 / T on average, so all
    layers come to c^2 = 1 / T.
    """
    counts = []

    def count_chosen(_router, _inputs, output):
        counts.append(output[2].flatten().bincount(minlength=NUM_EXPERTS))

    routers = [layer.mlp.gate for layer in target.causal_lm.model.layers[NUM_DENSE:]]
    hooks = [router.register_forward_hook(count_chosen) for router in routers]
    target.forward(tokens(), positions(), None)
    for hook in hooks:
        hook.remove()
    num_tokens, share, density, threshold = NUM_ROWS * NUM_TOKENS, 0.25, 0.318, 0.674
    deviation = math.hypot(
        math.sqrt(num_tokens * share * (1 - share)),
        num_tokens * density * threshold / math.sqrt(2 * SHAPE["hidden_size"]),
        num_tokens * density / math.sqrt(NUM_TOKENS * NUM_ROWS),
    )
    assert len(counts) == NUM_LAYERS - NUM_DENSE
    for count in counts:
        assert int(count.sum()) == 2 * num_tokens
        assert (count - share * num_tokens).abs().max() < SIX_SIGMA * deviation


def test_the_router_of_the_published_shape_gives_every_expert_its_share():
    """Here a share of 1/16, threshold z = 1.53 and phi(z) = .124; rows of 2048 numbers hardly differ in length."""
    config = architecture(None, "glm47_flash").config
    with META:
        router = layer_types(config, "test").layer(config, 1).mlp.gate
    router.to_empty(device="cpu")
    weights = RandomWeights("target", 47, device="cpu", dtype=torch.float32)
    for name, tensor in router.state_dict().items():
        weights.put(f"model.layers.1.mlp.gate.{name}", tensor)
    num_tokens = 4096
    states = torch.randn(num_tokens, config.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits, shares, chosen = router(states)
    assert logits.std().item() == pytest.approx(1, rel=0.05)
    # normalized, then scaled: the four chosen count about the same
    assert shares.sum(dim=1).sub(config.routed_scaling_factor).abs().max() < 1e-5
    deviation = math.hypot(math.sqrt(num_tokens / 16 * 15 / 16), num_tokens * 0.124 * 1.53 / math.sqrt(2 * 2048))
    assert (chosen.flatten().bincount(minlength=64) - num_tokens / 16).abs().max() < SIX_SIGMA * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_states_neither_vanish_nor_explode_through_many_layers(tmp_path, dtype):
    """A layer adds at most (1 + .36 + .36 * 1.8^2) / (2 L): attention, shared expert, and the chosen ones at most."""
    target = random_target(shape_folder(tmp_path, **GLM | {"num_hidden_layers": MANY_LAYERS}), dtype=dtype)
    with torch.inference_mode():
        output = target.forward(tokens(), positions(), None, tuple(range(MANY_LAYERS + 1)))
        logits = target.logits(output.hidden).float()
    deviations = [state.float().std().item() for state in output.aux]
    assert min(deviations) > 0.9 and max(deviations) < math.sqrt(1 + 1.27) * 1.1
    assert logits.isfinite().all()
    assert logits.std().item() == pytest.approx(LOGIT_DEVIATION, rel=0.1)


def test_the_mtp_layer_is_made_of_published_tensors_and_chained_after_its_norm(target):
    head = random_mtp(target)
    published = mtp_tensors(target.config)
    prefix = f"model.layers.{NUM_LAYERS}."
    found = {name.removeprefix(prefix): tensor.shape for name, tensor in head.state_dict_public().items()}
    expected = {name.split(".", 3)[3]: tensor.shape for name, tensor in published.items()}
    # the target's embedding serves
    del expected["embed_tokens.weight"]
    assert found == expected
    assert head.config.norm_output and head.config.own_head
    with torch.inference_mode():
        features = head.features(target.forward(tokens(), positions(), None))
        deviations = []
        for _ in range(8):
            output = head(tokens(), features, positions(), None)
            features = output.next_features
            deviations.append(head.logits(output.hidden).std().item())
    assert deviations == pytest.approx([LOGIT_DEVIATION] * 8, rel=0.1)


def test_layers_with_experts_and_latent_attention_can_be_fused(folder):
    drawn = random_target(folder)
    head = random_mtp(drawn)
    for model in (drawn, head):
        assert model.fuse() is None and model.is_fused
        assert not [note for note in model.fallbacks if "unfused" in note]


def test_an_eagle_head_like_latent_attention_is_refused(target):
    with pytest.raises(ValueError, match=r"expected a target of model_type llama or qwen3, found 'glm4_moe_lite'"):
        random_eagle(target)


def test_a_throughput_run_from_the_command_to_the_records(folder, tmp_path):
    arguments = ["experiment=throughput_glm47_mtp", f"target.path={folder}", "target.shape=null", "target.name=tiny"]
    short = ["workload.num_requests=3", "workload.prompt_tokens=20", "decoding.max_new_tokens=6"]
    others = ["measurement.num_warmup_requests=1", "backend.device=cpu", f"output.folder={tmp_path}"]
    assert command.main([*arguments, *short, *others]) == 0
    records = [read_cell(path) for path in sorted((tmp_path / "cells").iterdir())]
    assert {record.config["drafter"]["kind"] for record in records} == {"none", "mtp"}
    capacity = {"none": 26 + 2, "mtp": 26 + 8}
    for record in records:
        kind = record.config["drafter"]["kind"]
        for request in record.requests:
            assert (request.num_prompt_tokens, len(request.output_token_ids)) == (20, 6)
            assert request.finish_reason is FinishReason.length
        # no row without a distribution, and no product that is slower than it need be
        assert record.fallbacks == (
            "tiny has no tokenizer: the zoo's stands in, and its tokens mean nothing to random weights",
        )
        layer_bytes = 17 * capacity[kind] * (GLM["kv_lora_rank"] + GLM["qk_rope_head_dim"]) * 2
        assert record.target_cache_bytes == NUM_LAYERS * layer_bytes
        assert record.drafter_cache_bytes == (0 if kind == "none" else layer_bytes)
        if kind == "mtp":
            assert record.config["verification"]["rates"] == [0.7, 0.36, 0.14]
            assert sum(item.num_draft_tokens for request in record.requests for item in request.rounds) > 0
