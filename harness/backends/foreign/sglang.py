"""SGLang: log lines, pages of counters, results of bench_serving, and answers with details of their drafts.

Names and definitions were read in the package sglang 0.5.23: srt/managers/scheduler_components/metrics_reporter.py
(log), srt/observability/metrics_collector.py (counters), benchmark/serving.py, srt/managers/tokenizer_manager.py
(answers).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told, sums_of
from harness.backends.foreign.content import Content, numbers_at
from harness.backends.foreign.counter_page import WARM_UP, CounterPage
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat

if TYPE_CHECKING:
    from harness.backends.server.counters import Counters

_LINE = re.compile(r"accept len: (?P<length>\d+\.\d+), accept rate: (?P<rate>\d+\.\d+)")
HALF_UNIT = 0.0051
MAX_DEPTH = 64
NO_COUNTS = "the log prints no counts, only the length and the rate of each window"
FIRST_TOKEN = (
    "output tokens / verify calls: it counts the first token of an answer, which no verification gave, and loses what "
    "the end of the answer cuts"
)
OF_TREES = "with speculative_eagle_topk above 1 the draft tokens are the nodes of a tree less its root"
VERIFIED = "accepted = output tokens - requests (their first tokens) - verify calls (a bonus or recovered token each)"


class SglangLog(ForeignFormat):
    """The lines of decode batches."""

    title = "log lines of SGLang, `Decode batch ... accept len: .., accept rate: ..`"
    source = "sglang 0.5.23, srt/managers/scheduler_components/metrics_reporter.py"
    definitions = Definitions(
        mean="micro within a window (40 decode steps); the log prints no counts, so windows cannot be weighted",
        bonus="accept len counts the bonus or recovered token, as ours; accept rate does not since pull request 23530 "
        "(2026-04), and counted it and the root before",
        denominators="rate per draft token: verify calls * (speculative_num_draft_tokens - 1), also where a step "
        "drafted fewer; nothing by position",
        last_step="drafts beyond the end of an answer count in full",
        warm_up="every window whose line is in the file",
    )

    def recognises(self, content: Content) -> bool:
        return not content.values and _LINE.search(content.text) is not None

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        found = [(float(item["length"]), float(item["rate"])) for item in _LINE.finditer(content.text)]
        lengths, rates = zip(*found, strict=True)
        mean = sum(lengths) / len(lengths)
        how = "printed with two decimals"
        if len(found) > 1:
            how = (
                f"mean of {len(found)} windows that all weigh the same, as {NO_COUNTS}; they lie between "
                f"{min(lengths):.2f} and {max(lengths):.2f}"
            )
        metrics = {"mean_acceptance_length": Given((mean,), how)}
        missing = dict.fromkeys(("num_drafts", "num_draft_tokens", "num_accepted_tokens"), NO_COUNTS)
        missing[ACCEPTED] = NO_COUNTS
        depth, is_ours = _depth_of(found, asked.depth)
        if depth is not None:
            how = f"(acceptance length - 1) / K with K = {depth}"
            metrics["acceptance_rate"] = Given(((mean - 1) / depth,), how)
        else:
            missing["acceptance_rate"] = (
                "by version the printed rate counts the bonus token or does not, and these lines fit both or neither: "
                "--num-speculative-tokens K settles it"
            )
        meaning = "by version with the bonus token or without"
        if is_ours is not None:
            meaning = (
                "accepted / draft tokens, as ours" if is_ours else "(accepted + 1) / (K + 1): with the bonus token"
            )
        told = (Told("accept rate, mean of lines", (sum(rates) / len(rates),), meaning),)
        return (Reading({}, metrics, missing, (), depth, told, (f"{len(found)} log lines",)),)


def _depth_of(windows: Sequence[tuple[float, float]], asked: int | None) -> tuple[int | None, bool | None]:
    """K, and whether the printed rate leaves the bonus token out; None for what the lines leave open."""
    depths = range(1, MAX_DEPTH + 1) if asked is None else (asked,)
    ours = [depth for depth in depths if all(_prints(length - 1, depth, rate) for length, rate in windows)]
    older = [depth for depth in depths if all(_prints(length, depth + 1, rate) for length, rate in windows)]
    if len(ours) == 1 and not older:
        return ours[0], True
    if len(older) == 1 and not ours:
        return older[0], False
    return asked, None


def _prints(tokens: float, slots: int, rate: float) -> bool:
    return abs(tokens / slots - rate) <= HALF_UNIT + HALF_UNIT / slots


class SglangMetrics(CounterPage):
    """Pages of /metrics."""

    title = "pages of SGLang's /metrics (--enable-metrics), one, or two with --before"
    source = "sglang 0.5.23, srt/observability/metrics_collector.py"
    prefix = "sglang:"
    needed = "sglang:spec_"
    definitions = Definitions(
        mean="micro: over the verify calls of finished requests; the gauges cover the last log window alone",
        bonus="no counter counts accepted tokens: they follow from the output tokens, the bonus token taken off",
        denominators="verify calls; draft tokens are not counted, nor anything by position",
        last_step="only what was given out counts: a draft token behind the end of an answer is not accepted, as ours",
        warm_up=WARM_UP,
    )

    def of_counters(self, added: Counters, asked: Asked) -> Reading:
        names = ("spec_verify_calls_total", "generation_tokens_total", "num_requests_total")
        found = [added.total(f"sglang:{name}") for name in names]
        if None in found:
            lacking = [f"sglang:{name}" for name, value in zip(names, found, strict=True) if value is None]
            raise ValueError(f"expected the counter {' and '.join(lacking)}, found a page without")
        calls, tokens, requests = (int(value or 0) for value in found)
        accepted = tokens - requests - calls
        if not calls or accepted < 0:
            raise ValueError(
                f"expected output tokens that verify calls gave, found {calls} verify calls, {tokens} output tokens of "
                f"{requests} requests; a server that did not speculate in all of them cannot be converted"
            )
        sums = {
            "num_requests": Given((float(requests),)),
            "num_drafts": Given((float(calls),)),
            "num_accepted_tokens": Given((float(accepted),), VERIFIED),
        }
        missing = {"num_draft_tokens": "no counter counts draft tokens", ACCEPTED: "no counter counts by position"}
        if asked.depth is not None:
            how = "draft tokens = verify calls * K, as the server counts them"
            sums["num_draft_tokens"] = Given((float(calls * asked.depth),), how)
        return Reading(sums, missing=missing)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        (reading,) = super().read(content, asked)
        gauges = re.findall(r"^(sglang:spec_accept_(?:length|rate))\{[^}]*\} (\S+)$", content.text, re.MULTILINE)
        told = tuple(Told(name, (float(value),), "a gauge of the last log window alone") for name, value in gauges)
        return (replace(reading, told=told),)


class SglangBench(ForeignFormat):
    """Results of the load generator."""

    title = "results of `sglang.bench_serving --output-file`"
    source = "sglang 0.5.23, benchmark/serving.py and srt/managers/scheduler_components/internal_state.py"
    definitions = Definitions(
        mean="micro: over all verify calls up to the last finished log window",
        bonus="the length counts the bonus or recovered token, as ours, and not the first token of an answer",
        denominators="length per verify call; no counts, nothing by position",
        last_step="drafts beyond the end of an answer count in full",
        warm_up="everything since the server's start, or since its cache was flushed (--flush-cache): warm-up and "
        "earlier runs may be in it",
    )

    def recognises(self, content: Content) -> bool:
        return any("accept_length" in item and "total_output_tokens" in item for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        found = [item for item in content.objects if "accept_length" in item and "total_output_tokens" in item]
        return tuple(_bench(item, asked, place if len(found) > 1 else None) for place, item in enumerate(found, 1))


def _bench(found: Mapping[str, Any], asked: Asked, place: int | None) -> Reading:
    if found["accept_length"] is None:
        raise ValueError("accept_length: expected a number, found null: the server did not speculate, or did not say")
    (length,) = numbers_at(found, "accept_length")
    server = found.get("server_info") or {}
    nodes = server.get("speculative_num_draft_tokens")
    depth = nodes - 1 if isinstance(nodes, int) else asked.depth
    metrics = {"mean_acceptance_length": Given((length,))}
    reason = "the file has the mean length alone"
    missing = dict.fromkeys(("num_drafts", "num_draft_tokens", "num_accepted_tokens", ACCEPTED), reason)
    notes = []
    if depth is None:
        missing["acceptance_rate"] = (
            "K is not in the file: --num-speculative-tokens K gives (acceptance length - 1) / K"
        )
    else:
        metrics["acceptance_rate"] = Given(((length - 1) / depth,), f"(acceptance length - 1) / K with K = {depth}")
        if (server.get("speculative_eagle_topk") or 1) > 1:
            notes.append(OF_TREES)
    sums = {"num_requests": Given((float(found["completed"]),))} if "completed" in found else {}
    told = (Told("accept_length", (length,), "avg_spec_accept_length of the server since it began counting"),)
    label = "" if place is None else f"{place}: {found.get('tag') or found.get('dataset_name') or ''}".strip(": ")
    return Reading(sums, metrics, missing, (), depth, told, tuple(notes), label)


class SglangAnswers(ForeignFormat):
    """Answers with details of their drafts."""

    title = "answers of SGLang: `meta_info` of /generate, or `sglext.spec_tokens_details`"
    source = "sglang 0.5.23, srt/managers/tokenizer_manager.py"
    definitions = Definitions(
        mean="micro by its counts; spec_accept_length is each request's own",
        bonus="spec_accept_length is output tokens / verify calls: it counts the first token of an answer, ours not",
        denominators="spec_accept_rate per draft token, these being verify calls * (speculative_num_draft_tokens - 1), "
        "also where a step drafted fewer",
        last_step="drafts beyond the end of an answer count in spec_num_correct_drafts, not in spec_accept_length",
        warm_up="the requests whose answers are in the file",
    )

    def recognises(self, content: Content) -> bool:
        return any(_of_answer(item) is not None for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        from harness.backends.server.adapters.sglang_run import drafts_told
        from harness.backends.server.reply import RequestFailed

        found = [item for item in map(_of_answer, content.objects) if item is not None]
        depths = {item["spec_num_proposed_drafts"] / item["spec_verify_ct"] for item in found
                  if item.get("spec_num_proposed_drafts") and item.get("spec_verify_ct")}  # fmt: skip
        if len(depths) > 1 or any(not depth.is_integer() for depth in depths):
            raise ValueError(f"expected one K = spec_num_proposed_drafts / spec_verify_ct, found {sorted(depths)}")
        depth = int(depths.pop()) if depths else asked.depth
        prompts = tuple(str(place) for place in range(len(found)))
        if all("spec_num_correct_drafts" not in item and "completion_tokens" in item for item in found):
            return (replace(_older(found), prompts=prompts, told=_lengths(found)),)
        try:
            counts = [drafts_told(item, depth=0) for item in found]
        except RequestFailed as error:
            raise ValueError(str(error)) from error
        return (Reading(sums_of(counts), prompts=prompts, depth=depth, told=_lengths(found), notes=(OF_TREES,)),)


def _lengths(found: Sequence[Mapping[str, Any]]) -> tuple[Told, ...]:
    lengths = [float(item["spec_accept_length"]) for item in found if item.get("spec_accept_length") is not None]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    return (Told("spec_accept_length, mean over requests", (mean,), FIRST_TOKEN),) if lengths else ()


def _older(found: Sequence[Mapping[str, Any]]) -> Reading:
    """Answers of versions whose own counts have other names and meanings: by output tokens and verify calls alone."""
    rows = [numbers_at(item, "completion_tokens", "spec_verify_ct") for item in found]
    accepted = tuple(tokens - 1 - calls for tokens, calls in rows)
    if min(accepted) < 0:
        raise ValueError(
            "expected output tokens that verify calls gave, found completion_tokens below spec_verify_ct + 1"
        )
    sums = {"num_drafts": Given(tuple(calls for _, calls in rows)), "num_accepted_tokens": Given(accepted, VERIFIED)}
    reason = "answers of this older version count them in another way"
    return Reading(sums, missing={"num_draft_tokens": reason, ACCEPTED: reason})


def _of_answer(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    details = item.get("sglext")
    found = details.get("spec_tokens_details") if isinstance(details, Mapping) else item.get("meta_info")
    return found if isinstance(found, Mapping) and "spec_verify_ct" in found else None
