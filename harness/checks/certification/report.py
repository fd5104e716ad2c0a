"""The report of a certification: lines for the console, a document for people, and JSON with everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.checks.certification.certify import Certification
from harness.checks.certification.evaluate import (
    FALSE_ALARM,
    POWER,
    RESERVE,
    VARIATION,
    CaseVerdict,
    Outcome,
    control_samples,
)
from harness.checks.certification.goodness_of_fit import Fit
from harness.checks.certification.toy_models import NUM_SPREAD_IDS, NUM_TREE_SPREAD_IDS
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_report
from harness.report.files import json_text
from harness.report.number_format import SCIENTIFIC, Number, count
from harness.report.table import ColumnOf, Entry, row_of, table_of
from kernels.launch.workspace import SHORT_CHUNK

MARKDOWN, JSON = "report.md", "certification.json"
TV_ESTIMATE = (
    "TV estimate: excess probability of the sequences that were too frequent in one half of the requests, measured "
    "on the other half; its mean is at most the TV, and 0 for an exact sampler. Hence also values below 0."
)


FIT_COLUMNS: tuple[ColumnOf[Fit], ...] = (
    ("df", lambda fit: count(fit.df)),
    ("statistic", lambda fit: Number(fit.statistic, decimals=1)),
    ("p-value", lambda fit: Number(fit.p_value, shown=p_text(fit.p_value))),
    ("TV estimate [99.9 %]", lambda fit: Number(fit.variation, fit.variation_low, fit.variation_high, decimals=4)),
)
"""What a law that was found has, of a core or a server."""


def verdict_text(verdict: CaseVerdict, reason: str) -> str:
    """A verdict, and why."""
    return verdict.value + (f": {reason}" if reason else "")


def _if_simulated(entry: Callable[[Outcome, Fit], Entry]) -> Callable[[Outcome], Entry | None]:
    return lambda case: None if case.fit is None else entry(case, case.fit)


def _of_fit(entry: Callable[[Fit], Entry | None]) -> Callable[[Outcome], Entry | None]:
    return lambda case: None if case.fit is None else entry(case.fit)


def _detectable(case: Outcome, fit: Fit) -> Number:
    return Number(case.detectable, style=SCIENTIFIC) if fit.df == 0 else Number(case.detectable, decimals=4)


COLUMNS: tuple[ColumnOf[Outcome], ...] = (
    ("cell", lambda case: case.name),
    ("samples", _of_fit(lambda fit: count(fit.num_samples))),
    ("accepted %", _if_simulated(lambda case, _: Number(case.acceptance_rate, style="percent", decimals=0))),
    *((name, _of_fit(entry)) for name, entry in FIT_COLUMNS),
    (f"TV detectable (power {POWER:g})", _if_simulated(_detectable)),
    (f"power at TV {VARIATION:g}", _if_simulated(lambda case, _: Number(case.power, shown=power_text(case.power)))),
    ("verdict", lambda case: verdict_text(case.verdict, case.reason)),
)


def p_text(value: float) -> str:
    """A p-value; 0 stands for what is below the smallest double."""
    return "< 1e-300" if value < 1e-300 else f"{value:.1e}" if value < 1e-3 else f"{value:.3f}"


def power_text(value: float) -> str:
    """A power, never rounded up to 1."""
    return "> .999" if value > 0.999 else f"{value:.3f}" if value >= 0.001 else "< .001"


def line(outcome: Outcome) -> str:
    """One outcome on the console, while the certification runs."""
    name, samples, _, df, statistic, p_value, variation, _, _, verdict = map(str, row_of(outcome, COLUMNS))
    numbers = f"n {samples:>10}  df {df:>4}  X² {statistic:>12}  p {p_value:>8}  TV {variation:>25}"
    return f"{name:72} {numbers}  {verdict}"


def headline(result: Certification) -> str:
    """The verdict in one sentence."""
    num_of = {verdict: sum(outcome.verdict is verdict for outcome in result.outcomes) for verdict in CaseVerdict}
    if not result.num_tested:
        return (
            f"NOTHING TESTED: the subject supports none of the {num_of[CaseVerdict.unsupported]} lossless cases that "
            "were asked for."
        )
    parts = [f"{num_of[CaseVerdict.passed]} of {result.num_tested} lossless cases pass"]
    num_controls = num_of[CaseVerdict.rejected] + num_of[CaseVerdict.not_rejected]
    parts.append(
        f"{num_of[CaseVerdict.rejected]} of {num_controls} controls are rejected"
        if num_controls
        else "no controls simulated"
    )
    if num_of[CaseVerdict.unsupported]:
        parts.append(f"{num_of[CaseVerdict.unsupported]} cases are not supported by the subject")
    usual, given = control_samples(result.size), result.config.samples
    few = ""
    if num_of[CaseVerdict.not_rejected] and 0 < given < usual:
        few = (
            f" With --samples {given:,} the power may be too small to reject a control: size {result.size.value} "
            f"simulates {usual:,} of each; leave --samples out."
        )
    return f"{'GREEN' if result.is_green else 'RED'}: {', '.join(parts)}.{few}"


def notes(result: Certification) -> list[str]:
    """What the numbers mean, and how much they can show."""
    found = [outcome for outcome in result.outcomes if outcome.fit is not None and not outcome.is_control]
    short = [outcome for outcome in found if not outcome.is_spread]
    weakest = min((outcome.power for outcome in short or found), default=0.0)
    pooled = max((outcome.fit.pooled_mass for outcome in found if outcome.fit is not None), default=0.0)
    largest = max((outcome.detectable for outcome in short or found), default=0.0)
    return [
        f"False alarm: a flawless subject fails any case with probability {FALSE_ALARM:g} at most; each case is tested "
        f"at {result.level:.1e} (Bonferroni, with a factor {RESERVE} in reserve for the far tail), controls too.",
        f"Power, in the weakest case of all{_but_spread(found)}: a deviation of TV {VARIATION:g} is detected with "
        f"probability {power_text(weakest)}, one of {largest:.4f} with {POWER:g}.{_of_profiles(found)} Computed from "
        "samples and degrees of freedom, for the deviation that is hardest to see (noncentrality 4 n TV²); differences "
        f"among rare sequences, which are pooled, do not count: at most {100 * pooled:.1f} % of the samples of a case.",
        "A case runs requests of a toy Markov pair over several rounds, in slots that are used again, with the "
        "subject's own drafts and random streams, and compares the joint law of the first tokens with the exact one "
        "(Pearson, rare sequences pooled).",
        _of_rows(found),
        TV_ESTIMATE,
        "accepted % is not tested: a method that accepts fewer draft tokens than it could still has the right law.",
        "Controls are wrong on purpose and made from the project's own core on this device.",
    ] + ([f"Subject: {result.remark}"] if result.remark else [])


def _but_spread(found: Sequence[Outcome]) -> str:
    """The exception of the cases whose samples are few, if some cases are not of them."""
    spread = [outcome for outcome in found if outcome.is_spread]
    if not spread or len(spread) == len(found):
        return ""
    largest = max(outcome.detectable for outcome in spread)
    return f" but {len(spread)} in a spread vocabulary (fewer requests; TV {largest:.4f} with {POWER:g} there)"


def _of_rows(found: Sequence[Outcome]) -> str:
    """Which cases run the code for long rows, where a core has code of its own for short ones."""
    num_spread = sum(outcome.is_spread for outcome in found)
    return (
        f"Rows: {len(found) - num_spread} cases have rows of a few tokens, {num_spread} in a spread vocabulary rows of "
        f"{NUM_SPREAD_IDS:,}, with trees {NUM_TREE_SPREAD_IDS:,}. What a core runs for longer rows only (the project's "
        f"kernels: beyond {SHORT_CHUNK} tokens) is certified by the latter alone, with their power; beside them "
        "`rejection-lab agreement` compares rows of a real vocabulary with the reference, decision by decision."
    )


def _of_profiles(found: Sequence[Outcome]) -> str:
    """What power means in cases that pool several profiles, if there are any."""
    most = max((outcome.num_profiles for outcome in found), default=1)
    if most == 1:
        return ""
    return (
        f" Where requests take several temperatures or cuts in turn, up to {most}, that is the deviation averaged over "
        f"them: of one of {most} alone it takes {most**0.5:.3g} times as much to be seen as surely, but that a greedy "
        "one may emit nothing else than it does."
    )


def document(result: Certification) -> Document:
    """The whole report."""
    cases = [outcome for outcome in result.outcomes if not outcome.is_control]
    wrong = [outcome for outcome in result.outcomes if outcome.is_control]
    tables = [
        table_of(title, outcomes, COLUMNS)
        for title, outcomes in (("Lossless cases", cases), ("Controls, which must be rejected", wrong))
        if outcomes
    ]
    return Document(
        f"Certification of {result.subject}",
        paragraphs=(
            headline(result),
            f"Size {result.size.value}, on {result.device}, {result.wall_s:.0f} s.",
        ),
        sections=tuple(Section(table.title, tables=(table,)) for table in tables),
        definitions=tuple(notes(result)),
        provenance=[provenance()],
    )


def write(result: Certification, folder: Path) -> Path:
    """Write certification.json, and report as .md, .html and .tex; returns the path of report.md."""
    found = {
        "headline": headline(result),
        "wall_s": result.wall_s,
        "size": result.size,
        "device": result.device,
        "subject": {"path": result.config.subject, "name": result.subject, "remark": result.remark},
        "num_workers": result.num_workers,
        "outcomes": [case_json(outcome) | {"is_control": outcome.is_control} for outcome in result.outcomes],
    }
    return write_certification(result, document(result), found, folder)


def case_json(case: Any) -> dict[str, Any]:
    """A case and the law that was found, and that of its confirmation if there is one."""
    values = {name: value for name, value in vars(case).items() if name not in ("fit", "confirmation")}
    found = {} if case.fit is None else case.fit._asdict()
    return values | found | ({} if case.confirmation is None else {"confirmation": case.confirmation._asdict()})


def write_certification(result: Any, document: Document, found: dict[str, Any], folder: Path) -> Path:
    """Write the report of a core or a server; returns the path of report.md.

    Args:
        result: the certification.
        document: for people.
        found: what certification.json has beside what both have.
        folder: that is written to.
    """
    content = {
        "green": result.is_green,
        "family_wise_false_alarm": FALSE_ALARM,
        "level": result.level,
        "config": result.config,
        **found,
        "provenance": provenance(),
    }
    return write_report(document, folder, Path(MARKDOWN).stem, {JSON: json_text(content)})[0]
