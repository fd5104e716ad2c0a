"""EAGLE's evaluation: answer files of gen_ea_answer_*.py, and those of gen_ea_alpha_*.py with acceptance by position.

Names and definitions were read in SafeAILab/EAGLE at February 2026: eagle/evaluation/gen_ea_answer_llama3chat.py,
gen_ea_alpha_vicuna.py, alpha.py, and eagle/model/ea_model.py, whose loop counts from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from harness.analysis.converted import ACCEPTED, REACHED, Given, Reading, Told
from harness.backends.foreign.content import Content
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat

ROUNDS = "rounds = idx + 1, as its loop counts from 0"
KEPT = "accepted = new_tokens - rounds, as a round adds its accepted tokens and one"
NO_TOKENS = "the file does not count draft tokens; trees have more of them than a draft is long"


class EagleAnswers(ForeignFormat):
    """Lines with choices of idxs and new_tokens."""

    title = "answer files of EAGLE's evaluation: `choices` with `idxs` and `new_tokens` (and `alpha`)"
    source = "SafeAILab/EAGLE cb7e0841, eagle/evaluation and eagle/model/ea_model.py"
    definitions = Definitions(
        mean="none in the file; users average new_tokens / idxs, by question or in all",
        bonus="a round's new tokens are its accepted ones and one more: in the first round that of the prefill; what "
        "the last round drew itself is not counted",
        denominators="alpha / alpha_num: accepted / reached at each position, the conditional rate",
        last_step="new_tokens counts what a last round accepted beyond the end of an answer",
        warm_up="not in the file",
    )

    def recognises(self, content: Content) -> bool:
        return any(_choices(item) for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        prompts: list[str] = []
        rounds: list[float] = []
        tokens: list[float] = []
        reached: list[list[float]] = []
        accepted: list[list[float]] = []
        for item in content.objects:
            for choice in _choices(item):
                pairs = list(zip(choice["idxs"], choice["new_tokens"], strict=True))
                for place, (last, new) in enumerate(pairs):
                    prompts.append(str(item["question_id"]))
                    rounds.append(float(last) + 1)
                    tokens.append(float(new))
                    # of all turns of a choice together
                    is_first = place == 0
                    reached.append([float(count) for count in choice.get("alpha_num", ())] if is_first else [])
                    accepted.append([float(count) for count in choice.get("alpha", ())] if is_first else [])
        kept = [new - number for new, number in zip(tokens, rounds, strict=True)]
        if min(kept, default=0) < 0:
            raise ValueError("expected a token of each round at least, found new_tokens below idx + 1")
        sums = {
            "num_drafts": Given(tuple(rounds), ROUNDS),
            "num_accepted_tokens": Given(tuple(kept), KEPT),
        }
        missing = {"num_draft_tokens": NO_TOKENS, ACCEPTED: "the file has no alpha and alpha_num"}
        metrics: dict[str, Given] = {}
        width = max(map(len, reached), default=0)
        for place in range(width):
            at = [tuple(row[place] if place < len(row) else 0.0 for row in rows) for rows in (reached, accepted)]
            if sum(at[0]):
                sums[f"{REACHED}_{place + 1}"] = Given(at[0])
                sums[f"{ACCEPTED}_{place + 1}"] = Given(at[1])
                rates = [sums[f"{ACCEPTED}_{i}"].total / sums[f"{REACHED}_{i}"].total for i in range(1, place + 2)]
                how = "product of the conditional rates up to the position, as every draft goes on to it"
                metrics[f"acceptance_rate_per_pos_{place + 1}"] = Given((prod(rates),), how)
        notes = ("no draft token was accepted anywhere: as in a baseline's file",) if not any(kept) else ()
        told = (
            Told(
                "sum of new_tokens / sum of idxs",
                (sum(tokens) / max(1.0, sum(rounds) - len(rounds)),),
                "as often published: idx is one less than the rounds, so it is too high",
            ),
        )
        return (Reading(sums, metrics, missing, tuple(prompts), None, told, notes),)


def _choices(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = item.get("choices")
    if "question_id" not in item or not isinstance(found, list):
        return []
    return [choice for choice in found if isinstance(choice, dict) and {"idxs", "new_tokens"} <= choice.keys()]
