"""The metrics of a cell by the categories of its prompts."""

from __future__ import annotations

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimates
from harness.analysis.prompt_part import PromptPart


def by_category(cell: CellResult) -> dict[str, PromptPart]:
    """The categories of a cell's prompts by name, in the order of the names; their prompts are counted.

    They have every metric that is known by prompt.
    """
    prompts: dict[str, set[str]] = {}
    for request in cell.record.requests:
        prompts.setdefault(request.category, set()).add(request.prompt_id)
    found = {}
    for name, ids in sorted(prompts.items()):
        sums = cell.estimates.sums.take(sorted(ids))
        estimates = Estimates(sums, cell.estimates.num_resamples, cell.estimates.confidence)
        found[name] = PromptPart(name, len(ids), estimates.total("num_drafts"), estimates)
    return found
