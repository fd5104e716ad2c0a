"""What every metric of the results means: the one set of definitions.

The tables print these texts below themselves, COLUMNS.md beside it lists them, and `harness.analysis.estimates`
computes the metrics from the same entries. Settings and counts: `harness.analysis.columns`. Of the draft tokens that
round r proposes, K_r count as evidence (`EVIDENCE`); it accepts the first A_r of these. This module knows names and
texts, no records.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.loops import DEFINITION as LOOP
from harness.analysis.loops import WITHOUT as WITHOUT_LOOPS
from harness.analysis.metric import Metric, length, rate
from harness.analysis.position_metrics import SHARE_OF_BOUND, position_metrics
from harness.config.guarantee import FP8_CACHE, FP8_WEIGHTS, OTHER_DRAFTS, OWN_METHOD, RANDOM_WEIGHTS, SEVERAL_RANKS
from harness.records.request import EXPECTED_METHODS

PLACES = {"before": "in_reasoning", "boundary": "at_boundary", "after": "in_answer"}
"""Phase of the sums (`harness.analysis.reasoning_sums`) -> how columns name it."""

REASONING_METRICS: dict[str, Metric] = {
    "answer_valid_rate": rate(
        "valid (%)",
        "answers that an independent validator finds valid / answers it validated, of requests that reached the end of "
        "their reasoning and were not cut by the length limit",
        "boundary_num_valid",
        "boundary_num_judged",
    ),
    "acceptance_rate_in_reasoning": rate(
        "acceptance before (%)",
        "accepted draft tokens / draft tokens up to the end of reasoning, the marker included",
        "boundary_num_accepted_tokens_before",
        "boundary_num_draft_tokens_before",
    ),
    "acceptance_rate_in_answer": rate(
        "acceptance after (%)",
        "accepted draft tokens / draft tokens after the end of reasoning. Drafts of the round in which it ends were "
        "proposed freely: under commit those from the first refused one on are no evidence, under mask a refused one "
        "counts as rejected",
        "boundary_num_accepted_tokens_after",
        "boundary_num_draft_tokens_after",
    ),
    "refused_tokens_per_100_requests": length(
        "tokens refused per 100 requests",
        "emitted tokens that the grammar refused and that were cut off again, with the tokens after them in their "
        "round; not those after the end of a complete answer; empty where no end of reasoning was looked for",
        ("boundary_num_refused_tokens",),
        "num_requests",
        scale=100,
    ),
    **{
        f"tokens_per_s_{PLACES[phase]}": Metric(
            f"tok/s {phase}",
            "tokens/s",
            "output tokens / time of the rounds of that phase, a step's duration shared equally by the requests in it; "
            "one step may serve requests of both phases",
            "significant",
            (f"boundary_num_tokens_{phase}",),
            f"boundary_time_s_{phase}",
        )
        for phase in ("before", "after")
    },
    **{
        f"host_us_per_round_{place}": Metric(
            f"host us/round {phase}",
            "us",
            "microseconds that the host spent per round and request on parser, grammar and masks; not those in which "
            "it waited for the device or copied",
            "length",
            (f"boundary_host_us_{phase}",),
            f"boundary_num_rounds_{phase}",
        )
        for phase, place in PLACES.items()
    },
}
"""Column -> metric of answers that follow reasoning, and of drafts and speed before and after its end; nan without
reasoning."""


EVIDENCE = (
    "K_r is known before verification: the smallest of the draft tokens proposed, the tokens still allowed less 1, "
    "and the draft tokens before the first drafted token that ends the answer (an end of sequence, or one that "
    "completes a stop string). A draft token from which on the evidence would be one-sided (a rejection seen, an "
    "acceptance cut off) is not evidence, as counting it would bias the rates downwards."
)
DRAFTS = (
    "rounds with at least one draft token as evidence; rounds with K_r = 0 (the prefill's draw, nothing proposed, one "
    "token still allowed, an end-of-sequence token drafted first) emit tokens but are no drafts"
)
INTERVALS = (
    "Brackets hold bootstrap intervals (95 % unless set otherwise): prompts are drawn again, all turns and copies of a "
    "prompt together; percentiles are widened for few prompts (the expanded percentile interval of Hesterberg 2015); "
    "n/a with fewer than 2 prompts. Differences and ratios are paired: both sides meet the same resamples of the same "
    "prompts."
)
TIME_INTERVALS = (
    "Intervals of times and throughputs give each prompt the time its requests took part in (an engine step's duration "
    "is shared equally by the requests in it): they include the variation between prompts only, not the drift of the "
    "machine. Where every resample gives the same time, as when all requests went through the same steps, the "
    "variation is unknown, not 0, and n/a is printed. The interval of a high percentile cannot reach beyond the "
    "largest value that was observed."
)

LABEL_NOTES = {
    "synthetic": (
        "synthetic: drafts were accepted at given rates, whatever the tokens. Acceptance rates and lengths of such a "
        "cell repeat its setting and are not measured; its times, throughputs and memory are."
    ),
    OTHER_DRAFTS: (
        f"{OTHER_DRAFTS}: drafts were drawn from the drafter's logits and verified with the distribution of the "
        "rounded ones in the cache, so the output is not exactly the target's: biased by the total variation between "
        "the two distributions, at most, at every token."
    ),
    OWN_METHOD: (
        f"{OWN_METHOD}: a method from outside the package verified; its guarantee is what its "
        "author claims. `rejection-lab certify --methods PACKAGE.MODULE:NAME` tests whether it is lossless."
    ),
    FP8_WEIGHTS: (
        f"{FP8_WEIGHTS}: the projections of the target's layers are rounded to 8 bits (e4m3, a scale for each output). "
        "Lossless means the distribution of that target; a speedup is over a baseline with the same weights."
    ),
    FP8_CACHE: f"{FP8_CACHE}: keys and values, of drafters and baselines too, are kept in 8 bits: another target too.",
    SEVERAL_RANKS: (
        f"{SEVERAL_RANKS}: several processes, each with a GPU or on the cores of a CPU, compute the target's layers "
        "together (backend.tensor_parallel), by transformers' own code. Compare with one rank only by "
        "target.layers=transformers; throughput is of all of them together."
    ),
    RANDOM_WEIGHTS: (
        "weights: random: of the models named (of all in the cell where none is) only the sizes are real. Their times, "
        "throughputs and memory are measured; text, acceptance and expected lengths say nothing about a trained model."
    ),
}
"""Label -> the note below numbers with it."""

EXPECTED_LENGTH = (
    "1 + mean, over the drafts that count in full, of the accepted tokens that the named method expects given the "
    "drafted tokens and both distributions: every method on the same drafts, without the noise of accepting; compare "
    "with the acceptance length of full drafts"
)


TASK_ACCURACY = "task_accuracy"
"""A metric of the answers, which baselines have too."""
METRICS: dict[str, Metric] = {
    TASK_ACCURACY: rate(
        "right answers (%)",
        "answers that are right / answers that were judged: GSM8K by the number that they end with, HumanEval by the "
        "tests of the data set (measurement.run_code=true)",
        "num_right_answers",
        "num_checked_answers",
    ),
    "acceptance_rate": rate(
        "acceptance rate (%)",
        "accepted draft tokens / draft tokens, of those that count as evidence; recovered and bonus tokens are in "
        "neither",
        "num_accepted_tokens",
        "num_draft_tokens",
    ),
    "mean_acceptance_length": length(
        "mean acceptance length",
        "micro average: 1 + accepted draft tokens / drafts, those included that the length limit or a drafted "
        "end-of-sequence token shortens: it falls as K / max_new_tokens grows",
        ("num_drafts", "num_accepted_tokens"),
        "num_drafts",
        low=1.0,
    ),
    "full_draft_length": length(
        "acceptance length of full drafts",
        "1 + accepted draft tokens / drafts, over the drafts that count in full: every proposed token is evidence",
        ("num_full_drafts", "num_accepted_in_full_drafts"),
        "num_full_drafts",
        low=1.0,
    ),
    "drafts_left_out": rate(
        "drafts left out (%)",
        "drafts that do not count in full / rounds for which a token was proposed: what the acceptance length of full "
        "drafts leaves out; of a tree an end-of-sequence token on any branch is enough",
        "num_drafts_left_out",
        "num_proposals",
    ),
    "mean_acceptance_length_macro": length(
        "mean acceptance length, macro",
        "mean over requests of the request's own 1 + accepted draft tokens / drafts",
        ("request_acceptance_length",),
        "num_requests_with_drafts",
        low=1.0,
    ),
    **{
        f"expected_length_{method}": length(
            f"expected length, {method}",
            EXPECTED_LENGTH,
            ("num_expected_drafts", f"expected_accepted_{method}"),
            "num_expected_drafts",
            low=1.0,
        )
        for method in EXPECTED_METHODS
    },
    "looping_answers": rate(
        "looping answers (%)",
        f"answers that loop / answers that can be judged: {LOOP}; empty where none can: all are cut before "
        "or not known, the target's weights are random or acceptance is synthetic",
        "num_looping_answers",
        "num_judged_answers",
    ),
    "acceptance_rate_without_loops": rate(
        "acceptance rate without loops (%)",
        "the acceptance rate of the answers that can be judged and do not loop; empty where none can",
        f"num_accepted_tokens{WITHOUT_LOOPS}",
        f"num_draft_tokens{WITHOUT_LOOPS}",
    ),
    "full_draft_length_without_loops": length(
        "acceptance length of full drafts without loops",
        "the acceptance length of full drafts of the same answers; empty likewise",
        (f"num_full_drafts{WITHOUT_LOOPS}", f"num_accepted_in_full_drafts{WITHOUT_LOOPS}"),
        f"num_full_drafts{WITHOUT_LOOPS}",
        low=1.0,
    ),
    "share_of_bound": SHARE_OF_BOUND,
    "tokens_per_forward": length(
        "tokens per target forward",
        "output tokens / rounds of the requests; a round is one target forward for its request, the prefill's included",
        ("num_output_tokens",),
        "num_rounds",
    ),
    "wall_s": Metric(
        "duration (s)",
        "s",
        "wall time of the whole measured phase: from the first admission until the device is idle",
        "seconds",
        ("time_s",),
    ),
    "requests_per_s": Metric(
        "request throughput (req/s)",
        "1/s",
        "requests / wall time of the whole measured phase",
        "significant",
        ("num_requests",),
        "time_s",
    ),
    "output_tokens_per_s": Metric(
        "output throughput (tok/s)",
        "tokens/s",
        "output tokens / wall time of the whole measured phase (never a mean of per-request rates)",
        "significant",
        ("num_output_tokens",),
        "time_s",
    ),
    "goodput_requests_per_s": Metric(
        "goodput (req/s)",
        "1/s",
        "requests whose TTFT, TPOT and E2E keep measurement.max_ttft_ms, max_tpot_ms and max_e2e_ms / wall time of the "
        "whole measured phase; requests that failed are not among them; empty where no limit is set",
        "significant",
        ("num_good_requests",),
        "time_s",
    ),
    "total_tokens_per_s": Metric(
        "total throughput (tok/s)",
        "tokens/s",
        "prompt and output tokens / wall time of the whole measured phase",
        "significant",
        ("num_prompt_tokens", "num_output_tokens"),
        "time_s",
    ),
}

ADMISSION = "a request's admission to a slot (waiting for one is in it only where requests arrive at a rate)"
LATENCIES = {
    "ttft": ("TTFT", f"time from {ADMISSION} to its first token"),
    "tpot": ("TPOT", "(E2E - TTFT) / (output tokens - 1) of a request with at least two tokens"),
    "itl": ("ITL", "gap between successive arrivals of tokens of a request; arrivals are rounds, not tokens"),
    "itl_per_token": (
        "ITL per token",
        "gap between successive arrivals / tokens of the later one, once for each of these tokens",
    ),
    "e2e": ("E2E", f"time from {ADMISSION} to its last token"),
}
"""Latency -> printed name, definition."""
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}

for _name, (_label, _text) in LATENCIES.items():
    METRICS[f"{_name}_mean_ms"] = Metric(
        f"mean {_label} (ms)", "ms", f"mean of {_label}: {_text}", "milliseconds", (f"{_name}_s",), f"num_{_name}", 1e3
    )
    for _percentile, _level in PERCENTILES.items():
        METRICS[f"{_name}_{_percentile}_ms"] = Metric(
            f"{_percentile} {_label} (ms)",
            "ms",
            f"{100 * _level:.0f}th percentile of {_label}: {_text}",
            "milliseconds",
            scale=1e3,
            percentile=(_name, _level),
        )

METRICS |= REASONING_METRICS

SPEEDUP = Metric(
    "speedup",
    "ratio",
    "output throughput / output throughput of the autoregressive baseline of the same run: same target, decoding, "
    "prompts and engine settings, paired by prompt; empty without a baseline",
    "length",
)


def is_measured_beside(name: str) -> bool:
    """Whether a metric needs what is measured of drafts while the clock stands (measurement.expected_acceptance)."""
    return name.startswith("expected_length_") or "acceptance_bound_per_pos_" in name or name == "share_of_bound"


def metric(name: str) -> Metric:
    """The metric with this column name, per-position ones included; KeyError if there is none."""
    if name == "speedup":
        return SPEEDUP
    if name in METRICS:
        return METRICS[name]
    return position_metrics(int(name.rsplit("_", 1)[1]))[name]


def footnotes(names: Sequence[str]) -> list[str]:
    """The texts below a table that shows these metrics: what each means, once, and how the intervals are made."""
    counted = [f"drafts: {DRAFTS}", f"evidence: {EVIDENCE}"]
    texts = dict.fromkeys([*counted, *(_footnote(name) for name in names)])
    timed = any(not metric(name).of_tokens for name in names)
    return [*texts, INTERVALS, *([TIME_INTERVALS] if timed else [])]


def _footnote(name: str) -> str:
    """One text for all positions, all statistics of a latency, and all methods of the expected length."""
    item = metric(name)
    if item.percentile or name.endswith("_mean_ms"):
        return ": ".join(LATENCIES[item.percentile[0] if item.percentile else name.removesuffix("_mean_ms")])
    label = item.label
    if "_per_pos_" in name:
        label = label.replace(f"position {name.rsplit('_', 1)[1]}", "position i")
    elif item.definition is EXPECTED_LENGTH:
        label = "expected length"
    return f"{label}: {item.definition}"
