"""Trees at the shape of Llama-3-8B with what the built-in EAGLE accepts on these very trees.

    python results/trees_llama3_8b_h100/measured_lengths.py             # the table, as Markdown
    python results/trees_llama3_8b_h100/measured_lengths.py RUN_FOLDER  # zoo_tree_lengths/by_prompt.csv of a run

Tokens per second of B requests: B * tokens per target forward / round time. Tokens per forward are those of
zoo_tree_lengths (every round counts, prefills too, end of sequence ignored), of the best rule for chains
(probabilistic, block) and for trees (recursive, traversal). Round times are this folder's, at T = 1 and with synthetic
acceptance, those of chains from the engine of chains. Shows the best chain, and each tree with its ratio to that chain.
Intervals: 95 %, bootstrap by prompt, ratios paired; those of the round times, 0.8 % at most over prompts, are left out.
Which chain, and which rule of two, is best is decided on the same data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from harness.metrics import load_results
from harness.records.runs import read_runs
from harness.settings.tree import is_chain

HERE = Path(__file__).resolve().parent
SUMS = HERE.parent / "zoo_tree_lengths" / "by_prompt.csv"
KEY = ["T", "tree", "K", "verification"]
RESAMPLES = 10_000


def main(arguments: list[str]) -> None:
    if arguments:
        write_sums(Path(arguments[0]))
    else:
        print_table()


def write_sums(run: Path) -> None:
    """Output tokens and rounds of each prompt and cell."""
    rows = []
    for cell in (cell for found in read_runs(run) for cell in found.cells):
        config = cell.config
        if config["drafter"]["kind"] == "none":
            continue
        key = (
            config["decoding"]["temperature"],
            config["drafting"].get("tree") or "",
            config["drafting"]["num_speculative_tokens"],
            config["verification"]["method"],
        )
        rows += [(*key, item.prompt_id, item.num_output_tokens, len(item.rounds)) for item in cell.requests]
    frame = pd.DataFrame(rows, columns=[*KEY, "prompt", "tokens", "rounds"])
    frame["prompt"] = frame["prompt"].astype("category").cat.codes
    sums = frame.groupby([*KEY, "prompt"], as_index=False).sum()
    assert sums.groupby(KEY)["tokens"].sum().nunique() == 1, "expected cells with as many output tokens"
    wide = sums.pivot(index=[*KEY], columns="prompt", values="rounds")
    wide.insert(0, "tokens of a prompt", sums.groupby(KEY)["tokens"].first())
    SUMS.parent.mkdir(exist_ok=True)
    wide.to_csv(SUMS)


def print_table() -> None:
    sums = pd.read_csv(SUMS, keep_default_na=False).set_index(KEY)
    tokens, rounds = sums.pop("tokens of a prompt"), sums.to_numpy(dtype=float)
    drawn = np.random.default_rng(0).integers(0, rounds.shape[1], (RESAMPLES, rounds.shape[1]))
    counts = np.stack([np.bincount(each, minlength=rounds.shape[1]) for each in drawn])
    # as many output tokens for every prompt, so that they cancel in the mean
    point = tokens.to_numpy() / rounds.mean(axis=1)
    resampled = tokens.to_numpy()[:, None] * rounds.shape[1] / (rounds @ counts.T)
    times = round_times()
    print("| T | requests | best chain | tree of 8 | 16 | 32 |", "|---|---|---|---|---|---|", sep="\n")
    for temperature in sorted({key[0] for key in sums.index}):
        for size in sorted({size for size, _ in times}):
            found = {}
            for place, (cell_temperature, tree, num_tokens, rule) in enumerate(sums.index):
                if cell_temperature == temperature:
                    time = times[size, tree or num_tokens]
                    found[tree, num_tokens, rule] = (
                        size * 1e3 * point[place] / time,
                        size * 1e3 * resampled[place] / time,
                    )
            chain = max((key for key in found if not key[0]), key=lambda key: found[key][0])
            entries = [f"{_text(*found[chain], ',.0f')}, {chain[2]}, K = {chain[1]}"]
            for num_tokens in sorted({key[1] for key in found if key[0]}):
                best = max((key for key in found if key[0] and key[1] == num_tokens), key=lambda key: found[key][0])
                ratio = found[best][0] / found[chain][0], found[best][1] / found[chain][1]
                entries.append(f"{found[best][0]:,.0f}, {best[2]}, {_text(*ratio, '.2f')}")
            print(f"| {temperature:g} | {size} | " + " | ".join(entries) + " |")


def round_times() -> dict[tuple[int, str | int], float]:
    """ms by requests in flight, and the shape of a tree or K of a chain."""
    found: dict[tuple[int, str | int], float] = {}
    for row in load_results(HERE).itertuples():
        is_tree = isinstance(row.tree, str) and row.tree != ""
        if row.drafter == "none" or (is_tree and is_chain(row.tree)):
            continue  # the latter: a chain that is drafted as a tree
        found[int(row.max_concurrency), row.tree if is_tree else int(row.num_speculative_tokens)] = row.itl_mean_ms
    return found


def _text(value: float, resampled: np.ndarray, form: str) -> str:
    low, high = np.percentile(resampled, (2.5, 97.5))
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


if __name__ == "__main__":
    main(sys.argv[1:])
