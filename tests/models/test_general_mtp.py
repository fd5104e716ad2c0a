"""MTP layers of targets that transformers runs: what public code computes of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM
from transformers.modeling_layers import MtpModel

from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import TargetConfig, Weights
from harness.config.schema import SettingsError
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.registry import load_head
from harness.models.accounting import Accepted
from harness.models.assumptions import assumed_of_drafter
from harness.models.check_files import check_drafter_files
from harness.models.checkpoint import CheckpointError
from harness.models.general.mtp import GeneralMtpHead, load_general_mtp
from harness.models.general.target import GeneralTarget
from harness.models.target import load_target
from harness.models.tree_places import TreePlaces, ancestors
from kernels.contract import DraftSampling
from tests.support.any_models import NO_TOKENIZER
from tests.support.host_reads import HostReads
from tests.support.plain_layers import attention, mlp, rms_norm, with_prefix
from tests.support.public_mtp import PUBLIC, VOCAB_SIZE, save_public
from tests.support.tiny_engines import engine_over, requests_of

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
NUM_PAIRS = 6


class Filed(NamedTuple):
    """A target with an MTP layer, in a folder, and both as they are loaded."""

    model_type: str
    folder: Path
    target: GeneralTarget
    head: GeneralMtpHead


def filed_as(model_type: str, folder: Path) -> Filed:
    target = load_target(folder, tokenizer=NO_TOKENIZER)
    assert isinstance(target, GeneralTarget)
    target.tokenizer_stands_in = True
    return Filed(model_type, folder, target, load_general_mtp(folder, target))


@pytest.fixture(scope="module", params=PUBLIC)
def filed(request, tmp_path_factory) -> Filed:
    folder = save_public(request.param, tmp_path_factory.mktemp(request.param))
    return filed_as(request.param, folder)


def sequences(num_rows: int = 2, length: int = NUM_PAIRS + 1) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (num_rows, length), generator=torch.Generator().manual_seed(3))


def pairs(filed: Filed, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Token, feature and position of each pair of [B, T + 1] tokens."""
    positions = torch.arange(token_ids.shape[1] - 1).expand(len(token_ids), -1)
    output = filed.target.forward(token_ids[:, :-1], positions, None, filed.head.aux_layers)
    return token_ids[:, 1:], filed.head.features(output), positions


def by_transformers(filed: Filed, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """States [B, T, H] and logits of the code for MTP layers in transformers, which reads the folder by its own names.

    It takes the target's embedding and output matrix, and does not leave out the embedding at position 0.
    """
    main: Any = AutoModelForCausalLM.from_pretrained(filed.folder, attn_implementation="eager")
    # which tensors are of MTP layers: the class names those of the public checkpoint's size
    main._keys_to_ignore_on_load_unexpected = [r"^model\.layers\.2\.", r"^mtp\."]
    main.config.num_mtp_layers, main.config.mtp_layer_types = 1, ["full_attention"]
    main.config.mtp_mlp_layer_types = ["sparse"]
    public = MtpModel.from_pretrained(main)
    stored = load_file(filed.folder / "model.safetensors")
    is_numbered = PUBLIC[filed.model_type].layer == "model.layers.2."
    own = {name: stored.get(f"model.layers.2.{name}") for name in ("embed_tokens.weight", "shared_head.head.weight")}
    assert all((tensor is not None) == is_numbered for tensor in own.values())
    embedding = (
        stored["model.embed_tokens.weight"] if own["embed_tokens.weight"] is None else own["embed_tokens.weight"]
    )
    matrix = stored["lm_head.weight"] if own["shared_head.head.weight"] is None else own["shared_head.head.weight"]
    states = main(token_ids[:, :-1], output_hidden_states=True, use_cache=False).hidden_states[-1]
    embedded = functional.embedding(token_ids[:, 1:], embedding)
    if is_numbered:
        embedded[:, 0] = 0
    positions = torch.arange(NUM_PAIRS).expand(2, -1)
    hidden = public.forward_layer(0, states, positions, None, inputs_embeds=embedded)
    return hidden, hidden @ matrix.T


def by_hand(filed: Filed, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The same of MiMo, whose layer reads what the target's last layer left, written out after vLLM's mimo_mtp."""
    stored, config = load_file(filed.folder / "model.safetensors"), filed.target.config
    config.head_dim = config.hidden_size // config.num_attention_heads
    main = Qwen2ForCausalLM(config)
    main.load_state_dict({name: tensor for name, tensor in stored.items() if "mtp_layers" not in name})
    left: list[Tensor] = []
    main.model.layers[-1].register_forward_hook(lambda _, __, output: left.append(output))
    main(token_ids[:, :-1], use_cache=False)
    layer, eps, rows = with_prefix(stored, "model.mtp_layers.0."), config.rms_norm_eps, []
    for row, states in enumerate(left[0]):
        embedded = stored["model.embed_tokens.weight"][token_ids[row, 1:]].clone()
        embedded[0] = 0
        read = torch.cat(
            (
                rms_norm(states, layer["hidden_layernorm.weight"], eps),
                rms_norm(embedded, layer["token_layernorm.weight"], eps),
            ),
            dim=-1,
        )
        hidden = read @ layer["input_proj.weight"].T
        normed = rms_norm(hidden, layer["input_layernorm.weight"], eps)
        hidden = hidden + attention(normed, layer, torch.arange(NUM_PAIRS), config)
        hidden = hidden + mlp(rms_norm(hidden, layer["post_attention_layernorm.weight"], eps), layer)
        rows.append(rms_norm(hidden, layer["final_layernorm.weight"], eps))
    return torch.stack(rows), torch.stack(rows) @ stored["lm_head.weight"].T


@torch.inference_mode()
def test_rows_equal_those_of_public_code(filed):
    """Would catch a name that stands for another tensor, embedding and state in the other order, a state of another
    place, a norm with another scale, and a matrix that is the target's although the file has one."""
    token_ids = sequences()
    hidden, logits = (by_hand if filed.model_type == "mimo" else by_transformers)(filed, token_ids)
    output = filed.head(*pairs(filed, token_ids), None)
    torch.testing.assert_close(output.hidden, hidden, **TOLERANCE)
    torch.testing.assert_close(filed.head.logits(output.hidden), logits, **TOLERANCE)
    # the next step reads what the logits are made of
    assert output.next_features is output.hidden and filed.head.features_are_hidden


@torch.inference_mode()
def test_pairs_over_slots_equal_whole_sequences(filed):
    """Ragged rows, and a chain that is rejected. Would catch a key of another row, or one that is not overwritten."""
    token_ids = sequences(3)
    tokens, features, positions = pairs(filed, token_ids)
    whole = filed.head(tokens, features, positions, None).hidden
    cache, slots, starts = filed.head.new_cache(4, NUM_PAIRS + 2), torch.tensor([2, 0, 3]), torch.tensor([3, 1, 2])
    filed.head(tokens[:, :4], features[:, :4], positions[:, :4], cache.view(slots, positions[:, :4], 4))
    rows = torch.arange(3)[:, None]
    for token_offset in (1, 0):
        again = starts[:, None] + torch.arange(2)
        given = (tokens[rows, again] + token_offset) % VOCAB_SIZE
        found = filed.head(given, features[rows, again], again, cache.view(slots, again, 5)).hidden
    torch.testing.assert_close(found, whole[rows, starts[:, None] + torch.arange(2)], **TOLERANCE)


@torch.inference_mode()
def test_nodes_of_a_tree_are_those_of_their_branches(filed):
    """Would catch a node that is placed by where it lies, or that sees another branch."""
    tokens, features, positions = pairs(filed, sequences(1))
    context, parents = NUM_PAIRS, torch.tensor([-1, 0, 0, 1])
    nodes, states = sequences(1, len(parents)), torch.randn(1, len(parents), features.shape[-1])
    cache, slots, sees = filed.head.new_cache(2, 16), torch.tensor([1]), ancestors(parents)
    filed.head(tokens, features, positions, cache.view(slots, positions, context))
    tree = TreePlaces(torch.tensor([context]), torch.arange(len(parents)), sees)
    depths = context + sees.sum(-1)[None] - 1
    found = filed.head(nodes, states, depths, cache.view(slots, depths, context + len(parents), tree)).hidden
    for node in range(len(parents)):
        branch = [
            torch.cat((known, drafted[:, sees[node]]), dim=1)
            for known, drafted in ((tokens, nodes), (features, states))
        ]
        whole = filed.head(*branch, torch.arange(branch[0].shape[1])[None], None).hidden
        torch.testing.assert_close(found[:, node], whole[:, -1], **TOLERANCE)


def test_greedy_tokens_are_those_without_drafts(filed):
    """Two slots for three requests, by the target's plain forward. Would catch a target whose states, recurrent ones
    too, keep something of rejected drafts."""
    prompts = [sequences(1, length)[0].tolist() for length in (3, 9, 5)]
    shape = DrafterShape(2, 40, 3, VOCAB_SIZE)
    loaded = load_head(drafter_of(DrafterKind.mtp), filed.target)
    assert loaded is not None and isinstance(loaded.head, GeneralMtpHead) and loaded.folder == filed.folder
    engine = engine_over(filed.target, ChainDrafter(loaded.head, DraftSampling.sampled, shape), shape, 8)
    run = engine.run(requests_of(prompts), lambda record: None)
    for record in run.requests:
        tokens = list(prompts[int(record.prompt_id)])
        for token in record.output_token_ids:
            given = torch.tensor([tokens])
            assert token == int(filed.target.network.plain_logits(given)[0, -1].argmax())
            tokens.append(token)
    assert engine.drafter.cache_bytes == loaded.head.new_cache(3, 40).num_bytes > 0


def test_what_is_told_is_the_same_before_a_run(filed):
    """Would catch a line of `--list` that a loader does not say, and a target that is told to be without MTP layers."""
    named = drafter_of(DrafterKind.mtp), TargetConfig(path=str(filed.folder))
    check_drafter_files(*named)
    assert assumed_of_drafter(*named) == filed.head.assumptions
    assert not any("MTP" in text for text in filed.target.assumptions)


def copied(filed: Filed, folder: Path, put: dict[str, Tensor] | None = None, drop: str = "", **fields: Any) -> Path:
    """A copy of a folder with other tensors and fields."""
    stored = load_file(filed.folder / "model.safetensors")
    kept = {name: tensor for name, tensor in stored.items() if not drop or not name.startswith(drop)}
    save_file(kept | (put or {}), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((filed.folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_what_is_missing_unknown_or_rounded_is_named(filed, tmp_path):
    """Before weights are loaded where headers tell it; a further layer is no unknown tensor."""
    prefix = filed.head.config.layout.first(2)
    named = drafter_of(DrafterKind.mtp), TargetConfig(path=str(tmp_path))
    projection = PUBLIC[filed.model_type].projection
    copied(filed, tmp_path, drop=prefix)
    with pytest.raises(SettingsError, match=rf"expected the tensors {prefix}\* of its MTP layer, found none"):
        check_drafter_files(*named)
    copied(filed, tmp_path, drop=projection)
    with pytest.raises(CheckpointError, match=rf"expected a tensor {projection} of shape \[32, 64\], found none"):
        load_general_mtp(tmp_path, filed.target)
    extra = f"{prefix}gates.weight"
    copied(filed, tmp_path, {extra: torch.ones(2)})
    with pytest.raises(CheckpointError, match=rf"found 1 that it does not have: {extra}; choose another drafter"):
        load_general_mtp(tmp_path, filed.target)
    vouched = load_general_mtp(tmp_path, filed.target, accepted=Accepted("drafter", (extra,)))
    assert f"{extra}: left out, because drafter.accept_unknown vouches for it" in vouched.assumptions
    copied(filed, tmp_path, {projection: torch.ones(32, 64).to(torch.float8_e4m3fn)})
    with pytest.raises(SettingsError, match=rf"expected tensor {projection} in plain numbers .*it is quantized"):
        check_drafter_files(*named)


def test_random_weights_are_the_same_at_every_call(filed):
    """Would catch a norm of 1 + w that doubles what it gets, and a bias that is not drawn."""
    filed.target.config.num_nextn_predict_layers = 1
    first, second = (load_head(drafter_of(DrafterKind.mtp, weights=Weights.random), filed.target) for _ in range(2))
    assert first is not None and second is not None and first.random_fingerprint == second.random_fingerprint
    others = second.module.state_dict()
    assert all(torch.equal(tensor, others[name]) for name, tensor in first.module.state_dict().items())
    hidden = first.head(*pairs(filed, sequences()), None).hidden
    assert 0.8 < float(hidden.square().mean().sqrt()) < 1.2


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> Filed:
    folder = save_public("qwen3_5_moe_text", tmp_path_factory.mktemp("qwen"))
    return filed_as("qwen3_5_moe_text", folder)


@torch.inference_mode()
def test_no_forward_waits_for_the_device(qwen):
    """Would catch a mask or a read of our own that a CUDA graph cannot hold."""
    tokens, features, positions = pairs(qwen, sequences())
    view = qwen.head.new_cache(3, 30).view(torch.tensor([1, 0]), positions, 30)
    with HostReads() as reads:
        qwen.head.logits(qwen.head(tokens, features, positions, view).hidden)
    assert reads.found == set()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_captured_steps_give_the_tokens_of_steps_without_graphs(qwen, device):
    """A target with recurrent states, and experts in its MTP layer too; two slots for three requests. On a CPU steps of
    fixed sizes stand for graphs."""
    target = load_target(qwen.folder, tokenizer=NO_TOKENIZER, device=device)
    prompts = [sequences(1, length)[0].tolist() for length in (3, 9, 5)]
    outputs = []
    for graphs in (False, True):
        loaded = load_head(drafter_of(DrafterKind.mtp), target)
        assert loaded is not None and isinstance(loaded.head, GeneralMtpHead)
        shape = DrafterShape(2, 48, 3, VOCAB_SIZE)
        drafter = ChainDrafter(loaded.head, DraftSampling.sampled, shape)
        run = engine_over(target, drafter, shape, 12, graphs=graphs).run(requests_of(prompts), lambda record: None)
        assert run.num_invalid == 0
        outputs.append({record.prompt_id: (record.output_token_ids, record.rounds) for record in run.requests})
    for name, (tokens, rounds) in outputs[0].items():
        captured, others = outputs[1][name]
        assert captured == tokens
        assert [item.num_accepted_tokens for item in others] == [item.num_accepted_tokens for item in rounds]


def test_experts_are_read_one_by_one_and_merged(qwen, tmp_path):
    """Public Qwen3.5 files have them merged, converted ones one by one."""
    stored, prefix = load_file(qwen.folder / "model.safetensors"), "mtp.layers.0.mlp.experts."
    one_by_one = {name: tensor for name, tensor in stored.items() if name.startswith(prefix)}
    count, parts = 4, ("gate_proj", "up_proj")
    merged = {
        f"{prefix}gate_up_proj": torch.stack(
            [torch.cat([one_by_one[f"{prefix}{each}.{part}.weight"] for part in parts]) for each in range(count)]
        ),
        f"{prefix}down_proj": torch.stack([one_by_one[f"{prefix}{each}.down_proj.weight"] for each in range(count)]),
    }
    head = load_general_mtp(copied(qwen, tmp_path, merged, drop=prefix), qwen.target)
    others = qwen.head.state_dict()
    assert all(torch.equal(tensor, others[name]) for name, tensor in head.state_dict().items())


def test_the_layer_of_a_multi_modal_checkpoint_is_that_of_its_text_part(tmp_path):
    """Would catch a count, a number of layers or a type that is looked for beside text_config alone."""
    plain = save_public("qwen3_5_text", tmp_path / "plain")
    nested = tmp_path / "nested"
    nested.mkdir()
    stored = load_file(plain / "model.safetensors")
    renamed = {
        f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
        for name, tensor in stored.items()
    }
    save_file(renamed, nested / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((plain / "config.json").read_text())
    whole = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    (nested / "config.json").write_text(json.dumps(whole))
    check_drafter_files(drafter_of(DrafterKind.mtp), TargetConfig(path=str(nested)))
    heads = [filed_as("qwen3_5_text", folder) for folder in (plain, nested)]
    given = sequences()
    rows = [each.head(*pairs(each, given), None).hidden for each in heads]
    assert torch.equal(*rows)


def test_of_several_layers_the_first_is_run_and_an_embedding_of_its_own_is_read_or_missed(qwen, tmp_path):
    further, own = {"mtp.layers.1.mlp.gate.weight": torch.ones(4, 32)}, torch.ones(VOCAB_SIZE, 32)
    head = load_general_mtp(copied(qwen, tmp_path, further, mtp_num_hidden_layers=2), qwen.target)
    assert head.assumptions == ("of its 2 MTP layers the first is run, once for each draft token",)
    put = {"mtp.embed_tokens.weight": own}
    head = load_general_mtp(copied(qwen, tmp_path, put, mtp_use_dedicated_embeddings=True), qwen.target)
    assert torch.equal(head.embed_weight, own)
    copied(qwen, tmp_path, mtp_use_dedicated_embeddings=True)
    with pytest.raises(
        CheckpointError, match=r"expected mtp\.embed_tokens\.weight, which mtp_use_dedicated_embeddings"
    ):
        load_general_mtp(tmp_path, qwen.target)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mistral"}, "expected a model_type whose MTP layers run here .*, found 'mistral'"),
        (
            {"mtp_num_hidden_layers": 0},
            r"expected a target with an MTP layer \(mtp_num_hidden_layers 1 or more\), found 0",
        ),
    ],
    ids=["another type", "none announced"],
)
def test_a_target_without_such_layers_is_refused_by_name(qwen, tmp_path, fields, message):
    copied(qwen, tmp_path, **fields)
    with pytest.raises(SettingsError, match=message):
        check_drafter_files(drafter_of(DrafterKind.mtp), TargetConfig(path=str(tmp_path)))
    with pytest.raises(CheckpointError, match=message):
        load_general_mtp(tmp_path, qwen.target)


def test_a_layer_of_another_folder_is_run_with_the_targets_fields(qwen, tmp_path):
    copied(qwen, tmp_path, rms_norm_eps=0.5)
    with pytest.raises(CheckpointError, match=r"rms_norm_eps = 0\.5 in config\.json, 1e-06 in that of the target"):
        load_general_mtp(tmp_path, qwen.target)
