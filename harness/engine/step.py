"""One step of the engine on the device: drafts, target forward, verification, and the bookkeeping of every slot.

A step reads new tokens of prompts and decodes a round of the running requests in one go. All that it needs to know lies
on the device (`SlotState`) or is given by the host before the step (`StepInputs`): nothing waits for the step before.
It does not know requests, limits, records or time.

Shapes: S slots, B rows that may decode (slots 0..B - 1), T = K + 1 tokens of such a row, C capacity of a slot, V
vocabulary. Tokens of a step are numbered through its parts, row after row: the decoding rows first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.own_drafter import OwnDrafter
from harness.drafters.protocol import Batch, Drafter, DraftMasks, ReadPart, ReadsWhileDrafting, TargetStep
from harness.engine.decided_row import joined
from harness.engine.slots import DECODES, ENDS_PROMPT, SlotState, StepInputs
from harness.engine.token_logprobs import LogprobsSettings, packed_logprobs
from harness.models.fused.row_groups import RowGroups
from harness.models.slot_cache import TargetCache
from harness.models.target import TargetModel, TargetOutput
from harness.models.tree_places import TreePlaces
from kernels.contract import Deferred, Draft, Slots, Streams, TokenMask, Verification, VerificationResult
from kernels.core import Core
from kernels.depth import without_idle_columns


class StepOutput(NamedTuple):
    """What a step leaves on the device."""

    decided: Tensor
    """[B, ...] int64, rows as harness.engine.decided_row.RowLayout has them."""
    logits: Tensor
    """[B * T, V], T rows a slot."""
    draft: Draft
    """The round's drafts, fields [B]."""
    compared: Any = None
    """See VerificationResult."""


class Part(NamedTuple):
    """Rows of one forward of the target."""

    rows: slice | Tensor
    """Slots: slice(0, R), or [R] int64."""
    token_ids: Tensor
    """[R, T] int64."""
    positions: Tensor
    """[R, T] int64."""
    length: int
    """Highest position + 1."""
    has_prompts: bool
    tree: TreePlaces | None = None
    """Of rows whose tokens are nodes of trees."""
    groups: RowGroups | None = None
    """Rows of prompts that attention reads together."""


class Drafted(NamedTuple):
    """A step after its drafts."""

    batch: Batch
    draft: Draft


class Scored(NamedTuple):
    """A step after the target's forward."""

    parts: list[Part]
    outputs: list[TargetOutput]
    """Of each part."""
    first: Tensor
    """[B] number of the token whose logits decide a slot's first emitted token."""
    logits: Tensor
    """[B * T, V], as tokens are drawn from them."""
    raw: Tensor | None = None
    """The same before penalties and biases, where log-probabilities are of these; None where nothing changes them."""


class Verified(NamedTuple):
    """A step after verification."""

    draft: Draft
    """With -1 draft tokens for slots that emit nothing, those that are deferred among them; 0 for those at the end of
    their prompt."""
    verdict: VerificationResult
    is_undecided: Tensor
    """[B] bool, slots that emit nothing."""
    logprobs: Tensor | None
    """See packed_logprobs; None if not requested."""


@dataclass(frozen=True)
class Step:
    """The parts that a step runs: target, drafter, sampling core, slots."""

    target: TargetModel
    drafter: Drafter
    core: Core
    cache: TargetCache
    state: SlotState
    verification: Verification
    num_speculative_tokens: int
    logprobs: LogprobsSettings | None
    joins: bool
    """All parts in one forward, whose rows are all T wide; else one forward a part, decoding rows read in place."""
    own_drafter: OwnDrafter | None
    """What the drafter's drafts must fit, if it is the user's own."""

    @property
    def is_recurrent(self) -> bool:
        """Whether a forward reads one row of a slot, and prompts without padding (TargetModel.is_recurrent)."""
        return self.target.is_recurrent or (
            isinstance(self.drafter, DraftModelDrafter) and self.drafter.model.is_recurrent
        )

    def __call__(self, inputs: StepInputs, defers: bool = False) -> StepOutput:
        """Run the step; the order of work on the device is the order of the calls.

        With `defers` a slot in whose round reasoning may end is deferred: it emits nothing, and the next step finds it
        as this one did, random streams included.
        """
        drafted = self.draft(inputs)
        scored = self.score(inputs, drafted)
        verified = self.verify(inputs, drafted, scored, defers=defers)
        self.extend(inputs, scored, verified)
        return self.commit(scored, verified)

    def draft(self, inputs: StepInputs, masks: DraftMasks | None = None) -> Drafted:
        """Apply the host's input, and propose the step's drafts for each row, under masks where there are any.

        Raises:
            ValueError: see OwnDrafter.checked.
        """
        if inputs.prompts:  # only a slot that reads its prompt begins
            self._begin(inputs)
        batch = replace(self._batch(inputs), masks=masks)
        if not (inputs.has_rounds and batch.num_speculative_tokens):
            if inputs.has_rounds and isinstance(self.drafter, ReadsWhileDrafting):
                self.drafter.read(batch)
            return Drafted(batch, Draft(batch.lengths.new_empty(batch.num_rows, 0), torch.zeros_like(batch.lengths)))
        draft = self.drafter.propose(batch)
        if self.own_drafter is not None:
            draft = self.own_drafter.checked(draft, batch)
        narrows = not (self.joins or inputs.prompts or draft.token_ids.is_cuda or masks)
        return Drafted(batch, without_idle_columns(draft) if narrows else draft)

    def score(self, inputs: StepInputs, drafted: Drafted) -> Scored:
        """The target's forward over the drafts and the prompts, and the logits that verification reads."""
        parts = self._parts(inputs, drafted)
        outputs = [self._forward(part) for part in parts]
        width = drafted.draft.token_ids.shape[1] + 1
        firsts = self.cache.slot_ids[: inputs.decides.numel()] * (width if inputs.has_rounds else 0)
        if not inputs.prompts:
            (output,) = outputs
            scored = Scored(parts, outputs, firsts, self.target.logits(output.hidden.flatten(0, 1)))
            return scored if self.state.edits is None else self._edited(inputs, drafted, scored)
        hidden = torch.cat([output.hidden.flatten(0, 1) for output in outputs])
        first = torch.where(inputs.decides == ENDS_PROMPT, inputs.ends, firsts)
        columns = torch.arange(width, device=first.device)
        wanted = (first.unsqueeze(1) + columns).clamp_(max=len(hidden) - 1)
        logits = self.target.logits(hidden.index_select(0, wanted.flatten()))
        scored = Scored(parts, outputs, first, logits)
        return scored if self.state.edits is None else self._edited(inputs, drafted, scored)

    def _edited(self, inputs: StepInputs, drafted: Drafted, scored: Scored) -> Scored:
        """The rows with penalties and biases, each at its position along the drafts."""
        state, draft, num_rows = self.state, drafted.draft, inputs.decides.numel()
        assert state.edits is not None
        asks_raw = self.logprobs is not None and not self.logprobs.is_processed
        raw = scored.logits.clone() if asks_raw else None
        self.core.edit_logits(
            scored.logits,
            draft.token_ids,
            inputs.decides,
            state.edits.texts(state.token_ids, state.lengths),
            state.edits.rows(num_rows),
            state.edits.tally,
            draft.parents,
        )
        return scored._replace(raw=raw)

    def verify(
        self, inputs: StepInputs, drafted: Drafted, scored: Scored, mask: TokenMask | None = None, defers: bool = False
    ) -> Verified:
        """Decide what each slot emits; `mask` is of the B * T target rows; for `defers` see the call."""
        batch, state, deferred = drafted.batch, self.state, self._deferred(inputs, drafted, defers)
        draft = replace(drafted.draft, num_draft_tokens=deferred.num_draft_tokens)
        streams = Streams(batch.streams.seeds, state.lengths[: batch.num_rows], batch.streams.rounds)
        verdict = self.core.verify(scored.logits, draft, batch.sampling, self.verification, streams, mask=mask)
        logprobs = None
        if self.logprobs is not None:
            logits = self.emitting_rows(scored.logits if scored.raw is None else scored.raw, verdict)
            logprobs = packed_logprobs(self.core, logits, verdict.token_ids, self.logprobs, batch.sampling, mask)
        return Verified(draft, verdict, deferred.is_undecided, logprobs)

    def emitting_rows(self, logits: Tensor, verdict: VerificationResult) -> Tensor:
        """[B * T, V], in the order of the tokens that each slot emits."""
        return logits

    def _deferred(self, inputs: StepInputs, drafted: Drafted, defers: bool) -> Deferred:
        """Draft tokens to verify, and slots that emit nothing: one operation, whether or not some may be deferred."""
        draft, state, num_rows = drafted.draft, self.state, drafted.batch.num_rows
        return self.core.defer(
            decides=inputs.decides,
            num_draft_tokens=draft.num_draft_tokens,
            draft_ids=draft.token_ids,
            token_ids=state.token_ids,
            lengths=state.lengths[:num_rows],
            endings=state.endings if defers else None,
        )

    def extend(self, inputs: StepInputs, scored: Scored, verified: Verified) -> None:
        """Give the drafter the tokens that the target has read and its states."""
        verdict = verified.verdict
        last = scored.first + verdict.num_accepted
        if inputs.prompts:
            last = torch.where(inputs.decides == ENDS_PROMPT, inputs.ends, last)
        next_ids = self._next_ids(inputs, scored.parts, verdict, last)
        read = tuple(
            ReadPart(part.rows, part.token_ids, ids, part.positions, part.length, part.has_prompts, output, part.groups)
            for part, ids, output in zip(scored.parts, next_ids, scored.outputs, strict=True)
        )
        self.drafter.extend(TargetStep(inputs.decides.numel(), read, last, verified.is_undecided))

    def commit(self, scored: Scored, verified: Verified) -> StepOutput:
        """Append what was emitted to the tokens that the device keeps; the host cuts and counts in its own time."""
        decided = self.decided(verified, self.state.changed_by_rounds())
        return StepOutput(decided, scored.logits, verified.draft, verified.verdict.compared)

    def decided(self, verified: Verified, slots: Slots | None = None, of_trees: tuple[Tensor, ...] = ()) -> Tensor:
        """What is copied to the host (StepOutput; `of_trees`: [B, K] each), and taken into slots if there are any."""
        verdict, draft = verified.verdict, verified.draft
        packed = self.core.commit(verdict, draft.token_ids, draft.num_draft_tokens, slots)
        return joined(packed, of_trees, verified.logprobs)

    def _begin(self, inputs: StepInputs) -> None:
        """Apply the host's input for slots that begin a request, and the tokens of prompts."""
        state, rows = self.state, slice(0, inputs.decides.numel())
        begins = inputs.begins == 1
        state.seeds[rows] = torch.where(begins, inputs.seeds, state.seeds[rows])
        state.lengths[rows] = torch.where(begins, inputs.lengths, state.lengths[rows])
        state.rounds[rows] = torch.where(begins, 0, state.rounds[rows])
        if state.edits is not None:
            state.edits.begin(begins, inputs.lengths)
        for part in inputs.prompts:
            positions = _positions(part.starts, part.token_ids.shape[1] - 1)
            state.token_ids.index_put_((part.slots.unsqueeze(1), positions), part.token_ids[:, :-1])

    def _batch(self, inputs: StepInputs) -> Batch:
        state, num_rows = self.state, inputs.decides.numel()
        rows: slice | Tensor = slice(0, num_rows)
        decodes = inputs.decides == DECODES
        if self.joins:
            rows = torch.where(decodes, self.cache.slot_ids[:num_rows], state.spare_id)
        # an idle row drafts and reads from position 0 on; its output is discarded
        lengths = torch.where(decodes, state.lengths[:num_rows], state.idle_length)
        depth = self.num_speculative_tokens if inputs.depth is None else inputs.depth
        return Batch(
            rows=rows,
            num_rows=num_rows,
            num_speculative_tokens=depth,
            token_ids=state.token_ids[:num_rows],
            sampling=state.sampling.rows(num_rows),
            streams=Streams(state.seeds[:num_rows], lengths, state.rounds[:num_rows]),
            core=self.core,
            length=inputs.length - depth,
        )

    def _parts(self, inputs: StepInputs, drafted: Drafted) -> list[Part]:
        """What the target reads: the last token of each decoding row with its drafts, and the prompts' tokens."""
        batch, draft = drafted
        parts = []
        if inputs.has_rounds:
            starts = batch.lengths - 1
            last_ids = batch.token_ids.gather(1, starts.unsqueeze(1))
            draft_ids = draft.token_ids if self.own_drafter is None else self.own_drafter.readable(draft.token_ids)
            token_ids = torch.cat([last_ids, draft_ids], dim=1)
            parts.append(Part(batch.rows, token_ids, _positions(starts, token_ids.shape[1]), inputs.length, False))
        for part in inputs.prompts:
            positions = _positions(part.starts, part.token_ids.shape[1] - 1)
            parts.append(Part(part.slots, part.token_ids[:, :-1], positions, part.length, True, groups=part.groups))
        if not self.joins or len(parts) == 1:
            return parts
        rounds, prompts = parts
        assert isinstance(rounds.rows, Tensor) and isinstance(prompts.rows, Tensor), "rows are joined by their slots"
        groups = prompts.groups
        return [
            Part(
                torch.cat([rounds.rows, prompts.rows]),
                torch.cat([rounds.token_ids, prompts.token_ids]),
                torch.cat([rounds.positions, prompts.positions]),
                max(rounds.length, prompts.length),
                True,
                groups=None if groups is None else groups._replace(first=len(rounds.rows)),
            )
        ]

    def _forward(self, part: Part) -> TargetOutput:
        view = self.cache.view(part.rows, part.positions, part.length, part.tree, part.groups)
        return self.target.forward(part.token_ids, part.positions, view, self.drafter.aux_layers)

    def _next_ids(
        self, inputs: StepInputs, parts: list[Part], verdict: VerificationResult, last: Tensor
    ) -> list[Tensor]:
        """The token after each one that was read, part by part; valid ids without a meaning where there is none."""
        if not inputs.prompts:
            return [verdict.token_ids.clamp_min(0)]
        rounds = [verdict.token_ids.clamp_min(0)] if inputs.has_rounds else []
        prompts = [part.token_ids[:, 1:] for part in inputs.prompts]
        flat = torch.cat([each.flatten() for each in (*rounds, *prompts)])
        # the token that follows a prompt is the one just drawn
        if inputs.has_rounds:
            begun = torch.where(inputs.decides == ENDS_PROMPT, verdict.token_ids[:, 0], flat[last]).clamp_min(0)
            flat = flat.index_put((last,), begun)
        else:
            # no other slot has a place of its own here
            ending = inputs.decides == ENDS_PROMPT
            flat[last[ending]] = verdict.token_ids[ending, 0].clamp_min(0)
        sizes = [part.token_ids.numel() for part in parts]
        return [ids.view_as(part.token_ids) for ids, part in zip(flat.split(sizes), parts, strict=True)]


def _positions(starts: Tensor, num_columns: int) -> Tensor:
    """[R, num_columns], counting up from each row's start."""
    return starts.unsqueeze(1) + torch.arange(num_columns, device=starts.device)
