"""A drafter must speak its target's language, token by token."""

from __future__ import annotations

import pytest

from harness.models.target import TargetModel
from harness.models.vocabulary import check_draft_model, check_same_tokenizer
from tests.tiny_models import VOCAB_SIZE, random_causal_lm, random_target, word_tokenizer


def draft_model(tokenizer=None, **changes):
    causal_lm = random_causal_lm(seed=7, num_hidden_layers=1, **changes)
    return TargetModel(causal_lm, tokenizer or word_tokenizer(), name="draft")


def test_the_same_vocabulary_is_accepted():
    assert check_draft_model(draft_model(), random_target()) is None


def test_another_size_is_refused_with_both_sizes():
    model = draft_model(word_tokenizer(VOCAB_SIZE + 2), vocab_size=VOCAB_SIZE + 2)
    with pytest.raises(ValueError) as error:
        check_draft_model(model, random_target())
    assert str(error.value) == (
        "draft: expected vocab_size 61, that of target tiny, found 63; the drafter was made for another target"
    )


def test_another_mapping_is_refused_with_an_example():
    with pytest.raises(ValueError) as error:
        check_draft_model(draft_model(word_tokenizer(swapped=True)), random_target())
    assert str(error.value) == (
        "draft: expected the tokenizer of target tiny (61 tokens), found one with 61 tokens that differs in 2, "
        "for example 'w7': id 7 in the target, 8 in the drafter; choose a drafter with the target's tokenizer"
    )


def test_a_token_too_few_is_refused():
    with pytest.raises(
        ValueError, match="one with 60 tokens that differs in 1, for example 'w60': id 60 in the target"
    ):
        check_same_tokenizer(word_tokenizer(60), random_target(), "folder")
