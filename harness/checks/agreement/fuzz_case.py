"""Random rounds for the sampling core, with whatever a caller may give.

What a call must not look at is NaN, or a token id far outside: rows between rows, cached rows that no draft token was
drawn from, target rows and token ids behind a request's own.

Shapes: R requests, K draft tokens at most, V the target's vocabulary, V_draft the drafter's, S slots, M masks, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from harness.checks.agreement.fuzz_layout import Layout
from harness.checks.agreement.round_inputs import ChildDraws, DrawInputs, RoundInputs
from kernels.contract import Draft, RowStats, Sampling, SiblingDraws, Streams, TokenMask, VerificationMethod
from kernels.core import Core
from kernels.random.streams import Purpose
from kernels.reference.tree_shape import first_siblings

Method = VerificationMethod
NUM_SPARE_SLOTS = 2
NUM_CHILDREN = 3
"""Of a node, whose draw is compared; some rows have fewer tokens."""
RUBBISH = 10**12
"""A token id that nothing may look at."""
TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0)
TOP_KS, TOP_PS, MIN_PS = (0, 1, 5, 50), (1.0, 0.5, 0.9, 0.999), (0.0, 0.02, 0.3)
SCALES = {"bfloat16": (0.0, 0.3, 3.0, 1e17), "float16": (0.0, 0.3, 3.0, 1e4), "float32": (0.0, 0.3, 3.0, 1e30)}
"""Standard deviations of logits: all equal, flat, as of a model, and so far apart that all but one is impossible."""
FAULTS = ("target row", "draft row", "token outside", "other token")


@dataclass(frozen=True)
class FuzzCase:
    """One round, and the draws that its drafts came from."""

    inputs: RoundInputs
    drafts: DrawInputs
    """Of R * K rows, request after request; where K is 0 of the R target rows."""
    children: ChildDraws | None = None
    """Of the same rows, where drafts are trees."""


class CaseBuilder:
    """Builds the rounds of one layout."""

    def __init__(self, layout: Layout, seed: int, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.random = Random(seed)
        self.generator = torch.Generator(device).manual_seed(seed)

    def case(self, core: Core) -> FuzzCase:
        """A round whose drafts the core draws; sound by the contract, whatever its values."""
        layout = self.layout
        requests, width = layout.num_requests, layout.num_draft_tokens
        target, proposed, draft_to_target = self._rows()
        counts = self._counts()
        sampling, streams = self._sampling(), self._streams()
        words, target_masks, draft_masks = self._masks()
        parents = self._parents()
        if parents is not None:
            # all children of a node are drawn from one row, which is near the node's
            proposed = proposed.gather(1, (parents + 1)[:, :, None].expand_as(proposed))
            draft_masks[:, :width] = draft_masks.gather(1, parents + 1)
        drawn_width = max(width, 1)
        drafts = DrawInputs(
            self._spaced((proposed if width else target).flatten(0, 1)),
            sampling.each(lambda field: field.repeat_interleave(drawn_width)),
            Streams(
                streams.seeds.repeat_interleave(drawn_width),
                (streams.positions[:, None] + torch.arange(drawn_width, device=self.device)).flatten(),
                streams.rounds.repeat_interleave(drawn_width),
            ),
            None if layout.shares_noise else Purpose.draft,
            layout.vocab_size,
            draft_to_target if width else None,
            None if words is None else TokenMask(words, draft_masks[:, :drawn_width].flatten()),
        )
        kept = RowStats.empty(requests * drawn_width, device=self.device)
        drawn = drafts.drawn_by(core, None if layout.shares_noise else kept).token_ids
        token_ids = drawn.view(requests, drawn_width)[:, :width].clone()
        draft = self._draft(token_ids, counts, proposed, draft_to_target, kept, words, draft_masks)
        if parents is not None and layout.siblings is not None:
            draft = replace(draft, parents=parents, siblings=layout.siblings)
            self._spoil_later_siblings(draft, parents)
        drafted = torch.arange(width, device=self.device) < counts[:, None]
        self._spoil(target, draft)
        draft.token_ids.masked_fill_(~drafted, RUBBISH)
        given = torch.arange(width + 1, device=self.device) <= counts[:, None]
        target.masked_fill_(~given[:, :, None], torch.nan)
        rows = target[given] if layout.is_packed else target.flatten(0, 1)
        mask = None
        if words is not None:
            mask = TokenMask(words, target_masks[given] if layout.is_packed else target_masks.flatten())
        children = None if layout.siblings is None else self._children(drafts, layout.siblings)
        return FuzzCase(RoundInputs(self._spaced(rows), draft, sampling, streams, mask), drafts, children)

    def _children(self, drafts: DrawInputs, siblings: SiblingDraws) -> ChildDraws:
        """Draws of NUM_CHILDREN children from each draft row, which come after some others of their depth."""
        others = self._integers(0, 5, len(drafts.logits), 1)
        branches = others + torch.arange(NUM_CHILDREN, device=self.device)
        given = drafts.logits, drafts.sampling, drafts.streams, siblings, branches
        return ChildDraws(*given, drafts.draft_to_target, drafts.mask)

    def _choose(self, values: tuple[float, ...], size: int) -> Tensor:
        chosen = torch.randint(len(values), (size,), generator=self.generator, device=self.device)
        return torch.tensor(values, device=self.device)[chosen]

    def _chance(self, probability: float, *size: int) -> Tensor:
        return torch.rand(size, generator=self.generator, device=self.device) < probability

    def _integers(self, low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=self.generator, device=self.device)

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.generator, device=self.device)

    def _spaced(self, rows: Tensor) -> Tensor:
        """The same values where the layout has them, NaN around them."""
        *outer, last = rows.shape
        lead, step = self.layout.offset, last + self.layout.spacing
        memory = rows.new_full((lead + step * rows[..., 0].numel() + 16,), torch.nan)
        strides = [step * stride for stride in torch.empty(outer, device="meta").stride()]
        return memory.as_strided(rows.shape, (*strides, 1), lead).copy_(rows)

    def _rows(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """([R, K + 1, V] target logits, [R, K, V_draft] draft logits near them, [V_draft] ids of the drafter)."""
        layout, random = self.layout, self.random
        scale = random.choice(SCALES[layout.dtype])
        target = self._normal(layout.num_requests, layout.num_draft_tokens + 1, layout.vocab_size)
        if random.random() < 0.3:
            # Ties.
            target = target.round()
        proposed = target[:, :-1] + random.choice((0.0, 0.3, 1.0)) * self._normal(*target[:, :-1].shape)
        if random.random() < 0.2:
            banned = self._chance(0.5, layout.vocab_size)
            banned[random.randrange(layout.vocab_size)] = False
            target.masked_fill_(banned, -torch.inf)
            proposed.masked_fill_(banned, -torch.inf)
        ids = torch.arange(layout.num_draft_ids, device=self.device)
        if layout.is_mapped:
            ids = torch.randperm(layout.vocab_size, generator=self.generator, device=self.device)[: len(ids)]
        dtype = getattr(torch, layout.dtype)
        # Not -inf times 0.
        target, proposed = (rows.where(rows == -torch.inf, rows * scale).to(dtype) for rows in (target, proposed))
        return target, proposed[..., ids], ids if layout.is_mapped else None

    def _counts(self) -> Tensor:
        """[R] int64; at least one slot has a request."""
        requests, width = self.layout.num_requests, self.layout.num_draft_tokens
        counts = torch.full((requests,), width, device=self.device)
        if self.random.random() < 0.6:
            counts = counts.where(self._chance(0.5, requests), self._integers(-1, width + 1, requests))
            counts[0] = width
        return counts

    def _sampling(self) -> Sampling:
        layout = self.layout
        requests = layout.num_requests
        temperature = self._choose(TEMPERATURES, requests)
        if layout.method.traits.greedy_only:
            temperature = torch.zeros_like(temperature)
        elif self.random.random() < 0.1:
            temperature[self.random.randrange(requests)] = torch.nan
        cuts = self._chance(0.6, requests) & layout.truncates
        off = self._chance(0.5, 3, requests) | ~cuts
        return Sampling(
            temperature,
            self._choose(TOP_KS, requests).long().masked_fill(off[0], 0),
            self._choose(TOP_PS, requests).masked_fill(off[1], 1.0),
            self._choose(MIN_PS, requests).masked_fill(off[2], 0.0),
            layout.truncates,
            layout.is_mixed,
        )

    def _streams(self) -> Streams:
        size = self.layout.num_requests
        return Streams(
            self._integers(-(2**63), 2**63 - 1, size), self._integers(0, 10**5, size), self._integers(0, 10**4, size)
        )

    def _masks(self) -> tuple[Tensor | None, Tensor, Tensor]:
        """([M, ceil(V / 32)] words, the mask of each target row and of each draft row, [R, K + 1] both).

        The first mask allows no token, the second one, the others about half of them.
        """
        layout = self.layout
        requests, width = layout.num_requests, layout.num_draft_tokens
        num_words = -(-layout.vocab_size // 32)
        words = self._integers(-(2**31), 2**31, requests + 4, num_words).int()
        words[:2] = 0
        token = self.random.randrange(layout.vocab_size)
        words[1, token // 32] = 1 << token % 32 if token % 32 < 31 else -(2**31)
        rows = self._integers(2, len(words), requests, width + 1)
        rows = rows.where(self._chance(0.97, requests, width + 1), self._integers(0, 2, requests, width + 1))
        rows.masked_fill_(self._chance(0.3, requests, width + 1), -1)
        others = rows.where(self._chance(0.8, requests, width + 1), rows.roll(1, 0))
        return (words if layout.is_masked else None), rows, others

    def _parents(self) -> Tensor | None:
        """[R, K] int64, random trees; None for chains."""
        layout = self.layout
        if layout.siblings is None:
            return None
        size = layout.num_requests, layout.num_draft_tokens
        shares = torch.rand(size, generator=self.generator, device=self.device)
        return (shares * torch.arange(1, size[1] + 1, device=self.device)).long() - 1

    def _draft(
        self,
        token_ids: Tensor,
        counts: Tensor,
        proposed: Tensor,
        draft_to_target: Tensor | None,
        kept: RowStats,
        words: Tensor | None,
        draft_masks: Tensor,
    ) -> Draft:
        """The drafts with their cache, which has more slots and one more position than are used."""
        layout = self.layout
        if layout.is_one_hot or layout.num_draft_tokens == 0:
            return Draft(token_ids, counts)
        requests, width = token_ids.shape
        size = requests + NUM_SPARE_SLOTS, width + 1
        slots = torch.arange(requests, device=self.device)
        if layout.has_slots:
            slots = torch.randperm(size[0], generator=self.generator, device=self.device)[:requests]
        drafted = torch.arange(width, device=self.device) < counts[:, None]
        cache = proposed.new_full((*size, layout.num_draft_ids), torch.nan)
        cache[slots, :width] = proposed.masked_fill(~drafted[:, :, None], torch.nan)
        stats = None
        if layout.keeps_stats and not layout.shares_noise:
            stats = RowStats.empty(*size, device=self.device)
            for name in ("maximum", "normalizer", "threshold"):
                field = getattr(stats, name)
                field.fill_(torch.nan)
                field[slots, :width] = getattr(kept, name).view(requests, width)
        mask = None
        if words is not None:
            mask = TokenMask(words, torch.full(size, -1, device=self.device))
            mask.rows[slots] = draft_masks
        found = Draft(token_ids, counts, self._spaced(cache), None, draft_to_target, stats, mask)
        return replace(found, idx_mapping=slots) if layout.has_slots else found

    def _spoil_later_siblings(self, draft: Draft, parents: Tensor) -> None:
        """Their cached rows are read at the first of them alone."""
        if draft.logits is None:
            return
        is_later = first_siblings(parents) != torch.arange(parents.shape[1], device=self.device)
        requests, places = is_later.nonzero(as_tuple=True)
        slots = requests if draft.idx_mapping is None else draft.idx_mapping[requests]
        draft.logits[slots, places] = torch.nan

    def _spoil(self, target: Tensor, draft: Draft) -> None:
        """Some requests get a fault that verification must flag, or a token that was not drawn."""
        layout, random = self.layout, self.random
        if random.random() < 0.6:
            return
        for request in {random.randrange(layout.num_requests) for _ in range(3)}:
            place = random.randrange(max(1, layout.num_draft_tokens))
            value = random.choice((torch.nan, torch.inf, -torch.inf))
            where = slice(None) if value == -torch.inf else random.randrange(layout.num_draft_ids)
            fault = random.choice(FAULTS)
            if fault == "target row":
                target[request, place, where] = value
            elif layout.num_draft_tokens == 0:
                continue
            elif fault == "draft row" and draft.logits is not None and draft.row_stats is None:
                slot = request if draft.idx_mapping is None else int(draft.idx_mapping[request])
                draft.logits[slot, place, where] = value
            elif fault == "token outside":
                draft.token_ids[request, place] = random.choice((-1, layout.vocab_size, 2**31, -(2**40), RUBBISH))
            elif fault == "other token":
                draft.token_ids[request, place] = random.randrange(layout.vocab_size)
