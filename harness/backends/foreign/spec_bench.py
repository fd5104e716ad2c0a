"""Spec-Bench: answer files of its evaluation, with the tokens of every step.

Names and definitions were read in hemingkx/Spec-Bench at April 2025: evaluation/eval.py, speed.py, and the loops of
EAGLE-2, Medusa, SpS, PLD, REST and lookahead (model/, evaluation/inference_*.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told
from harness.backends.foreign.content import Content
from harness.backends.foreign.eagle import NO_TOKENS
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat

STEPS = (
    "accepted = tokens of a step less one; a step for which nothing was drafted counts as one without accepted tokens"
)


class SpecBenchAnswers(ForeignFormat):
    """Lines with choices of accept_lengths."""

    title = "answer files of Spec-Bench: `choices` with `accept_lengths`"
    source = "hemingkx/Spec-Bench fd2c1cd7, evaluation/eval.py"
    definitions = Definitions(
        mean="micro: mean of all steps of all questions",
        bonus="a step's length is its tokens: the accepted ones and the bonus or recovered token",
        denominators="steps, also those for which nothing was drafted; draft tokens are not counted",
        last_step="what lies behind the end of an answer is cut from the last step, as ours",
        warm_up="not in the file",
    )

    def recognises(self, content: Content) -> bool:
        return any(_choices(item) for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        found = [
            (str(item["question_id"]), turn)
            for item in content.objects
            for choice in _choices(item)
            for turn in _turns(choice)
        ]
        steps = [turn for _, turn in found]
        kept = [[max(0.0, length - 1) for length in each] for each in steps]
        sums = {
            "num_drafts": Given(tuple(float(len(each)) for each in steps), STEPS),
            "num_accepted_tokens": Given(tuple(map(sum, kept)), STEPS),
        }
        for place in range(1, 1 + int(max((count for each in kept for count in each), default=0))):
            values = tuple(float(sum(count >= place for count in each)) for each in kept)
            sums[f"{ACCEPTED}_{place}"] = Given(values, STEPS)
        lengths = [length for each in steps for length in each]
        told = (Told("#Mean accepted tokens", (sum(lengths) / max(1, len(lengths)),), "mean of accept_lengths"),)
        missing = {"num_draft_tokens": NO_TOKENS}
        return (Reading(sums, missing=missing, prompts=tuple(prompt for prompt, _ in found), told=told),)


def _turns(choice: Mapping[str, Any]) -> list[list[float]]:
    """The lengths of each turn: the file has them in one list, and the number of steps of each turn."""
    lengths, numbers = list(map(float, choice["accept_lengths"])), list(choice.get("decoding_steps") or ())
    if sum(numbers) != len(lengths):
        raise ValueError(f"expected decoding_steps that add up to {len(lengths)} accept_lengths, found {numbers}")
    ends = list(accumulate(numbers))
    return [lengths[end - number : end] for end, number in zip(ends, numbers, strict=True)]


def _choices(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = item.get("choices")
    if "question_id" not in item or not isinstance(found, list):
        return []
    return [choice for choice in found if isinstance(choice, dict) and "accept_lengths" in choice]
