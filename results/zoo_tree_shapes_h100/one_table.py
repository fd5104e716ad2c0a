"""One table of the shapes: acceptance length and tokens/s of this folder, share of the bound of zoo_tree_bounds_h100.

    python results/zoo_tree_shapes_h100/one_table.py > results/zoo_tree_shapes_h100/one_table.md

Times and shares are of two runs: recording the rows that the bound needs slows drafting down and the baseline not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from harness.metrics import load_results

RESULTS = Path(__file__).resolve().parents[1]
KEY = ["temperature", "tree", "num_speculative_tokens", "verification"]


def main() -> None:
    shapes, bounds = (_cells(name) for name in ("zoo_tree_shapes_h100", "zoo_tree_bounds_h100"))
    print(
        "Acceptance length of full drafts, share of what any lossless rule could accept position by position (%), "
        "output tokens/s and speedup over the baseline; 95 % intervals by prompt. EAGLE-3 of the built-in models, "
        "MT-Bench, 16 requests in flight, one H100. Length, tokens/s and speedup: 960 requests a cell. "
        "Share: 320 requests a cell, an earlier run. `(disturbed)`: blocks of the cell differ by more than its prompts "
        "explain.\n"
    )
    print("| T | K | draft | verification | length | share of the bound (%) | tokens/s | speedup |")
    print("|---|---|---|---|---|---|---|---|")
    for key, cell in shapes.iterrows():
        temperature, tree, num_tokens, verification = key
        share = bounds.loc[key] if num_tokens else None
        entries = (
            f"{temperature:g}",
            f"{num_tokens:g}",
            "none" if not num_tokens else f"`{tree}`" if tree else "chain",
            verification or "–",
            _interval(cell, "full_draft_length", "{:.2f}") if num_tokens else "1",
            "–" if share is None else _interval(share, "share_of_bound", "{:.1f}", 100),
            _interval(cell, "output_tokens_per_s", "{:,.0f}"),
            _interval(cell, "speedup", "{:.2f}") if num_tokens else "1",
        )
        print("| " + " | ".join(entries) + (" |" if pd.isna(cell.block_drift) else " (disturbed) |"))


def _cells(name: str) -> pd.DataFrame:
    cells = load_results(RESULTS / name)
    cells["tree"] = cells["tree"].fillna("")
    cells["verification"] = cells["verification"].fillna("")
    return cells.set_index(KEY).sort_index()


def _interval(cell: pd.Series, column: str, form: str, factor: float = 1) -> str:
    value, low, high = (form.format(factor * cell[f"{column}{end}"]) for end in ("", "_low", "_high"))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    sys.exit(main())
