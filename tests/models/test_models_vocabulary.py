"""A drafter must speak its target's language, id by id, whatever padding and further ids either has."""

from __future__ import annotations

import pytest
import torch

from harness.models.draft_model import load_draft_model
from harness.models.token_ids import stored_token_ids
from tests.support.tiny_models import (
    VOCAB_SIZE,
    positions_from,
    random_causal_lm,
    random_target,
    random_tokens,
    save_target_folder,
    word_tokenizer,
)


@pytest.fixture
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
