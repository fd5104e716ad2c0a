"""The persistent draft-logit cache: what tokens were drawn from, as the verifier will read it, and the draw itself.

Drafts may also be drawn from the logits as the drafter gave them, before a cache of another type rounds them; what
verification reads is the cache all the same.

Shapes: S slots, B rows (slots 0..B - 1), K draft tokens per round, V_draft the drafter's vocabulary; of a tree N draft
tokens, P nodes of a level.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.drafters.protocol import Batch
from harness.models.cost import Cost
from kernels.contract import (
    NO_TOKEN,
    Draft,
    DraftSampling,
    Drawn,
    RowStats,
    Sampling,
    SiblingDraws,
    Streams,
    TokenMask,
)
from kernels.depth import confidence, num_confident
from kernels.random.streams import Purpose
from kernels.reference.token_mask import words_of
from kernels.tree.dynamic_shape import best_children

if TYPE_CHECKING:
    from harness.drafters.draft_tree import DraftTree, Level


class Caching(NamedTuple):
    """How draft logits are kept, and which of them are drafted from."""

    dtype: torch.dtype | None = None
    """Of the cache; None is the drafter's own."""
    draws_unrounded: bool = False
    """Draw from the drafter's logits instead of the cached ones."""
    min_confidence: float = 0.0
    """A round ends in front of the first row with less confidence (kernels.depth); 0 drafts from all."""


AS_DRAFTED = Caching()


class DraftLogits:
    """The cache of one drafter; nothing is cached of greedy drafts, whose proposals are one-hot."""

    def __init__(
        self,
        draft_sampling: DraftSampling,
        # [S, K, V_draft] of the cache
        size: tuple[int, int, int],
        target_vocab_size: int,
        draft_to_target: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
        caching: Caching = AS_DRAFTED,
    ) -> None:
        """dtype: of the drafter's logits."""
        self.draft_sampling = draft_sampling
        self.draft_to_target = draft_to_target
        self._target_vocab_size = target_vocab_size
        self._vocab_size = size[2]
        nothing = (0, 0, 0)
        is_kept = draft_sampling is not DraftSampling.greedy
        self._logits = torch.zeros(size if is_kept else nothing, dtype=caching.dtype or dtype, device=device)
        self.drawn_rows: Tensor | None = None
        """[S, V_draft] what the first draft tokens were drawn from; None where that is what is cached."""
        if is_kept and caching.draws_unrounded:
            self.drawn_rows = torch.zeros((size[0], size[2]), dtype=dtype, device=device)
        self._holds_logits = is_kept and self._logits.dtype is dtype and self.drawn_rows is None
        self._place: Tensor | None = None
        """The last one that was given out, and its step."""
        self._step_of_place = 0
        # a coupled draw leaves no statistics, and those of unrounded logits are not the cache's
        self._keeps_stats = draft_sampling is DraftSampling.sampled and self.drawn_rows is None
        places = size[:2] if self._keeps_stats else nothing[:2]
        self._stats = RowStats.empty(*places, device=device)
        self._min_confidence = caching.min_confidence
        self._confidences = torch.zeros(size[:2] if self._min_confidence else nothing[:2], device=device)
        """[S, K] of the draft rows."""
        self._is_broken = torch.zeros(size[0], dtype=torch.bool, device=device)
        """[S] whether a free row of the round had no distribution. Drafts that are verified without their rows need it:
        the token drawn then looks like any other."""

    @property
    def num_bytes(self) -> int:
        """Memory of the cached logits and of the row statistics beside them; `drawn_rows` are kept for measuring."""
        stats = self._stats
        return sum(field.nbytes for field in (self._logits, stats.maximum, stats.normalizer, stats.threshold))

    def cost(self, num_slots: int) -> Cost:
        """Rows that are read back when tokens of so many slots are drawn from them."""
        return Cost(logit_bytes=self.num_bytes * num_slots // max(1, len(self._logits)))

    @cached_property
    def _own_words(self) -> Tensor | None:
        """The target's tokens that the drafter knows, as a mask; None when it knows all."""
        if self.draft_to_target is not None:
            return words_of(self.draft_to_target, self._target_vocab_size)
        if self._vocab_size < self._target_vocab_size:
            return words_of(torch.arange(self._vocab_size), self._target_vocab_size)
        return None

    def place(self, batch: Batch, step: int) -> Tensor | None:
        """Give out rows of the cache, [B, V_draft], to which the logits of a step may be written for `draw`.

        None where nothing is cached, or something else than they are.
        """
        self._place = self._logits[: batch.num_rows, step] if self._holds_logits else None
        self._step_of_place = step
        return self._place

    @property
    def ends_early(self) -> bool:
        """Whether rounds end in front of rows with little confidence."""
        return self._min_confidence > 0

    def draw(self, logits: Tensor, batch: Batch, step: int, predicted: Tensor | None = None) -> Tensor:
        """Draw the draft token of one step for each row, from the very values that are cached unless told otherwise.

        Args:
            logits: [B, V_draft] of the step; if they are its `place` itself, nothing is copied.
            batch: the rows.
            step: 0 for the first draft token.
            predicted: [B] float32 confidence of the drafts, which must not depend on them; None takes that of the rows.

        Returns:
            [B] int64 ids of the target's vocabulary.
        """
        if self._min_confidence:
            self._confidences[: batch.num_rows, step] = confidence(logits) if predicted is None else predicted
        if batch.masks is None:
            drawn = self._draw(logits, batch, step, None)
            if self.draft_sampling is not DraftSampling.sampled:
                broken = self._is_broken[: batch.num_rows]
                broken.copy_(drawn.invalid if step == 0 else broken | drawn.invalid)
            return drawn.token_ids
        token_ids = self._draw(logits, batch, step, batch.masks.before(step, self._own_words)).token_ids
        batch.masks.after(token_ids)
        return token_ids

    def _draw(self, logits: Tensor, batch: Batch, step: int, mask: TokenMask | None) -> Drawn:
        streams = batch.streams
        if step:
            streams = replace(streams, positions=streams.positions + step)
        if self.draft_sampling is DraftSampling.greedy:
            greedy = _greedy(batch.sampling)
            return batch.core.draw(logits, greedy, streams, Purpose.draft, self.draft_to_target, mask=mask)
        places = (slice(0, batch.num_rows), step)
        cached = logits
        if logits is not self._place or step != self._step_of_place:
            cached = self._logits[places]
            cached.copy_(logits)
        drawn_from = cached if self.drawn_rows is None else logits
        if self.drawn_rows is not None and step == 0:
            self.drawn_rows[: batch.num_rows] = logits
        map_, sampling = self.draft_to_target, batch.sampling
        if self.draft_sampling is DraftSampling.coupled:
            vocab_size = self._target_vocab_size
            return batch.core.coupled_draw(drawn_from, sampling, streams, vocab_size, map_, mask=mask)
        stats = self._stats.at(places) if self._keeps_stats else None
        return batch.core.draw(drawn_from, sampling, streams, Purpose.draft, map_, stats, mask=mask)

    def has_ended(self, batch: Batch, step: int) -> bool:
        """Whether the draft of every row ends at or before a step; always False on a GPU, which would have to wait."""
        if not self._min_confidence or self._confidences.device.type != "cpu":
            return False
        return not (self._counts(batch, step + 1) > step).any()

    def _counts(self, batch: Batch, num_tokens: int) -> Tensor:
        return num_confident(self._confidences[: batch.num_rows, :num_tokens], self._min_confidence)

    def draft(self, drafted: list[Tensor], batch: Batch) -> Draft:
        """The proposals of a round of some rows, K tensors [B] as `draw` gave them; fewer after `has_ended`."""
        token_ids = torch.stack(drafted, dim=1)
        num_rows, num_tokens = token_ids.shape
        if self._min_confidence:
            counts = self._counts(batch, num_tokens)
            token_ids = pad(token_ids, (0, batch.num_speculative_tokens - num_tokens))
        else:
            counts = torch.full((num_rows,), num_tokens, dtype=torch.int64, device=token_ids.device)
        if batch.masks is None and self.draft_sampling is not DraftSampling.sampled:
            counts = _flagged(counts, self._is_broken[:num_rows], token_ids.shape[1])
        if self.draft_sampling is DraftSampling.greedy:
            return Draft(token_ids, counts)
        rows = slice(0, num_rows)
        stats = self._stats.at(rows) if self._keeps_stats else None
        mask = None if batch.masks is None else batch.masks.cached()
        return Draft(token_ids, counts, self._logits[rows], None, self.draft_to_target, stats, mask)

    def draw_children(
        self,
        # [B, P, V_draft]
        logits: Tensor,
        # [B, N] int64
        token_ids: Tensor,
        batch: Batch,
        level: Level,
        siblings: SiblingDraws,
    ) -> None:
        """Draw all children of a level's nodes, from the very values that are cached, into `token_ids`.

        The row that siblings are drawn from is cached at the place of the first of them. The children of NO_TOKEN are
        NO_TOKEN.
        """
        is_greedy, num_rows = self.draft_sampling is DraftSampling.greedy, batch.num_rows
        assert batch.core.draw_children is not None, "engines with a tree have a core that draws children"
        for rows, children, at_branch in level.families:
            drawn_from, size = logits[:, rows], len(rows)
            places = (slice(0, num_rows), children[:, 0])
            if not is_greedy:
                self._logits[places] = drawn_from.to(self._logits.dtype)
                drawn_from = self._logits[places]
            kept = RowStats.empty(num_rows * size, device=logits.device) if self._keeps_stats else None
            each = _repeated(batch.streams, size)
            given = batch.sampling.each(partial(torch.repeat_interleave, repeats=size))
            drawn = batch.core.draw_children(
                drawn_from.flatten(0, 1),
                _greedy(given) if is_greedy else given,
                replace(each, positions=each.positions + level.depth),
                siblings,
                at_branch.repeat(num_rows, 1),
                self.draft_to_target,
                row_stats=kept,
            )
            if kept is not None:
                for name in ("maximum", "normalizer", "threshold"):
                    getattr(self._stats, name)[places] = getattr(kept, name).view(num_rows, size)
            found = drawn.view(num_rows, size, -1)
            if level.depth:
                is_node = token_ids[:, level.nodes[rows]] != NO_TOKEN
                found = torch.where(is_node[:, :, None], found, NO_TOKEN)
            token_ids[:, children.flatten()] = found.flatten(1)

    def best_children(self, logits: Tensor, batch: Batch, width: int) -> tuple[Tensor, Tensor]:
        """The most probable children of nodes, [B, P, V_draft]; nothing is cached, since they are certain.

        Returns:
            ([B, P, width] int64 ids of the target's vocabulary, NO_TOKEN where there is none; [B, P, width] float32 log
            probabilities at temperature 1, -inf there).
        """
        assert batch.core.draw_children is not None, "engines with a tree have a core that draws children"
        token_ids, logprobs = best_children(logits.flatten(0, 1), width, batch.core.draw_children)
        if self.draft_to_target is not None:
            token_ids = torch.where(token_ids == NO_TOKEN, NO_TOKEN, self.draft_to_target[token_ids.clamp_min(0)])
        size = (*logits.shape[:2], width)
        return token_ids.view(size), logprobs.view(size)

    def draft_of_tree(self, token_ids: Tensor, batch: Batch, tree: DraftTree) -> Draft:
        """The proposals of a round of some rows, [B, N] int64 as `draw_children` left them."""
        num_rows, num_nodes = token_ids.shape
        counts = torch.full((num_rows,), num_nodes, dtype=torch.int64, device=token_ids.device)
        shape: dict[str, Any] = {"parents": tree.parents.expand(num_rows, -1), "siblings": tree.siblings}
        if self.draft_sampling is DraftSampling.greedy:
            return Draft(token_ids, counts, **shape)
        stats = self._stats.at(slice(0, num_rows)) if self._keeps_stats else None
        map_ = self.draft_to_target
        return Draft(token_ids, counts, self._logits[:num_rows], draft_to_target=map_, row_stats=stats, **shape)


def _repeated(streams: Streams, times: int) -> Streams:
    """The streams of each row, repeated for that many nodes."""
    fields = streams.seeds, streams.positions, streams.rounds
    return Streams(*(field.repeat_interleave(times) for field in fields))


def _greedy(sampling: Sampling) -> Sampling:
    """The same requests at temperature 0, where there is nothing to cut."""
    return replace(sampling, temperature=torch.zeros_like(sampling.temperature), truncates=False)


def _flagged(counts: Tensor, is_broken: Tensor, num_speculative_tokens: int) -> Tensor:
    """[B] draft tokens of each row; on a GPU, which is not waited for, more than K for a broken one.

    The kernels flag such a count as invalid, and the request fails as with a broken row of the target.

    Raises:
        ValueError: a row is broken, and is not on a GPU.
    """
    if is_broken.device.type != "cpu":
        return torch.where(is_broken, num_speculative_tokens + 1, counts)
    if is_broken.any():
        raise ValueError(
            "expected finite logits of the drafter, found a row without a distribution (NaN, +inf or all -inf); check "
            "the drafter's weights, and backend.dtype"
        )
    return counts
