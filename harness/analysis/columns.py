"""The columns of the results: settings and counts with unit and meaning, metrics with their intervals, in order.

What the metrics mean is in `harness.analysis.definitions`. This module knows names and texts, no records.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from harness.analysis.definitions import DRAFTS, EVIDENCE, METRICS, SPEEDUP
from harness.analysis.position_metrics import position_metrics
from harness.records.schema import COUNTED_FIELDS, CellRecord

PER_POSITION = "<i>"
"""Stands for the position 1, 2, .. in the names of per-position columns."""


@dataclass(frozen=True)
class Column:
    """A column without an interval: a setting or a count."""

    unit: str
    definition: str
    is_text: bool = False


def _text(definition: str) -> Column:
    return Column("", definition, is_text=True)


SETTINGS: dict[str, Column] = {
    "run": _text("name of the run folder"),
    "cell_id": _text("identity of the cell: hash of everything that determines its result"),
    "target": _text("label of the target"),
    "target_weights": _text("where the target's weights come from: checkpoint, or random"),
    "drafter": _text("who proposes; none is the autoregressive baseline"),
    "drafter_path": _text("checkpoint or named shape of the drafter; empty for the built-in one"),
    "drafter_weights": _text("where the drafter's weights come from; empty for a drafter without a network"),
    "num_speculative_tokens": Column("tokens", "K, draft tokens proposed per round; 0 for the baseline"),
    "depth": _text(
        "what decides, beside K, how many tokens a round drafts: a table by batch size (1:4/8:2), planner, confidence "
        "with its least value; empty where every round drafts K",
    ),
    "tree": _text(
        "shape of the tree that is drafted: children level by level, a list of parents, or dynamic:NODES-DEPTH-WIDTH, "
        "which the drafter chooses in each round; its nodes are the K draft "
        "tokens, and a position is a depth; empty for chains",
    ),
    "siblings": _text(
        "how the children of a node are drawn: distinct (without replacement) or independent; empty where there "
        "are none or they are the best tokens of a row (greedy drafts)",
    ),
    "draft_sampling": _text("how the proposal is drawn: greedy (one-hot), sampled, coupled; empty for the baseline"),
    "draft_cache_dtype": _text(
        "floating-point type of the draft-logit cache; empty where there is none (greedy drafts, the baseline)"
    ),
    "drawn_from": _text(
        "what drafts are drawn from: stored (the cached logits) or unrounded (as the drafter gave them); empty without "
        "a draft-logit cache",
    ),
    "verification": _text("verification method with its parameters; empty for the baseline"),
    "guarantee": _text("what the method promises: lossless, lossy, biased, synthetic"),
    "labels": _text("printed with every number of the cell; several are separated by a semicolon"),
    "temperature": Column("", "temperature; 0 is greedy decoding"),
    "top_k": Column("tokens", "top-k; 0 is off"),
    "top_p": Column("", "top-p; 1 is off"),
    "min_p": Column("", "min-p; 0 is off"),
    "max_new_tokens": Column("tokens", "output tokens of a request at most"),
    "ignore_eos": Column("", "requests went on past the end-of-sequence token, which inflates acceptance"),
    "workload": _text("prompts: builtin, a file or a data set"),
    "knowledge": _text(
        "finest level at which drafts are known: rounds, requests, blocks (counts), or arrivals (no counts)"
    ),
    "constraint": _text(
        "policy at the end of reasoning, with the parser and the kind of grammar; free drafts: those of the answer are "
        "drawn without masks; empty where none is looked for"
    ),
    "prompt_tokens": Column("tokens", "exact length that every prompt was cut or repeated to; 0: as they are"),
    "max_concurrency": Column("", "requests in flight at most"),
    "other_settings": _text(
        "further settings in which cells of the run differ whose columns are the same, as section.name=value; empty "
        "where there are none",
    ),
    "engine": _text("what generated: local (this project's engine), what serves, or a backend of one's own"),
    "device": _text("where the target ran"),
    "dtype": _text("floating-point type of the target"),
    "ranks": _text("ranks that compute the target together (backend.tensor_parallel); empty on a server"),
    "rounding": _text(
        "what is rounded to fewer bits: weights of the target by its checkpoint or to fp8, KV cache; empty for nothing"
    ),
    "seed": Column("", "seed of the run"),
    "baseline_cell_id": _text("the baseline that the speedup refers to; empty if the run has none"),
}

OF_RECORD: dict[str, Column] = {
    item.name: Column(item.metadata["unit"], item.metadata["definition"])
    for item in fields(CellRecord)
    if item.name in COUNTED_FIELDS
}
"""Counts that a record holds as they are."""

COUNTS: dict[str, Column] = {
    "num_prompts": Column("", "prompts, the units of resampling"),
    "num_requests": Column("", "requests: every turn of every copy of a prompt"),
    "num_skipped_turns": OF_RECORD["num_skipped_turns"],
    "num_prompt_tokens": Column("tokens", "prompt tokens of all requests"),
    "num_output_tokens": Column("tokens", "output tokens of all requests"),
    "num_rounds": Column("", "rounds of all requests, the draw that ends the prefill included"),
    "num_drafts": Column("", DRAFTS),
    "num_full_drafts": Column("", "drafts that count in full: every proposed token is evidence"),
    "num_draft_tokens": Column("tokens", f"draft tokens that count as evidence: sum of K_r. {EVIDENCE}"),
    "num_accepted_tokens": Column(
        "tokens", "accepted draft tokens among those that count: sum of A_r; never a recovered or bonus token"
    ),
    "num_expected_drafts": Column(
        "", "drafts that count in full, if the expected acceptance was recorded for all of them, else 0"
    ),
    "num_answers_compared": Column(
        "",
        "at temperature 0, of a method that takes the target's argmax: requests whose output tokens are known in the "
        "cell and its baseline; empty elsewhere",
    ),
    "num_other_answers": Column(
        "",
        "those of them whose tokens differ from the baseline's: rounding may have decided between nearly equal logits; "
        "a later turn of a conversation too, whose prompt is another after one that differs",
    ),
    "first_other_token": Column(
        "", "smallest place, from 1, at which two answers to the same prompt part; empty where none do"
    ),
    "num_cut_eos": Column("", "rounds cut by the end-of-sequence token"),
    "num_cut_length": Column("", "rounds cut by the length limit"),
    "num_cut_grammar": Column("", "rounds cut by a grammar"),
    "num_cut_stop": Column("", "rounds cut behind a stop string"),
    "num_tokens_behind_stop": Column(
        "tokens",
        "tokens wasted in these rounds: emitted behind the stop string and cut off again, accepted draft tokens among "
        "them, which count neither way",
    ),
    "beside_s": Column(
        "s",
        "time of the same calls that is not in wall_s, since the clock stood: tokens of prompts, measures of drafts, "
        "checkpoints, records; warm-up comes before them; empty where it is not known",
    ),
    "block_drift": Column(
        "",
        "share by which the time of a forward over the baseline's differs between the blocks of the run, where that is "
        "more than the prompts within the blocks explain; empty where it is not, and where it cannot be judged",
    ),
    "speedup_bound": Column(
        "ratio",
        "largest speedup that drafting can buy, if a round costs as much as a plain forward: tokens per target forward "
        "over the baseline's, or per forward of a batch where that is more, on the prompts of the speedup; empty "
        "without a speedup",
    ),
    "disturbed": _text(
        "why the times of the cell are not to be trusted: speedup above its bound, blocks differ, or processes of "
        "others had the GPU open beside it or its baseline; printed times and speedups of such a cell are marked †; "
        "empty where none holds"
    ),
    **OF_RECORD,
    "fallbacks": _text("what changed speed or results without being asked for; separated by a semicolon"),
    "assumptions": _text(
        "what the files of the models do not say and was taken, or what accept_unknown vouches for; separated by a "
        "semicolon"
    ),
    "drafter_positions": Column(
        "tokens",
        "positions that the drafter's file names (max_position_embeddings); 0 where it names none, and in records that "
        "did not name them yet",
    ),
    "drafts_beyond_positions": Column(
        "fraction",
        "rounds with a proposed token that began with more tokens than that / all of these; empty where either is not "
        "known",
    ),
    "shared_mass": Column(
        "fraction",
        "probability that a draft model of another tokenizer (drafter.vocabulary=shared) gave the tokens that it "
        "shares with the target, at temperature 1 and uncut: mean over its draft rows in all sessions of the cell, "
        "those of the warm-ups and of cells that run on the same engine included; empty for other drafters",
    ),
    "aux_layers": _text(
        "layers of the target, counted from 0, whose entering states the drafter reads; empty where it reads none, and "
        "in records that did not name them yet"
    ),
}

TEXT_COLUMNS = frozenset(name for name, column in (SETTINGS | COUNTS).items() if column.is_text)
"""Columns that hold text; an empty text is a value of its own. The others hold numbers, ignore_eos a truth value."""

POSITION_COUNTS: dict[str, Column] = {
    "num_draft_tokens_per_pos": Column(
        "tokens", "rounds with K_r >= i, of a tree D_r >= i: denominator of the unconditional rate"
    ),
    "num_reached_per_pos": Column(
        "tokens", "rounds with K_r >= i, of a tree D_r >= i, and A_r >= i - 1: denominator of the conditional rate"
    ),
    "num_accepted_tokens_per_pos": Column("tokens", "rounds with A_r >= i"),
}


_NOT_COUNTED = (
    *("beside_s", "block_drift", "speedup_bound", "disturbed", "fallbacks", "assumptions", "aux_layers"),
    *("drafts_beyond_positions", "shared_mass"),
)
"""Columns between the counts that are none."""


def is_count(name: str) -> bool:
    """Whether a column holds whole numbers, also where it has none in some rows."""
    stem, _, position = name.rpartition("_")
    return (name in COUNTS and name not in _NOT_COUNTED) or (stem in POSITION_COUNTS and position.isdecimal())


GROUP_COLUMNS = ("run", "target", "drafter", "num_speculative_tokens", "depth", "temperature")
SIDE_COLUMNS = (
    *("cell_id", "verification", "draft_sampling", "tree", "siblings", "draft_cache_dtype", "drawn_from", "labels"),
)
PAIRED_COLUMNS: dict[str, Column] = {
    **{name: SETTINGS[name] for name in GROUP_COLUMNS},
    **{
        f"{side}_{name}": Column("", f"{SETTINGS[name].definition.partition(';')[0]}, of the cell named {side}")
        for side in ("first", "second")
        for name in SIDE_COLUMNS
    },
    "num_prompts": Column("", "prompts that both cells have; only these are compared"),
    "num_answers_compared": Column(
        "",
        "requests whose output tokens are known in both, if both methods take the target's argmax at temperature 0; "
        "empty elsewhere",
    ),
    "num_other_answers": Column(
        "", "those of them whose tokens differ: rounding may have decided between nearly equal logits"
    ),
    "first_other_token": COUNTS["first_other_token"],
    "metric": Column(
        "", "column of the cells that is compared; expected_length: of both methods on the first's drafts"
    ),
    "kind": Column("", "difference: second - first; ratio: second / first"),
    "value": Column("as the metric, or a ratio", "the difference or ratio"),
    "low": Column("as value", "lower end of its interval, paired by prompt"),
    "high": Column("as value", "upper end of it"),
    "same_law": Column("", "the two cannot differ in this metric, so a value other than 0 is noise"),
}
"""Columns of tables/paired.csv, one row per pair of cells and metric."""


def column_names(num_positions: int) -> list[str]:
    """The columns of the results, in order, for drafts of up to so many positions."""
    names = [*SETTINGS, *COUNTS]
    for name in [*METRICS, "speedup"]:
        names += with_interval(name)
    for position in range(1, num_positions + 1):
        names += [f"{name}_{position}" for name in POSITION_COUNTS]
        for name in position_metrics(position):
            names += with_interval(name)
    return names


def with_interval(name: str) -> tuple[str, str, str]:
    """The three columns of a metric."""
    return name, f"{name}_low", f"{name}_high"


def dictionary() -> list[tuple[str, str, str]]:
    """(column, unit, definition) of every column; intervals and positions are written once, as a pattern."""
    rows = [(name, item.unit, item.definition) for name, item in (SETTINGS | COUNTS).items()]
    rows += [(name, item.unit, item.definition) for name, item in (METRICS | {"speedup": SPEEDUP}).items()]
    rows += [(f"{name}_{PER_POSITION}", item.unit, item.definition) for name, item in POSITION_COUNTS.items()]
    for name, item in position_metrics(0).items():
        rows.append((name.removesuffix("0") + PER_POSITION, item.unit, item.definition))
    return rows
