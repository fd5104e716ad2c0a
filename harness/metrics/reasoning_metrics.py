"""Metrics of answers that follow reasoning, and of drafts and speed before and after its end; nan without reasoning."""

from __future__ import annotations

from harness.metrics.metric import Metric, length, rate

PLACES = {"before": "in_reasoning", "boundary": "at_boundary", "after": "in_answer"}
"""Phase of the sums (`harness.metrics.reasoning_sums`) -> how columns name it."""

REASONING_METRICS: dict[str, Metric] = {
    "answer_valid_rate": rate(
        "valid (%)",
        "answers that an independent validator finds valid / answers it judged, of requests that reached the end of "
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
        "emitted tokens that the grammar refused and that were cut off again, with what stood behind them in their "
        "round; not those behind the end of a whole answer; empty where no end of reasoning was looked for",
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
"""Column -> metric."""
