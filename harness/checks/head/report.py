"""The report of a checked pair: a verdict, its evidence as tables, and JSON with everything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.estimates import Estimate, Estimates
from harness.analysis.position_metrics import BOUND
from harness.checks.doctor.finding import Finding
from harness.checks.head.check import Checked, Compared, counts_by_prompt
from harness.checks.head.forced import STRIDE
from harness.checks.head.protocol import DEPTH, NUM_TOKENS
from harness.checks.head.references import pair_of, reference_text
from harness.checks.head.trials import LEAST_RISE, ON_ANSWERS, ON_TEXTS, Tried
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_report
from harness.report.files import json_text
from harness.report.number_format import Number, format_estimate
from harness.report.table import NONE, Entry, Table
from harness.runner.progress import duration
from harness.workload.chat import PLAIN_TEXT_NOTE

JSON = "check_head.json"
STEM = "report"
LENGTH = "mean_acceptance_length"


def headline(checked: Checked) -> str:
    """The verdict in one sentence."""
    if checked.refusal:
        return f"REFUSED at load: {checked.refusal}"
    best = checked.diagnoses
    if best:
        return f"FAULT: {best[0].fault}. To mend it: {best[0].mend}. {_gain(best[0])}"
    problems = [f"{item.subject}: {item.found}. To mend it: {item.advice}" for item in checked.problems]
    if problems:
        return f"FAULT: {'; '.join(problems)}."
    below = [item for item in checked.compared if item.is_below]
    if below:
        return f"LESS than known of this pair ({below[0].reference.name}), and none of the alternatives explains it."
    known = [item for item in checked.compared if item.differences]
    expected = f", and it accepts what is known of this pair ({known[0].reference.name})" if known else ""
    if not checked.tried:
        return f"NOT DIAGNOSED: no alternative was tried{expected}."
    return f"SOUND: none of {len(checked.tried)} alternatives accepts more{expected}."


def _gain(item: Tried) -> str:
    before, after = (f"{estimate.value:.2f}" for estimate in (item.before, item.after))
    rise = format_estimate(item.rise, "length", signed=True)
    return f"{metric(item.metric).label.capitalize()} {before} -> {after}, {rise} by prompts."


def lines(checked: Checked) -> list[str]:
    """What the verdict rests on, beside the tables: further faults, remarks, references of other protocols, times."""
    found = [f"also better: {item.fault} ({item.mend})" for item in checked.diagnoses[1:4]]
    for item in checked.findings:
        found.append(f"{item.subject}: {item.found}" + (f" -> {item.advice}" if item.advice else ""))
    found += [_compared_line(item) for item in checked.compared]
    if not checked.compared:
        found.append("no reference is known of this pair; harness/references has those that are")
    found += [f"{name}: {duration(seconds)}" for name, seconds in checked.seconds.items()]
    return found


def _compared_line(item: Compared) -> str:
    reference = item.reference
    if item.differences:
        texts = [
            f"{format_estimate(value, 'length', signed=True)} at T = {temperature:g}"
            for temperature, value in item.differences.items()
        ]
        return f"{metric(LENGTH).label} beside {reference.name} ({reference.fields['engine']}): {', '.join(texts)}"
    fields = reference.fields
    if reference.is_own:
        return f"{reference.name} does not compare: it is of other prompts, another length, thinking or K"
    stated = "; ".join(
        f"T = {float(temperature):g}: {', '.join(f'{100 * rate:.1f}' for rate in rates)} %"
        for temperature, rates in fields["rates"].items()
    )
    return f"another protocol ({fields['protocol']}; {fields['source']}) says by position: {stated}"


def acceptance_table(checked: Checked) -> Table:
    """Acceptance by position, and what could be reached."""
    depth = checked.protocol.cell.drafting.num_speculative_tokens
    rows: list[tuple[Entry, ...]] = []
    for cell in checked.cells:
        temperature = Number(float(cell["temperature"]), style="plain")
        rows.append((temperature, "accepted", *_by_position(cell, "acceptance_rate", depth), _number(cell, LENGTH)))
        if float(cell["temperature"]):
            bounds = [cell.estimate(f"acceptance_bound_per_pos_{place}") for place in range(1, depth + 1)]
            rows.append((temperature, "any rule, these drafts", *map(_percent, bounds), NONE))
        if checked.num_draft_ids is not None:
            reached = checked.reached[float(cell["temperature"])]
            rows.append((temperature, "perfect drafter, its vocabulary", *map(_percent, reached), NONE))
    header = ("T", "", *(f"position {place} (%)" for place in range(1, depth + 1)), metric(LENGTH).label)
    return Table("Acceptance by position", header, tuple(rows), keeps_measured=True)


def kinds_table(checked: Checked) -> Table:
    """Mean acceptance length by kind of prompt."""
    rows: list[tuple[Entry, ...]] = []
    for kind in dict.fromkeys(item.category for item in checked.cells[0].record.requests):
        entries: list[Entry] = [kind]
        for cell in checked.cells:
            ids = sorted({item.prompt_id for item in cell.record.requests if item.category == kind})
            part = Estimates(cell.estimates.sums.take(ids), cell.estimates.num_resamples, cell.estimates.confidence)
            entries.append(Number(*part.estimate(LENGTH), style="length"))
        rows.append((*entries,))
    header = ("kind", *(f"{metric(LENGTH).label}, T = {float(cell['temperature']):g}" for cell in checked.cells))
    return Table("By kind of prompt", header, tuple(rows), keeps_measured=True)


def tried_table(checked: Checked, most: int | None = None) -> Table:
    """The alternatives, those that add most first.

    Args:
        most: how many; None shows all.
    """
    ordered = sorted(checked.tried, key=lambda item: (not item.is_better, -item.rise.value))
    rows = tuple(
        (
            item.name,
            metric(item.metric).label,
            Number(*item.rise, style="length", signed=True),
            Number(item.after.value, style="length"),
            "better" if item.is_better else "no better",
        )
        for item in ordered[:most]
    )
    header = ("alternative", "metric", "difference", "value", "verdict")
    return Table("Alternatives that were tried", header, rows, keeps_measured=True)


def _by_position(cell: CellResult, name: str, depth: int) -> list[Number]:
    return [_percent(cell.estimate(f"{name}_per_pos_{place}")) for place in range(1, depth + 1)]


def _percent(estimate: Estimate) -> Number:
    return Number(*estimate, style="percent")


def _number(cell: CellResult, name: str) -> Number:
    return Number(*cell.estimate(name), style="length")


def definitions(checked: Checked) -> list[str]:
    """What was run, and what the numbers mean."""
    cell = checked.protocol.cell
    num_prompts = len(checked.protocol.conversations)
    return [
        f"Protocol: first turns of {num_prompts} built-in prompts of three kinds (fingerprint "
        f"{checked.protocol.prompts}), at most {cell.decoding.max_new_tokens} tokens, T = 0 and 1, K = "
        f"{cell.drafting.num_speculative_tokens}, probabilistic verification, {cell.backend.max_concurrency} in flight."
        + (
            ""
            if checked.protocol.is_standard
            else f" Not the standard one (30 prompts, {NUM_TOKENS} tokens, K = {DEPTH})."
        ),
        f"any rule, these drafts: {BOUND}.",
        "perfect drafter, its vocabulary: places of the answers whose next 1, 2, .. tokens can all be drafted: what a "
        "drafter accepts that is the target itself, restricted to the head's tokens. Without such a row it drafts all.",
        f"Alternatives of the head draft greedily at every {STRIDE}th place of the protocol's answers; those of "
        "prompts write answers of their own at T = 1, and loops are left out. Differences are "
        "paired by prompts, their brackets 99.9 % intervals (of prompts 99 %); an alternative is better if its whole "
        f"interval is above 0 and it adds {LEAST_RISE[ON_TEXTS]:.0%} of the accepted tokens on the same texts, "
        f"{LEAST_RISE[ON_ANSWERS]:.0%} on others.",
    ]


def document(checked: Checked) -> Document:
    """The whole report."""
    pair = pair_of(checked.protocol.cell)
    facts = (("target", str(pair["target"])), ("drafter", f"{pair['drafter']}, {pair['path'] or 'built in'}"))
    sections: list[Section] = []
    if checked.cells:
        tables = [acceptance_table(checked), kinds_table(checked)]
        if checked.tried:
            tables.append(tried_table(checked))
        sections = [Section(table.title, tables=(table,)) for table in tables]
        sections.append(Section("Further", items=tuple(lines(checked))))
        assumed = [text for item in checked.cells[:1] for text in (*item.record.assumptions, *item.record.fallbacks)]
        sections += [Section("Taken for granted", items=tuple(assumed))] if assumed else []
    return Document(
        "Check of a draft head",
        facts,
        (headline(checked),),
        tuple(sections),
        tuple(definitions(checked)) if checked.cells else (),
        [provenance()],
    )


def write(checked: Checked, folder: Path) -> Path:
    """Write check_head.json, and report as .md, .html and .tex; returns the path of report.md."""
    pair = pair_of(checked.protocol.cell)
    content = {
        "headline": headline(checked),
        "sound": checked.is_sound,
        "target": pair["target"],
        "drafter": {"kind": pair["drafter"], "path": pair["path"]},
        "prompts": checked.protocol.prompts,
        "standard": checked.protocol.is_standard,
        "acceptance": {f"{float(item['temperature']):g}": _metrics(item) for item in checked.cells},
        "perfect_drafter": {f"{temperature:g}": found for temperature, found in checked.reached.items()},
        "references": [
            {"name": item.reference.name, "differences": {f"{key:g}": value for key, value in item.differences.items()}}
            for item in checked.compared
        ],
        "alternatives": [_plain(item) for item in checked.tried],
        "findings": [_finding(item) for item in checked.findings],
        "seconds": checked.seconds,
        "provenance": provenance(),
    }
    return write_report(document(checked), folder, STEM, {JSON: json_text(content)})[0]


def reference_of(checked: Checked) -> str:
    """What the protocol has measured, as a file of harness/references."""
    cell, found = checked.protocol.cell, provenance()
    record = checked.cells[0].record
    commit = (found["git"] or {}).get("commit", "")[:8] or "unknown"
    version, dtype = found["packages"]["rejection-lab"], record.config["dtype"]
    engine = f"rejection-lab {version}, commit {commit}, {dtype}, {_where(found)}"
    template = "none, plain text" if PLAIN_TEXT_NOTE in record.fallbacks else "the target's own"
    counts = {float(item["temperature"]): counts_by_prompt(item) for item in checked.cells}
    return reference_text(cell, checked.protocol.prompts, counts, engine, template)


def _where(found: Mapping[str, Any]) -> str:
    return str(found["gpu"]["name"]) if found["gpu"] else "CPU"


def _metrics(cell: CellResult) -> Mapping[str, Estimate]:
    depth = range(1, cell.estimates.sums.num_positions + 1)
    names = [f"{name}_per_pos_{place}" for name in ("acceptance_rate", "acceptance_bound") for place in depth]
    return {name: cell.estimate(name) for name in [LENGTH, "looping_answers", *names]}


def _plain(item: Tried) -> dict[str, Any]:
    return {
        "alternative": item.alternative,
        "name": item.name,
        "fault": item.fault,
        "mend": item.mend,
        "metric": item.metric,
        "before": item.before,
        "after": item.after,
        "rise": item.rise,
        "better": item.is_better,
    }


def _finding(item: Finding) -> dict[str, str]:
    return {"subject": item.subject, "found": item.found, "weight": item.weight.value, "advice": item.advice}
