"""Trees at the shape of Llama-3-8B with the acceptance length that the built-in EAGLE has on these very trees.

    rejection-lab run ...  (the command of zoo_tree_lengths_h100/report.md)
    python results/trees_llama3_8b_h100/measured_lengths.py results/runs/tree_lengths

Tokens per second of B requests: B * acceptance length of full drafts / round time. Lengths are from that run, with the
end of sequence ignored; round times from this folder's cells.csv, those of chains from the engine of chains. Prints
them as Markdown, and the ratio of each tree to the chain with most tokens per second. Intervals: bootstrap of the
lengths by prompt, ratios paired; those of round times, left out, are 0.8 % at most.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.metrics import load_results
from harness.metrics.cell import CellResult, analyse
from harness.metrics.estimates import paired_ratio
from harness.records.runs import read_runs
from harness.settings.tree import is_chain

LENGTH = "tokens_per_forward"


def main() -> None:
    rounds = load_results(Path(__file__).parent)
    round_ms: dict[tuple[int, str], float] = {}
    for row in rounds[rounds.drafter != "none"].itertuples():
        is_tree = isinstance(row.tree, str) and row.tree != ""
        if is_tree and is_chain(row.tree):
            continue  # the same chain, drafted as a tree
        shape = row.tree if is_tree else "-".join(["1"] * int(row.num_speculative_tokens))
        round_ms[int(row.max_concurrency), shape] = row.itl_mean_ms
    cells = analyse(read_runs(Path(sys.argv[1])))
    print("| T | requests | best chain | tree of 8 | 16 | 32 |", "|---|---|---|---|---|---|", sep="\n")
    for temperature in sorted({cell["temperature"] for cell in cells}):
        by_shape: dict[str, CellResult] = {
            cell["tree"]: cell
            for cell in cells
            if cell["tree"] and cell["temperature"] == temperature and cell["ignore_eos"]
        }
        for size in sorted({size for size, _ in round_ms}):
            print(f"| {temperature:g} | {size} | " + " | ".join(_line(size, by_shape, round_ms)) + " |")


def _line(size: int, by_shape: dict[str, CellResult], round_ms: dict[tuple[int, str], float]) -> list[str]:
    """The best chain, then the trees by their tokens."""

    def per_s(shape: str, length: float) -> float:
        return size * length / round_ms[size, shape] * 1e3

    best = max(filter(is_chain, by_shape), key=lambda shape: per_s(shape, by_shape[shape].estimate(LENGTH).value))
    trees = sorted((shape for shape in by_shape if not is_chain(shape)), key=len)
    entries = []
    for shape in (best, *trees):
        value, low, high = (per_s(shape, length) for length in by_shape[shape].estimate(LENGTH))
        entry = f"{value:,.0f} [{low:,.0f}, {high:,.0f}]"
        if shape == best:
            entries.append(f"{entry}, K = {len(shape.split('-'))}")
            continue
        ratio = paired_ratio(by_shape[best].estimates, by_shape[shape].estimates, LENGTH)
        slower = round_ms[size, shape] / round_ms[size, best]
        value, low, high = (each / slower for each in ratio)
        entries.append(f"{entry}, {value:.2f} [{low:.2f}, {high:.2f}]")
    return entries


if __name__ == "__main__":
    main()
