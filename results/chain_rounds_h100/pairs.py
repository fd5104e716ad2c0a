"""Round times of the chain engine at two commits, interleaved on one GPU.

    python results/chain_rounds_h100/pairs.py CHECKOUT_BEFORE CHECKOUT_AFTER

Both commits run in processes of their own with the models of all cells loaded, and take turns (before, after, after,
before, ...). A turn runs as many requests as there are slots, of 128 prompt tokens and 64 output tokens each, and gives
the median time between two steps of decoding. Where caches lie in memory moves times by about 1 %, so the processes are
started again several times. A row is one cell: K draft tokens, requests in flight, the median round of both commits in
ms (mean of turns and starts), and after / before with a 95 % t-interval over the starts. Prints Markdown.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

STARTS, TURNS = 4, 6
QUANTILE = 3.182
"""97.5 % of Student's t with STARTS - 1 degrees of freedom."""
CELLS = [(3, 1), (3, 8), (3, 32), (7, 8)]
"""K, requests in flight."""


def main() -> None:
    checkouts = [Path(each).resolve() for each in sys.argv[1:]]
    ratios_of: dict[int, list[float]] = {index: [] for index in range(len(CELLS))}
    times: dict[tuple[int, int], list[float]] = {}
    for start in range(STARTS):
        order = (0, 1) if start % 2 == 0 else (1, 0)
        served = {which: _start(checkouts[which]) for which in order}
        for which in order:
            _ask(served[which], "")
        for index in range(len(CELLS)):
            of_start: dict[int, list[float]] = {0: [], 1: []}
            for turn in range(TURNS):
                for which in order if turn % 2 == 0 else order[::-1]:
                    of_start[which].append(_ask(served[which], str(index)))
            before, after = (statistics.mean(of_start[which]) for which in (0, 1))
            ratios_of[index].append(after / before)
            times.setdefault((index, 0), []).append(before)
            times.setdefault((index, 1), []).append(after)
            print(start, CELLS[index], of_start, file=sys.stderr, flush=True)
        for process in served.values():
            process.stdin.close()
            process.wait()
    print("| K | requests | before (ms) | after (ms) | after / before |", "|---|---|---|---|---|", sep="\n")
    for index, (num_tokens, size) in enumerate(CELLS):
        ratios = ratios_of[index]
        mean, half = statistics.mean(ratios), QUANTILE * statistics.stdev(ratios) / len(ratios) ** 0.5
        before, after = (statistics.mean(times[index, which]) for which in (0, 1))
        ratio = f"{mean:.4f} [{mean - half:.4f}, {mean + half:.4f}]"
        print(f"| {num_tokens} | {size} | {before:.3f} | {after:.3f} | {ratio} |")


def _start(checkout: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    return subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(process: subprocess.Popen[str], line: str) -> float:
    """The answer to a line; to an empty one the time that loading took."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    for answer in process.stdout:
        if answer.startswith("="):
            return float(json.loads(answer[1:]))
    raise SystemExit(f"a process ended with {process.wait()}")


def serve() -> None:
    """Load the cells with the modules of the working directory, and time a turn of the cell that a line names."""
    sys.path.insert(0, str(Path.cwd()))
    from harness.backends.local.local import LocalBackend
    from harness.backends.local.model_store import ModelStore
    from harness.compose.compose import compose_plan
    from harness.workload.conversations import conversations, load_prompts

    began, store, loaded = time.perf_counter(), ModelStore(), []
    for num_tokens, size in CELLS:
        overrides = [
            *("target=llama3_8b", "drafter=eagle", "drafter.weights=random", "verification=probabilistic"),
            *("decoding.temperature=1.0", "decoding.max_new_tokens=64", "decoding.ignore_eos=true"),
            *("workload.num_turns=1", "workload.prompt_tokens=128", f"workload.num_requests={size}"),
            *("backend.dtype=bfloat16", f"backend.max_concurrency={size}", "backend.device=cuda"),
            *("measurement.expected_acceptance=false", f"drafting.num_speculative_tokens={num_tokens}"),
        ]
        (cell,) = (each for each in compose_plan(overrides, "pairs").cells if not each.is_baseline)
        played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
        backend = LocalBackend(cell, store)
        backend.prepare(played)
        requests = [request for request in map(backend.requests.first, played) if request is not None]
        loaded.append((backend.engine_of_cell.engine(), requests))
    for line in sys.stdin:
        if not line.strip():
            for engine, requests in loaded:
                engine.run(requests, lambda answer: None)
            print(f"={json.dumps(time.perf_counter() - began)}", flush=True)
            continue
        engine, requests = loaded[int(line)]
        steps: list[float] = []
        engine.run(requests, lambda answer: None, on_round=lambda steps=steps: steps.append(time.perf_counter()))
        # the first steps read prompts, in the last ones requests end
        taken = [after - before for before, after in pairwise(steps[4:-11])]
        print(f"={json.dumps(statistics.median(taken) * 1e3)}", flush=True)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
