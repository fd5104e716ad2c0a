"""How many tokens a round drafts: the forms of the setting, tables by batch size, and the depth of a batch.

A table gives the drafts of a round from each number of decoding requests on. Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re
from itertools import pairwise

DepthTable = tuple[tuple[int, int], ...]
"""(decoding requests, drafts of a round from that number on), growing; the first number is 1."""
PLANNER, CONFIDENCE = "planner", "confidence:"
FORMS = "a number of drafts, REQUESTS:DRAFTS pairs such as 1:4/8:2/32:0, confidence:0.3, or planner"
TABLE = "REQUESTS:DRAFTS pairs such as 1:4/8:2/32:0, in which REQUESTS begins with 1 and grows"


def read_depths(text: str, max_drafts: int) -> DepthTable:
    """The table that a setting names.

    Args:
        text: see TABLE.
        max_drafts: of a round, at most.

    Raises:
        ValueError: it has another form, drafts too many tokens, or has the same depth at every batch size.
    """
    if not re.fullmatch(r"\d+:\d+(/\d+:\d+)*", text.strip()):
        raise ValueError(f"expected {FORMS}, found {text!r}")
    pairs = [tuple(int(number) for number in pair.split(":")) for pair in text.strip().split("/")]
    sizes, depths = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if sizes[0] != 1 or any(larger <= size for size, larger in pairwise(sizes)):
        raise ValueError(f"expected {TABLE}, found {text!r}")
    if max(depths) > max_drafts:
        raise ValueError(f"expected 0 to {max_drafts} drafts, found {max(depths)} in {text!r}")
    if len(set(depths)) == 1:
        raise ValueError(
            "expected depths that differ with the batch size, such as 1:4/8:2, "
            f"found {text!r}; {depths[0]} alone is that for all"
        )
    changes = [True, *(depth != before for before, depth in pairwise(depths))]
    return tuple((size, depth) for size, depth, changed in zip(sizes, depths, changes, strict=True) if changed)


def depths_name(table: DepthTable) -> str:
    """The text form of a table: equal for equal tables."""
    return "/".join(f"{size}:{depth}" for size, depth in table)


def depth_at(table: DepthTable, num_requests: int) -> int:
    """Drafts of a round while `num_requests` (1 or more) decode."""
    return next(depth for size, depth in reversed(table) if size <= num_requests)
