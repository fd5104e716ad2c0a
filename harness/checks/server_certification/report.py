"""The report of a server's certification: lines for the console, a document for people, and JSON with everything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.checks.certification.evaluate import FALSE_ALARM, POWER, RESERVE, CaseVerdict
from harness.checks.certification.goodness_of_fit import Fit
from harness.checks.certification.report import FIT_COLUMNS, TV_ESTIMATE, case_json, verdict_text, write_certification
from harness.checks.server_certification.certify_server import TIMES_ROUNDING, ServedCase, ServerCertification
from harness.records.provenance import provenance
from harness.report.document import Document, Section
from harness.report.number_format import SCIENTIFIC, Number, count
from harness.report.table import ColumnOf, Entry, row_of, table_of


def _of_fit(entry: Callable[[Fit], Entry | None]) -> Callable[[ServedCase], Entry | None]:
    return lambda case: entry(case.fit)


COLUMNS: tuple[ColumnOf[ServedCase], ...] = (
    ("case", lambda case: case.name),
    ("requests", lambda case: count(case.fit.num_samples)),
    *((name, _of_fit(entry)) for name, entry in FIT_COLUMNS),
    (f"TV detectable (power {POWER:g})", lambda case: Number(case.detectable, decimals=4)),
    ("TV of rounding", lambda case: Number(case.rounding_variation, style=SCIENTIFIC)),
    ("verdict", lambda case: verdict_text(case.verdict, case.reason)),
)


def line(case: ServedCase) -> str:
    """One case on the console."""
    name, requests, df, statistic, p_value, variation, detectable, _, verdict = map(str, row_of(case, COLUMNS))
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
        TV_ESTIMATE,
        "Not tested: longer answers, other prompts, other sampling parameters, and how many drafts are accepted.",
        *(f"Target: {text}." for text in result.assumptions),
        *([f"Server: {config.remark}"] if config.remark else []),
    ]


def document(result: ServerCertification) -> Document:
    """The whole report."""
    engine = f"{result.config.engine.value} {result.version or '(unknown version)'}"
    retried = f", {result.draws.num_retried} requests sent again" if result.draws.num_retried else ""
    table = table_of("Cases", result.cases, COLUMNS)
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


def write(result: ServerCertification, folder: Path) -> Path:
    """Write certification.json, and report as .md, .html and .tex; returns the path of report.md."""
    found = {
        "headline": headline(result),
        "wall_s": result.draws.wall_s,
        "server": {"url": result.url, "model": result.model, "version": result.version},
        "target": result.target,
        "assumptions": result.assumptions,
        "prompts": result.prompts,
        "drafts": result.drafts,
        "num_failures": len(result.draws.failures),
        "num_retried": result.draws.num_retried,
        "outcomes": [case_json(case) for case in result.cases],
    }
    return write_certification(result, document(result), found, folder)
