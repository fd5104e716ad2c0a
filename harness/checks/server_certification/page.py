"""The table of results/certified/README.md on served engines: what the tracked certifications say of each server.

    python -m harness.checks.server_certification.page results/certified

writes it anew between two marks. Every verdict is worked out again from the statistics, none is copied.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.checks.certification.evaluate import FALSE_ALARM, POWER, RESERVE
from harness.checks.certification.goodness_of_fit import p_value_of
from harness.checks.certification.report import JSON
from harness.checks.server_certification.config import options_of
from harness.records.strict_json import parse_json
from harness.report.files import write_between
from harness.report.table import Table

FOLDER = "served"
MARKS = "<!-- served -->\n", "<!-- end of served -->"
COLUMNS = (
    "server",
    "case",
    "requests",
    "draft tokens, accepted",
    f"TV seen with {POWER:g}",
    "verdict",
    "TV estimate [99.9 %]",
    "`rejection-lab certify-server URL ...`",
)
Item = dict[str, Any]


def level_of(certification: Item) -> float:
    """Level of each single test, from the number of cases."""
    return FALSE_ALARM / RESERVE / len(certification["outcomes"])


def differs(fit: Item, tolerated: float, level: float) -> bool:
    """Whether a case, or its confirmation, has another law than the target's."""
    return bool(fit["num_impossible"]) or p_value_of(fit["statistic"], fit["df"], tolerated) < level


def verdict(certification: Item, item: Item) -> str:
    """What a case comes to."""
    level, tolerated = level_of(certification), item["tolerated"]
    if differs(item, tolerated, level):
        is_same = differs(item["confirmation"], tolerated, level)
        return f"**FAIL**, {'confirmed' if is_same else 'not confirmed'}"
    return "**FAIL**, not all requests were answered" if item["num_short"] or certification["num_failures"] else "pass"


def rows(path: Path) -> list[tuple[str, ...]]:
    """The rows of one certification: one for each case.

    Args:
        path: its folder.
    """
    found = parse_json((path / JSON).read_bytes())
    drafts = found["drafts"]
    drafted = "none" if drafts is None else f"{drafts['num_draft_tokens']:,}, {drafts['num_accepted_tokens']:,}"
    name = f"[{found['config']['remark'] or found['server']['version']}]({FOLDER}/{path.name}/report.md)"
    options = f"`{' '.join(options_of(found['config']))}`"
    return [
        (
            name,
            item["name"],
            f"{item['num_samples']:,}",
            drafted,
            f"{item['detectable']:.3f}",
            verdict(found, item),
            f"{item['variation']:.3f} [{item['variation_low']:.3f}, {item['variation_high']:.3f}]",
            options,
        )
        for item in found["outcomes"]
    ]


def table(folder: Path) -> str:
    """The rows of all certifications, in the order of their folders' names, as Markdown."""
    found = tuple(row for path in sorted((folder / FOLDER).iterdir()) for row in rows(path))
    return Table("", COLUMNS, found).to_markdown(title=False, compact=False).rstrip() + "\n"


def write(folder: Path) -> None:
    """Put the table into the folder's README.md, in the place of the one that is there."""
    write_between(folder / "README.md", *MARKS, table(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
