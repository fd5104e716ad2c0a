"""What every column of the kernel benchmark's table.csv means, one row per implementation and case."""

from __future__ import annotations

from harness.metrics.columns import Column

KERNEL_COLUMNS: dict[str, Column] = {
    "work": Column("", "what was timed: verify, draw, coupled_draw"),
    "method": Column("", "verification method, or which draw it is"),
    "num_requests": Column("", "requests of a verification; rows of a draw"),
    "num_speculative_tokens": Column("tokens", "K of every request; 0 for a draw"),
    "vocab_size": Column("tokens", "vocabulary"),
    "dtype": Column("", "type of the logits"),
    "temperature": Column("", "temperature of target and draft"),
    "truncation": Column("", "what cuts both distributions: off, top_k (50), top_p (0.95), min_p (0.05)"),
    "acceptance": Column("", "how close the drafter is to the target: low, mid, high; empty for a draw"),
    "draft_sampling": Column("", "how the proposal was drawn; greedy has no draft-logit cache; empty for a draw"),
    "rows": Column("", "how far a row's probability is spread: wide, peaked"),
    "implementation": Column("", "triton or reference for the project's own core; else a peer"),
    "status": Column("", "measured, skipped or failed"),
    "reason": Column("", "why it was skipped or failed; a remark on a measured one"),
    "is_measurement": Column("", "False on a CPU, where the benchmark only shows that it runs"),
    "mean_accepted": Column("tokens", "accepted draft tokens per request in this batch; empty for a draw"),
    "median_us": Column("us", "median time of the repeats"),
    "lower_quartile_us": Column("us", "first quartile of the repeats"),
    "upper_quartile_us": Column("us", "third quartile of the repeats"),
    "min_us": Column("us", "shortest repeat"),
    "again_us": Column("us", "median of as many repeats of a second graph: differences no larger mean nothing"),
    "num_repeats": Column("", "repeats"),
    "in_graph": Column("", "replayed as a CUDA graph; if not, launches from the host are part of the time"),
    "floor_us": Column("us", "bytes_needed at the read bandwidth of the same run, and an empty graph"),
    "bytes_needed": Column("bytes", "rows that decide something: without the target rows behind a rejection"),
    "bytes_all_rows": Column(
        "bytes", "as if every target row were read, also skipped ones, and the pair at each rejection once more"
    ),
    "read_bandwidth_bytes_per_s": Column("bytes/s", "best way of reading memory in the same run"),
    "logits_bytes": Column("bytes", "target rows of the batch, and its draft rows where they are cached"),
    "workspace_bytes": Column("bytes", "scratch memory that the core keeps"),
    "extra_bytes": Column(
        "bytes", "most memory held during a call beyond its arguments: workspace, temporaries, results"
    ),
    "num_launches": Column("", "kernels launched"),
    "num_compared_decisions": Column("", "decisions compared with the reference before anything was timed"),
    "num_disagreements": Column("", "of them those that differ, all within rounding of a boundary"),
}
