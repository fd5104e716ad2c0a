"""SpecForge: results of `specforge benchmark` and of benchmarks/bench_eagle3.py, both on SGLang.

Names and definitions were read in sgl-project/SpecForge at August 2026: specforge/benchmarks/sglang.py,
benchmarks/bench_eagle3.py, benchmarks/benchmarker/utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told, joined
from harness.backends.foreign.content import Content, numbers_at
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat
from harness.backends.foreign.printed import is_whole
from harness.backends.foreign.sglang import VERIFIED

TURNS = {"mtbench": 2}
"""Answers of a question, where they are several."""
NO_DRAFTED = "the file does not count draft tokens"
NO_POSITIONS = "the file counts nothing by position"


class SpecforgeBenchmark(ForeignFormat):
    """Results of the general benchmark."""

    title = "results of `specforge benchmark --output-json`"
    source = "sgl-project/SpecForge a6b6b023, specforge/benchmarks/sglang.py"
    definitions = Definitions(
        mean="macro: mean over requests of SGLang's spec_accept_length",
        bonus="output tokens / verify calls: the first token of each answer counts, which no verification gave",
        denominators="verify calls; draft tokens are not counted, nor anything by position",
        last_step="only what was given out counts, as ours",
        warm_up="a batch of warm-up requests is left out",
    )

    def recognises(self, content: Content) -> bool:
        return any({"average_acceptance_length", "spec_verify_count"} <= item.keys() for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        found = [item for item in content.objects if {"average_acceptance_length", "spec_verify_count"} <= item.keys()]
        return tuple(_reading(item, asked) for item in found)


def _reading(found: Mapping[str, Any], asked: Asked) -> Reading:
    if found["spec_verify_count"] is None:
        raise ValueError("spec_verify_count: expected a number, found null: the server did not speculate")
    samples, output, calls = numbers_at(found, "samples", "output_tokens", "spec_verify_count")
    length = found["average_acceptance_length"]
    meaning = "macro, the first token of each answer counted"
    told = () if length is None else (Told("average_acceptance_length", (float(length),), meaning),)
    sums = sums_by_calls(samples, output, calls, asked.depth, "")
    missing = {
        "num_draft_tokens": NO_DRAFTED,
        ACCEPTED: NO_POSITIONS,
        "mean_acceptance_length_macro": "the file has the macro average of another quotient alone",
    }
    return Reading(sums, missing=missing, told=told, label=str(found.get("dataset", "")))


def sums_by_calls(requests: float, output: float, calls: float, depth: int | None, before: str) -> dict[str, Given]:
    """Sums of requests whose output tokens and verify calls are known; raises ValueError where they do not fit.

    Args:
        before: how these two are known; empty where the file has them.
    """
    accepted = output - requests - calls
    if calls <= 0 or accepted < 0:
        raise ValueError(
            f"expected output tokens that verify calls gave, found {calls:g} verify calls, {output:g} output tokens, "
            f"{requests:g} requests"
        )
    sums = {
        "num_requests": Given((requests,)),
        "num_drafts": Given((calls,), before),
        "num_accepted_tokens": Given((accepted,), joined(before, VERIFIED)),
    }
    if depth is not None:
        how = f"draft tokens = verify calls * K with K = {depth}, as SGLang counts them"
        sums["num_draft_tokens"] = Given((calls * depth,), joined(before, how))
    return sums


class SpecforgeMatrix(ForeignFormat):
    """Results of the EAGLE-3 matrix."""

    title = "results of SpecForge's benchmarks/bench_eagle3.py"
    source = "sgl-project/SpecForge a6b6b023, benchmarks/bench_eagle3.py and benchmarks/benchmarker/utils.py"
    definitions = Definitions(
        mean="micro: output tokens / verify calls over all requests",
        bonus="the first token of each answer counts, which no verification gave",
        denominators="verify calls, by accept_length; draft tokens are not counted, nor anything by position",
        last_step="only what was given out counts, as ours",
        warm_up="not in it",
    )

    def recognises(self, content: Content) -> bool:
        return any(next(_runs(item), None) is not None for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        (found,) = content.objects[:1]
        readings = []
        for name, run, metrics in _runs(found):
            label = f"{name}, {run.get('steps')} steps, topk {run.get('topk')}, batch {run.get('batch_size')}"
            if not run.get("steps") and run.get("steps") is not None:
                # target only: accept_length is 1 by its code
                continue
            readings.append(_run(name, run, metrics, label))
        if not readings:
            raise ValueError("expected a configuration with speculative steps, found the target alone")
        return tuple(readings)


def _run(name: str, run: Mapping[str, Any], metrics: Mapping[str, Any], label: str) -> Reading:
    latency, throughput, length, questions = numbers_at(
        metrics, "latency", "output_throughput", "accept_length", "num_questions"
    )
    requests = questions * TURNS.get(name, 1)
    told = (Told("accept_length", (length,), "output tokens / verify calls, the first token of each answer counted"),)
    missing = {"num_draft_tokens": f"{NO_DRAFTED}; of trees (topk above 1) they are nodes", ACCEPTED: NO_POSITIONS}
    output, calls = latency * throughput, latency * throughput / length if length > 0 else 0.0
    if not (is_whole(output) and is_whole(calls)):
        rounded = (
            f"latency * output_throughput = {output:.10g} and that / accept_length = {calls:.10g} are no whole numbers "
            "of tokens and verify calls: the file holds rounded numbers, or means of several runs"
        )
        missing |= {"num_drafts": rounded, "num_accepted_tokens": rounded}
        return Reading({"num_requests": Given((requests,))}, missing=missing, told=told, label=label)
    how = (
        "output tokens = latency * output_throughput, verify calls = output tokens / accept_length, both whole numbers"
    )
    nodes = run.get("num_draft_tokens")
    depth = nodes - 1 if isinstance(nodes, int) and run.get("topk") == 1 else None
    sums = sums_by_calls(requests, round(output), round(calls), depth, how)
    return Reading(sums, missing=missing, told=told, label=label)


def _runs(item: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Name of the benchmark, a configuration, and its metrics."""
    if "model" not in item:
        return
    for name, runs in item.items():
        for run in runs if isinstance(runs, list) else ():
            for metrics in run.get("metrics", ()) if isinstance(run, dict) else ():
                if isinstance(metrics, dict) and {"accept_length", "num_questions"} <= metrics.keys():
                    yield name, run, metrics
