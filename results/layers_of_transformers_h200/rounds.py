"""Step times of layers of our own, of transformers, and compiled: the table of README.md beside this file.

python results/layers_of_transformers_h200/rounds.py [--devices 0,1] [--limit 250] [--only llama3_8b start ...]
    [--most-layers 12] [--prompt-tokens 64]

A process a shape, one after another on each GPU; those that would begin after the limit are left out, and told. Rows
and JSON go to the folder that $OUT names, else to the current one; logs there tell every 30 s where a process is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

COPIED_BYTES_PER_S = 4.3e12
"""Of an H200, measured by copies: what floors are of."""
OUTPUT = 48
"""Tokens of an answer."""
PROMPT_TOKENS = "PROMPT_TOKENS"
"""Variable of the environment of a child."""
CUT = {"qwen3_next_80b_a3b": (3.36e9, 4, 36)}
"""Of shapes that do not fit: bytes of a layer, layers of a period, and layers at most."""
DEVICE = os.environ.get("DEVICE", "cuda")
MOST_LAYERS = "MOST_LAYERS"
"""Variable of the environment of a child."""
KEPT_FREE_BYTES = 22e9
"""Beside the layers."""
OWN = ("own", "", False)
PLAIN, NEW = ("transformers", "old", False), ("transformers", "new", False)
COMPILED, BOTH = ("transformers", "old", True), ("transformers", "new", True)
"""Whose layers; whether attention in place, experts of our own and joined projections run (new); compiled."""
CASES: dict[str, list[tuple[tuple[str, str, bool], int, tuple[int, ...]]]] = {
    "llama3_8b": [(OWN, 16, (0, 3)), (BOTH, 16, (0, 3)), (NEW, 16, (0, 3)), (COMPILED, 16, (0, 3)), (PLAIN, 16, (0,))],
    "qwen3_30b_a3b": [(BOTH, 16, (0, 3)), (COMPILED, 16, (0,)), (NEW, 16, (0,))],
    "qwen3_next_80b_a3b": [(BOTH, 16, (3, 0))],
    "gpt_oss_20b": [(BOTH, 16, (0, 3)), (COMPILED, 16, (0, 3))],
    "gemma3_12b": [(BOTH, 16, (0, 3)), (COMPILED, 16, (0,))],
}
"""Ways to run a shape, requests in flight, draft tokens. In this order, and each beside `generate` with one request."""
ORDER = ("llama3_8b", "qwen3_30b_a3b", "qwen3_next_80b_a3b", "start", "gpt_oss_20b", "gemma3_12b")


class Parts:
    """Seconds of the parts of a start, in their order."""

    def __init__(self) -> None:
        self.note: str | None = None
        """What the backend tells of kernels and steps."""
        self.begin()

    def begin(self) -> None:
        """Forget all parts; the next one begins."""
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def end(self, name: str) -> None:
        """A part ends, and the next one begins."""
        now = time.perf_counter()
        self.seconds[name] = round(now - self._began, 2)
        self._began = now

    def move(self, source: str, name: str, seconds: float) -> None:
        """Count seconds of one part as another."""
        self.seconds[source] = round(self.seconds[source] - seconds, 2)
        self.seconds[name] = round(seconds, 2)


PARTS = Parts()
"""Of the engine that was made last."""


def target_of(shape: str, folder: Path) -> list[str]:
    """Settings of a shape with random weights."""
    if shape not in CUT:
        return [f"target={shape}", "target.path=null", f"target.shape={shape}", "target.weights=random"]
    import torch

    from harness.models.shape import read_shape

    layer_bytes, group, most = CUT[shape]
    most = int(os.environ.get(MOST_LAYERS) or most)
    room = torch.cuda.get_device_properties(0).total_memory - KEPT_FREE_BYTES
    fields = read_shape(shape).config | {"num_hidden_layers": min(most, int(room / layer_bytes) // group * group)}
    (folder / "config.json").write_text(json.dumps(fields))
    return ["target=zoo", f"target.path={folder}", "target.weights=random"]


def engine_of(target: list[str], way: tuple[str, str, bool], num_requests: int, num_drafted: int, store: Any) -> Any:
    """(backend, engine, requests), ready to run."""
    import torch

    from harness.backends.local.local import LocalBackend
    from harness.models.general import compiled, experts, in_place, joint_products
    from harness.models.general import target as general_target
    from harness.runner.plan.compose import compose_plan
    from harness.workload.conversations import conversations, load_prompts

    layers, kernels, is_compiled = way
    general_target.DEVICES = frozenset() if kernels == "old" else in_place.DEVICES
    experts.MAX_ROUTED = 0 if kernels == "old" else 256
    compiled.joined = (lambda layer: []) if kernels == "old" else joint_products.joined
    overrides = [
        *(*target, f"target.layers={layers}", f"backend.device={DEVICE}"),
        *("backend.dtype=bfloat16", "backend.graphs=true", f"workload.num_requests={num_requests}"),
        *("workload.num_turns=1", f"workload.prompt_tokens={os.environ[PROMPT_TOKENS]}", "decoding.temperature=1.0"),
        *(f"decoding.max_new_tokens={OUTPUT}", "decoding.ignore_eos=true"),
        *(f"backend.max_concurrency={num_requests}", "measurement.expected_acceptance=false", "drafter=none"),
    ]
    overrides += [] if layers == "own" else [f"backend.compile={str(is_compiled).lower()}"]
    if num_drafted:
        drafted = f"drafting.num_speculative_tokens={num_drafted}"
        overrides.remove("drafter=none")
        overrides += ["drafter=ngram", drafted, "verification=probabilistic"]
    (cell,) = (each for each in compose_plan(overrides, "rounds").cells if each.is_baseline == (not num_drafted))
    PARTS.end("plan")
    played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
    backend = LocalBackend(cell, store)
    PARTS.end("checked on meta")
    backend.prepare(played)
    PARTS.end("memory counted, kernels looked up")
    target = backend.target
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    PARTS.end("weights")
    requests = [request for request in map(backend.requests.first, played) if request is not None]
    engine, layers_s = backend.engine_of_cell.engine(), target.compile_s
    PARTS.end("caches")
    # its kernels are compiled, and its steps captured
    engine = backend.ready_engine()
    engine.prepare()
    PARTS.end("kernels and capture")
    PARTS.move("kernels and capture", "layers compiled", target.compile_s - layers_s)
    PARTS.note = backend.start_note
    return backend, engine, requests


def step_ms(engine: Any, requests: list[Any]) -> list[float]:
    """Median times of a step, of three runs of the same requests."""
    medians = []
    for _ in range(3):
        ends: list[float] = []
        engine.run(requests, lambda answer: None, on_round=lambda ends=ends: ends.append(time.perf_counter()))
        # the first steps read prompts, in the last ones requests end
        medians.append(statistics.median(after - before for before, after in pairwise(ends[4:-6])) * 1e3)
    return medians


def floor_bytes(target: Any, cache: Any, num_requests: int, num_drafted: int) -> dict[str, float]:
    """Bytes that a step must move at least: weights, those of experts that tokens hit if all are as likely, keys and
    values of half the slots' places, and states: one read of a request, and one written for each token."""
    num_tokens = num_requests * (num_drafted + 1)
    experts = [each for each in target.causal_lm.modules() if hasattr(each, "down_proj") and hasattr(each, "has_gate")]
    of_experts = {id(item): item.nbytes for each in experts for item in each.parameters()}
    embedding = target.embed_weight
    total = sum(item.nbytes for item in target.causal_lm.parameters() if id(item) not in of_experts)
    is_tied = embedding.data_ptr() == target.output_matrix.data_ptr()
    dense = total - (0 if is_tied else embedding.nbytes)
    config, share = target.causal_lm.config.get_text_config(decoder=True), 0.0
    if experts:
        num_experts, chosen = len(experts[0].down_proj), config.num_experts_per_tok
        share = 1 - (1 - chosen / num_experts) ** num_tokens
    found = {"dense": float(dense), "experts": share * sum(of_experts.values()), "keys": 0.0, "states": 0.0}
    if hasattr(cache, "tensors"):
        found["keys"] = sum(item.nbytes for item in cache.tensors.values()) / 2
        of_state = sum(item.nbytes / cache.ring for item in cache.states.values())
        found["states"] = of_state * (1 + num_drafted + 1)
    return found


def generate_ms(target: Any, prompt_ids: list[int]) -> float:
    """Time of a token of `generate` of transformers with one request: of 32 tokens behind the first 16."""
    import torch
    from transformers import GenerationConfig

    implementation = "eager" if target.causal_lm.config.model_type == "gpt_oss" else "sdpa"
    target.network.attend_through(implementation)
    configs = [each.config for each in target.causal_lm.modules() if hasattr(each, "has_gate")]
    chosen = {id(config): (config, config._experts_implementation) for config in configs}
    for config in configs:
        config._experts_implementation = "grouped_mm"
    given = torch.tensor([prompt_ids], device=target.device)
    seconds = []
    for num_new in (16, 16, 48):
        config = GenerationConfig(max_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0)
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = target.causal_lm.generate(given, attention_mask=torch.ones_like(given), generation_config=config)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        assert found.shape[1] == len(prompt_ids) + num_new
    target.network._attend_through_slots()
    for config, own in chosen.values():
        config._experts_implementation = own
    return (seconds[2] - seconds[1]) / 32 * 1e3


def measure(shape: str, deadline: float) -> None:
    """Print a line of JSON for each row of a shape."""
    import torch

    from harness.backends.local.model_store import ModelStore

    is_first = True
    with tempfile.TemporaryDirectory() as name:
        target = target_of(shape, Path(name))
        for way, num_requests, depths in CASES[shape]:
            store = ModelStore()
            for num_drafted in depths:
                if not is_first and time.time() > deadline:
                    print(json.dumps({"shape": shape, "left_out": [way, num_drafted]}), flush=True)
                    continue
                row: dict[str, Any] = {"shape": shape, "layers": way[0], "kernels": way[1], "compiled": way[2]}
                row |= {"requests": num_requests, "drafted": num_drafted}
                row["prompt_tokens"] = int(os.environ[PROMPT_TOKENS])
                began = time.perf_counter()
                try:
                    backend, engine, requests = engine_of(target, way, num_requests, num_drafted, store)
                    row["ready_s"], row["compile_s"] = time.perf_counter() - began, engine.target.compile_s
                    row["step_ms"] = step_ms(engine, requests)
                    row["notes"] = list(engine.target.fallbacks)
                    row["in_place"] = getattr(engine._cache, "is_in_place", None)
                    row["num_layers"] = engine.target.num_layers
                    floor = floor_bytes(engine.target, engine._cache, num_requests, num_drafted)
                    row["floor_bytes"], row["floor_ms"] = floor, sum(floor.values()) / COPIED_BYTES_PER_S * 1e3
                    if hasattr(engine._cache, "states"):
                        row["states_bytes"] = sum(item.nbytes for item in engine._cache.states.values())
                        row["keys_bytes"] = sum(item.nbytes for item in engine._cache.tensors.values())
                        row["capacity"] = engine._cache.capacity
                    row["peak_bytes"] = torch.cuda.max_memory_allocated()
                    if way == BOTH and num_drafted == depths[0]:
                        print(json.dumps(row), flush=True)
                        del backend
                        row = one_request(target, way, store, shape)
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"[:600]
                print(json.dumps(row), flush=True)
                is_first = False
                backend = engine = requests = None
                gc.collect()
                torch.cuda.empty_cache()
            del store
            # what it keeps of compiled layers keeps weights
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()


def one_request(target: list[str], way: tuple[str, str, bool], store: Any, shape: str) -> dict[str, Any]:
    """A row of one request, beside `generate` of the same model."""
    import torch

    _, engine, requests = engine_of(target, way, 1, 0, store)
    row: dict[str, Any] = {"shape": shape, "layers": way[0], "kernels": way[1], "compiled": way[2]}
    row |= {"requests": 1, "drafted": 0, "step_ms": step_ms(engine, requests), "notes": list(engine.target.fallbacks)}
    floor = floor_bytes(engine.target, engine._cache, 1, 0)
    row["floor_bytes"], row["floor_ms"] = floor, sum(floor.values()) / COPIED_BYTES_PER_S * 1e3
    with torch.inference_mode():
        row["generate_ms"] = generate_ms(engine.target, list(requests[0].token_ids))
    return row


def start() -> None:
    """One compiled target to its first step, in this process: tells when it was ready, and what took how long."""
    PARTS.begin()
    import torch

    PARTS.end("import torch")
    import transformers.modeling_utils
    import transformers.models.llama.modeling_llama  # noqa: F401

    PARTS.end("import transformers")
    from harness.backends.local.model_store import ModelStore
    from harness.models.general import load, random  # noqa: F401

    PARTS.end("import harness")
    import torch._inductor.compile_fx

    PARTS.end("import torch's compiler")
    if DEVICE == "cuda":
        torch.zeros(1, device=DEVICE)
    PARTS.end("device")
    _, engine, _ = engine_of(target_of("llama3_8b", Path()), BOTH, 16, 0, ModelStore())
    row = {"shape": "llama3_8b", "ready_at": time.time(), "compile_s": engine.target.compile_s}
    print(json.dumps(row | {"parts_s": PARTS.seconds, "note": PARTS.note}), flush=True)
    if len(sys.argv) > 3:
        # another number of slots, whose steps share compiled layers
        engine = None
        gc.collect()
        PARTS.begin()
        began = time.time()
        _, engine, _ = engine_of(target_of("llama3_8b", Path()), BOTH, 8, 0, ModelStore())
        row = {"shape": "llama3_8b", "requests": 8, "other_size_s": time.time() - began}
        row |= {"compile_s": engine.target.compile_s, "parts_s": PARTS.seconds, "note": PARTS.note}
        print(json.dumps(row), flush=True)


def tell_where(thread: int) -> None:
    """Write every 30 s to the log what a thread is doing."""
    while True:
        time.sleep(30)
        print("".join(traceback.format_stack(sys._current_frames()[thread])), file=sys.stderr, flush=True)


class Runs:
    """Processes on some GPUs, and the rows that they print."""

    def __init__(self, devices: list[str], limit_s: float, only: list[str]) -> None:
        self._tasks = [name for name in ORDER if not only or name in only]
        self._deadline, self._lock = time.time() + limit_s, threading.Lock()
        self._devices = devices
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        """All tasks, as many at once as there are GPUs."""
        threads = [threading.Thread(target=self._on, args=(device,)) for device in self._devices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _on(self, device: str) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    return
                name = self._tasks.pop(0)
            if time.time() > self._deadline:
                self._keep({"shape": name, "left_out": "the limit was reached"})
            elif name == "start":
                with tempfile.TemporaryDirectory() as folder:
                    for words in (["first"], ["later", "other"]):
                        self._child(device, ["--start", *words], self._cache_of(folder), words[0])
            else:
                self._child(device, ["--shape", name, "--until", str(self._deadline)], {}, name)

    def _cache_of(self, folder: str) -> dict[str, str]:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "TRITON_CACHE_DIR": "triton",
            "PYTHONPYCACHEPREFIX": "bytecode",
        }
        # empty: Python keeps the bytecode of what it imports
        return {name: f"{folder}/{each}" for name, each in caches.items()} | {"PYTHONDONTWRITEBYTECODE": ""}

    def _child(self, device: str, words: list[str], environment: dict[str, str], name: str) -> None:
        began = time.time()
        given = {**os.environ, **environment, "CUDA_VISIBLE_DEVICES": device}
        command = [sys.executable, str(Path(__file__).resolve()), *words]
        log = out_folder() / f"{name}.log"
        # a child is given time for the row under way
        limit_s = max(60.0, self._deadline - began + 90.0)
        with log.open("w") as errors:
            process = subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=errors, text=True)
            timer = threading.Timer(limit_s, process.kill)
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    row = json.loads(line)
                    if "ready_at" in row:
                        row["from_nothing_s"] = row.pop("ready_at") - began
                        row["parts_s"]["process"] = round(row["from_nothing_s"] - sum(row["parts_s"].values()), 2)
                        row["start"] = name
                    self._keep(row)
            timer.cancel()
            if process.wait():
                self._keep({"shape": name, "error": f"ended with {process.returncode}: {log.name}"})

    def _keep(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.rows.append(row)
            print(json.dumps(row), flush=True)
            (out_folder() / "rounds.json").write_text(json.dumps(self.rows, indent=1))
            (out_folder() / "rounds.md").write_text(table(self.rows))


def out_folder() -> Path:
    """Where results go."""
    folder = Path(os.environ.get("OUT", ".")) / "layers_of_transformers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of the rows that have step times."""
    lines = ["| shape | requests | K | layers | kernels | compiled | step (ms) | floor (ms) | / floor | / own |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    timed = [row for row in rows if "step_ms" in row]
    own = {
        (row["shape"], row["requests"], row["drafted"]): statistics.median(row["step_ms"])
        for row in timed
        if row["layers"] == "own"
    }
    for row in timed:
        step, key = statistics.median(row["step_ms"]), (row["shape"], row["requests"], row["drafted"])
        beside = f"{step / own[key]:.2f}" if key in own else "–"
        told = f"| {row['shape']} | {row['requests']} | {row['drafted']} | {row['layers']} | {row['kernels']} | "
        told += f"{row['compiled']} | {step:.2f} | {row['floor_ms']:.2f} | {step / row['floor_ms']:.2f} | {beside} |"
        lines.append(told + (f" generate {row['generate_ms']:.1f} |" if "generate_ms" in row else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] in (["--start"], ["--shape"]):
        threading.Thread(target=tell_where, args=(threading.get_ident(),), daemon=True).start()
    if sys.argv[1:2] == ["--start"]:
        start()
    elif sys.argv[1:2] == ["--shape"]:
        measure(sys.argv[2], float(sys.argv[4]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--devices", default="0")
        parser.add_argument("--limit", type=float, default=250.0)
        parser.add_argument("--only", nargs="*", default=[])
        parser.add_argument("--most-layers", type=int, default=0, help="of shapes that do not fit")
        parser.add_argument("--prompt-tokens", type=int, default=64)
        asked = parser.parse_args()
        os.environ[MOST_LAYERS] = str(asked.most_layers or "")
        os.environ[PROMPT_TOKENS] = str(asked.prompt_tokens)
        runs = Runs(asked.devices.split(","), asked.limit, asked.only)
        runs.run()
        print(table(runs.rows))
