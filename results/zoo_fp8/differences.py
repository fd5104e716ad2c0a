"""Acceptance length of full drafts in 8 bits minus that without rounding, paired by prompt.

    python results/zoo_fp8/differences.py results/runs/zoo_fp8

reads the records of the run that the report's command makes; the tracked tables are not enough.
"""

import sys
from pathlib import Path

from harness.metrics.cell import analyse
from harness.metrics.estimates import paired_difference
from harness.records.runs import read_runs

cells = {
    (cell["temperature"], cell["verification"], cell["labels"]): cell
    for cell in analyse(read_runs(Path(sys.argv[1])))
    if not cell.is_baseline
}
print("| T | verification | rounded | difference |\n|---|---|---|---|")
for (temperature, method, labels), cell in sorted(cells.items()):
    if labels:
        plain = cells[temperature, method, ""]
        value, low, high = paired_difference(plain.estimates, cell.estimates, "full_draft_length")
        print(f"| {temperature:g} | {method} | {labels} | {value:+.2f} [{low:+.2f}, {high:+.2f}] |")
