"""What a report says of methods that take the target's argmax: whether their answers are the same, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from harness.analysis.answers import ROUNDING, OtherAnswers, exceeds_rounding, other_answers
from harness.analysis.cell import CellResult
from harness.analysis.comparison import groups, same_law, takes_argmax, unlike_baseline
from harness.report.table import NONE

SAME_LAW = (
    "same law: the methods cannot differ here, so noise is not reported as a difference. With one-hot (greedy) drafts "
    "strict, coupled, probabilistic and block accept with the same probability, and so do recursive and traversal; of "
    "chains these are probabilistic and block; block with K = 1 is probabilistic; strict and typical share no noise "
    "with the drafts, so that coupled drafts are sampled ones to them."
)
ARGMAX = "At temperature 0 every method but synthetic and fly takes the target's argmax"
BASELINES = "the baseline's"
OTHER_ANSWERS = (
    "other answers: requests whose output tokens differ, of those whose tokens both cells have, where both methods "
    "take the target's argmax at temperature 0; then the smallest place, from 1, at which two answers to the same "
    "prompt part. `rejection-lab partings` tells near ties from faults."
)

_Compared = tuple[CellResult, OtherAnswers]


def law_notes(cells: Sequence[CellResult]) -> list[str]:
    """What the same law means for the cells of a table, if it holds of two of them."""
    if not any(same_law(first, second) for first, second in combinations(cells, 2)):
        return []
    return [SAME_LAW, *argmax_notes(cells)]


def argmax_notes(cells: Sequence[CellResult]) -> list[str]:
    """Whether cells at temperature 0 keep the target's argmax tokens, as their answers say."""
    greedy = [cell for cell in cells if not cell.is_baseline and takes_argmax(cell)]
    if not greedy:
        return []
    found, others = _unlike_baseline(greedy), BASELINES
    if not found:
        pairs = ((group.first, cell) for group in groups(greedy) for cell in group.cells[1:])
        compared = ((cell, other_answers(first.record, cell.record)) for first, cell in pairs)
        found, others = [pair for pair in compared if pair[1].num_compared], "those of another method"
    if not found:
        return [f"{ARGMAX}; whether the answers are the same is not known: there are no tokens of two to compare."]
    if not any(item.num_other for _, item in found):
        total = sum(item.num_compared for _, item in found)
        return [f"{ARGMAX}: all {total} answers that were compared are exactly {others}, token by token."]
    return [f"{ARGMAX}, but {_differ(found, others)}: {_why(found)}."]


def answers_entry(first: CellResult, second: CellResult) -> str:
    """How many answers of two cells differ, and where the first of them begins to; a dash where they need not agree."""
    if not (takes_argmax(first) and takes_argmax(second)):
        return NONE
    found = other_answers(first.record, second.record)
    place = "" if found.first_token is None else f", from token {found.first_token} on"
    return f"{found.num_other} of {found.num_compared}{place}" if found.num_compared else NONE


def unlike_baseline_text(cells: Sequence[CellResult]) -> str:
    """That some answers of these cells are not their baseline's at temperature 0, all cells together."""
    found = _unlike_baseline(cells)
    return f"at temperature 0 {_differ(found, BASELINES)}: {_why(found)}"


def _unlike_baseline(cells: Sequence[CellResult]) -> list[_Compared]:
    found = ((cell, unlike_baseline(cell)) for cell in cells)
    return [(cell, item) for cell, item in found if item is not None]


def _differ(found: Sequence[_Compared], others: str) -> str:
    num_other, total = sum(item.num_other for _, item in found), sum(item.num_compared for _, item in found)
    first = min(item.first_token for _, item in found if item.first_token is not None)
    return f"{num_other} of {total} answers differ from {others}, the first from token {first} on"


def _why(found: Sequence[_Compared]) -> str:
    """What may have parted the answers; where rounding hardly has, that it is a fault."""
    dtypes = ", ".join(dict.fromkeys(cell["dtype"] for cell, item in found if item.num_other))
    beyond = [(cell, item) for cell, item in found if exceeds_rounding(cell.record, item)]
    if not beyond:
        return f"forwards of other shapes may round otherwise ({dtypes}) and decide between nearly equal logits"
    cell, item = max(beyond, key=lambda pair: pair[1].num_parted / (ROUNDING[pair[0]["dtype"]] * pair[1].num_tokens))
    often = f"{item.num_parted} answers part within {item.num_tokens} tokens"
    return (
        f"rounding does not explain it ({often}, in {cell['dtype']} it parts {ROUNDING[cell['dtype']]:g} a token at "
        "most); look for a fault of the engine (of the local one, `rejection-lab agreement` compares the kernels with "
        "their reference)"
    )
