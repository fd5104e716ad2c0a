"""Heads whose files have more rows, or fewer, than their target has tokens, or no output matrix."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.models.checkpoint import CheckpointError
from harness.models.dflash import DFlashHead
from harness.models.eagle3 import load_eagle3
from harness.models.head import save_head
from tests.support.tiny_heads import LOADERS, make_head
from tests.support.tiny_models import (
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_target,
    random_tokens,
    word_tokenizer,
)

BEYOND = 3


@pytest.fixture(scope="module")
def target():
    return random_target()


def over_all_tokens(kind, target):
    """A head with matrices of its own that drafts every token."""
    if kind == "dflash":
        return make_head(kind, target, torch.arange(VOCAB_SIZE), num_hidden_layers=1)
    return make_head(kind, target, None, own_embedding=True)


KINDS = ("eagle", "eagle3", "peagle", "dflash")


def saved(head, folder, num_rows):
    """Write a head for a vocabulary of another size: rows of large numbers more, or the last ones less."""
    save_head(head, folder)
    tensors = {name: resized(tensor, num_rows) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    data = json.loads((folder / "config.json").read_text())
    if "transformer_layer_config" in data:
        sizes = data["transformer_layer_config"] | {"vocab_size": num_rows}
        edit_config(folder, transformer_layer_config=sizes, draft_vocab_size=num_rows)
    else:
        edit_config(folder, vocab_size=num_rows)


def resized(tensor, num_rows):
    """Offsets of draft ids are those of a whole vocabulary; so is the mask of drawable ids."""
    if len(tensor) != VOCAB_SIZE:
        return tensor
    if tensor.ndim == 1:
        return torch.zeros(num_rows, dtype=torch.int64) if tensor.dtype is torch.int64 else torch.ones(num_rows).bool()
    beyond = torch.full((max(num_rows - VOCAB_SIZE, 0), tensor.shape[1]), 1e3, dtype=tensor.dtype)
    return torch.cat((tensor, beyond))[:num_rows].contiguous()


def logits(head, target, tokens):
    """Of a row of pairs; of DFlash, of the states that its output matrix gets."""
    if isinstance(head, DFlashHead):
        return head.logits(target.embed(tokens))
    output = target.forward(tokens, positions_from([0], tokens.shape[1]), None, head.aux_layers)
    return head.logits(head(tokens, head.features(output), positions_from([0], tokens.shape[1]), None).hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_beyond_the_targets_are_left_out(tmp_path, target, kind):
    """Would catch a padded head that is refused, and draft ids that the target does not have."""
    head = over_all_tokens(kind, target)
    saved(head, tmp_path, VOCAB_SIZE + BEYOND)
    loaded, tokens = LOADERS[kind](tmp_path, target), random_tokens(1, 6)
    assert loaded.vocab_size == VOCAB_SIZE and loaded.draft_to_target is None
    torch.testing.assert_close(logits(loaded, target, tokens), logits(head, target, tokens))
    size, found = VOCAB_SIZE + BEYOND, loaded.assumptions
    assert (
        f"it has no tokenizer to compare, and its {size} token ids are taken for the target's 61 but for padding"
        in found
    )
    assert loaded.config.layer.vocab_size == VOCAB_SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_a_head_lacks_are_not_drafted(tmp_path, target, kind):
    """Would catch an index beyond its embedding, and logits for ids that it has none for."""
    head = over_all_tokens(kind, target)
    saved(head, tmp_path, VOCAB_SIZE - BEYOND)
    word_tokenizer(VOCAB_SIZE - BEYOND).save_pretrained(tmp_path)
    loaded, tokens = LOADERS[kind](tmp_path, target), torch.tensor([[4, VOCAB_SIZE - 1, 9]])
    found = logits(loaded, target, tokens)
    # an EAGLE head gives the target's states, whose output matrix has all
    has_all = kind == "eagle"
    assert found.shape[-1] == loaded.vocab_size == (VOCAB_SIZE if has_all else VOCAB_SIZE - BEYOND)
    assert loaded.draft_to_target is None or loaded.draft_to_target.tolist() == list(range(VOCAB_SIZE - BEYOND))
    told = {
        "eagle": ("reads the others as 57",),
        "eagle3": ("never drafts the others, and reads the others as 57",),
        "peagle": ("never drafts the others, and reads the others as 57",),
        "dflash": ("never drafts the others",),
    }
    assert loaded.assumptions == tuple(f"it has 58 of the target's 61 token ids, and {text}" for text in told[kind])
    if kind != "dflash":
        assert torch.equal(loaded.embed(tokens)[0, 1], head.embed_tokens.weight[VOCAB_SIZE - BEYOND - 1])


@pytest.mark.parametrize(
    ("kind", "num_rows"), [("eagle3", VOCAB_SIZE), ("eagle3", VOCAB_SIZE + BEYOND), ("peagle", VOCAB_SIZE)]
)
def test_a_head_over_all_tokens_without_an_output_matrix_takes_the_targets(tmp_path, target, kind, num_rows):
    """Would catch a refusal, and a matrix that is taken without a word."""
    head = over_all_tokens(kind, target)
    saved(head, tmp_path, num_rows)
    for name in ("lm_head.weight", "d2t", "t2d"):
        edit_weights(tmp_path, drop=name)
    loaded, tokens = LOADERS[kind](tmp_path, target), random_tokens(1, 6)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.output_matrix)
    torch.testing.assert_close(logits(loaded, target, tokens), logits(head, target, tokens))
    assert "it has no lm_head, and the target's output matrix is taken" in loaded.assumptions
    assert "lm_head.weight" not in loaded.state_dict_public() and loaded.cost.output is target.output_matrix


def test_a_head_over_few_tokens_needs_an_output_matrix(tmp_path, target):
    save_head(make_head("eagle3", target), tmp_path)
    edit_weights(tmp_path, drop="lm_head.weight")
    message = (
        r"expected lm_head\.weight, or a head over all 61 tokens .* found none, draft_vocab_size 9 and hidden_size 24"
    )
    with pytest.raises(CheckpointError, match=message):
        load_eagle3(tmp_path, target)
