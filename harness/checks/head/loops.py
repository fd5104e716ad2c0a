"""Whether answers that loop are a fault of the pair, or the target's own way.

Decoded greedily, small targets loop by themselves, whatever the head: that is no fault, and the head is judged at
temperature 1. A fault it is where something else shows it: the prompts lack the tokens of the tokenizer's chat format,
answers go on behind a token that ends a turn, or they loop at temperature 1 too, where a target that is asked as it was
trained seldom does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.estimates import Estimate
from harness.checks.doctor.finding import Finding, problem, remark
from harness.checks.head.trials import ON_ANSWERS, ON_TEXTS
from harness.models.target import TargetModel
from harness.report.number_format import format_estimate

MANY_LOOPS, SURELY = 0.25, 0.1
"""Share of the answers from which on loops are told, and least low end of its interval."""
MANY_PASSED = 0.25
"""Share of the answers that go on behind the end of a turn, from which on that is a fault."""
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>")
"""Tokens that end a turn in the chat formats of several families; a tokenizer has some of them."""


def end_of(cells: Sequence[CellResult], target: TargetModel) -> Finding | None:
    """Answers that go on behind the end of a turn, whose token the target's files do not name; None without such."""
    passed = _passed_end(cells, target)
    if passed is None:
        return None
    name, share = passed
    return problem(
        "end of answers",
        f"{share:.0%} of the answers go on behind {name}, which ends a turn",
        f"name {name} in eos_token_id of the target's generation_config.json or config.json",
    )


def loops_of(cells: Sequence[CellResult], faults: Sequence[str]) -> Finding | None:
    """What many looping answers at temperature 0 mean; None where few loop.

    Args:
        cells: of the protocol, temperature 0 first and 1 last.
        faults: what else was found of how the target is asked and where its answers end.
    """
    greedy, sampled = cells[0], cells[-1]
    at_0, at_1 = (cell.estimate("looping_answers") for cell in (greedy, sampled))
    if not _are_many(at_0):
        return None
    loop = f"{_percent(at_0)} of the answers at temperature 0 loop, {_percent(at_1)} at temperature 1"
    if faults:
        return problem("looping answers", loop, f"mend {' and '.join(faults)} first")
    if _are_many(at_1):
        return problem(
            "looping answers",
            f"{loop}, where a target that is asked as it was trained seldom does",
            "see that the target's chat template, its weights and its end-of-sequence ids are those that it was "
            "published with",
        )
    with_loops, without = greedy.estimate(ON_TEXTS), greedy.estimate(ON_ANSWERS)
    lengths = f"{metric(ON_TEXTS).label} at temperature 0 {format_estimate(with_loops, 'length')}"
    lengths += "" if isnan(without.value) else f", {metric(ON_ANSWERS).label} {format_estimate(without, 'length')}"
    return remark(
        "looping answers",
        f"{loop}; decoded greedily the target loops by itself, whatever the head. Loops are easy to draft for: "
        f"{lengths}",
        "judge the head by temperature 1; if this target is not known to loop, see that its chat template and "
        "end-of-sequence ids are those that it was published with",
    )


def _passed_end(cells: Sequence[CellResult], target: TargetModel) -> tuple[str, float] | None:
    """A token that ends a turn and that many answers go on behind, and their share; None without one."""
    vocabulary: dict[str, Any] = target.tokenizer.get_vocab()
    answers = [item.output_token_ids for cell in cells for item in cell.record.requests]
    found = {
        name: sum(vocabulary[name] in tokens[:-1] for tokens in answers) / len(answers)
        for name in TURN_ENDS
        if name in vocabulary and vocabulary[name] not in target.eos_token_ids and answers
    }
    name = max(found, key=found.__getitem__, default=None)
    return None if name is None or found[name] < MANY_PASSED else (name, found[name])


def _are_many(share: Estimate) -> bool:
    return share.value > MANY_LOOPS and share.low > SURELY


def _percent(share: Estimate) -> str:
    return "none that can be judged" if isnan(share.value) else f"{format_estimate(share, 'percent')} %"
