"""Compare a core with the reference on random calls, sound and misused ones in turn, on the workspace that they share.

A case draws drafts, of trees the children of their nodes too, verifies them, and compares all that with the reference.
A third of the cases first misuse the core: with numbers of draft tokens above K, below -1, or that packed rows do not
add up to. Then the core must raise a ValueError, or flag these requests and serve the others as if the numbers had been
cut to -1..K. Between calls all counters of the workspace must be 0.

On a GPU every layout of a call is compiled, which takes seconds: layouts are shared by many cases and taken in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch

from harness.checks.agreement.compare import (
    compare_children,
    compare_draw,
    compare_exactly,
    compare_verdicts,
    compare_verify,
)
from harness.checks.agreement.config import AgreementConfig
from harness.checks.agreement.counts import Agreement, total
from harness.checks.agreement.fuzz_case import CaseBuilder
from harness.checks.agreement.fuzz_layout import Layout, random_layout
from harness.checks.agreement.round_inputs import RoundInputs
from kernels.contract import VerificationResult
from kernels.core import Core, reference_core
from kernels.verification import probe

CASES_OF_A_LAYOUT = 160
MISUSED = 1 / 3
"""Of the cases."""
BAD_COUNTS = (-(2**40), -2, 2**31 - 1, 2**32 + 1, 2**63 - 1)
"""As numbers of draft tokens, beside K + 1."""
NUM_REPORTS = 20
"""Times that progress is reported."""


@dataclass(frozen=True)
class FuzzResult:
    """What the cases found."""

    seed: int
    num_cases: int
    num_layouts: int
    num_misused: int
    """Cases with a misused call."""
    agreement: Agreement
    """Of draws and verifications, those of misused calls too."""
    failures: tuple[str, ...]
    """A line for each case with a difference that rounding does not explain, or with a counter that is not 0."""
    seconds: float

    @property
    def holds(self) -> bool:
        return not self.failures


def layouts_of(config: AgreementConfig, device: torch.device) -> list[Layout]:
    """The layouts that cases take in turn: one for each where nothing is compiled."""
    count = config.fuzz_cases if device.type == "cpu" else -(-config.fuzz_cases // CASES_OF_A_LAYOUT)
    return [random_layout(config, Random(f"{config.seed} layout {number}")) for number in range(count)]


def run_fuzz(config: AgreementConfig, tested: Core, device: torch.device, report: Callable[[str], None]) -> FuzzResult:
    """Run every case.

    Args:
        config: sizes, seed and number of cases.
        tested: the core under test.
        device: where it runs.
        report: called with a line for each failure, and with one now and then.
    """
    layouts, begin = layouts_of(config, device), time.perf_counter()
    parts: list[Agreement] = []
    failures: list[str] = []
    num_misused = 0
    for number in range(config.fuzz_cases):
        layout = layouts[number % len(layouts)]
        found = FuzzCall(layout, f"{config.seed} case {number}", tested, device)
        parts.append(found.agreement)
        num_misused += found.is_misused
        for failure in found.failures:
            failures.append(f"case {number} of seed {config.seed} ({layout.name}): {failure}")
            report(failures[-1])
        if (number + 1) % -(-config.fuzz_cases // NUM_REPORTS) == 0:
            report(f"{number + 1:,} of {config.fuzz_cases:,} cases, {len(failures)} failures")
    seconds = time.perf_counter() - begin
    whole = total(parts)
    return FuzzResult(config.seed, config.fuzz_cases, len(layouts), num_misused, whole, tuple(failures), seconds)


class FuzzCall:
    """One case: what its calls found."""

    def __init__(self, layout: Layout, seed: str, tested: Core, device: torch.device) -> None:
        random = Random(seed)
        self.tested, self.reference = tested, reference_core()
        self.verification = probe(layout.method, layout.num_draft_tokens)
        self.is_misused = random.random() < MISUSED
        self.failures: list[str] = []
        parts = []
        case = CaseBuilder(layout, random.getrandbits(62), device).case(tested)
        if self.is_misused:
            parts.append(self._compared("misused", self._misuse(case.inputs, random)))
        parts.append(self._compared("draw", compare_draw(tested, self.reference, case.drafts)))
        if case.children is not None:
            children = compare_children(tested, self.reference, case.children)
            parts.append(self._compared("draw_children", children))
        verified = compare_verify(tested, self.reference, case.inputs, self.verification)
        parts.append(self._compared("verify", verified))
        self.agreement = total(parts)

    def _compared(self, call: str, found: Agreement) -> Agreement:
        """The agreement of a call, whose failures are kept."""
        self.failures += [
            f"{call}: expected {list(each.expected)}, found {list(each.found)}, margin {each.margin:.1e}"
            for each in found.disagreements
            if not each.explained
        ]
        workspace = self.tested.workspace
        if workspace is not None and (busy := workspace.busy_counters()):
            self.failures.append(f"{call}: expected counters of 0 afterwards, found others in {', '.join(busy)}")
        return found

    def _misuse(self, inputs: RoundInputs, random: Random) -> Agreement:
        """Call with wrong numbers of draft tokens."""
        width, counts = inputs.draft.token_ids.shape[1], inputs.draft.num_draft_tokens.clone()
        for _ in range(2):
            # One more or one less is wrong where rows are packed.
            request = random.randrange(len(counts))
            counts[request] = random.choice(
                (*BAD_COUNTS, width + 1, max(-1, int(counts[request].clamp(max=width)) - 1))
            )
        wrong = replace(inputs, draft=replace(inputs.draft, num_draft_tokens=counts))
        try:
            found = wrong.verified_by(self.tested, self.verification)
        except ValueError:
            return Agreement()
        cut = replace(inputs, draft=replace(inputs.draft, num_draft_tokens=counts.clamp(-1, width)))
        if not adds_up(cut):
            return unplaced(found, cut)
        expected = cut.verified_by(self.reference, self.verification)
        # Where the flag is missing, it must not be what the reference finds.
        flags = torch.where(counts > width, expected.invalid ^ ~found.invalid, found.invalid)
        return compare_verdicts(replace(found, invalid=flags), expected, cut, self.verification)


def adds_up(inputs: RoundInputs) -> bool:
    """Whether the target rows are as many as the numbers of draft tokens say."""
    (requests, width), counts = inputs.draft.token_ids.shape, inputs.draft.num_draft_tokens
    return len(inputs.target_logits) in (requests * (width + 1), int((counts + 1).sum()))


def unplaced(found: VerificationResult, inputs: RoundInputs) -> Agreement:
    """Compare with what a core emits that does not know which row is whose: token 0, flagged."""
    is_present = inputs.draft.num_draft_tokens >= 0
    token_ids = torch.full_like(found.token_ids, -1)
    token_ids[is_present, 0] = 0
    return compare_exactly(found, VerificationResult(token_ids, torch.zeros_like(found.num_accepted), is_present))
