"""Why cells are left out of a ranking: the texts that stand below a table that names the fastest.

This module knows reasons; it does not know how a table is laid out.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.ranking import FAILED_REQUESTS, IMPOSSIBLE, OTHER_SESSION, Ranking
from harness.analysis.speedup_bound import NOISE
from harness.report.cell_names import DISTURBED

CANNOT_BE_TOLD = "cannot be told"
REASONS = {
    FAILED_REQUESTS: "the throughput is that of the requests that were answered; --retry-failed runs the others again.",
    IMPOSSIBLE: f"the speedup is more than {NOISE:.0%} above the most that drafts can buy (marked {DISTURBED}); run it "
    "again.",
    OTHER_SESSION: "no prompt of the cell was measured in one session with all others; --fresh measures all together.",
}


def ranking_notes(rankings: Sequence[Ranking]) -> list[str]:
    """Those reasons that occur, and over how many prompts cells are ranked where that is not all of them."""
    found = {reason for ranking in rankings for _, reason in ranking.compared.left_out}
    notes = [f"not ranked, {reason}: {text}" for reason, text in REASONS.items() if reason in found]
    has_none = any(ranking.compared.says_nothing for ranking in rankings)
    for ranking in rankings:
        num_ranked = len(ranking.compared.prompt_ids)
        num_prompts = max((cell.estimates.num_prompts for cell in ranking.compared.cells), default=0)
        if num_ranked < num_prompts:
            notes.append(
                f"ranked on {num_ranked} of {num_prompts} prompts: those that one session measured in all cells."
            )
    return [*dict.fromkeys(notes), *([f"{CANNOT_BE_TOLD}: no cell with drafts could be ranked."] if has_none else [])]
