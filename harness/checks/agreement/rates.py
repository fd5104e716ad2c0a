"""Whether two cores disagree too often, although rounding explains each single disagreement.

A margin alone lets a wrong core through whose mistakes are all small: one that draws the next token id wherever a
probability is below 2 ROUNDING. So the rates have limits, of the whole run and of every case. Compared with them is the
lower Clopper-Pearson bound of an observed rate, so that a few disagreements in a short run prove nothing; with one
confidence for all that is looked at (Bonferroni): a core at the limits fails once in 20 runs at most for each kind.
On an H200 the rates of the kernels were 0 of 525,854 accept decisions and 46 of 1,232,899 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from harness.checks.agreement.counts import total
from harness.checks.agreement.run import CaseResult

MAX_ACCEPT_RATE, MAX_TOKEN_RATE = 1e-5, 5e-4
"""Disagreements among accept decisions, and among tokens."""
FALSE_ALARM = 0.05


def upper_bound(count: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the rate at which `count` or fewer have probability 1 - confidence."""
    return 1.0 if count == trials else float(stats.beta.ppf(confidence, count + 1, trials - count))


def lower_bound(count: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the rate at which `count` or more have probability 1 - confidence."""
    return float(stats.beta.ppf(1 - confidence, count, trials - count + 1)) if count else 0.0


def excessive_rates(results: Sequence[CaseResult]) -> list[str]:
    """What disagrees more often than it may, each with its count; empty where nothing does."""
    groups = [("all", total(result.agreement for result in results))]
    groups += [(result.case.name, result.agreement) for result in results]
    confidence = 1 - FALSE_ALARM / len(groups)
    found = []
    for name, each in groups:
        kinds = (
            ("accept decisions", each.num_accept_disagreements, each.num_accept_decisions, MAX_ACCEPT_RATE),
            ("tokens", each.num_token_disagreements, each.num_tokens, MAX_TOKEN_RATE),
        )
        found += [
            f"{name}: {count} of {trials:,} {kind}"
            for kind, count, trials, limit in kinds
            # A core that accepts where the rule decided nothing disagrees more often than there are decisions.
            if lower_bound(min(count, trials), trials, confidence) > limit
        ]
    return found


def rates_text(results: Sequence[CaseResult]) -> str:
    """The limits, how they are tested, and what exceeds them."""
    found = excessive_rates(results)
    return (
        f"at most {MAX_ACCEPT_RATE:g} of the accept decisions and {MAX_TOKEN_RATE:g} of the tokens, over all and in "
        f"each case, tested on lower bounds that hold together with {1 - FALSE_ALARM:.0%}; exceeded by "
        + ("; ".join(found) if found else "none")
    )
