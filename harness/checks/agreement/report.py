"""Write what an agreement run found: report.md, .html and .tex for people, agreement.json for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.checks.agreement.config import AgreementConfig
from harness.checks.agreement.counts import ROUNDING, SCORE_ROUNDING, Agreement, total
from harness.checks.agreement.fuzz import FuzzResult
from harness.checks.agreement.law_run import MAX_TOTAL_VARIATION, LawResult
from harness.checks.agreement.rates import excessive_rates, rates_text, upper_bound
from harness.checks.agreement.run import CaseResult
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_report
from harness.report.files import json_text
from harness.report.number_format import PLAIN, SCIENTIFIC, Number, count
from harness.report.table import ColumnOf, Entry, Table, table_of

JSON = "agreement.json"
MAX_LISTED = 100
"""Disagreements that the JSON lists in full, those with the largest margins first."""
REFERENCE = "reference"
ITSELF = "the reference against itself: checks this command, not the kernels"
"""Said where the core under test is the reference."""
DECISION = (
    "A decision is an accept decision that the rule took, or a token that was drawn. A margin is the error of the "
    "probabilities, relative to themselves, that explains a disagreement; float32 explains up to "
    f"{ROUNDING:g}, and float64, in which coupled noise decides, {SCORE_ROUNDING:g}."
)
CASE = (
    "A case draws drafts and verifies them. A misused call comes before and gives wrong numbers of draft tokens. A "
    "failure is a difference that rounding does not explain, a wrong number without a flag, or a counter of the "
    "workspace that is not 0 after a call."
)


def summary(agreement: Agreement) -> dict[str, Any]:
    """Counts and rates as plain JSON values; an infinite margin is the string inf."""
    decisions, disagreements = agreement.num_decisions, agreement.num_disagreements
    return {
        "num_decisions": decisions,
        "num_accept_decisions": agreement.num_accept_decisions,
        "num_tokens": agreement.num_tokens,
        "num_disagreements": disagreements,
        "num_accept_disagreements": agreement.num_accept_disagreements,
        "num_token_disagreements": agreement.num_token_disagreements,
        "rate": disagreements / decisions if decisions else None,
        "rate_upper_95": upper_bound(disagreements, decisions),
        "largest_margin": _finite(agreement.largest_margin),
        "num_unexplained": agreement.num_unexplained,
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def line(result: CaseResult) -> str:
    """One line about a case."""
    found = result.agreement
    return (
        f"{result.case.name}: {found.num_disagreements} of {found.num_decisions:,} decisions differ, "
        f"{found.num_unexplained} unexplained, largest margin {found.largest_margin:.1e} ({result.seconds:.1f} s)"
    )


def law_line(result: LawResult) -> str:
    """One line about the law of a draw."""
    variation = "" if result.total_variation is None else f"TV {result.total_variation:.1e}, "
    return (
        f"{result.row}, {result.dtype}, {result.truncation}, T {result.temperature:g}: {variation}"
        f"boundaries moved by {result.shift.largest:.1e} in {result.shift.num_draws:,} draws"
    )


def headline(core_name: str, results: Sequence[CaseResult], laws: Sequence[LawResult]) -> str:
    """The outcome in a few words; of a comparison that says nothing about the kernels, first that."""
    found = total(result.agreement for result in results)
    rate = found.num_disagreements / max(1, found.num_decisions)
    text = (
        f"{found.num_decisions:,} decisions: {found.num_disagreements} disagreements, rate {rate:.1e} (95 % bound "
        f"{upper_bound(found.num_disagreements, found.num_decisions):.1e}), {found.num_unexplained} unexplained, "
        f"largest margin {found.largest_margin:.1e}"
    )
    excessive = excessive_rates(results)
    text += f", too often: {', '.join(excessive)}" if excessive else ""
    if laws:
        known = [each.total_variation for each in laws if each.total_variation is not None]
        text += (
            f"; law of a draw: {sum(each.holds for each in laws)} of {len(laws)} rows within {MAX_TOTAL_VARIATION:g}"
        )
        text += f", largest TV {max(known):.1e}" if known else ""
    return f"{ITSELF}: {text}" if core_name == REFERENCE else text


def fuzz_line(fuzz: FuzzResult) -> str:
    """The outcome of random calls in a few words."""
    found = fuzz.agreement
    return (
        f"{fuzz.num_cases:,} random cases of seed {fuzz.seed} in {fuzz.num_layouts:,} layouts, {fuzz.num_misused:,} "
        f"with a misused call: {len(fuzz.failures)} failures; {found.num_disagreements} of {found.num_decisions:,} "
        f"decisions differ, {found.num_unexplained} unexplained, largest margin {found.largest_margin:.1e}"
    )


def is_green(results: Sequence[CaseResult], laws: Sequence[LawResult], fuzz: FuzzResult | None = None) -> bool:
    """Whether every disagreement is explained, none of their rates excessive, every law near enough, and no random
    call a failure."""
    explained = all(result.agreement.num_unexplained == 0 for result in results) and (fuzz is None or fuzz.holds)
    return explained and not excessive_rates(results) and all(law.holds for law in laws)


def write(
    config: AgreementConfig,
    core_name: str,
    results: Sequence[CaseResult],
    laws: Sequence[LawResult],
    folder: Path,
    fuzz: FuzzResult | None = None,
) -> Path:
    """Write agreement.json, and report as .md, .html and .tex, into `folder`; returns the path of report.md."""
    origin = provenance()
    parts = [result.agreement for result in results]
    whole = total(parts if fuzz is None else [*parts, fuzz.agreement])
    worst = sorted(whole.disagreements, key=lambda each: -each.margin)[:MAX_LISTED]
    record = {
        "settings": config,
        "core": core_name,
        "rounding": ROUNDING,
        "score_rounding": SCORE_ROUNDING,
        "excessive_rates": excessive_rates(results),
        "total": summary(whole),
        "cells": [
            asdict(result.case)
            | {
                "verification": summary(result.verification),
                "drafting": summary(result.drafting),
                "seconds": result.seconds,
            }
            for result in results
        ],
        "disagreements": [asdict(each) | {"margin": _finite(each.margin)} for each in worst],
        "fuzz": None if fuzz is None else _fuzz_record(fuzz),
        "laws": [asdict(law) | {"shift": law.shift._asdict(), "holds": law.holds} for law in laws],
        "provenance": origin,
    }
    if fuzz is None:
        document = _document(config, core_name, results, laws, origin)
    else:
        document = _fuzz_document(config, core_name, fuzz, origin)
    return write_report(document, folder, "report", {JSON: json_text(record)})[0]


def _fuzz_record(fuzz: FuzzResult) -> dict[str, Any]:
    return {
        "seed": fuzz.seed,
        "num_cases": fuzz.num_cases,
        "num_layouts": fuzz.num_layouts,
        "num_misused": fuzz.num_misused,
        "num_failures": len(fuzz.failures),
        "failures": list(fuzz.failures[:MAX_LISTED]),
        **summary(fuzz.agreement),
        "seconds": fuzz.seconds,
    }


def _fuzz_document(config: AgreementConfig, core_name: str, fuzz: FuzzResult, origin: dict[str, Any]) -> Document:
    text = f"{ITSELF}: {fuzz_line(fuzz)}" if core_name == REFERENCE else fuzz_line(fuzz)
    return Document(
        "Agreement with the reference on random calls",
        paragraphs=(
            f"{text}.",
            f"Core `{core_name}` against the float64 reference; V up to {config.vocab_size:,}, K up to "
            f"{config.draft_tokens}, up to {config.requests} requests, all calls on one workspace.",
        ),
        sections=(Section("Failures", fuzz.failures[:MAX_LISTED] or ("None.",)),),
        definitions=(DECISION, CASE),
        provenance=[origin | {"seed": fuzz.seed}],
    )


def _document(
    config: AgreementConfig,
    core_name: str,
    results: Sequence[CaseResult],
    laws: Sequence[LawResult],
    origin: dict[str, Any],
) -> Document:
    tables = [
        _counts("draws and verification", results, lambda _: "all"),
        _counts("method (verification)", results, _method, lambda each: each.verification),
        _counts("method (draft draws)", results, _method, lambda each: each.drafting),
        _counts("dtype", results, lambda each: each.case.dtype),
        _counts("truncation", results, lambda each: each.case.truncation),
        _counts("temperature", results, lambda each: f"{each.case.temperature:g}"),
    ]
    sections = [
        Section("Decisions that differ", (f"Rates must stay low too: {rates_text(results)}.",), tables=tuple(tables))
    ]
    if laws:
        about = f"V = {config.law_vocab_size:,}. Both TV and moved must stay within {MAX_TOTAL_VARIATION:g}."
        sections.append(Section(LAW, (about,), tables=(table_of(LAW, laws, LAW_COLUMNS),)))
    return Document(
        "Agreement with the reference",
        paragraphs=(
            f"{headline(core_name, results, laws)}.",
            f"Core `{core_name}` against the float64 reference on the same inputs and random streams; V = "
            f"{config.vocab_size:,}, K = {config.draft_tokens}, Zipf-like rows, drafts near the targets.",
        ),
        sections=tuple(sections),
        definitions=(
            DECISION,
            "TV: from the kernels' chunk masses and prefix sums to the float64 softmax; none for another core. Moved: "
            "by how much a boundary of the cumulative distribution is off at least, from "
            f"{config.law_draws:,} draws with known uniform numbers.",
        ),
        provenance=[origin | {"seed": config.seed}],
    )


def _method(result: CaseResult) -> str:
    return result.case.method.value


def _counts(
    title: str,
    results: Iterable[CaseResult],
    key: Callable[[CaseResult], str],
    part: Callable[[CaseResult], Agreement] = lambda each: each.agreement,
) -> Table:
    """A row for each value of a key."""
    groups: dict[str, list[Agreement]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(part(result))
    columns = ((title, lambda item: item[0]), *COUNT_COLUMNS)
    return table_of(f"By {title}", ((name, total(found)) for name, found in groups.items()), columns)


def _scientific(value: float) -> Number:
    return Number(value, style=SCIENTIFIC)


def _rate(num_found: int, trials: int) -> str:
    """Count, rate and bound in one entry; empty where there was nothing to decide."""
    bound = upper_bound(num_found, trials)
    return f"{num_found} of {trials:,}: {num_found / trials:.1e}, {bound:.1e}" if trials else ""


def _column(name: str, entry: Callable[[Agreement], Entry]) -> ColumnOf[tuple[str, Agreement]]:
    return name, lambda item: entry(item[1])


COUNT_COLUMNS = (
    _column("decisions", lambda found: count(found.num_decisions)),
    _column("differ", lambda found: count(found.num_disagreements)),
    _column("rate", lambda found: _scientific(found.num_disagreements / max(1, found.num_decisions))),
    _column("95 % bound", lambda found: _scientific(upper_bound(found.num_disagreements, found.num_decisions))),
    _column(
        "accept decisions: rate, bound",
        lambda found: _rate(found.num_accept_disagreements, found.num_accept_decisions),
    ),
    _column("tokens: rate, bound", lambda found: _rate(found.num_token_disagreements, found.num_tokens)),
    _column("largest margin", lambda found: _scientific(found.largest_margin)),
    _column("unexplained", lambda found: count(found.num_unexplained)),
)
LAW = "The law of a draw"
LAW_COLUMNS: tuple[ColumnOf[LawResult], ...] = (
    ("row", lambda law: law.row),
    ("dtype", lambda law: law.dtype),
    ("truncation", lambda law: law.truncation),
    ("T", lambda law: Number(law.temperature, style=PLAIN)),
    ("TV", lambda law: "" if law.total_variation is None else _scientific(law.total_variation)),
    ("moved", lambda law: _scientific(law.shift.largest)),
    ("draws that differ", lambda law: f"{law.shift.num_shifted} of {law.shift.num_draws:,}"),
    ("impossible", lambda law: count(law.shift.num_impossible)),
    ("holds", lambda law: "yes" if law.holds else "NO"),
)
