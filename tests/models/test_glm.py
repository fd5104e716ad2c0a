"""GLM: its forward, its experts and its MTP layer are those of transformers and of the published formulas.

Latent attention and experts written out plainly, token by token and head by head, from their published formulas.
"""

from __future__ import annotations

import json
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.modeling_layers import MtpLayer
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite as glm

from harness.models.checkpoint import CheckpointError
from harness.models.decoder_layer import layer_config
from harness.models.eagle import EagleConfig
from harness.models.experts import EVERY_EXPERT_NOTE, every_expert, runs_grouped, slots_experts
from harness.models.mtp import MtpConfig, load_mtp, save_mtp
from harness.models.target import TargetModel, load_target
from tests.support.plain_layers import Weights, linear, mlp, rms_norm, with_prefix
from tests.support.tiny_glm import (
    CONFIG,
    KINDS,
    MTP_PREFIX,
    NUM_LAYERS,
    TOLERANCE,
    edit_shards,
    mtp_tensors,
    random_glm,
    save_glm_folder,
)
from tests.support.tiny_models import edit_config, positions_from, random_target, random_tokens, word_tokenizer

INNER_NORM_EPS = 1e-6
"""Of the norms inside attention: transformers takes its default there, not the configuration's."""


def rotate_pairs(vectors: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE on [T, P]: components 2 j and 2 j + 1 are a complex number, turned by position / theta^(2 j / P)."""
    half = vectors.shape[-1] // 2
    angles = positions[:, None] / theta ** (torch.arange(half) / half)
    turned = torch.view_as_complex(vectors.reshape(-1, half, 2).contiguous()) * torch.polar(torch.ones(()), angles)
    return torch.view_as_real(turned).flatten(1)


def latent_attention(states: Tensor, weights: Weights, positions: Tensor, config) -> Tensor:
    """Causal MLA of [T, D] with keys and values expanded from the latents: [T, D]. DeepSeek-V2, equations 9 to 19."""
    attn = with_prefix(weights, "self_attn.")
    nope, rope, theta = config.qk_nope_head_dim, config.qk_rope_head_dim, config.rope_parameters["rope_theta"]
    num_tokens, value_dim = states.shape[0], config.v_head_dim
    queries = linear(states, attn, "q_a_proj")
    queries = linear(rms_norm(queries, attn["q_a_layernorm.weight"], INNER_NORM_EPS), attn, "q_b_proj")
    compressed = linear(states, attn, "kv_a_proj_with_mqa")
    latents = rms_norm(compressed[:, : config.kv_lora_rank], attn["kv_a_layernorm.weight"], INNER_NORM_EPS)
    shared_key = rotate_pairs(compressed[:, config.kv_lora_rank :], positions, theta)
    expanded = linear(latents, attn, "kv_b_proj")
    outputs = []
    for head in range(config.num_attention_heads):
        query = queries[:, head * (nope + rope) : (head + 1) * (nope + rope)]
        query = torch.cat((query[:, :nope], rotate_pairs(query[:, nope:], positions, theta)), dim=-1)
        own = expanded[:, head * (nope + value_dim) : (head + 1) * (nope + value_dim)]
        scores = query @ torch.cat((own[:, :nope], shared_key), dim=-1).T / math.sqrt(nope + rope)
        scores = scores.masked_fill(torch.ones(num_tokens, num_tokens).triu(1).bool(), -math.inf)
        outputs.append(scores.softmax(-1) @ own[:, nope:])
    return linear(torch.cat(outputs, dim=-1), attn, "o_proj")


def experts(states: Tensor, weights: Weights, config) -> Tensor:
    """[T, D]: k experts of each token, chosen by score plus bias and weighted by score alone, and the shared ones.

    DeepSeek-V3, equations 12 to 16, with one group.
    """
    outputs = []
    for state in states:
        scores = torch.sigmoid(weights["mlp.gate.weight"] @ state)
        chosen = (scores + weights["mlp.gate.e_score_correction_bias"]).sort(descending=True).indices
        chosen = chosen[: config.num_experts_per_tok].tolist()
        output = mlp(
            state, {f"mlp.{name}": tensor for name, tensor in with_prefix(weights, "mlp.shared_experts.").items()}
        )
        for expert in chosen:
            own = {f"mlp.{name}": tensor for name, tensor in with_prefix(weights, f"mlp.experts.{expert}.").items()}
            share = scores[expert] / scores[chosen].sum() * config.routed_scaling_factor
            output = output + share * mlp(state, own)
        outputs.append(output)
    return torch.stack(outputs)


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


@pytest.fixture
def layer_experts():
    """The experts of one layer, expert by expert as transformers runs them."""
    return random_glm().model.layers[1].mlp.experts


def routed(num_tokens, seed=0):
    """States [N, 24], two of six experts for each token, and their weights."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(num_tokens, 24, generator=generator)
    chosen = torch.stack([torch.randperm(6, generator=generator)[:2] for _ in range(num_tokens)])
    return states, chosen, torch.rand(num_tokens, 2, generator=generator)


@pytest.mark.parametrize("product", [slots_experts, every_expert], ids=["grouped", "every expert"])
@pytest.mark.parametrize("num_tokens", [1, 2, 63], ids=["one token", "most experts idle", "all experts hit"])
def test_products_equal_the_loop_over_experts(layer_experts, product, num_tokens):
    states, chosen, weights = routed(num_tokens)
    # sums of 24 and 16 terms in another order
    torch.testing.assert_close(product(layer_experts, states, chosen, weights), layer_experts(states, chosen, weights))


def test_an_expert_that_was_not_chosen_may_overflow(layer_experts):
    states, chosen, weights = routed(8)
    chosen = chosen.clamp(max=4)
    chosen[:, 1] = (chosen[:, 0] + 1) % 5
    expected = layer_experts(states, chosen, weights)
    layer_experts.gate_up_proj[5] = 1e30
    torch.testing.assert_close(every_expert(layer_experts, states, chosen, weights), expected)


@pytest.mark.parametrize("grouped", [True, False], ids=["grouped", "every expert"])
def test_products_ask_for_no_value_of_a_tensor(monkeypatch, grouped):
    monkeypatch.setattr("harness.models.experts.runs_grouped", lambda *_: grouped)
    # in bfloat16, the only dtype for which torch knows the shapes of a grouped product
    layer_experts = random_glm().model.layers[1].mlp.experts.to("meta", torch.bfloat16)
    states, chosen, weights = (tensor.to("meta") for tensor in routed(5))
    inputs = (states.bfloat16(), chosen, weights)
    assert slots_experts(layer_experts, *inputs).shape == (5, 24)
    with pytest.raises(NotImplementedError):
        layer_experts(*inputs)


@pytest.mark.parametrize(
    ("device", "dtype", "width", "capability", "expected"),
    [
        pytest.param("cpu", torch.float32, 24, None, True, id="any dtype on a CPU"),
        pytest.param("cpu", torch.float32, 10, None, False, id="rows that are not aligned"),
        pytest.param("cuda", torch.bfloat16, 24, (9, 0), True, id="bfloat16 on Hopper"),
        pytest.param("cuda", torch.bfloat16, 24, (10, 3), True, id="bfloat16 on Blackwell"),
        pytest.param("cuda", torch.bfloat16, 24, (8, 0), False, id="Ampere"),
        pytest.param("cuda", torch.float16, 24, (9, 0), False, id="float16"),
        pytest.param("cuda", torch.float32, 24, (9, 0), False, id="float32"),
    ],
)
def test_the_grouped_product_is_taken_where_it_does_not_wait(monkeypatch, device, dtype, width, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    weight = SimpleNamespace(
        device=torch.device(device), dtype=dtype, shape=(6, 32, width), element_size=lambda: dtype.itemsize
    )
    assert runs_grouped(weight, weight) is expected


def test_an_unaligned_width_runs_every_expert_and_says_so():
    """torch refuses it in a grouped product."""
    causal_lm = random_glm(moe_intermediate_size=10, hidden_size=26)
    layer_experts = causal_lm.model.layers[1].mlp.experts
    _, chosen, weights = routed(7)
    states = torch.randn(7, 26, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        slots_experts(layer_experts, states, chosen, weights), layer_experts(states, chosen, weights)
    )
    assert TargetModel(causal_lm, None).fallbacks == (EVERY_EXPERT_NOTE,)
    assert TargetModel(random_glm(), None).fallbacks == () == random_target().fallbacks


def test_rounds_too_large_for_the_kernels_of_experts_are_reported():
    target = TargetModel(random_glm(), None)
    assert target.fuse() is None
    assert target.round_fallbacks(128) == ()
    assert "more than 128 tokens (here up to 129)" in target.round_fallbacks(129)[0]


OWN = {f"{MTP_PREFIX}embed_tokens.weight", f"{MTP_PREFIX}shared_head.head.weight"}


def features_of(target, tokens):
    """[B, T, H] of the target's own tokens."""
    return target.forward(tokens, positions_from([0] * tokens.shape[0], tokens.shape[1]), None).hidden


def plain_forward(weights, embedding, output_matrix, config, token_ids, features):
    """Next features and logits [T, ...] of one row that starts at position 0, from the description."""
    eps, layer = config.rms_norm_eps, with_prefix(weights, MTP_PREFIX)
    embedded = embedding[token_ids].clone()
    embedded[0] = 0
    joined = torch.cat(
        (rms_norm(embedded, layer["enorm.weight"], eps), rms_norm(features, layer["hnorm.weight"], eps)), dim=-1
    )
    states = joined @ layer["eh_proj.weight"].T
    normed = rms_norm(states, layer["input_layernorm.weight"], eps)
    states = states + latent_attention(normed, layer, torch.arange(token_ids.numel()), config)
    states = states + experts(rms_norm(states, layer["post_attention_layernorm.weight"], eps), layer, config)
    hidden = rms_norm(states, layer["shared_head.norm.weight"], eps)
    return hidden, hidden @ output_matrix.T


@pytest.mark.parametrize("shared", [False, True], ids=["matrices of its own", "the target's matrices"])
def test_forward_equals_the_plain_description(tmp_path, shared):
    causal_lm = random_glm()
    weights = mtp_tensors(causal_lm.config)
    if shared:
        weights = {name: tensor for name, tensor in weights.items() if name not in OWN}
    target = load_target(save_glm_folder(tmp_path, causal_lm, weights))
    head = load_mtp(None, target)
    embedding = weights.get(f"{MTP_PREFIX}embed_tokens.weight", target.embed_weight)
    output_matrix = weights.get(f"{MTP_PREFIX}shared_head.head.weight", causal_lm.lm_head.weight)
    tokens = random_tokens(2, 8)
    states = features_of(target, tokens)[:, :-1]
    output = head(tokens[:, 1:], states, positions_from([0, 0], 7), None)
    for row in range(2):
        features, logits = plain_forward(weights, embedding, output_matrix, target.config, tokens[row, 1:], states[row])
        torch.testing.assert_close(output.next_features[row], features, **TOLERANCE)
        torch.testing.assert_close(head.logits(output.hidden)[row], logits, **TOLERANCE)


def test_forward_equals_the_layer_of_transformers(folder):
    """Which zeroes no embedding at position 0: so from position 1 on."""
    target = load_target(folder)
    head = load_mtp(None, target)
    config = head.layer_config
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    layer = MtpLayer(config, glm.Glm4MoeLiteDecoderLayer, glm.Glm4MoeLiteRMSNorm, 0).eval()
    renamed = {name.removeprefix(MTP_PREFIX): tensor for name, tensor in head.state_dict().items()}
    own = {name for name in renamed if name.startswith(("enorm.", "hnorm.", "eh_proj."))}
    state = {name if name in own else f"mtp_block.{name}": tensor for name, tensor in renamed.items()}
    state["post_norm.weight"] = state.pop("mtp_block.shared_head.norm.weight")
    embedding = state.pop("mtp_block.embed_tokens.weight")
    del state["mtp_block.shared_head.head.weight"]
    layer.load_state_dict(state)
    tokens, positions = random_tokens(2, 8), positions_from([1, 3], 7)
    states = features_of(target, tokens)[:, :-1]
    mask = torch.full((7, 7), float("-inf")).triu(1)[None, None]
    rotation = head.rotary(states, positions)
    expected = layer(embedding[tokens[:, 1:]], states, rotation, mask, positions, None)
    output = head(tokens[:, 1:], states, positions, None)
    torch.testing.assert_close(output.hidden, expected, **TOLERANCE)
    torch.testing.assert_close(output.next_features, expected, **TOLERANCE)


def test_the_chain_of_another_target_reads_the_state_before_the_norm(folder):
    """GLM's own readers disagree about it; the built-in MTP layer was trained that way."""
    target = load_target(folder)
    assert MtpConfig.for_target(target).norm_output and not MtpConfig(NUM_LAYERS).norm_output
    head = load_mtp(None, target)
    states, tokens, positions = torch.ones(1, 2, 24), random_tokens(1, 2), positions_from([4], 2)
    after = head(tokens, states, positions, None)
    head.config = MtpConfig(NUM_LAYERS, own_head=True, own_embedding=True)
    before = head(tokens, states, positions, None)
    torch.testing.assert_close(head.block.shared_head["norm"](before.next_features), after.next_features)
    assert torch.equal(before.hidden, after.hidden)


def test_pairs_through_slots_equal_pairs_at_once(folder):
    """Rows of one slot cut apart, and a chain of guesses that the next pairs overwrite."""
    target = load_target(folder)
    head = load_mtp(None, target)
    tokens = random_tokens(1, 10)
    states = features_of(target, tokens)[:, :-1]
    expected = head(tokens[:, 1:], states, positions_from([0], 9), None).hidden[0]
    cache = head.new_cache(num_slots=3, capacity=12)
    assert cache.num_bytes == 3 * 12 * (CONFIG["kv_lora_rank"] + CONFIG["qk_rope_head_dim"]) * 4

    def through_slots(rows, token_ids, features, start):
        positions = positions_from(start, token_ids.shape[1])
        return head(token_ids, features, positions, cache.view(rows, positions, int(positions.max()) + 1)).hidden

    rows = torch.tensor([2, 2])
    first = through_slots(rows, tokens[:, 1:7].view(2, 3), states[:, :6].reshape(2, 3, -1), [0, 3])
    through_slots(rows[:1], random_tokens(1, 2, seed=9), torch.ones(1, 2, 24), [6])
    second = through_slots(rows[:1], tokens[:, 7:], states[:, 6:], [6])
    torch.testing.assert_close(torch.cat((first.flatten(0, 1), second[0])), expected, **TOLERANCE)


def test_the_checkpoint_is_read_silently_and_every_tensor_has_its_place(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = load_mtp(None, load_target(folder))
    stored = mtp_tensors(head.layer_config)
    found = head.state_dict_public()
    assert found.keys() == stored.keys() and all(torch.equal(found[name], stored[name]) for name in stored)
    (told,) = head.assumptions
    assert head.path == folder and "after it is taken, as transformers and SGLang do" in told
    assert head.config == MtpConfig(NUM_LAYERS, own_head=True, own_embedding=True, norm_output=True)


def test_a_dense_first_layer_does_not_make_the_mtp_layer_dense(tmp_path):
    causal_lm = random_glm("two dense layers")
    save_glm_folder(tmp_path, causal_lm, mtp_tensors(causal_lm.config))
    assert hasattr(load_mtp(None, load_target(tmp_path)).block.mlp, "experts")


def test_only_the_routers_bias_stays_in_float32(folder):
    head = load_mtp(None, load_target(folder, dtype=torch.bfloat16))
    kept = {name: tensor.dtype for name, tensor in head.state_dict().items()}
    bias = f"{MTP_PREFIX}mlp.gate.e_score_correction_bias"
    assert kept.pop(bias) == torch.float32 and set(kept.values()) == {torch.bfloat16}
    assert torch.equal(head.state_dict()[bias], mtp_tensors(head.layer_config)[bias])


def test_an_unsharded_folder_goes_there_and_back(tmp_path, folder):
    target = load_target(folder)
    head = load_mtp(None, target)
    single = save_glm_folder(tmp_path / "single", random_glm(), num_shards=1)
    save_mtp(head, single)
    names = {name for name in load_file(single / "model.safetensors") if name.startswith(MTP_PREFIX)}
    assert names == mtp_tensors(head.layer_config).keys()
    again = load_mtp(None, load_target(single)).state_dict_public()
    assert all(torch.equal(tensor, again[name]) for name, tensor in head.state_dict_public().items())


def test_a_missing_expert_of_the_mtp_layer_is_named(folder):
    edit_shards(folder, drop=f"{MTP_PREFIX}mlp.experts.5.gate_proj.weight")
    with pytest.raises(CheckpointError, match=r"3\.mlp\.experts\.5\.gate_proj\.weight of shape \[16, 24\], found none"):
        load_mtp(None, load_target(folder))


def test_a_tensor_that_the_layer_does_not_account_for_is_refused(folder):
    edit_shards(folder, put={f"{MTP_PREFIX}mlp.experts.6.up_proj.weight": torch.ones(16, 24)})
    with pytest.raises(CheckpointError, match=r"1 that it does not: model\.layers\.3\.mlp\.experts\.6\.up_proj"):
        load_mtp(None, load_target(folder))


def test_a_layer_number_is_that_of_the_configuration(folder):
    """Layers 0 to 2 are the target's; a file that counts one fewer has its last layer where MTP is looked for."""
    edit_config(folder, num_hidden_layers=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.2.mlp.gate.weight" in index
    with pytest.raises(CheckpointError, match=r"tensors that nothing reads: model\.layers\.2\.input_layernorm"):
        load_target(folder)
