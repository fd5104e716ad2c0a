"""GLM, latent attention and experts: its forward equals that of transformers; loading says what does not fit."""

from __future__ import annotations

import warnings

import pytest
import torch

from harness.models.checkpoint import CheckpointError
from harness.models.decoder_layer import layer_config
from harness.models.eagle import EagleConfig
from harness.models.target import TargetModel, load_target
from tests.support.tiny_glm import (
    CONFIG,
    KINDS,
    NUM_LAYERS,
    TOLERANCE,
    edit_shards,
    mtp_tensors,
    random_glm,
    save_glm_folder,
)
from tests.support.tiny_models import edit_config, positions_from, random_tokens, word_tokenizer

CACHED_WIDTH = CONFIG["kv_lora_rank"] + CONFIG["qk_rope_head_dim"]


@pytest.fixture
def folder(tmp_path):
    causal_lm = random_glm()
    return save_glm_folder(tmp_path, causal_lm, mtp_tensors(causal_lm.config))


@pytest.fixture(scope="module")
def causal_lm():
    """Runs as transformers runs it."""
    return random_glm()


@pytest.fixture(scope="module")
def target():
    """The same weights, run by the engine's own forward."""
    return TargetModel(random_glm(), word_tokenizer(), name="tiny")


def logits(target, tokens, positions, view=None):
    return target.logits(target.forward(tokens, positions, view).hidden)


def step(target, cache, rows, tokens, start):
    positions = positions_from(start, tokens.shape[1])
    return logits(target, tokens, positions, cache.view(rows, positions, int(positions.max()) + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_loads_silently_and_computes_what_transformers_computes(tmp_path, kind):
    causal_lm = random_glm(kind)
    mtp = None if kind == "queries without a latent" else mtp_tensors(causal_lm.config)
    save_glm_folder(tmp_path, causal_lm, mtp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = load_target(tmp_path)
    tokens = random_tokens(3, 13)
    found = logits(target, tokens, positions_from([0, 0, 0], 13))
    torch.testing.assert_close(found, causal_lm(tokens).logits, **TOLERANCE)
    assert target.eos_token_ids == {3, 5}
    assert target.num_parameters == sum(parameter.numel() for parameter in causal_lm.parameters())


def test_prompts_in_one_go_of_different_lengths(target, causal_lm):
    tokens, following, lengths = random_tokens(3, 9), random_tokens(3, 4, seed=1), [3, 9, 6]
    cache = target.new_cache(num_slots=3, capacity=16)
    read = step(target, cache, slice(0, 3), tokens, [0, 0, 0])
    decoded = step(target, cache, slice(0, 3), following, lengths)
    for row, length in enumerate(lengths):
        sequence = torch.cat((tokens[row, :length], following[row]))[None]
        expected = causal_lm(sequence).logits[0]
        torch.testing.assert_close(read[row, :length], expected[:length], **TOLERANCE)
        torch.testing.assert_close(decoded[row], expected[length:], **TOLERANCE)


def test_prompts_cut_into_rows_of_several_slots(target, causal_lm):
    """One forward of rows of 4 tokens: three of slot 2, one of slot 0, two of slot 3."""
    prompts = {2: random_tokens(1, 12), 0: random_tokens(1, 4, seed=1), 3: random_tokens(1, 8, seed=2)}
    rows = [(2, 0), (2, 4), (0, 0), (3, 0), (2, 8), (3, 4)]
    tokens = torch.cat([prompts[slot][:, start : start + 4] for slot, start in rows])
    cache = target.new_cache(num_slots=4, capacity=16)
    found = step(target, cache, torch.tensor([slot for slot, _ in rows]), tokens, [start for _, start in rows])
    for (slot, start), row in zip(rows, found, strict=True):
        torch.testing.assert_close(row, causal_lm(prompts[slot]).logits[0, start : start + 4], **TOLERANCE)
    assert not cache.keys[0][1].any()


def test_token_by_token_with_roll_back(target, causal_lm):
    """Rejected tokens are overwritten; the second row keeps one of them."""
    tokens, rejected, kept = random_tokens(2, 5), random_tokens(2, 4, seed=1), random_tokens(2, 4, seed=2)
    cache = target.new_cache(num_slots=2, capacity=16)
    for index in range(5):
        step(target, cache, slice(0, 2), tokens[:, index : index + 1], [index, index])
    step(target, cache, slice(0, 2), rejected, [5, 5])
    found = [step(target, cache, slice(0, 2), kept[:, i : i + 1], [5 + i, 6 + i]) for i in range(4)]
    sequences = [torch.cat((tokens[0], kept[0])), torch.cat((tokens[1], rejected[1, :1], kept[1]))]
    for row, sequence in enumerate(sequences):
        expected = causal_lm(sequence[None]).logits[0, -4:]
        torch.testing.assert_close(torch.cat([each[row] for each in found]), expected, **TOLERANCE)


def test_the_cache_holds_one_latent_and_one_rotated_key_per_token(target):
    """Not the 5 heads x (20 + 10) numbers of expanded keys and values."""
    cache = target.new_cache(num_slots=3, capacity=16)
    assert cache.num_bytes == NUM_LAYERS * 3 * 16 * CACHED_WIDTH * 4
    assert {keys.shape for keys in cache.keys} == {(3, 1, 16, CACHED_WIDTH)}
    step(target, cache, torch.tensor([1]), random_tokens(1, 4), [0])
    for keys in cache.keys:
        assert keys[1, :, :4].all() and not keys[1, :, 4:].any() and not keys[[0, 2]].any()


def test_a_slot_that_met_nan_is_cleared(target, causal_lm):
    cache, tokens = target.new_cache(num_slots=2, capacity=16), random_tokens(1, 5)
    for keys in cache.keys:
        keys[1] = float("nan")
    cache.clear(slice(1, 2))
    found = step(target, cache, slice(1, 2), tokens, [0])
    torch.testing.assert_close(found, causal_lm(tokens).logits, **TOLERANCE)


def test_a_forward_asks_for_no_value_of_a_tensor():
    """Would catch a loop over the experts that were hit: on the meta device tensors have shapes and no values.

    In bfloat16, the only dtype for which torch knows the shapes of a grouped product.
    """
    with torch.device("meta"):
        target = TargetModel(random_glm().bfloat16(), None)
        cache = target.new_cache(num_slots=4, capacity=16)
        tokens, positions = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)
        assert logits(target, tokens, positions, cache.view(torch.zeros(2, dtype=torch.int64), positions, 9)).is_meta


def test_the_routers_bias_stays_in_float32(folder):
    """It decides between experts whose scores are close; transformers keeps it, too."""
    target = load_target(folder, dtype=torch.bfloat16)
    kept = {name: tensor.dtype for name, tensor in target.causal_lm.state_dict().items()}
    biases = [name for name in kept if name.endswith("e_score_correction_bias")]
    assert len(biases) == NUM_LAYERS - 1 and {kept.pop(name) for name in biases} == {torch.float32}
    assert set(kept.values()) == {torch.bfloat16}
    bias = random_glm().model.layers[1].mlp.gate.e_score_correction_bias
    assert torch.equal(target.causal_lm.model.layers[1].mlp.gate.e_score_correction_bias, bias)


EXPERT = "model.layers.1.mlp.experts.3."


def test_a_missing_expert_is_named(folder):
    edit_shards(folder, drop=f"{EXPERT}up_proj.weight")
    with pytest.raises(CheckpointError, match=r"1\.mlp\.experts\.3\.up_proj\.weight of shape \[16, 24\], found none"):
        load_target(folder)


def test_experts_that_the_configuration_does_not_count_are_refused(folder):
    edit_config(folder, n_routed_experts=5)
    edit_shards(
        folder,
        put={
            f"model.layers.{layer}.mlp.gate.{name}": tensor
            for layer in range(1, NUM_LAYERS)
            for name, tensor in {"weight": torch.ones(5, 24), "e_score_correction_bias": torch.ones(5)}.items()
        },
    )
    with pytest.raises(CheckpointError, match=r"found 6 that it does not: model\.layers\.1\.mlp\.experts\.5\.down"):
        load_target(folder)


def test_a_latent_of_another_width_is_named(folder):
    edit_config(folder, kv_lora_rank=16)
    with pytest.raises(CheckpointError, match=r"kv_a_proj_with_mqa\.weight of shape \[24, 24\], found \[22, 24\]"):
        load_target(folder)


def test_agreeing_fields_about_dense_layers_are_taken(folder):
    edit_config(folder, mlp_layer_types=["dense", "sparse", "sparse"])
    assert not hasattr(load_target(folder).causal_lm.model.layers[0].mlp, "experts")


def test_heads_of_eagle_are_not_made_of_such_layers(target):
    with pytest.raises(ValueError, match="a head like its target: expected a target of model_type llama or qwen3"):
        EagleConfig.for_target(target)
    with pytest.raises(ValueError, match="expected layers of model_type llama or qwen3, found 'glm4_moe_lite'"):
        layer_config({"model_type": "glm4_moe_lite"}, "config.json")
