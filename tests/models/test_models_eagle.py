"""EAGLE heads: the layer written out plainly, the public format there and back, and what does not fit."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from harness.models.checkpoint import CheckpointError
from harness.models.eagle import EagleConfig, EagleHead, load_eagle
from harness.models.head import save_head
from tests.support.plain_layers import attention, mlp, rms_norm, with_prefix
from tests.support.tiny_models import (
    LLAMA3_ROPE,
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_target,
    random_tokens,
    randomize,
    word_tokenizer,
)

KEYS = {
    "fc.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
    "layers.0.post_attention_layernorm.weight",
}
OWN_SIZES = {"intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6}


@pytest.fixture
def target():
    return random_target()


@pytest.fixture
def head(target):
    head = EagleHead(EagleConfig.for_target(target, bias=False), target)
    randomize(head, 3)
    return head


@pytest.fixture
def folder(tmp_path, head):
    save_head(head, tmp_path)
    return tmp_path


def run(head, num_pairs=6):
    tokens = random_tokens(2, num_pairs + 1)
    output = head.target.forward(tokens, positions_from([0, 0], num_pairs + 1), None)
    features = head.features(output)[:, :-1]
    return tokens, output.hidden[:, :-1], head(tokens[:, 1:], features, positions_from([0, 0], num_pairs), None)


def plain_forward(weights, embedding, config, token_ids, features):
    """[T, H] from the description: fc of token and feature, attention without a norm before it, then the MLP."""
    layer, positions = with_prefix(weights, "layers.0."), torch.arange(token_ids.numel())
    states = torch.cat((embedding[token_ids], features), dim=-1) @ weights["fc.weight"].T + weights.get("fc.bias", 0)
    states = states + attention(states, layer, positions, config)
    return states + mlp(rms_norm(states, layer["post_attention_layernorm.weight"], config.rms_norm_eps), layer)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("own", [{}, OWN_SIZES], ids=["sizes of the target", "sizes of its own"])
def test_forward_equals_the_plain_description(target, bias, own):
    head = EagleHead(EagleConfig.for_target(target, bias=bias, **own), target)
    randomize(head, 3)
    tokens, states, output = run(head)
    for row in range(2):
        expected = plain_forward(
            head.state_dict_public(), target.embed_weight, head.config.layer, tokens[row, 1:], states[row]
        )
        torch.testing.assert_close(output.hidden[row], expected, **TOLERANCE)
        expected_logits = expected @ target.causal_lm.lm_head.weight.T
        torch.testing.assert_close(head.logits(output.hidden)[row], expected_logits, **TOLERANCE)
    assert output.next_features is output.hidden


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_a_cached_chain_equals_the_plain_description(target, bias):
    """Position t + 1, the token drafted, and as its feature the layer's output of the step before, without a norm."""
    head = EagleHead(EagleConfig.for_target(target, bias=bias), target)
    randomize(head, 3)
    weights, tokens = head.state_dict_public(), random_tokens(1, 10)
    features = head.features(target.forward(tokens[:, :6], positions_from([0], 6), None))
    plain_features, cache = features[0], head.new_cache(num_slots=1, capacity=9)
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
        positions = positions_from([start], stop - start)
        view = cache.view(slice(0, 1), positions, stop)
        output = head(tokens[:, start + 1 : stop + 1], features, positions, view)
        plain = plain_forward(weights, target.embed_weight, head.config.layer, tokens[0, 1 : stop + 1], plain_features)
        torch.testing.assert_close(output.hidden[0, -1], plain[-1], **TOLERANCE)
        logits = head.logits(output.hidden)[0, -1]
        torch.testing.assert_close(logits, target.causal_lm.lm_head.weight @ plain[-1], **TOLERANCE)
        features, plain_features = output.next_features[:, -1:], torch.cat((plain_features, plain[-1:]))


def test_the_format_goes_there_and_back(target, head, folder):
    assert set(load_file(folder / "model.safetensors")) == KEYS == set(head.state_dict_public())
    data = json.loads((folder / "config.json").read_text())
    assert data["bias"] is False and data["num_hidden_layers"] == 1 and data["rope_theta"] == 10000.0
    loaded = load_eagle(folder, target)
    assert loaded.path == folder
    torch.testing.assert_close(run(loaded)[2].hidden, run(head)[2].hidden, rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_bfloat16_files_load_in_the_targets_dtype(tmp_path, target, head):
    save_head(head, tmp_path, torch.bfloat16)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert {parameter.dtype for parameter in load_eagle(tmp_path, target).parameters()} == {torch.float32}


def test_a_config_of_the_public_style_is_read(folder, target):
    """The fields as public EAGLE heads have them: Llama's, with rope_theta and torch_dtype."""
    layer = LlamaConfig(vocab_size=VOCAB_SIZE)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "bias": False,
                "bos_token_id": 0,
                "eos_token_id": 3,
                "hidden_act": "silu",
                "hidden_size": 24,
                "initializer_range": 0.02,
                "intermediate_size": 40,
                "max_position_embeddings": 2048,
                "model_type": "llama",
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "num_hidden_layers": 1,
                "pad_token_id": 0,
                "rms_norm_eps": 1e-5,
                "rope_scaling": None,
                "rope_theta": 500000.0,
                "tie_word_embeddings": False,
                "torch_dtype": "float16",
                "transformers_version": "4.28.1",
                "use_cache": True,
                "vocab_size": layer.vocab_size,
            }
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_eagle(folder, target)
    assert loaded.config.layer.rope_parameters["rope_theta"] == 500000.0
    assert loaded.config.layer.rms_norm_eps == 1e-5
    tokens, states, output = run(loaded)
    expected = plain_forward(
        loaded.state_dict_public(), target.embed_weight, loaded.config.layer, tokens[0, 1:], states[0]
    )
    torch.testing.assert_close(output.hidden[0], expected, **TOLERANCE)


def test_scaled_rope_is_written_and_read():
    """Llama 3's RoPE does not fit in rope_theta alone."""
    target = random_target("llama3_rope")
    config = EagleConfig.for_target(target)
    assert EagleConfig.from_dict(config.to_dict()).layer.rope_parameters == target.config.rope_parameters


def test_scaled_rope_of_older_files_is_read(target):
    """Which keep its base apart, in rope_theta."""
    fields = EagleConfig.for_target(target).to_dict() | {"rope_theta": LLAMA3_ROPE["rope_theta"]}
    fields["rope_scaling"] = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    assert EagleConfig.from_dict(fields).layer.rope_parameters == LLAMA3_ROPE


def test_unknown_fields_are_refused(folder, target):
    """Such as that of a relative of EAGLE with two norms more."""
    edit_config(folder, add_para_norm=True, pretraining_tp=1, unset=None)
    with pytest.raises(CheckpointError, match=r"found add_para_norm = True in config\.json, which .* does not know; "):
        load_eagle(folder, target)


def test_bias_is_expected_where_the_config_does_not_say(folder, target):
    edit_config(folder, drop=("bias",))
    with pytest.raises(CheckpointError, match=r"expected a tensor fc\.bias of shape \[24\], found none"):
        load_eagle(folder, target)
    edit_weights(folder, put={"fc.bias": torch.ones(24)})
    assert torch.equal(load_eagle(folder, target).fc.bias, torch.ones(24))


def test_a_bias_that_the_config_denies_is_refused(folder, target):
    edit_weights(folder, put={"fc.bias": torch.ones(24)})
    with pytest.raises(CheckpointError, match=r"a tensor that nothing reads: fc\.bias"):
        load_eagle(folder, target)


def test_an_embedding_equal_to_the_targets_is_shared(folder, target):
    edit_weights(folder, put={"embed_tokens.weight": target.embed_weight.clone()})
    assert set(load_eagle(folder, target).state_dict_public()) == KEYS


def test_an_embedding_of_its_own_is_used(folder, target, head):
    edit_weights(folder, put={"embed_tokens.weight": target.embed_weight + 1})
    loaded = load_eagle(folder, target)
    assert set(loaded.state_dict_public()) == KEYS | {"embed_tokens.weight"}
    tokens, states, output = run(loaded)
    expected = plain_forward(
        loaded.state_dict_public(), target.embed_weight + 1, loaded.config.layer, tokens[0, 1:], states[0]
    )
    torch.testing.assert_close(output.hidden[0], expected, **TOLERANCE)


def test_a_missing_tensor_is_refused(folder, target):
    edit_weights(folder, drop="layers.0.mlp.up_proj.weight")
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj\.weight of shape \[40, 24\], found none"):
        load_eagle(folder, target)


def test_a_misshapen_tensor_is_refused(folder, target):
    edit_weights(folder, put={"fc.weight": torch.ones(24, 72)})
    with pytest.raises(CheckpointError, match=r"fc\.weight of shape \[24, 48\], found \[24, 72\]"):
        load_eagle(folder, target)


def test_a_norm_that_the_layer_does_not_have_is_refused(folder, target):
    edit_weights(folder, put={"layers.0.input_layernorm.weight": torch.ones(24)})
    with pytest.raises(CheckpointError, match=r"layers\.0\.input_layernorm\.weight"):
        load_eagle(folder, target)


def test_an_output_matrix_must_be_the_targets(folder, target):
    """Some files hold the one that the head is run with; another would be left out of what is measured."""
    edit_weights(folder, put={"lm_head.weight": target.output_matrix.clone()})
    assert set(load_eagle(folder, target).state_dict_public()) == KEYS
    edit_weights(folder, put={"lm_head.weight": target.output_matrix + 1})
    with pytest.raises(CheckpointError, match=r"expected lm_head\.weight to be that of target tiny, .* another one"):
        load_eagle(folder, target)


def test_a_pickle_only_head_is_refused(folder, target):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"only pickled ones \(pytorch_model\.bin\)"):
        load_eagle(folder, target)


def test_another_vocabulary_size_is_refused(folder, target):
    edit_config(folder, vocab_size=VOCAB_SIZE - 1)
    with pytest.raises(ValueError, match=f"expected vocab_size {VOCAB_SIZE}, that of target tiny, found 60"):
        load_eagle(folder, target)


def test_another_hidden_size_is_refused(folder, target):
    edit_config(folder, hidden_size=36)
    with pytest.raises(ValueError, match="expected hidden_size 24, that of target tiny, found 36"):
        load_eagle(folder, target)


def test_more_than_one_layer_is_refused(folder, target):
    edit_config(folder, num_hidden_layers=2)
    with pytest.raises(ValueError, match="expected num_hidden_layers 1, found 2"):
        load_eagle(folder, target)


def test_a_tokenizer_in_the_folder_must_be_the_targets(folder, target):
    word_tokenizer().save_pretrained(folder)
    assert load_eagle(folder, target).path == folder
    word_tokenizer(swapped=True).save_pretrained(folder)
    with pytest.raises(ValueError, match="found 2 that do not: 7 is 'w8' in the drafter and 'w7' in the target"):
        load_eagle(folder, target)


def test_float16_files_are_read(folder, target, head):
    tensors = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    loaded = load_eagle(folder, target)
    torch.testing.assert_close(loaded.fc.weight, head.fc.weight, rtol=1e-3, atol=1e-3)
