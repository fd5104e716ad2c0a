"""TensorRT-LLM: counters, statistics of iterations, reports of trtllm-bench, metrics of requests, histograms.

Names and definitions were read in the repository at 2026: tensorrt_llm/metrics/collector.py (counters),
cpp/include/tensorrt_llm/executor/types.h (specDecodingStats), tensorrt_llm/bench/dataclasses/reporting.py and
statistics.py, tensorrt_llm/_torch/pyexecutor (what its iterations count) and _torch/speculative/accept_stats.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told, sums_of
from harness.backends.foreign.content import Content, numbers_at
from harness.backends.foreign.counter_page import WARM_UP, CounterPage
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat

if TYPE_CHECKING:
    from harness.backends.server.counters import Counters

COMPLETED = "drafts of completed requests alone"
BENCH = (
    "trtllm-bench has two iterations more than there are rounds: the PyTorch backend counts the prefill, the report "
    "adds one"
)


class TensorrtLlmMetrics(CounterPage):
    """Pages of counters."""

    title = "pages of TensorRT-LLM's /prometheus/metrics, one, or two with --before"
    source = "TensorRT-LLM tensorrt_llm/metrics/collector.py, 2026"
    prefix = "trtllm_"
    needed = "trtllm_spec_decode_"
    definitions = Definitions(
        mean="micro: over all rounds of completed requests",
        bonus="no counter counts a bonus or recovered token",
        denominators="drafted and accepted tokens by position: rates as ours, whatever the length of drafts",
        last_step="not told by its source: drafts beyond the end of an answer may be in it",
        warm_up=WARM_UP,
    )

    def of_counters(self, added: Counters, asked: Asked) -> Reading:
        from harness.backends.server.adapters.tensorrt_llm_run import counts_told

        counts = counts_told(added)
        if counts is None:
            raise ValueError("expected trtllm_spec_decode_drafted_tokens_total by token_position, found none")
        return Reading(sums_of([counts]), depth=len(counts.num_draft_tokens_per_pos or ()), notes=(COMPLETED,))


class TensorrtLlmIterations(ForeignFormat):
    """Statistics of iterations."""

    title = "TensorRT-LLM's /metrics: iterations as JSON, with specDecodingStats (enable_iter_perf_stats)"
    source = "TensorRT-LLM cpp/include/tensorrt_llm/executor/types.h, 2026"
    definitions = Definitions(
        mean="micro, when iterations are weighted by their requests, as here; their mean is none",
        bonus="acceptanceLength counts the bonus or recovered token, as ours",
        denominators="per draft token, and per request with drafts in an iteration; nothing by position",
        last_step="not told by its source: drafts beyond the end of an answer may be in it",
        warm_up="the iterations that are in the file: the endpoint gives each once",
    )

    def recognises(self, content: Content) -> bool:
        return any(isinstance(item.get("specDecodingStats"), Mapping) for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        ranks = {item.get("attentionDpRank", 0) for item in content.objects}
        if len(ranks) > 1:
            raise ValueError(
                f"expected iterations of one rank, found attentionDpRank {sorted(ranks)}: keep those of one"
            )
        found = [item["specDecodingStats"] for item in content.objects if item.get("specDecodingStats")]
        names = ("numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens")
        rows = [numbers_at(item, *names) for item in found]
        drafts, drafted, accepted = (sum(column) for column in zip(*rows, strict=True))
        sums = {
            "num_drafts": Given((drafts,)),
            "num_draft_tokens": Given((drafted,)),
            "num_accepted_tokens": Given((accepted,)),
        }
        lengths = [float(item["acceptanceLength"]) for item, row in zip(found, rows, strict=True) if row[0]]
        mean = sum(lengths) / len(lengths) if lengths else float("nan")
        told = (
            Told(
                "acceptanceLength, mean of iterations", (mean,), "weighs iterations with few requests as much as others"
            ),
        )
        notes = (f"{len(found)} iterations",)
        missing = {ACCEPTED: "iterations count nothing by position"}
        return (Reading(sums, missing=missing, depth=asked.depth, told=told, notes=notes),)


class TensorrtLlmBench(ForeignFormat):
    """Reports of trtllm-bench."""

    title = "reports of `trtllm-bench ... --report_json`"
    source = "TensorRT-LLM tensorrt_llm/bench/dataclasses/reporting.py and _torch/pyexecutor, 2026"
    definitions = Definitions(
        mean="macro: percentiles and averages are over requests",
        bonus="acceptance length is output tokens / iterations: the first token and the prefill count, and one "
        "iteration more",
        denominators="draft tokens are max_draft_len * iterations, so that the rate is too low",
        last_step="only what was given out counts, as ours",
        warm_up="warm-up requests are not in it",
    )

    def recognises(self, content: Content) -> bool:
        return any("decoding_stats" in item and "request_info" in item for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        (found,) = content.objects[:1]
        stats, info = found.get("decoding_stats") or {}, found["request_info"]
        averages = {}
        for name in ("num_draft_tokens", "num_accepted_draft_tokens", "acceptance_length", "draft_acceptance_rate"):
            part = stats.get(f"{name}_percentiles")
            if not isinstance(part, Mapping):
                raise ValueError(f"decoding_stats: expected {name}_percentiles, found none: nothing was drafted")
            (averages[name],) = numbers_at(part, "average")
        requests, output = numbers_at(info, "num_requests", "avg_output_length")
        told = (
            Told(
                "acceptance_length, average",
                (averages["acceptance_length"],),
                "mean over requests of output / iterations",
            ),
            Told(
                "draft_acceptance_rate, average", (averages["draft_acceptance_rate"],), "of max_draft_len * iterations"
            ),
        )
        backend = str((found.get("engine") or {}).get("backend", ""))
        iterations = output - averages["num_accepted_draft_tokens"]
        rounds = iterations - 2
        if backend.lower() != "pytorch" or rounds <= 0:
            reason = (
                f"how many iterations it counts beside rounds is known of the backend Pytorch alone, found {backend!r}"
                if rounds > 0
                else f"{iterations:g} iterations a request leave no round"
            )
            names = (
                "num_drafts",
                "num_draft_tokens",
                "num_accepted_tokens",
                "mean_acceptance_length",
                "acceptance_rate",
            )
            sums = {"num_requests": Given((requests,))}
            return (Reading(sums, missing=dict.fromkeys((*names, ACCEPTED), reason), told=told),)
        depth = averages["num_draft_tokens"] / iterations
        accepted = output - 1 - rounds
        sums = {
            "num_requests": Given((requests,)),
            "num_drafts": Given(
                (requests * rounds,), f"rounds = output tokens - num_accepted_draft_tokens - 2; {BENCH}"
            ),
            "num_draft_tokens": Given((requests * rounds * depth,), f"rounds * max_draft_len; {BENCH}"),
            "num_accepted_tokens": Given((requests * accepted,), f"accepted = output tokens - 1 - rounds; {BENCH}"),
        }
        missing = {
            ACCEPTED: "the report counts nothing by position",
            "mean_acceptance_length_macro": "averages over requests of other quotients do not give it",
        }
        return (Reading(sums, missing=missing, depth=round(depth), told=told),)


class TensorrtLlmRequests(ForeignFormat):
    """Metrics of requests."""

    title = (
        "TensorRT-LLM's /perf_metrics, or its JSON lines: speculative_decoding of each request (return_perf_metrics)"
    )
    source = "TensorRT-LLM tensorrt_llm/serve, cpp/include/tensorrt_llm/batch_manager/llmRequest.h, 2026"
    definitions = Definitions(
        mean="micro by its counts; acceptance_rate is each request's own",
        bonus="no count has a bonus or recovered token",
        denominators="per draft token; rounds are not counted, so there is no length, nor anything by position",
        last_step="not told by its source: drafts beyond the end of an answer may be in it",
        warm_up="the requests that are in the file",
    )

    def recognises(self, content: Content) -> bool:
        return any(_of_request(item) is not None for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        found = [item for item in map(_of_request, content.objects) if item is not None]
        rows = [numbers_at(item, "total_draft_tokens", "total_accepted_draft_tokens") for item in found]
        drafted, accepted = zip(*rows, strict=True)
        sums = {"num_draft_tokens": Given(drafted), "num_accepted_tokens": Given(accepted)}
        missing = dict.fromkeys(("num_drafts", ACCEPTED), "the file counts no rounds, nor anything by position")
        if asked.depth is not None and all((tokens / asked.depth).is_integer() for tokens in drafted):
            how = f"drafts = draft tokens / K with K = {asked.depth}, if every draft had K tokens"
            sums["num_drafts"] = Given(tuple(tokens / asked.depth for tokens in drafted), how)
        rates = [float(item["acceptance_rate"]) for item in found if "acceptance_rate" in item]
        told = (
            (Told("acceptance_rate, mean over requests", (sum(rates) / len(rates),), "a macro average"),)
            if rates
            else ()
        )
        prompts = tuple(str(place) for place in range(len(found)))
        return (Reading(sums, missing=missing, prompts=prompts, depth=asked.depth, told=told),)


def _of_request(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Of a worker's record, or of the generation server's where prefill and decoding are apart."""
    worker = item.get("gen_perf_metrics")
    record = worker if isinstance(worker, Mapping) else item
    metrics = record.get("perf_metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    return found if isinstance(found, Mapping) and "total_draft_tokens" in found else None


class TensorrtLlmHistogram(ForeignFormat):
    """Acceptance histograms."""

    title = "TensorRT-LLM's dflash_accept_stats_rank*.json (TLLM_DFLASH_ACCEPT_STATS_DIR)"
    source = "TensorRT-LLM tensorrt_llm/_torch/speculative/accept_stats.py, 2026"
    definitions = Definitions(
        mean="micro by its histogram; steps and accepted tokens of each request beside it",
        bonus="the histogram counts accepted draft tokens alone; its al counts the bonus or recovered token, as ours",
        denominators="by position per step: every step counts as one of max_draft_len tokens",
        last_step="drafts beyond the end of an answer count in full",
        warm_up="everything since the process began, but its dummy requests",
    )

    def recognises(self, content: Content) -> bool:
        return any("accepted_draft_hist" in item for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        (found,) = content.objects[:1]
        (depth,) = numbers_at(found, "max_draft_len")
        histogram = [int(count) for count in found["accepted_draft_hist"]]
        requests = dict(found.get("per_request") or {})
        steps = sum(histogram)
        how = "draft tokens = steps * max_draft_len, as the file counts no shorter drafts"
        if requests:
            rows = [numbers_at(item, "steps", "accepted_draft") for item in requests.values()]
            drafts, accepted = zip(*rows, strict=True)
        else:
            drafts, accepted = (float(steps),), (float(sum(place * count for place, count in enumerate(histogram))),)
        if sum(drafts) != steps:
            raise ValueError(f"expected per_request with the {steps} steps of the histogram, found {sum(drafts):g}")
        sums = {
            "num_drafts": Given(drafts),
            "num_draft_tokens": Given(tuple(depth * count for count in drafts), how),
            "num_accepted_tokens": Given(accepted),
        }
        for place in range(1, len(histogram)):
            sums[f"{ACCEPTED}_{place}"] = Given((float(sum(histogram[place:])),))
        return (Reading(sums, prompts=tuple(map(str, requests)), depth=int(depth)),)
