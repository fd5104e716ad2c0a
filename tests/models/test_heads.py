"""What holds for every draft head, which a kind passes by its row in tests/support/tiny_heads.py.

Its files go there and back, what does not fit is refused, cached chains equal full sequences, nothing of the target is
registered.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from harness.models.checkpoint import CheckpointError
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.target import TargetModel, load_target
from tests.support.tiny_heads import (
    AUX_LAYERS,
    DRAFT_IDS,
    KINDS,
    LOADERS,
    MTP_PREFIX,
    TENSORS,
    load_quietly,
    logits_of,
    make_head,
    run,
    save,
)
from tests.support.tiny_models import (
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_causal_lm,
    random_target,
    random_tokens,
    save_target_folder,
    word_tokenizer,
)

pytestmark = pytest.mark.fast


class Filed(NamedTuple):
    """A head as a folder of files."""

    kind: str
    head: Any
    folder: Path

    @property
    def prefix(self) -> str:
        """Of the names of its tensors."""
        return MTP_PREFIX if self.kind == "mtp" else ""

    @property
    def up(self) -> str:
        """The name of one of its projections."""
        return f"{self.prefix}mlp.up_proj.weight" if self.kind == "mtp" else "layers.0.mlp.up_proj.weight"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Those of the head: an MTP layer lies among its target's."""
        stored = load_file(self.folder / "model.safetensors")
        return {name: tensor for name, tensor in stored.items() if name.startswith(self.prefix)}

    def load(self) -> Any:
        return LOADERS[self.kind](self.folder, self.head.target)


@pytest.fixture(scope="module")
def filed_target(tmp_path_factory) -> TargetModel:
    return load_target(save_target_folder(tmp_path_factory.mktemp("target"), random_causal_lm()), name="tiny")


@pytest.fixture(params=KINDS)
def filed(request, tmp_path, filed_target) -> Filed:
    """A head of each kind in a folder of its own."""
    kind = request.param
    if kind == "mtp":
        shutil.copytree(filed_target.path, tmp_path, dirs_exist_ok=True)
    head = make_head(kind, filed_target)
    save(head, tmp_path)
    return Filed(kind, head, tmp_path)


def test_files_go_there_and_back(filed):
    """Would catch a name that other readers do not know, and a field that is lost."""
    assert set(filed.tensors()) == TENSORS[filed.kind] == set(filed.head.state_dict_public())
    loaded = load_quietly(filed.kind, filed.folder, filed.head.target)
    configs = (loaded.config, filed.head.config)
    assert len({str(config if filed.kind == "mtp" else config.to_dict()) for config in configs}) == 1
    assert loaded.path == filed.folder
    assert torch.equal(logits_of(loaded), logits_of(filed.head))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_bfloat16_files_keep_their_index_tensors_and_load_in_the_targets_dtype(filed):
    save(filed.head, filed.folder, torch.bfloat16)
    dtypes = {name: tensor.dtype for name, tensor in filed.tensors().items()}
    indices = {"d2t": torch.int64, "t2d": torch.bool}
    assert dtypes == {name: indices.get(name, torch.bfloat16) for name in TENSORS[filed.kind]}
    loaded = filed.load()
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(logits_of(loaded), logits_of(filed.head), rtol=0.1, atol=0.5)


def test_a_missing_tensor_is_named_with_its_shape(filed):
    edit_weights(filed.folder, drop=filed.up)
    with pytest.raises(CheckpointError, match=rf"expected a tensor {filed.up} of shape \[40, 24\], found none"):
        filed.load()


def test_a_misshapen_tensor_is_named_with_both_shapes(filed):
    edit_weights(filed.folder, put={filed.up: torch.ones(24, 24)})
    with pytest.raises(CheckpointError, match=rf"{filed.up} of shape \[40, 24\], found \[24, 24\]"):
        filed.load()


def test_another_vocabulary_is_refused(filed):
    data = json.loads((filed.folder / "config.json").read_text())
    smaller = {"vocab_size": VOCAB_SIZE - 1}
    if "transformer_layer_config" in data:
        smaller = {"transformer_layer_config": data["transformer_layer_config"] | smaller}
    edit_config(filed.folder, **smaller)
    with pytest.raises(CheckpointError, match=f"expected vocab_size {VOCAB_SIZE}, that of target tiny, .*found 60"):
        filed.load()


def test_a_tokenizer_in_the_folder_must_be_the_targets(filed):
    word_tokenizer().save_pretrained(filed.folder)
    assert filed.load().path == filed.folder
    word_tokenizer(swapped=True).save_pretrained(filed.folder)
    with pytest.raises(CheckpointError, match="found 2 that do not: 7 is 'w8' in the drafter and 'w7' in the target"):
        filed.load()


def test_an_embedding_equal_to_the_targets_is_shared_and_another_is_used_where_a_head_has_one(filed):
    """An MTP layer keeps what lies beside it. A head that fills blocks is run with its target's."""
    name = f"{filed.prefix}embed_tokens.weight"
    edit_weights(filed.folder, put={name: filed.head.target.embed_weight.clone()})
    assert set(filed.load().state_dict_public()) == TENSORS[filed.kind] | ({name} if filed.kind == "mtp" else set())
    edit_weights(filed.folder, put={name: filed.head.target.embed_weight + 1})
    if filed.kind in BLOCK_HEADS:
        with pytest.raises(CheckpointError, match=r"embed_tokens\.weight to be that of target tiny, .* another one"):
            filed.load()
        return
    loaded = filed.load()
    assert set(loaded.state_dict_public()) == TENSORS[filed.kind] | {name}
    assert torch.equal(loaded.embed(torch.arange(VOCAB_SIZE)), filed.head.target.embed_weight + 1)
    assert not torch.allclose(logits_of(loaded), logits_of(filed.head), atol=1e-2)


CHAINS = {"eagle": {}, "eagle3": {}, "eagle3_norm_output": {"norm_output": True}, "mtp": {}}


@pytest.fixture(params=CHAINS)
def kind(request):
    return request.param


@pytest.fixture(params=["llama", "qwen3"])
def target(request):
    return random_target(request.param)


def make(kind, target):
    return make_head(kind.split("_")[0], target, **CHAINS[kind])


def pairs(head, target, tokens):
    """Token and feature of each pair of [B, T + 1] tokens."""
    num_pairs = tokens.shape[1] - 1
    output = target.forward(tokens, positions_from([0] * len(tokens), num_pairs + 1), None, head.aux_layers)
    return tokens[:, 1:], head.features(output)[:, :num_pairs]


def whole(head, tokens, features):
    """Run pairs of one sequence at once: [1, T] tokens."""
    return head(tokens, features, positions_from([0], tokens.shape[1]), None)


def test_pairs_on_ragged_rows_equal_whole_sequences(kind, target):
    head = make(kind, target)
    tokens, features = pairs(head, target, random_tokens(3, 10))
    lengths, cache = [2, 8, 5], head.new_cache(num_slots=3, capacity=12)
    positions = positions_from([0, 0, 0], 8)
    head(tokens[:, :8], features[:, :8], positions, cache.view(slice(0, 3), positions, 8))
    # one more pair for each row, over what the padding left
    index = torch.tensor(lengths)
    row = torch.arange(3)
    view = cache.view(slice(0, 3), index[:, None], 9)
    found = head(tokens[row, index][:, None], features[row, index][:, None], index[:, None], view)
    for r, length in enumerate(lengths):
        expected = whole(head, tokens[r : r + 1, : length + 1], features[r : r + 1, : length + 1])
        torch.testing.assert_close(found.hidden[r, 0], expected.hidden[0, -1], **TOLERANCE)
        torch.testing.assert_close(found.next_features[r, 0], expected.next_features[0, -1], **TOLERANCE)


def test_a_cached_chain_equals_full_sequences(kind, target):
    """Each step of a chain: position t + 1, the token just drafted, the features that the step before returned."""
    head = make(kind, target)
    tokens, features = pairs(head, target, random_tokens(1, 6))
    drafted = random_tokens(1, 4, seed=9)
    cache, positions = head.new_cache(num_slots=2, capacity=12), positions_from([0], 5)
    output = head(tokens, features, positions, cache.view(slice(1, 2), positions, 5))
    for step in range(4):
        position = torch.tensor([[5 + step]])
        tokens = torch.cat((tokens, drafted[:, step : step + 1]), dim=1)
        features = torch.cat((features, output.next_features[:, -1:]), dim=1)
        view = cache.view(slice(1, 2), position, 6 + step)
        output = head(tokens[:, -1:], features[:, -1:], position, view)
        expected = whole(head, tokens, features)
        torch.testing.assert_close(output.hidden[:, -1], expected.hidden[:, -1], **TOLERANCE)
        torch.testing.assert_close(output.next_features[:, -1], expected.next_features[:, -1], **TOLERANCE)


class UnrolledView:
    """A view as training would pass it: keys of earlier steps kept beside those of this step, with gradients."""

    rope_table = None

    def __init__(self, mask):
        self.mask = mask
        self.keys, self.values = [], []

    def update(self, key, value, layer_idx, *_):
        assert layer_idx == 0
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


def test_any_view_serves_and_gradients_reach_the_head_only(kind, target):
    head = make(kind, target).train().requires_grad_(True)
    tokens, features = pairs(head, target, random_tokens(2, 7))
    positions = positions_from([0, 0], 6)
    view = UnrolledView(torch.ones(6, 6).tril().bool()[None, None])
    first = head(tokens, features, positions, view)
    torch.testing.assert_close(first.hidden, head(tokens, features, positions, None).hidden, **TOLERANCE)
    view.mask = torch.cat((view.mask, torch.eye(6).bool()[None, None]), dim=3)
    second = head(tokens, first.next_features, positions, view)
    head.logits(second.hidden).square().mean().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    assert all(parameter.grad is None for parameter in target.causal_lm.parameters())


def test_nothing_of_the_target_belongs_to_the_head(kind, target):
    head = make(kind, target)
    shared = {parameter.data_ptr() for parameter in target.causal_lm.parameters()}
    assert not shared & {parameter.data_ptr() for parameter in head.parameters()}
    assert head.num_parameters == sum(
        tensor.numel() for tensor in head.state_dict().values() if tensor.is_floating_point()
    )


def test_next_features_are_what_the_logits_take_where_a_head_says_so(kind, target):
    head = make(kind, target)
    output = run(head, num_pairs=3)[2]
    assert torch.equal(output.next_features, output.hidden) == head.features_are_hidden
    out = torch.zeros(2, 5, head.vocab_size)[:, 1]
    expected = head.logits(output.hidden[:, 0])
    assert head.logits(output.hidden[:, 0], out) is out and torch.equal(out, expected)


def test_sizes_of_logits_and_caches(kind, target):
    head = make(kind, target)
    output = run(head, num_pairs=3)[2]
    assert head.logits(output.hidden).shape == (2, 3, head.vocab_size)
    if kind.startswith("eagle3"):
        assert head.vocab_size == len(DRAFT_IDS) and torch.equal(head.draft_to_target, DRAFT_IDS)
        assert head.aux_layers == AUX_LAYERS
    else:
        assert head.vocab_size == VOCAB_SIZE and head.draft_to_target is None and head.aux_layers == ()
    cache = head.new_cache(num_slots=2, capacity=7)
    assert len(cache.keys) == 1 and cache.keys[0].shape == (2, 2, 7, 8)
