"""Tries the alternatives of a head and of its prompts, and says which of them are better than what was loaded.

Every difference is paired by prompts. An alternative is better if the whole interval of its difference is above 0, at a
confidence that allows for their number, and if it is worth naming: other texts may be easier to draft for, so that
another way to ask has to give more than another head on the same texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate, Estimates, paired_difference
from harness.checks.head.counted import of_record
from harness.checks.head.forced import Forced
from harness.checks.head.prompts import Asking, asked, askings
from harness.checks.head.protocol import Protocol, Runs
from harness.checks.head.variants import Trial, Variant, near, variants_of
from harness.drafters.registry import LoadedHead

ON_TEXTS = "mean_acceptance_length"
ON_ANSWERS = "full_draft_length_without_loops"
"""Loops are easy to draft for, and a model that is asked in the wrong way loops."""
CONFIDENCE = 0.99
"""Of differences of answers: few are looked at, and answers differ more than heads do."""
LEAST_RISE = {ON_TEXTS: 0.04, ON_ANSWERS: 0.15}
"""Share of the accepted tokens that an alternative has to add."""


@dataclass(frozen=True)
class Tried:
    """An alternative that was tried."""

    alternative: str
    """That it is one of."""
    name: str
    fault: str
    mend: str
    metric: str
    before: Estimate
    """Acceptance length of what was loaded."""
    after: Estimate
    rise: Estimate
    """Paired difference."""

    @property
    def is_better(self) -> bool:
        """Whether it is the better one, and worth naming."""
        return self.rise.low > 0 and self.rise.value >= LEAST_RISE[self.metric] * (self.after.value - 1)


def tried(alternative: str, item: Variant | Asking, metric: str, first: Estimates, second: Estimates) -> Tried:
    """An alternative with its metric beside that of what was loaded."""
    return Tried(
        alternative,
        item.name,
        item.fault,
        item.mend,
        metric,
        first.estimate(metric),
        second.estimate(metric),
        paired_difference(first, second, metric),
    )


def try_variants(trial: Trial, forced: Forced) -> Iterator[Tried]:
    """Other heads, and other pairs, on the same texts."""
    variants = list(variants_of(trial))
    # in one pass over the texts
    forced.states.look_at(near(trial.head.aux_layers, trial.target.num_layers))
    first = forced.estimates(LoadedHead(trial.head, trial.folder))
    for name, variant in variants:
        head = trial.head if variant.make is None else variant.make()
        second = forced.estimates(LoadedHead(head, trial.folder), variant.reading)
        yield tried(name, variant, ON_TEXTS, first, second)


def try_askings(protocol: Protocol, runs: Runs, sampled: CellResult) -> Iterator[Tried]:
    """Other ways to ask, each with answers of its own.

    Args:
        sampled: the cell of the protocol above temperature 0, where loops are rare.
    """
    cell = protocol.plan.cells[-1]
    tokenizers = runs.tokenizers(cell)
    loaded = runs.models(cell).head(cell.drafter)
    first = of_record(sampled.record, CONFIDENCE)
    prompt = protocol.conversations[0].prompt
    for name, asking in askings(
        tokenizers[0], prompt, cell.workload.thinking, None if loaded is None else loaded.folder
    ):
        workload = cell.workload if asking.thinking is None else replace(cell.workload, thinking=asking.thinking)
        plan = replace(protocol.plan, cells=(replace(cell, workload=workload),))
        with ExitStack() as stack:
            for tokenizer in tokenizers:
                if asking.template is not None or asking.is_plain:
                    stack.enter_context(asked(tokenizer, asking.template))
            (result,) = runs.results(plan)
        yield tried(name, asking, ON_ANSWERS, first, of_record(result.record, CONFIDENCE))


def better(items: Sequence[Tried]) -> list[Tried]:
    """Those that are better, the one that adds most first."""
    return sorted((item for item in items if item.is_better), key=lambda item: -item.rise.value)
