"""The report of a server's certification: lines for the console, a document for people, and JSON with everything."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.checks.certification.evaluate import FALSE_ALARM, POWER, RESERVE, CaseVerdict
from harness.checks.certification.report import JSON, MARKDOWN, p_text
from harness.checks.server_certification.certify_server import TIMES_ROUNDING, ServedCase, ServerCertification
from harness.config.identity import plain_values
from harness.records.files import write_atomically
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_document
from harness.report.number_format import SCIENTIFIC, Number, count
from harness.report.table import Entry, Table

COLUMNS = (
    "case",
    "requests",
    "df",
    "statistic",
    "p-value",
    "TV estimate [99.9 %]",
    f"TV detectable (power {POWER:g})",
    "TV of rounding",
    "verdict",
)


def row(case: ServedCase) -> tuple[Entry, ...]:
    """One line of the table."""
    found = case.fit
    return (
        case.name,
        count(found.num_samples),
        count(found.df),
        Number(found.statistic, decimals=1),
        Number(found.p_value, shown=p_text(found.p_value)),
        Number(found.variation, found.variation_low, found.variation_high, decimals=4),
        Number(case.detectable, decimals=4),
        Number(case.rounding_variation, style=SCIENTIFIC),
        case.verdict.value + (f": {case.reason}" if case.reason else ""),
    )


def line(case: ServedCase) -> str:
    """One case on the console."""
    name, requests, df, statistic, p_value, variation, detectable, _, verdict = map(str, row(case))
    seen = f"TV {variation} (seen from {detectable} on)"
    return f"{name}: n {requests}, df {df}, X² {statistic}, p {p_value}, {seen}: {verdict}"


def headline(result: ServerCertification) -> str:
    """The verdict in one sentence."""
    num_passed = sum(case.verdict is CaseVerdict.passed for case in result.cases)
    color = "GREEN" if result.is_green else "RED"
    return f"{color}: {num_passed} of {len(result.cases)} cases follow the target's law; {drafts_text(result)}."


def drafts_text(result: ServerCertification) -> str:
    """What the server drafted while it was asked."""
    drafts = result.drafts
    if drafts is None:
        return "its counters do not tell of drafts"
    if not drafts.num_drafts:
        return "nothing was drafted"
    return (
        f"of {drafts.num_draft_tokens:,} draft tokens in {drafts.num_drafts:,} drafts "
        f"{drafts.num_accepted_tokens:,} were accepted"
    )


def notes(result: ServerCertification) -> list[str]:
    """What the numbers mean, and how much they can show."""
    config = result.config
    seen = max(case.detectable for case in result.cases)
    pooled = max(case.fit.pooled_mass for case in result.cases)
    seeds = "a seed of its own" if config.seeds else "no seed"
    return [
        f"Each request asks for {config.tokens} tokens behind one of {len(result.prompts)} prompts, with ignore_eos "
        f"and {seeds}, all cases and prompts in turn, {config.concurrency} in flight. The joint law of the tokens is "
        "compared with the exact one: that of the target's logits computed here in float64 (Pearson's test; probable "
        "sequences have a bin each, the others one for the place where they leave them; bins that expect too few "
        f"requests are pooled, with at most {100 * pooled:.1f} % of them).",
        f"False alarm: a flawless server fails with probability {FALSE_ALARM:g} at most; each case is tested at "
        f"{result.level:.1e} (Bonferroni, with a factor {RESERVE} in reserve for the far tail).",
        f"Power: a deviation of TV {seen:.4f}, the mean over the prompts, is detected with probability {POWER:g} in "
        "every case, wherever it lies among the bins. A smaller one may pass.",
        f"Rounding: a server in {config.dtype.value} is tolerated up to {TIMES_ROUNDING:g} times the deviation that "
        "computing in that dtype makes here (TV of rounding, the mean over the prompts). In float32 that is nothing.",
        "TV estimate: excess probability of the sequences that were too frequent in one half of the requests, measured "
        "on the other half; its mean is at most the TV, and 0 for an exact sampler. Hence also values below 0.",
        "Not tested: longer answers, other prompts, other sampling parameters, and how many drafts are accepted.",
    ] + ([f"Server: {config.remark}"] if config.remark else [])


def document(result: ServerCertification) -> Document:
    """The whole report."""
    engine = f"{result.config.engine.value} {result.version or '(unknown version)'}"
    retried = f", {result.draws.num_retried} requests sent again" if result.draws.num_retried else ""
    table = Table("Cases", COLUMNS, tuple(map(row, result.cases)))
    return Document(
        f"Certification of a server: {engine}",
        paragraphs=(
            headline(result),
            f"Model {result.model!r} in {result.config.dtype.value}, target {result.target}, "
            f"{result.draws.wall_s:.0f} s{retried}.",
        ),
        sections=(Section(table.title, tables=(table,)),),
        definitions=tuple(notes(result)),
        provenance=[provenance()],
    )


def to_json(result: ServerCertification) -> str:
    """Every number, with where it comes from."""
    drafts = result.drafts
    content: dict[str, Any] = {
        "green": result.is_green,
        "headline": headline(result),
        "family_wise_false_alarm": FALSE_ALARM,
        "level": result.level,
        "server": {"url": result.url, "model": result.model, "version": result.version},
        "target": result.target,
        "config": plain_values(asdict(result.config)),
        "prompts": result.prompts,
        "drafts": None if drafts is None else plain_values(asdict(drafts)),
        "num_failures": len(result.draws.failures),
        "num_retried": result.draws.num_retried,
        "wall_s": result.draws.wall_s,
        "outcomes": [_case(case) for case in result.cases],
        "provenance": provenance(),
    }
    return json.dumps(content) + "\n"


def _case(case: ServedCase) -> dict[str, Any]:
    values = {name: value for name, value in vars(case).items() if name not in ("fit", "confirmation")}
    confirmed = {} if case.confirmation is None else {"confirmation": case.confirmation._asdict()}
    plain: dict[str, Any] = plain_values(values | case.fit._asdict() | confirmed)
    return plain


def write_report(result: ServerCertification, folder: Path) -> Path:
    """Write certification.json, and report as .md, .html and .tex; returns the path of report.md."""
    write_atomically(folder / JSON, to_json(result).encode())
    return write_document(document(result), folder, Path(MARKDOWN).stem)[0]
