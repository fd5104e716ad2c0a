"""The table of results/certified/README.md: what the tracked certifications say of each implementation.

    python -m harness.checks.certification.implementations.page results/certified

writes it anew between two marks. Every verdict is worked out again from the statistics, none is copied. Requests and
power are those of the cases with short rows, where there are any.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.checks.certification.evaluate import FALSE_ALARM, POWER, RESERVE, VARIATION
from harness.checks.certification.goodness_of_fit import p_value_of, power_at
from harness.checks.certification.report import JSON, power_text
from harness.records.strict_json import parse_json
from harness.report.files import write_between
from harness.report.table import Table

MARKS = "<!-- table -->\n", "<!-- end of the table -->"
COLUMNS = (
    "implementation",
    "method, drafts",
    "cases",
    "requests a case",
    f"power at TV {VARIATION:g}; TV seen with {POWER:g}",
    "verdict",
    "largest TV estimate [99.9 %]",
    "`rejection-lab certify ...`",
)
UNTESTED = "not supported"
Item = dict[str, Any]


def tested(certification: Item) -> list[Item]:
    """The lossless cases that were simulated."""
    return [item for item in certification["outcomes"] if not item["is_control"] and item["verdict"] != UNTESTED]


def level_of(certification: Item) -> float:
    """Level of each single test, from the number of cases."""
    return FALSE_ALARM / RESERVE / max(1, len(tested(certification)))


def p_value(fit: Item) -> float:
    """The p-value of a test from its statistic."""
    return 0.0 if fit["num_impossible"] else p_value_of(fit["statistic"], fit["df"])


def fails(fit: Item, level: float) -> bool:
    """Whether a case, or its confirmation, speaks against the implementation."""
    return bool(fit.get("num_faults", 0)) or p_value(fit) < level


def rows(path: Path) -> list[tuple[str, ...]]:
    """The rows of one certification: one for each way to draft and verify.

    Args:
        path: its folder.
    """
    certification = parse_json((path / JSON).read_bytes())
    level = level_of(certification)
    ways: dict[str, list[Item]] = {}
    for item in tested(certification):
        ways.setdefault(", ".join(item["name"].split(", ")[:2]), []).append(item)
    name = f"[{certification['subject']['name']}]({path.name}/report.md)"
    return [(name, way, *_cells(items, level), _command(certification["config"])) for way, items in ways.items()]


def _cells(items: list[Item], level: float) -> tuple[str, ...]:
    short = [item for item in items if not item["is_spread"]] or items
    power = min(power_at(VARIATION, item["num_samples"], level, item["df"]) for item in short)
    samples = sorted(item["num_samples"] for item in short)
    failed = [item for item in items if fails(item, level)]
    confirmed = [item for item in failed if "confirmation" in item and fails(item["confirmation"], level)]
    verdict = f"**FAIL** in {len(failed)} of {len(items)}, {len(confirmed)} confirmed" if failed else "pass"
    worst = max(items, key=lambda item: item["variation"])
    off = f"{worst['variation']:.4f} [{worst['variation_low']:.4f}, {worst['variation_high']:.4f}]"
    ends = dict.fromkeys(f"{number / 1e6:.3g}" for number in (samples[0], samples[-1]))
    shown = f"{power_text(power)}; {max(item['detectable'] for item in short):.4f}"
    return str(len(items)), f"{' to '.join(ends)} million", shown, verdict, off


def _command(config: Item) -> str:
    options = [f"--subject {config['subject']}"]
    options += [f"--methods {','.join(config['methods'])}"] if config["methods"] else []
    options += [f'--cells "{config["cells"]}"'] if config["cells"] else []
    options += [f"--samples {config['samples']}"] if config["samples"] else []
    return f"`{' '.join([*options, '--size full'])}`"


def table(folder: Path) -> str:
    """The rows of all certifications, in the order of their folders' names, as Markdown."""
    found = tuple(row for path in sorted(folder.iterdir()) if (path / JSON).exists() for row in rows(path))
    return Table("", COLUMNS, found).to_markdown(title=False, compact=False).rstrip() + "\n"


def write(folder: Path) -> None:
    """Put the table into the folder's README.md, in the place of the one that is there."""
    write_between(folder / "README.md", *MARKS, table(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
