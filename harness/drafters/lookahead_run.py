"""The window and the pool of lookahead decoding, for all slots at once on the target's device.

A request's window has N - 1 levels of W tokens: level j holds at column i a guess of the token at position n + i + j,
where n is the position of the first unknown token. Level 0 is a chain after the context; behind its token i go the
tokens i of the other levels. What the target finds most probable after the last level is the next one:

    round:    n-gram i = (level 0 .. N - 2 of column i, y_i), into the pool once all levels are the target's own
    a drafts accepted:  level j <- level j + 1 from column a on, the last level <- y from a on, then tokens of the text

A guess is an n-gram of the pool that begins with the last token. Guesses and window, merged where they begin alike, are
the tree that is verified, one-hot: what is drafted follows from the tokens so far, so that the law is the target's.

Shapes: S slots, B rows, C capacity of a row, P n-grams of a pool, T nodes of a tree, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.ngram_run import merged_with_nodes
from harness.drafters.protocol import Batch, StatelessDrafter
from kernels.contract import Draft

STRIDE = 7919
"""A prime: fillers of a window are tokens of the text so many places apart, which lie all over it."""


class Window(NamedTuple):
    """Sizes of a request's window and pool."""

    width: int
    """W."""
    ngram: int
    """N."""
    guesses: int
    """G."""
    pool: int
    """P."""


class LookaheadDrafter(StatelessDrafter):
    """Proposes guesses and window as a tree, and reads what the target made of the window's ends."""

    def __init__(self, window: Window, num_slots: int, tree: DynamicTreeShape, device: torch.device) -> None:
        self.window, self.tree = window, tree
        width, ngram = window.width, window.ngram
        self._levels = torch.zeros(num_slots, ngram - 1, width, dtype=torch.int64, device=device)
        self._age = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """[S] rounds of each request whose window was read."""
        self._pool = torch.full((num_slots, window.pool, ngram), -1, dtype=torch.int64, device=device)
        """[S, P, N] n-grams; -1 where there is none."""
        self._num_pooled = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """[S] n-grams that were ever put into a pool; the next one lies at that number modulo P."""
        self._ends = torch.zeros(num_slots, width, dtype=torch.int64, device=device)
        """[S, W] node of the last level of each column, in the round under way."""
        self._fillers = torch.zeros_like(self._ends)
        """[S, W] tokens of the text for columns that move in."""
        # paths of the window: level 0 up to a column, then the other levels of that column
        columns, depth = torch.arange(width, device=device)[:, None], width + ngram - 2
        places = torch.arange(depth, device=device)[None]
        self._level_of = (places - columns).clamp(0, ngram - 2)
        self._column_of = torch.minimum(places, columns)
        self._lengths = (columns + ngram - 1).flatten()
        """[W, D] and [W]."""

    def begin(self, slot: int) -> None:
        """Forget the request that a slot had; see harness.drafters.protocol.KeepsTexts."""
        self._age[slot], self._num_pooled[slot], self._pool[slot] = 0, 0, -1

    def clear(self, slot: int) -> None:
        self.begin(slot)

    def move(self, source: int, destination: int) -> None:
        for tensor in self.state():
            tensor[destination] = tensor[source]

    def state(self) -> tuple[Tensor, ...]:
        return self._levels, self._age, self._pool, self._num_pooled

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        """Nothing is kept of drafts."""

    def propose(self, batch: Batch) -> Draft:
        """The tree of each row; [B, T] tokens."""
        rows, width, ngram = slice(0, batch.num_rows), self.window.width, self.window.ngram
        anew = _texts(batch, torch.arange((ngram - 1) * width, device=batch.lengths.device))
        self._fillers[rows] = anew[:, :width]
        fresh = (self._age[rows] == 0)[:, None, None]
        self._levels[rows] = torch.where(fresh, anew.view(-1, ngram - 1, width), self._levels[rows])
        guesses, counts = self._guesses(batch)
        paths = self._levels[rows][:, self._level_of, self._column_of]
        depth, num_guesses = paths.shape[2], self.window.guesses
        longer = guesses.new_zeros(batch.num_rows, num_guesses, depth)
        longer[:, :, : ngram - 1] = guesses
        continuations = torch.cat([longer, paths], dim=1)
        lengths = torch.cat([counts, self._lengths.expand(batch.num_rows, -1)], dim=1)
        token_ids, parents, num_nodes, nodes = merged_with_nodes(continuations, lengths, self.tree.num_nodes)
        ends = (self._lengths - 1)[None, :, None].expand(batch.num_rows, -1, 1)
        self._ends[rows] = nodes[:, num_guesses:].gather(2, ends).squeeze(2)
        return Draft(token_ids, num_nodes, parents=parents)

    def _guesses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """([B, G, N - 1] what follows the last token in the pool, the latest first; [B, G] lengths, 0 for none)."""
        pool, size = self._pool[: batch.num_rows], self.window.pool
        last = batch.token_ids.gather(1, batch.lengths.unsqueeze(1) - 1)
        # how long ago each place was written: 0 for the latest
        places = torch.arange(size, device=pool.device)
        ago = (self._num_pooled[: batch.num_rows, None] - 1 - places) % size
        best = torch.where(pool[:, :, 0] == last, size - ago, 0).topk(self.window.guesses, dim=1)
        found = pool.gather(1, best.indices[:, :, None].expand(-1, -1, pool.shape[2]))[:, :, 1:]
        return found.clamp_min(0), (best.values > 0) * (self.window.ngram - 1)

    def read_nodes(
        self,
        # [B, T + 1, V]
        logits: Tensor,
        # [B] int64
        num_accepted: Tensor,
        # [B] bool
        counts: Tensor,
    ) -> None:
        """See harness.drafters.tree.ReadsNodes."""
        num_rows, width, ngram = len(counts), self.window.width, self.window.ngram
        rows = slice(0, num_rows)
        ends = (self._ends[rows] + 1)[:, :, None].expand(-1, -1, logits.shape[2])
        found = logits.gather(1, ends).argmax(dim=-1)
        iterated = torch.cat([self._levels[rows], found.unsqueeze(1)], dim=1)
        self._pool_in(rows, iterated.transpose(1, 2), counts & (self._age[rows] >= ngram - 1))
        wanted = torch.arange(width, device=logits.device) + num_accepted.clamp_min(0)[:, None]
        wanted = wanted[:, None].expand(-1, ngram - 1, -1)
        moved = iterated[:, 1:].gather(2, wanted.clamp_max(width - 1))
        moved = torch.where(wanted < width, moved, self._fillers[rows].unsqueeze(1))
        self._levels[rows] = torch.where(counts[:, None, None], moved, self._levels[rows])
        self._age[rows] += counts

    def _pool_in(
        self,
        rows: slice,
        # [B, W, N]
        ngrams: Tensor,
        # [B] bool
        counts: Tensor,
    ) -> None:
        """Put n-grams of some rows into their pools, and take the same ones out that are older."""
        pool, size = self._pool[rows], self.window.pool
        is_older = (pool[:, :, None] == ngrams[:, None]).all(dim=3).any(dim=2) & counts[:, None]
        pool = torch.where(is_older[:, :, None], -1, pool)
        numbers = torch.arange(ngrams.shape[1], device=pool.device)
        places = (self._num_pooled[rows, None] + numbers) % size
        places = places[:, :, None].expand(-1, -1, pool.shape[2])
        kept = torch.where(counts[:, None, None], ngrams, pool.gather(1, places))
        self._pool[rows] = pool.scatter(1, places, kept)
        self._num_pooled[rows] += counts * ngrams.shape[1]


def _texts(batch: Batch, numbers: Tensor) -> Tensor:
    """[B, len(numbers)] tokens of each row's text, other ones in other rounds."""
    places = (batch.lengths[:, None] + numbers + 1) * STRIDE % batch.lengths[:, None]
    return batch.token_ids.gather(1, places)
