"""llama.cpp's server: log lines, pages of counters, and `timings` of answers.

Names and definitions: tools/server/server-context.cpp and server-task.cpp of the repository at September 2026; older
forms of the log line as in pull request 24536 and before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.converted import ACCEPTED, Given, Reading, Told, joined, sums_of_steps
from harness.backends.foreign.content import Content
from harness.backends.foreign.counter_page import WARM_UP, CounterPage, steps_reading
from harness.backends.foreign.format import Asked, Definitions, ForeignFormat
from harness.backends.foreign.printed import SEVERAL, Line, depth_of, drafts_of, lengths_of, position_sums

if TYPE_CHECKING:
    from harness.backends.server.counters import Counters

COUNTER = "llamacpp:spec_decode_num_{}_total"
_LINE = re.compile(
    r"draft acceptance(?: rate)? = (?P<rate>[\d.]+) \(\s*(?P<accepted>\d+) accepted /\s*(?P<drafted>\d+) generated\)"
    r"(?:, mean (?:acceptance length|len) =\s*(?P<length>[\d.]+))?"
    r"(?:, acceptance rate per position = \((?P<rates>[^)]*)\))?"
)
_RATES = re.compile(r"acc per pos = \((?P<rates>[^)]*)\)")
UNLIMITED = 2**40
FULL_TIMINGS = (
    "`timings` count no rounds: a stream of a request with timings_per_token tells each, and the server's log its mean "
    "acceptance length"
)
VARYING = "drafts are as long as the drafter is sure, and shorter near the limit of an answer"
LAST_STEP = "a draft is no longer than the limit of an answer leaves room for; what an end of sequence cuts counts"


class LlamaCppLog(ForeignFormat):
    """The lines at the end of each request."""

    title = "log lines of llama.cpp's server, `draft acceptance = ...`"
    seen = "llama.cpp build b1-7e4c0a9"
    source = "llama.cpp tools/server/server-context.cpp, 2026-09, and the forms before"
    definitions = Definitions(
        mean="micro within a request, a line each; both averages follow",
        bonus="the mean length counts the bonus or recovered token, the ratio does not; as ours",
        denominators=f"ratio per draft token; by position per draft, whatever its length: {VARYING}",
        last_step=LAST_STEP,
        warm_up="every request whose line is in the file",
    )

    def recognises(self, content: Content) -> bool:
        return not content.values and _LINE.search(content.text) is not None

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        lines = list(_lines(content.text))
        prompts = tuple(str(place) for place in range(len(lines)))
        sums = {
            "num_draft_tokens": Given(tuple(float(line.drafted) for line in lines)),
            "num_accepted_tokens": Given(tuple(float(line.accepted) for line in lines)),
        }
        depth = depth_of(lines, asked.depth)
        if not all(line.length for line in lines):
            missing = dict.fromkeys(("num_drafts", ACCEPTED), "these lines, of an older version, print no mean length")
            return (Reading(sums, missing=missing, prompts=prompts, depth=depth),)
        drafts = [drafts_of(line, depth) for line in lines]
        told = (
            Told(
                "mean acceptance length, mean of lines",
                (sum(float(line.length or 0) for line in lines) / len(lines),),
                "each line is a request: the macro average",
            ),
        )
        if all(item.is_known for item in drafts):
            how = joined(*(item.how for item in drafts))
            sums["num_drafts"] = Given(tuple(float(item.low) for item in drafts), how)
            sums |= position_sums(lines, drafts)
            return (Reading(sums, prompts=prompts, depth=depth, told=told),)
        macro = Given(told[0].values, "mean of the lengths that the lines print with two decimals")
        metrics = {"mean_acceptance_length": lengths_of(lines, drafts), "mean_acceptance_length_macro": macro}
        missing = dict.fromkeys(("num_drafts", ACCEPTED), SEVERAL)
        return (Reading(sums, metrics, missing, prompts, depth, told),)


def _lines(text: str) -> Iterator[Line]:
    """Each request's figures; those by position may stand on a line of their own behind."""
    found = list(_LINE.finditer(text))
    for place, item in enumerate(found):
        rates = item["rates"]
        if rates is None:
            end = found[place + 1].start() if place + 1 < len(found) else len(text)
            behind = _RATES.search(text, item.end(), end)
            rates = behind["rates"] if behind else ""
        yield Line(
            int(item["accepted"]), int(item["drafted"]), item["length"], tuple(re.findall(r"[\d.]+", rates or ""))
        )


class LlamaCppMetrics(CounterPage):
    """Pages of /metrics."""

    title = "pages of llama.cpp's /metrics (--metrics), one, or two with --before"
    source = "llama.cpp tools/server/server-task.cpp, 2026-09"
    seen = "llama.cpp build b1-7e4c0a9"
    prefix = "llamacpp:"
    needed = COUNTER.format("drafts")
    definitions = Definitions(
        mean="micro: over all rounds with drafts",
        bonus="no counter counts a bonus or recovered token",
        denominators=f"accepted tokens by position, but drafts in all, and {VARYING}: no rate by position without K",
        last_step=LAST_STEP,
        warm_up=WARM_UP,
    )

    def of_counters(self, added: Counters, asked: Asked) -> Reading:
        return steps_reading(added, COUNTER, asked)


class LlamaCppAnswers(ForeignFormat):
    """Answers with timings."""

    title = "answers of llama.cpp's server with `timings`: JSON, JSON lines, or streams (timings_per_token)"
    source = "llama.cpp tools/server/server-task.cpp, 2026-09"
    seen = "llama.cpp build b1-7e4c0a9"
    definitions = Definitions(
        mean="micro by its counts",
        bonus="draft_n and draft_n_accepted count no bonus or recovered token",
        denominators="per draft token; whole answers count no rounds, so there is no length; streams show every step",
        last_step=LAST_STEP,
        warm_up="the requests whose answers are in the file",
    )

    def recognises(self, content: Content) -> bool:
        return any("draft_n" in timings for timings in map(_timings, content.objects))

    def read(self, content: Content, asked: Asked) -> tuple[Reading, ...]:
        from harness.backends.server.reply import RequestFailed, drafts_so_far
        from harness.backends.server.step_boundaries import steps_between

        timings = [item for item in map(_timings, content.objects) if "predicted_n" in item]
        requests = list(_requests(timings)) if content.is_stream else [[item] for item in timings]
        prompts = tuple(str(place) for place in range(len(requests)))
        if content.is_stream:
            try:
                counted = [[(int(item["predicted_n"]), *(drafts_so_far(item) or (0, 0))) for item in each]
                           for each in requests]  # fmt: skip
                steps = [steps_between(each, asked.depth, UNLIMITED) for each in counted]
            except RequestFailed as error:
                raise ValueError(str(error)) from error
            if all(item is not None for item in steps):
                pairs = [tuple(zip(item.drafted, item.accepted, strict=True)) for item in steps if item is not None]
                return (Reading(sums_of_steps(pairs), prompts=prompts, depth=asked.depth),)
        last = [each[-1] for each in requests]
        sums = {
            "num_draft_tokens": Given(tuple(float(item.get("draft_n") or 0) for item in last)),
            "num_accepted_tokens": Given(tuple(float(item.get("draft_n_accepted") or 0) for item in last)),
        }
        missing = dict.fromkeys(("num_drafts", ACCEPTED), FULL_TIMINGS)
        bounds = [_rounds(item, asked.depth) for item in last]
        low, high = (sum(column) for column in zip(*bounds, strict=True))
        accepted = sums["num_accepted_tokens"].total
        if low:
            missing["mean_acceptance_length"] = (
                f"{FULL_TIMINGS}; the output has room for {low:g} to {high:g} drafts, so that it lies between "
                f"{1 + accepted / high:.2f} and {1 + accepted / low:.2f}"
            )
        if all(least == most for least, most in bounds):
            how = (
                "drafts = draft tokens / K, which is also the most that the output has room for (output tokens - 1 - "
                "accepted)"
            )
            sums["num_drafts"] = Given(tuple(float(least) for least, _ in bounds), how)
        return (Reading(sums, missing=missing, prompts=prompts, depth=asked.depth),)


def _timings(item: Mapping[str, Any]) -> Mapping[str, Any]:
    found = item.get("timings")
    return found if isinstance(found, Mapping) else {}


def _requests(timings: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The events of each request: its tokens are counted from one on."""
    found: list[Mapping[str, Any]] = []
    for item in timings:
        if found and item["predicted_n"] < found[-1]["predicted_n"]:
            yield found
            found = []
        found.append(item)
    if found:
        yield found


def _rounds(timings: Mapping[str, Any], depth: int | None) -> tuple[int, int]:
    """The fewest drafts of a request that its draft tokens need, and the most that its output has room for."""
    drafted, accepted = int(timings.get("draft_n") or 0), int(timings.get("draft_n_accepted") or 0)
    if not drafted:
        return 0, 0
    # without K a draft may have had all of them; the first token is that of the prefill
    least = 1 if depth is None else -(-drafted // depth)
    most = min(drafted, int(timings["predicted_n"]) - 1 - accepted)
    if most < least:
        raise ValueError(f"expected at most {depth or drafted} draft tokens a draft, found {dict(timings)}")
    return least, most
