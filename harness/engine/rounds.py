"""What a step decided for one request, and what is kept of it until records are made.

Shapes: T = K + 1 tokens of a round at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from harness.engine.commit import Commit
from harness.engine.constraint.grammar_state import ConstraintOutcome
from harness.engine.decided_row import RowLayout
from harness.records.request import CutReason
from kernels.contract import NO_TOKEN


class Round(NamedTuple):
    """What a step decided for one request, on the host."""

    emitted: list[int]
    draft_ids: list[int]
    is_invalid: bool
    logprobs: list[int]
    """See packed_logprobs; empty if not requested."""
    is_deferred: bool = False
    """Nothing was decided: reasoning may end in the round, and the host must see its drafts first."""
    depths: tuple[int, ...] | None = None
    """Of each draft token of a tree, 1 after the context; None for a chain."""
    path: tuple[int, ...] | None = None
    """Of a tree, the accepted draft tokens by their place in `draft_ids`."""


def round_of(row: list[int], layout: RowLayout) -> Round:
    """What a step decided for one request, from the row that it left (see StepOutput.decided)."""
    num_accepted, num_drafted, invalid = row[layout.counts]
    emitted = row[: num_accepted + 1]
    logprobs = layout.logprobs(row, len(emitted))
    found = Round(emitted, layout.draft_ids(row), bool(invalid), logprobs, num_drafted < 0)
    if not layout.of_trees:
        return found
    return _of_tree(found, row[layout.depths], layout.path_of(row, num_accepted))


def rounds_of(decided: SequenceOf[list[int]], layout: RowLayout, slots: Iterable[int]) -> dict[int, Round]:
    """The rounds of some slots, from the rows of all."""
    return {slot: round_of(decided[slot], layout) for slot in slots}


def _of_tree(round_: Round, depths: SequenceOf[int], path: SequenceOf[int]) -> Round:
    """The round without the places of the tree that hold no token."""
    places = [place for place, token_id in enumerate(round_.draft_ids) if token_id != NO_TOKEN]
    return round_._replace(
        draft_ids=[round_.draft_ids[place] for place in places],
        depths=tuple(depths[place] for place in places),
        path=tuple(places.index(node) for node in path),
    )


class RoundFields(NamedTuple):
    """The fields of a RoundRecord in their order; the record itself is made and checked when the clock has stopped."""

    num_proposed_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_output_tokens: int
    cut_reason: CutReason | None
    arrival_s: float
    share_s: float
    expected_accepted: tuple[float, float, float] | None = None
    """See `Sequence.take_measured`, as for position_bounds."""
    num_free_tokens: int | None = None
    num_cut_tokens: int = 0
    host_us: float = 0.0
    is_whole: bool | None = None
    num_held_steps: int = 0
    position_bounds: tuple[float, ...] | None = None
    path: tuple[int, ...] | None = None
    num_draft_positions: int | None = None


WholeRound = tuple[int, int, float, float, int]
"""What is kept of a round that nothing cuts: drafted, accepted, arrival_s, share_s, num_held_steps. To make its fields
takes ten times as long, and the garbage collector leaves tuples of numbers alone."""


def fields_of(kept: RoundFields | WholeRound) -> RoundFields:
    """The fields of a round."""
    if isinstance(kept, RoundFields):
        return kept
    num_drafted, num_accepted, arrival_s, share_s, num_held_steps = kept
    counts = num_drafted, num_drafted, num_accepted, num_accepted + 1
    return RoundFields(*counts, None, arrival_s, share_s, num_held_steps=num_held_steps)


def constrained_fields(kept: WholeRound, outcome: ConstraintOutcome) -> RoundFields:
    """The fields of a round that nothing cuts, under a constraint."""
    return fields_of(kept)._replace(
        num_free_tokens=outcome.num_free_tokens, host_us=outcome.host_us, is_whole=outcome.ran_as_one_graph
    )


def committed_fields(
    result: Commit,
    decided: Round,
    outcome: ConstraintOutcome | None,
    arrival_s: float,
    share_s: float,
    num_held_steps: int,
) -> RoundFields:
    """The fields of any round that was committed."""
    return RoundFields(
        num_proposed_tokens=len(decided.draft_ids),
        num_draft_tokens=result.num_draft_tokens,
        num_accepted_tokens=result.num_accepted_tokens,
        num_output_tokens=len(result.token_ids),
        cut_reason=result.cut_reason,
        arrival_s=arrival_s,
        share_s=share_s,
        num_free_tokens=None if outcome is None else outcome.num_free_tokens,
        num_cut_tokens=result.num_cut_tokens,
        host_us=0.0 if outcome is None else outcome.host_us,
        is_whole=None if outcome is None else outcome.ran_as_one_graph,
        num_held_steps=num_held_steps,
        path=decided.path,
        num_draft_positions=result.num_draft_positions,
    )
