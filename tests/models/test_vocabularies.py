"""A drafter must speak its target's language, id by id, whatever padding and further ids either has."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.models.checkpoint import CheckpointError
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.dflash import DFlashHead
from harness.models.draft_model import load_draft_model
from harness.models.eagle3 import load_eagle3
from harness.models.free_memory import weights_need
from harness.models.head import save_head
from harness.models.token_ids import stored_token_ids
from tests.support.tiny_heads import LOADERS, block_logits, make_head
from tests.support.tiny_models import (
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


@pytest.fixture(scope="module")
def target():
    return random_target()


def draft_folder(folder, num_rows=VOCAB_SIZE, tokenizer=None, kind="llama", **changes):
    causal_lm = random_causal_lm(kind, seed=7, num_hidden_layers=1, vocab_size=num_rows, **changes)
    save_target_folder(folder, causal_lm, tokenizer)
    return causal_lm


def logits(model, token_ids):
    output = model.forward(token_ids, positions_from([0] * len(token_ids), token_ids.shape[1]), None)
    return model.logits(output.hidden)


@pytest.mark.parametrize("kind", ["llama", "llama_tied"])
@pytest.mark.parametrize("num_rows", [VOCAB_SIZE, VOCAB_SIZE + 3])
def test_rows_beyond_the_targets_vocabulary_are_as_if_their_logits_were_minus_infinity(
    tmp_path, target, num_rows, kind
):
    """Would catch a padded draft model that is refused, or whose padding keeps some of the probability."""
    # its padding token is the one more that it has
    causal_lm = draft_folder(tmp_path, num_rows, kind=kind, pad_token_id=num_rows - 1)
    model, tokens = load_draft_model(tmp_path, target), random_tokens(2, 5)
    expected = causal_lm(tokens).logits
    expected[..., VOCAB_SIZE:] = -torch.inf
    found = logits(model, tokens)
    told = f"it has {num_rows} rows for the target's {VOCAB_SIZE} token ids, and never drafts those beyond"
    assert model.vocab_size == VOCAB_SIZE and model.assumptions == ((told,) if num_rows > VOCAB_SIZE else ())
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1)[..., :VOCAB_SIZE], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "llama_tied"])
def test_ids_that_a_draft_model_lacks_are_never_drafted_and_read_as_its_last(tmp_path, target, kind):
    """Would catch an index beyond its embedding, which a GPU would stop at without a word on why."""
    causal_lm = draft_folder(tmp_path, 50, word_tokenizer(50), kind=kind)
    model = load_draft_model(tmp_path, target)
    found = logits(model, torch.tensor([[3, 60, 4]]))
    torch.testing.assert_close(found, causal_lm(torch.tensor([[3, 49, 4]])).logits, rtol=1e-5, atol=1e-5)
    assert found.shape[-1] == 50
    assert model.assumptions == (
        "it has 50 of the target's 61 token ids, and never drafts the others, and reads the others as 49",
    )


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            word_tokenizer(swapped=True),
            "found 2 that do not: 7 is 'w8' in the drafter and 'w7' in the target; 8 is 'w7' in the drafter and "
            "'w8' in the target; choose a drafter with the target's tokenizer",
        ),
        # a token that moved to an id that the target does not have
        (word_tokenizer(renamed={"w9": 63}), "found 1 that do not: 63 is 'w9' in the drafter and 9 in the target;"),
        # an id that both have, with a token that the target does not know
        (
            word_tokenizer(renamed={"other": 9}),
            "found 1 that do not: 9 is 'other' in the drafter and 'w9' in the target",
        ),
    ],
    ids=["swapped", "moved", "another token"],
)
def test_ids_that_differ_in_meaning_are_refused_by_name(tmp_path, target, theirs, message):
    draft_folder(tmp_path, VOCAB_SIZE + 3, theirs)
    with pytest.raises(ValueError) as error:
        load_draft_model(tmp_path, target)
    assert message in str(error.value) and str(error.value).startswith(f"{tmp_path}: expected token ids that mean")


@pytest.mark.parametrize(
    ("num_rows", "outcome"),
    [
        (VOCAB_SIZE, ("it has no tokenizer of its own, and its token ids are taken for the target's",)),
        (
            70,
            (
                "it has no tokenizer to compare, and its 70 token ids are taken for the target's 61 but for padding",
                "it has 70 rows for the target's 61 token ids, and never drafts those beyond",
            ),
        ),
        (60, None),
        (VOCAB_SIZE + 513, None),
    ],
    ids=["same size", "padded", "fewer than the target's tokenizer has", "too many to be padding"],
)
def test_without_a_tokenizer_of_its_own_a_draft_model_may_differ_by_padding_alone(tmp_path, target, num_rows, outcome):
    draft_folder(tmp_path, num_rows)
    for path in tmp_path.glob("*token*"):
        path.unlink()
    if outcome is None:
        with pytest.raises(ValueError, match=f"expected vocab_size 61, that of target tiny, found {num_rows}, and no "):
            load_draft_model(tmp_path, target)
    else:
        assert load_draft_model(tmp_path, target).assumptions == outcome


def test_ids_are_read_from_the_file_as_the_loaded_tokenizer_has_them(tmp_path):
    """Would catch a check before the start that sees other ids than the loader."""
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["one more", "another"])
    tokenizer.save_pretrained(tmp_path)
    assert stored_token_ids(tmp_path) == tokenizer.get_vocab()
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": [["a", -1.5], ["b", -2]]}}')
    assert stored_token_ids(tmp_path) == {"a": 0, "b": 1}
    (tmp_path / "tokenizer.json").write_text("{")
    assert stored_token_ids(tmp_path) is None


BEYOND = 3


def over_all_tokens(kind, target):
    """A head with matrices of its own that drafts every token."""
    if kind in BLOCK_HEADS:
        return make_head(kind, target, torch.arange(VOCAB_SIZE), num_hidden_layers=1)
    return make_head(kind, target, None, own_embedding=True)


KINDS = ("eagle", "eagle3", "peagle", *BLOCK_HEADS)


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


def head_logits(head, target, tokens):
    """Of a row of pairs; of a head of blocks, the rows of one."""
    if isinstance(head, DFlashHead):
        return block_logits(head)
    output = target.forward(tokens, positions_from([0], tokens.shape[1]), None, head.aux_layers)
    return head.logits(head(tokens, head.features(output), positions_from([0], tokens.shape[1]), None).hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_beyond_the_targets_are_left_out(tmp_path, target, kind):
    """Would catch a padded head that is refused, and draft ids that the target does not have."""
    head = over_all_tokens(kind, target)
    saved(head, tmp_path, VOCAB_SIZE + BEYOND)
    loaded, tokens = LOADERS[kind](tmp_path, target), random_tokens(1, 6)
    assert loaded.vocab_size == VOCAB_SIZE and loaded.draft_to_target is None
    torch.testing.assert_close(
        head_logits(loaded, target, tokens),
        head_logits(head, target, tokens),
    )
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
    found = head_logits(loaded, target, tokens)
    # an EAGLE head gives the target's states, whose output matrix has all
    has_all = kind == "eagle"
    assert found.shape[-1] == loaded.vocab_size == (VOCAB_SIZE if has_all else VOCAB_SIZE - BEYOND)
    assert loaded.draft_to_target is None or loaded.draft_to_target.tolist() == list(range(VOCAB_SIZE - BEYOND))
    told = {
        "eagle": ("reads the others as 57",),
        "eagle3": ("never drafts the others, and reads the others as 57",),
        "peagle": ("never drafts the others, and reads the others as 57",),
        **dict.fromkeys(BLOCK_HEADS, ("never drafts the others",)),
    }
    assert loaded.assumptions == tuple(f"it has 58 of the target's 61 token ids, and {text}" for text in told[kind])
    if kind not in BLOCK_HEADS:
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
    torch.testing.assert_close(
        head_logits(loaded, target, tokens),
        head_logits(head, target, tokens),
    )
    assert "the head has no lm_head of its own: the target's output matrix is taken" in loaded.assumptions
    assert "lm_head.weight" not in loaded.state_dict_public() and loaded.cost.output is target.output_matrix


def test_a_head_over_few_tokens_without_an_output_matrix_takes_the_targets_rows_of_these(tmp_path, target):
    """Would catch the first rows, or all, in the place of those of its tokens; a copy that is stored or not counted."""
    head, tokens = make_head("eagle3", target), random_tokens(1, 6)
    save_head(head, tmp_path)
    edit_weights(tmp_path, drop="lm_head.weight")
    loaded = load_eagle3(tmp_path, target)
    assert loaded.draft_to_target.tolist() == head.draft_to_target.tolist()
    with torch.no_grad():
        head.lm_head.weight.copy_(target.output_matrix[head.draft_to_target])
    torch.testing.assert_close(head_logits(loaded, target, tokens), head_logits(head, target, tokens))
    assert loaded.assumptions == (
        "the head has no lm_head of its own: the target's rows of its draft tokens are taken",
    )
    assert "output_rows" not in loaded.state_dict_public() and not loaded.has_own_output
    assert loaded.cost.output.shape == head.lm_head.weight.shape
    assert loaded.num_parameters == head.num_parameters - head.lm_head.weight.numel()
    # the copy takes memory beside the weights
    assert weights_need("", loaded).num_bytes == weights_need("", head).num_bytes


def test_the_targets_output_matrix_must_fit_a_head_without_one(tmp_path, target):
    save_head(make_head("eagle3", target, own_embedding=True, hidden_size=12), tmp_path)
    edit_weights(tmp_path, drop="lm_head.weight")
    with pytest.raises(
        CheckpointError, match=r"expected lm_head\.weight, or hidden_size 24 of target .*hidden_size 12"
    ):
        load_eagle3(tmp_path, target)
