"""The general path against layers of our own, transformers' own forward, and exact laws."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, Glm4MoeLiteForCausalLM, LlamaForCausalLM, Qwen3ForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from harness.backends.local.local import LocalBackend
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.models import Layers, TargetConfig, Weights
from harness.config.sampling import SamplingSettings
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.ngram import Ngram
from harness.drafters.registry import load_head
from harness.engine.token_logprobs import LogprobsSettings
from harness.models.checkpoint import CheckpointError
from harness.models.draft_model import load_draft_model
from harness.models.general.probe import check_over_slots
from harness.models.general.states import READ_AT_ONCE
from harness.models.general.target import GeneralTarget
from harness.models.random_target import random_target
from harness.models.target import TargetModel, load_target
from harness.models.tree_places import TreePlaces, ancestors
from harness.models.zoo import ZOO
from kernels.contract import DraftSampling, Verification
from kernels.methods import TreeMethod
from tests.support.any_models import NO_TOKENIZER, VOCAB_SIZE, disturbed, tiny_config, tiny_model
from tests.support.tiny_engines import engine_over, requests_of
from tests.support.toy_markov import fits

OWN = {"llama": LlamaForCausalLM, "qwen3": Qwen3ForCausalLM, "glm4_moe_lite": Glm4MoeLiteForCausalLM}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
"""Float32 sums in another order, through a few layers."""


def general(model_type: str) -> GeneralTarget:
    return GeneralTarget(tiny_model(model_type), None)


@pytest.mark.parametrize("model_type", OWN)
def test_layers_of_our_own_and_of_transformers_give_the_same_states(model_type, tmp_path):
    """Rows at different places of their slots, several tokens each. `auto` takes those of our own."""
    tiny_model(model_type).save_pretrained(tmp_path)
    automatic, *models = (load_target(tmp_path, tokenizer=NO_TOKENIZER, layers=layers) for layers in Layers)
    assert [type(each) for each in (automatic, *models)] == [TargetModel, TargetModel, GeneralTarget]
    token_ids = torch.randint(VOCAB_SIZE, (2, 9), generator=torch.Generator().manual_seed(2))
    outputs = []
    for model in models:
        cache = model.new_cache(4, 12)
        slots = torch.tensor([3, 1])
        columns = torch.arange(6).expand(2, -1)
        model.forward(token_ids[:, :6], columns, cache.view(slots, columns, 6))
        again = torch.tensor([[5], [3]]) + torch.arange(4)
        output = model.forward(token_ids.gather(1, again), again, cache.view(slots, again, 9), (0, 1, 2))
        outputs.append((output.hidden, *output.aux, model.logits(output.hidden)))
    for own, other in zip(*outputs, strict=True):
        torch.testing.assert_close(other, own, **TOLERANCE)


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "gpt_oss", "deepseek_v3", "opt"])
def test_states_of_layers_are_those_that_transformers_reports(model_type):
    """Would catch the states of another layer, or those after a norm, being given to a head."""
    target = general(model_type)
    token_ids = torch.randint(3, VOCAB_SIZE, (2, 11), generator=torch.Generator().manual_seed(2))
    reported = tiny_model(model_type)(token_ids, use_cache=False, output_hidden_states=True)
    positions = torch.arange(11).expand(2, -1)
    view = target.new_cache(2, 11).view(slice(0, 2), positions, 11)
    output = target.forward(token_ids, positions, view, (0, 1))
    torch.testing.assert_close(output.aux, tuple(reported.hidden_states[:2]), **TOLERANCE)
    torch.testing.assert_close(output.hidden, reported.hidden_states[2], **TOLERANCE)
    torch.testing.assert_close(target.logits(output.hidden), reported.logits, **TOLERANCE)


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba", "jamba", "lfm2"])
def test_a_long_prompt_that_is_read_at_once_leaves_the_states_of_its_end(model_type):
    """Would catch states of a padded end, of another row, or of the slot's request before."""
    target, length = general(model_type), READ_AT_ONCE + 6
    token_ids = torch.randint(3, VOCAB_SIZE, (2, length + 3), generator=torch.Generator().manual_seed(6))
    cache, slots = target.new_cache(4, length + 4, rewind=3), torch.tensor([2, 1])
    for start, stop in ((0, 9), (0, length), (length, length + 3)):
        positions = torch.arange(start, stop).expand(2, -1)
        given = token_ids[:, start:stop] if stop > 9 else token_ids[:, start:stop].flip(1)
        output = target.forward(given, positions, cache.view(slots, positions, stop))
    wanted = tiny_model(model_type)(token_ids, use_cache=False).logits[:, length:]
    torch.testing.assert_close(target.logits(output.hidden), wanted, **TOLERANCE)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("qwen3_next", "its recurrent states follow one sequence"),
        ("bloom", "its attention weighs keys by where they lie"),
    ],
)
def test_trees_are_refused_where_a_model_cannot_read_them(model_type, reason, tmp_path):
    config = tiny_config(model_type)
    config.vocab_size = 6144
    tiny_model(model_type, config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ZOO / "target" / name, tmp_path)
    cell = CellConfig(
        target=TargetConfig(path=str(tmp_path)),
        drafter=Ngram(),
        drafting=DraftingConfig(tree="dynamic:4-2-2"),
        verification=Verification(TreeMethod.recursive),
    )
    with pytest.raises(ValueError, match=f"drafting.tree: expected chains .*because {reason}"):
        LocalBackend(cell)


PARENTS = torch.tensor([-1, 0, 0, 1, 2, 4])
"""Of a tree's nodes, the context's last token first: two branches, one of three tokens, one of two."""


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gpt_oss", "llama4_text", "deepseek_v3", "gpt2", "gptj"])
def test_nodes_of_a_tree_are_those_of_their_branches(model_type):
    """Windows of 8 tokens lie within the context. Would catch a node that is placed by where it lies, or that sees
    another branch; and an accepted path that is not moved together."""
    target, context = general(model_type), 9
    generator = torch.Generator().manual_seed(4)
    token_ids = torch.randint(3, VOCAB_SIZE, (1, context), generator=generator)
    nodes = torch.randint(3, VOCAB_SIZE, (1, len(PARENTS)), generator=generator)
    cache, slots = target.new_cache(3, 24), torch.tensor([1])
    columns = torch.arange(context)[None]
    target.forward(token_ids, columns, cache.view(slots, columns, context))
    sees = ancestors(PARENTS)
    tree = TreePlaces(torch.tensor([context]), torch.arange(len(PARENTS)), sees)
    positions = context + sees.sum(-1)[None] - 1
    view = cache.view(slots, positions, context + len(PARENTS), tree)
    found = target.logits(target.forward(nodes, positions, view).hidden)
    plain = tiny_model(model_type)
    for node in range(len(PARENTS)):
        branch = torch.cat([token_ids, nodes[:, sees[node]]], dim=1)
        torch.testing.assert_close(found[:, node], plain(branch, use_cache=False).logits[:, -1], **TOLERANCE)
    # the longer branch: nodes 2, 4 and 5 after node 0
    cache.keep_path(slots, torch.tensor([context + 1]), torch.tensor([[1, 3, 4]]))
    after = torch.tensor([[context + 4]])
    last = target.logits(target.forward(nodes[:, :1], after, cache.view(slots, after, context + 5)).hidden)
    branch = torch.cat([token_ids, nodes[:, [0, 2, 4, 5, 0]]], dim=1)
    torch.testing.assert_close(last[:, 0], plain(branch, use_cache=False).logits[:, -1], **TOLERANCE)


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "deepseek_v3", "qwen3_next"])
def test_sampled_tokens_follow_the_targets_law(model_type, tmp_path):
    """The joint law of three tokens, each among the three most likely, with drafts of another model."""
    causal_lm, prompt, top_k, num_new = tiny_model(model_type), (5, 9, 4), 3, 3
    law = {(): 1.0}
    for _ in range(num_new):
        sequences = torch.tensor([(*prompt, *path) for path in law])
        kept = causal_lm(sequences, use_cache=False).logits[:, -1].double().topk(top_k)
        law = {
            (*path, token): probability * share
            for (path, probability), tokens, shares in zip(
                law.items(), kept.indices.tolist(), kept.values.softmax(-1).tolist(), strict=True
            )
            for token, share in zip(tokens, shares, strict=True)
        }
    other = tiny_model(model_type)
    other.load_state_dict(disturbed(causal_lm, share=0.15))
    shape = DrafterShape(200, 12, 2, VOCAB_SIZE)
    drafter = DraftModelDrafter(GeneralTarget(other, None), DraftSampling.sampled, shape)
    sampling = SamplingSettings(temperature=1.0, top_k=top_k)
    engine = engine_over(GeneralTarget(causal_lm, None), drafter, shape, num_new, sampling=sampling, graphs=False)
    found = engine.run(requests_of([prompt] * 2000, first_seed=0), lambda record: None)
    assert fits((record.output_token_ids for record in found.requests), law) > 1e-6
    rounds = [item for record in found.requests for item in record.rounds]
    accepted = sum(item.num_accepted_tokens for item in rounds)
    assert 0.02 < accepted / sum(item.num_draft_tokens for item in rounds) < 0.95


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_angles_do_not_follow_the_longest_sequence_of_a_batch(rope_type):
    """Up to the original length; would catch one request that changes another's logits, by a quarter here."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4} if rope_type == "longrope" else {}
    rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32, **factors}
    config = tiny_config("phi3")
    config.rope_parameters, config.original_max_position_embeddings = rope, 32
    if rope_type == "dynamic":
        config.max_position_embeddings = 32
    target = GeneralTarget(tiny_model("phi3", config), None)
    assert target.num_positions == 32 and "sequences end at 32 positions" in target.assumptions[0]
    token_ids = torch.randint(3, VOCAB_SIZE, (1, 8), generator=torch.Generator().manual_seed(4))
    positions, beyond = torch.arange(8)[None], 40 + torch.arange(8)[None]
    alone = target.forward(token_ids, positions, target.new_cache(2, 60).view(slice(0, 1), positions, 8)).hidden
    both = torch.cat([positions, beyond])
    view = target.new_cache(2, 60).view(slice(0, 2), both, 48)
    beside = target.forward(token_ids.expand(2, -1), both, view).hidden
    torch.testing.assert_close(beside[:1], alone, **TOLERANCE)


def test_what_a_record_says_of_a_model_of_the_general_path(tmp_path):
    tiny_model("mistral").save_pretrained(tmp_path)
    (said,) = load_target(tmp_path, tokenizer=NO_TOKENIZER).assumptions
    assert said.startswith("layers are transformers' own (MistralForCausalLM, target.layers): without fused operations")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_windows": 4}, r"sliding_windows = 4 in config.json, which this version does not know"),
        (
            {"model_type": "t5"},
            "expected a model_type that the installed transformers has .*, found 't5'",
        ),
        (
            {"num_hidden_layers": 3},
            r"expected every tensor of a MistralForCausalLM, found missing keys: model.layers.2",
        ),
        ({"num_hidden_layers": 1}, r"found \d+ that it does not: model.layers.1"),
        ({"num_hidden_layers": 1, "num_nextn_predict_layers": 0}, r"found \d+ that it does not: model.layers.1"),
        ({"intermediate_size": 50}, "expected a configuration that transformers takes, found"),
    ],
    ids=[
        "an unknown field",
        "no language model",
        "missing tensors",
        "tensors that nothing reads",
        "no MTP layer",
        "other shapes",
    ],
)
def test_files_that_transformers_would_take_silently_are_refused(tmp_path, changes, message):
    tiny_model("mistral").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=message):
        load_target(tmp_path, tokenizer=NO_TOKENIZER, device="meta")


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "qwen3_next", "gpt_oss"])
def test_random_weights_of_a_configuration_are_the_same_at_every_call_and_neither_vanish_nor_explode(
    model_type, tmp_path
):
    config = tiny_config(model_type)
    config.vocab_size = 6144
    config.save_pretrained(tmp_path)
    first, second = (random_target(tmp_path, dtype=torch.float32) for _ in range(2))
    assert isinstance(first, GeneralTarget) and first.random_fingerprint == second.random_fingerprint
    weights = first.causal_lm.state_dict()
    assert all(torch.equal(weights[name], other) for name, other in second.causal_lm.state_dict().items())
    check_over_slots(first)
    ids = torch.arange(3, 15)[None]
    deviation = float(first.network.plain_logits(ids).std())
    assert 0.3 < deviation < 10
    assert random_target(tmp_path, device="meta").new_cache(2, 8).num_bytes > 0


def test_an_mtp_layer_is_left_out_and_read_by_its_drafter():
    """The built-in target's checkpoint has one, behind its layers."""
    target = load_target(None, layers=Layers.transformers)
    assert isinstance(target, GeneralTarget) and target.num_layers == load_target(None).num_layers
    head = load_head(drafter_of(DrafterKind.mtp), target)
    assert head is not None and head.folder == target.path


def test_a_draft_model_with_more_token_ids_proposes_those_of_its_target_alone(tmp_path):
    tiny_model("mistral").save_pretrained(tmp_path)
    target = general("llama")
    target.vocab_size, target.tokenizer, target.tokenizer_stands_in = VOCAB_SIZE - 20, NO_TOKENIZER, True
    model = load_draft_model(tmp_path, target)
    hidden = torch.randn(2, 3, model.hidden_size)
    assert isinstance(model, GeneralTarget)
    torch.testing.assert_close(model.logits(hidden), model.network.logits(hidden)[..., : VOCAB_SIZE - 20])


def test_a_model_on_the_meta_device_tells_the_memory_of_its_caches(tmp_path):
    """Would catch experts, whose grouped product has no shapes there, ending a run before it begins."""
    for model_type in ("qwen3_moe", "deepseek_v3", "gpt2"):
        tiny_model(model_type).save_pretrained(tmp_path / model_type)
        planned, loaded = (
            load_target(tmp_path / model_type, tokenizer=NO_TOKENIZER, device=device, layers=Layers.transformers)
            for device in ("meta", "cpu")
        )
        assert planned.new_cache(3, 40).num_bytes == loaded.new_cache(3, 40).num_bytes > 0
        assert not planned.is_uncounted


def test_heads_are_refused_where_states_are_several_side_by_side(tmp_path):
    """Would catch a head that is run, and fails, after the weights were loaded."""
    tiny_model("gemma3n_text").save_pretrained(tmp_path)
    target = load_target(tmp_path, tokenizer=NO_TOKENIZER, device="meta")
    with pytest.raises(ValueError, match="expected a target whose states a head can read, found zoo"):
        load_head(drafter_of(DrafterKind.eagle3, weights=Weights.random), target)


def test_a_quantized_checkpoint_runs_as_transformers_loads_it(tmp_path):
    """In e4m3 with a scale for each block; without a GPU transformers widens it."""
    causal_lm = tiny_model("mistral")
    causal_lm.save_pretrained(tmp_path)
    tensors, wide = {}, causal_lm.state_dict()
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        tensors[name] = tensor
        if "_proj" in name:
            scale = tensor.abs().max() / 448
            tensors[name] = (tensor / scale).to(torch.float8_e4m3fn)
            tensors[name.replace("weight", "weight_scale_inv")] = scale.view(1, 1)
            wide[name] = tensors[name].float() * scale
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    path, fp8 = tmp_path / "config.json", {"quant_method": "fp8", "weight_block_size": [128, 128]}
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"quantization_config": fp8}))
    target = load_target(tmp_path, tokenizer=NO_TOKENIZER)
    causal_lm.load_state_dict(wide)
    ids = torch.arange(3, 15)[None]
    torch.testing.assert_close(target.network.plain_logits(ids), causal_lm(ids).logits, **TOLERANCE)
    assert "fp8 weights, run as transformers loads them on the device" in target.assumptions
    assert target.rounded_weights == "fp8 weights"
    path.write_text(json.dumps(fields | {"quantization_config": {"quant_method": "compressed-tensors"}}))
    with pytest.raises(CheckpointError, match="install compressed-tensors"):
        load_target(tmp_path, tokenizer=NO_TOKENIZER, device="meta")


@pytest.mark.parametrize("model_type", ["gemma3", "qwen3_5"])
def test_the_text_part_of_a_multi_modal_checkpoint_runs(model_type, tmp_path):
    kind = CONFIG_MAPPING[model_type]
    text = tiny_config(f"{model_type}_text").to_dict()
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "num_attention_heads": 2,
        "out_hidden_size": 32,
    }
    layers = {"num_hidden_layers": 1, "depth": 1, "image_size": 28, "patch_size": 14}
    whole = AutoModelForImageTextToText.from_config(kind(text_config=text, vision_config=sizes | layers))
    whole.float().save_pretrained(tmp_path)
    target = load_target(tmp_path, tokenizer=NO_TOKENIZER)
    assert target.hidden_size == 32 and target.num_layers == 2
    ids = torch.arange(3, 15)[None]
    torch.testing.assert_close(target.network.plain_logits(ids), whole.eval()(input_ids=ids).logits, **TOLERANCE)


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
def test_records_do_not_depend_on_whose_code_computes_the_layers(graphs):
    """Tokens, log-probabilities, accepted drafts and expected acceptance, with the built-in EAGLE-3 head at T = 1."""
    found = []
    for layers in (Layers.own, Layers.transformers):
        target = load_target(None, layers=layers)
        shape = DrafterShape(2, 64, 3, target.vocab_size)
        head = load_head(drafter_of(DrafterKind.eagle3), target)
        assert head is not None
        drafter = ChainDrafter(head.head, DraftSampling.sampled, shape)
        options = {"graphs": graphs, "logprobs": LogprobsSettings(2, False), "expected_acceptance": True}
        sampling = SamplingSettings(temperature=1.0, top_p=0.9)
        engine = engine_over(target, drafter, shape, 12, sampling=sampling, **options)
        prompts = [target.tokenizer.encode(text) for text in ("Why is the sky blue?", "One two three one two", "And")]
        run = engine.run(requests_of(prompts, first_seed=0), lambda record: None)
        found.append(sorted(run.requests, key=lambda record: int(record.prompt_id)))
    for own, general in zip(*found, strict=True):
        assert general.output_token_ids == own.output_token_ids
        assert general.logprobs is not None and own.logprobs is not None
        assert general.logprobs.token == pytest.approx(own.logprobs.token, abs=1e-3)
        for ours, theirs in zip(own.rounds, general.rounds, strict=True):
            assert theirs.num_accepted_tokens == ours.num_accepted_tokens
            assert theirs.expected_accepted == pytest.approx(ours.expected_accepted, abs=1e-3)


def test_what_states_by_position_take_is_told():
    """Would catch recurrent states that take a share of the cache which no record reports."""
    target = GeneralTarget(tiny_model("qwen3_next"), None)
    cache = target.new_cache(1, 1, rewind=4)
    assert cache.ring == 6
    state_bytes, token_bytes = (sum(each.nbytes for each in kept.values()) for kept in (cache.states, cache.tensors))
    (told,) = target.assumptions
    assert f"take {state_bytes / 6 / 2**20:.3g} MiB for each of K + 3 tokens" in told
    assert f"values of {state_bytes // 6 // token_bytes} tokens" in told
