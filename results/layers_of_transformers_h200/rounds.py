"""Step times of layers of our own, of transformers, and compiled: the table of README.md beside this file.

python results/layers_of_transformers_h200/rounds.py
"""

from __future__ import annotations

import gc
import statistics
import time
from itertools import pairwise

import torch

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.runner.plan.compose import compose_plan
from harness.workload.conversations import conversations, load_prompts

CASES = [("llama3_8b", 16, 0), ("llama3_8b", 16, 3), ("qwen3_30b_a3b", 16, 0)]
"""Shape, requests in flight, draft tokens."""
LAYERS = [("own", None), ("transformers", False), ("transformers", True)]
"""target.layers, backend.compile."""
HAS_OWN = {"llama3_8b"}


def measure(shape: str, num_requests: int, num_drafted: int, layers: str, is_compiled: bool | None) -> None:
    """Print a row."""
    overrides = [
        *(f"target={shape}", "target.path=null", f"target.shape={shape}", "target.weights=random"),
        *(f"target.layers={layers}", "backend.device=cuda", "backend.dtype=bfloat16", "backend.graphs=true"),
        *(f"workload.num_requests={num_requests}", "workload.num_turns=1", "workload.prompt_tokens=64"),
        *("decoding.temperature=1.0", "decoding.max_new_tokens=48", "decoding.ignore_eos=true"),
        *(f"backend.max_concurrency={num_requests}", "measurement.expected_acceptance=false"),
    ]
    overrides += [] if is_compiled is None else [f"backend.compile={str(is_compiled).lower()}"]
    overrides += ["drafter=none"]
    if num_drafted:
        overrides[-1:] = [
            "drafter=ngram",
            f"drafting.num_speculative_tokens={num_drafted}",
            "verification=probabilistic",
        ]
    (cell,) = (each for each in compose_plan(overrides, "rounds").cells if each.is_baseline == (not num_drafted))
    played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
    began = time.perf_counter()
    backend = LocalBackend(cell, ModelStore())
    backend.prepare(played)
    requests = [request for request in map(backend.requests.first, played) if request is not None]
    engine = backend.engine_of_cell.engine()
    engine.prepare()
    ready_s, medians = time.perf_counter() - began, []
    for _ in range(3):
        ends: list[float] = []
        engine.run(requests, lambda answer: None, on_round=lambda ends=ends: ends.append(time.perf_counter()))
        # the first steps read prompts, in the last ones requests end
        medians.append(statistics.median(after - before for before, after in pairwise(ends[4:-6])) * 1e3)
    times = ", ".join(f"{each:.3f}" for each in medians)
    compiled_s = engine.target.compile_s
    print(f"{shape} {num_requests} {num_drafted} {layers} {is_compiled}: {times} ms; {compiled_s:.1f}, {ready_s:.1f} s")


if __name__ == "__main__":
    for case in CASES:
        for way in LAYERS:
            if way[0] == "own" and case[0] not in HAS_OWN:
                continue
            measure(*case, *way)
            gc.collect()
            torch.cuda.empty_cache()
