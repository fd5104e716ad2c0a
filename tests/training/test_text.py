"""Text that a target writes for training: what is given, what is drawn, how long it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.training.chat_segments import self_written
from harness.training.sampler import Sampler, Segments
from tests.support.tiny_models import random_target

pytestmark = pytest.mark.fast

END, END_OF_QUESTION = 7, 9


def test_answers_follow_the_temperature_of_their_row_and_end_when_they_must() -> None:
    """At temperature 0 every drawn token is the argmax of what stands before it."""
    target = random_target()
    segments = Segments.of(
        [[4, 5], [8, 10]], following=[1, 0], temperature=[1.0, float("nan")], is_answer=[False, True], most=[3, 4],
        end=[END_OF_QUESTION, END],
    )  # fmt: skip
    torch.manual_seed(0)
    rows, length = 6, 40
    temperature = torch.tensor([0.0, 1.0] * 3)
    sampled = Sampler(target, segments, (), num_rows=rows, length=length).sample(
        torch.zeros(rows, dtype=torch.int64), temperature
    )
    tokens, given, is_answer = sampled
    # without end tokens every turn is as long as it may be: 2 given, 3 drawn, 1 given, 2 given, 4 drawn, 1 given
    turn = [True] * 2 + [False] * 3 + [True] * 3 + [False] * 4 + [True]
    assert given[:, : len(turn)].tolist() == [turn] * rows
    assert tokens[:, 5].tolist() == [END_OF_QUESTION] * rows and tokens[:, 12].tolist() == [END] * rows
    assert is_answer[0, :13].nonzero().flatten().tolist() == [8, 9, 10, 11]
    with torch.no_grad():
        hidden = target.forward(tokens, torch.arange(length)[None].expand(rows, -1), None).hidden
        best = target.logits(hidden).argmax(-1)
    hits = (best[:, :-1] == tokens[:, 1:])[:, :].masked_fill(~is_answer[:, 1:], True)
    assert hits[::2].all() and not hits[1::2].all()


CHAT = (
    "{% for m in messages %}w2 {% if m.role == 'user' %}w11{% else %}w12{% endif %} {{ m.content }} w3 w14 "
    "{% endfor %}{% if add_generation_prompt %}w2 w12 {% endif %}"
)


class Words:
    """A tokenizer of words `w7`, with a chat template."""

    chat_template = CHAT

    def apply_chat_template(self, messages: Any, tokenize: bool = False, add_generation_prompt: bool = False) -> str:
        from jinja2 import Template

        return Template(self.chat_template).render(messages=messages, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [int(word[1:]) for word in text.split()]


def test_questions_are_written_behind_what_the_template_puts_before_a_user() -> None:
    segments = self_written(Words(), {3}, temperature=0.5, question_tokens=5, answer_tokens=6)
    rows = [row[:size].tolist() for row, size in zip(segments.tokens, segments.lengths, strict=True)]
    assert rows == [[2, 11], [14, 2, 12], [14, 2, 11]]
    assert segments.following.tolist() == [1, 2, 1] and segments.is_answer.tolist() == [False, True, False]
    assert segments.end.tolist() == [3, 3, 3] and segments.most.tolist() == [5, 6, 5]


@pytest.mark.parametrize("template", [None, CHAT.replace("w3", "w4")], ids=["no template", "no end of a question"])
def test_a_target_that_cannot_write_questions_is_told_to_be_given_prompts(template: str | None) -> None:
    tokenizer = Words()
    tokenizer.chat_template = template  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"give prompts: workload\.path=FILE"):
        self_written(tokenizer, {3}, temperature=1, question_tokens=5, answer_tokens=6)
