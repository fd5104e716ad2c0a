"""What is given of conversations that a target writes by itself, or answers.

Without prompts of the user's the target writes the questions too: behind what the chat template puts before a user's
message, an instruction-tuned model writes such a message. A row then holds one conversation of as many turns as fit.
Source: Xu et al., Magpie: Alignment Data Synthesis from Scratch (2024), arXiv 2406.08464.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from harness.training.sampler import Segments

_MARKS = "\ue000", "\ue001", "\ue002"
"""Stand for messages in a rendered template; letters that no template changes."""


def self_written(
    tokenizer: Any, end_ids: Collection[int], *, temperature: float, question_tokens: int, answer_tokens: int
) -> Segments:
    """Segments of conversations that the target writes: before its first question, before an answer, before the next.

    Args:
        end_ids: tokens that end a message.
        temperature: of questions. question_tokens, answer_tokens: the longest of either.

    Raises:
        ValueError: the template does not end a user's message by such a token, so that its end would not be seen.
    """
    question, answer, later = _MARKS
    if tokenizer.chat_template is None:
        raise ValueError(_without_questions("found none"))
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    answered = tokenizer.apply_chat_template([*messages, {"role": "user", "content": later}], tokenize=False)
    before, _, behind = asked.partition(question)
    between = answered.partition(answer)[2].partition(later)[0]
    texts = [before, behind, between]
    opening, *closing = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    for ids, text in zip(closing, texts[1:], strict=True):
        if not ids or ids[0] not in end_ids:
            raise ValueError(_without_questions(f"found {text!r} behind one"))
    if not opening or any(len(ids) < 2 for ids in closing):
        raise ValueError(_without_questions("found no text around it"))
    return Segments.of(
        [opening, *(ids[1:] for ids in closing)],
        following=[1, 2, 1],
        temperature=[temperature, float("nan"), temperature],
        is_answer=[False, True, False],
        most=[question_tokens, answer_tokens, question_tokens],
        end=[closing[0][0], closing[1][0], closing[0][0]],
    )


def _without_questions(found: str) -> str:
    return (
        "expected a chat template that ends a user's message by a token that ends an answer too, so that the model can "
        f"write questions, {found}; give prompts: workload.path=FILE"
    )


def given_prompts(prompts: Sequence[list[int]], *, stride: int, answer_tokens: int, end_id: int) -> Segments:
    """Segments of prompts that are answered; behind an answer a row goes on with the prompt `stride` ahead."""
    number = len(prompts)
    return Segments.of(
        list(prompts),
        following=[(index + stride) % number for index in range(number)],
        most=[answer_tokens] * number,
        end=[end_id] * number,
    )
