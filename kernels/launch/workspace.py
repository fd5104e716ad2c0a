"""Scratch memory of the kernels: small, grows on demand, used again by the next call.

A workspace serves one stream of work: two calls that run at the same time need two. Its counters are 0 between calls,
because the program that finishes a count sets it back. Nothing here depends on the data, so that a call on shapes seen
before allocates nothing. What a larger call has outgrown is kept: a captured CUDA graph goes on using it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import RowStats
from ..methods import Rule
from ..methods.synthetic import Synthetic
from .kernel_args import RoundState, RowBuffers

CHUNK, SHORT_CHUNK = 2048, 256
"""Tokens whose maximum and sum are kept as one; the second where a row has no more, so that it takes one warp."""

MAX_LEAD = 7
"""Tokens that a word of 16 bytes holds before a row that begins in it, at most."""


def chunk_size(vocab_size: int) -> int:
    """Tokens of a chunk in rows of V tokens."""
    return CHUNK if vocab_size > SHORT_CHUNK else SHORT_CHUNK


@dataclass(frozen=True)
class Shape:
    """What the size of the scratch memory follows from."""

    num_requests: int
    width: int
    """K."""
    vocab_size: int
    num_positions: int
    """Residual rows of a request that are summed: K of rules that count, else 1."""
    draws_gumbel: bool = False
    """Gumbel noise decides: coupled, and the control pr35461."""
    sums_entropy: bool = False
    """Moments of chunks are summed."""
    has_lead: bool = False
    """Chunks begin at the word that the row begins in (kernels.rows.unaligned): up to MAX_LEAD tokens before it."""
    sums_drafts: bool = False
    """The first pass also sums the rows of the drafts."""

    @property
    def num_rows(self) -> int:
        return self.num_requests * (self.width + 1)

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return chunk_size(self.vocab_size)

    @property
    def num_chunks(self) -> int:
        return -(-(self.vocab_size + MAX_LEAD * self.has_lead) // self.chunk)

    @property
    def chunks_padded(self) -> int:
        """`num_chunks` up to a power of two."""
        return 1 << (self.num_chunks - 1).bit_length()

    def parts(self, most: int) -> int:
        """Chunks that a program takes, one for each of its warps: no more than a row has, and one of a short row."""
        return 1 if self.chunk == SHORT_CHUNK else min(most, self.chunks_padded)

    def chunk_settings(self, parts: int, dtype: torch.dtype, unroll: int) -> dict[str, int]:
        """Settings of a kernel whose programs weigh `parts` chunks each, a warp for each.

        Args:
            parts: a power of two.
            dtype: of the logits.
            unroll: steps of a chunk that are unrolled, unless it has fewer.
        """
        group = 16 // dtype.itemsize
        return {
            "NUM_GROUPS": -(-self.num_chunks // parts),
            "PARTS": parts,
            "CHUNK": self.chunk,
            "GROUP": group,
            "UNROLL": min(unroll, self.chunk // (32 * group)),
            "CHUNKS_PADDED": self.chunks_padded,
            "num_warps": parts,
        }


class Workspace:
    """Named buffers of one device, and constants that were copied to it once."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._outgrown: list[Tensor] = []
        self._counters: set[str] = set()
        self._rules: dict[tuple[Rule, torch.device], Tensor] = {}
        self._thresholds: dict[tuple[Synthetic, torch.device], Tensor] = {}
        self._inverses: dict[tuple[torch.device, int, int, int], tuple[Tensor, int, Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        inverses = [inverse for _, _, inverse in self._inverses.values()]
        rules = [*self._rules.values(), *self._thresholds.values()]
        held = [*self._buffers.values(), *rules, *self._outgrown, *inverses]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def buffer(self, name: str, size: int, dtype: torch.dtype, device: torch.device, zeroed: bool = False) -> Tensor:
        """[size] scratch; with `zeroed`, holds 0 when it is new."""
        found = self._buffers.get(name)
        if found is None or found.numel() < size or found.device != device or found.dtype != dtype:
            if found is not None:
                self._outgrown.append(found)
            make = torch.zeros if zeroed else torch.empty
            found = self._buffers[name] = make(max(size, 1), dtype=dtype, device=device)
            self._counters |= {name} if zeroed else set()
        return found

    def busy_counters(self) -> list[str]:
        """Names of the counters that are not 0: none between calls. For tests, because it waits for the device."""
        return [name for name in sorted(self._counters) if bool(self._buffers[name].any())]

    def row_buffers(self, shape: Shape, device: torch.device, keep: RowStats | None = None) -> RowBuffers:
        """Where the first pass writes; `keep` takes the statistics of the rows instead of scratch memory."""
        num_rows, num_cells = shape.num_rows, shape.num_rows * shape.num_chunks * (1 + shape.sums_drafts)
        if keep is None:
            keep = RowStats(
                self.buffer("maximum", num_rows, torch.float32, device),
                self.buffer("normalizer", num_rows, torch.float64, device),
                self.buffer("threshold", num_rows, torch.float32, device),
            )
        return RowBuffers(
            chunk_maximum=self.buffer("chunk_maximum", num_cells, torch.float32, device),
            chunk_sum=self.buffer("chunk_sum", num_cells, torch.float64, device),
            chunk_argmax=self.buffer("chunk_argmax", num_cells, torch.int32, device),
            chunk_moment=self.buffer("chunk_moment", num_cells if shape.sums_entropy else 0, torch.float64, device),
            argmax=self.buffer("argmax", num_rows, torch.int32, device),
            maximum=keep.maximum,
            normalizer=keep.normalizer,
            threshold=keep.threshold,
            stride=keep.maximum.stride(0),
            num_chunks=shape.num_chunks,
        )

    def round_state(self, shape: Shape, device: torch.device) -> RoundState:
        """Counters and decisions of a round."""
        num_rows, num_requests = shape.num_rows, shape.num_requests
        num_argmaxes = num_rows * shape.num_chunks if shape.draws_gumbel else 0
        num_masses = num_requests * shape.num_positions * shape.num_chunks
        return RoundState(
            row_arrivals=self.buffer("row_arrivals", num_rows, torch.int32, device, zeroed=True),
            request_arrivals=self.buffer("request_arrivals", num_requests, torch.int32, device, zeroed=True),
            stops=self.buffer("stops", num_requests, torch.int32, device, zeroed=True),
            judgements=self.buffer("judgements", num_rows, torch.int32, device),
            draft_tokens=self.buffer("draft_tokens", num_rows, torch.int64, device),
            draft_token_logits=self.buffer("draft_token_logits", num_rows, torch.float32, device),
            uniform_numbers=self.buffer("uniform_numbers", num_rows, torch.float64, device),
            next_uniforms=self.buffer("next_uniforms", num_rows, torch.float64, device),
            target_logprobs=self.buffer("target_logprobs", num_rows, torch.float64, device),
            draft_logprobs=self.buffer("draft_logprobs", num_rows, torch.float64, device),
            log_ratios=self.buffer("log_ratios", num_rows, torch.float64, device),
            plans=self.buffer("plans", num_requests, torch.int32, device),
            needed=self.buffer("needed", num_requests, torch.int32, device),
            masses=self.buffer("masses", num_masses, torch.float64, device),
            num_positions=shape.num_positions,
            argmax_scores=self.buffer("argmax_scores", num_argmaxes, torch.float64, device),
            argmax_logits=self.buffer("argmax_logits", num_argmaxes, torch.float32, device),
            argmax_tokens=self.buffer("argmax_tokens", num_argmaxes, torch.int32, device),
        )

    def rule(self, rule: Rule, width: int, device: torch.device) -> Tensor:
        """The parameters of a rule as its hooks find them in drafts of up to K tokens, [>= 1 + K] float64."""
        found = self._rules.get((rule, device))
        if found is None or found.numel() < 1 + width:
            if found is not None:
                self._outgrown.append(found)
            values = rule.values(width)
            padding = (0.0,) * (1 + width - len(values))
            found = torch.tensor((*values, *padding), dtype=torch.float64, device=device)
            self._rules[rule, device] = found
        return found

    def tree_thresholds(self, rule: Synthetic, device: torch.device) -> Tensor:
        """Those of synthetic acceptance on the device, [depths, children] float64."""
        key = rule, device
        if key not in self._thresholds:
            self._thresholds[key] = torch.tensor(rule.tree_thresholds, dtype=torch.float64, device=device)
        return self._thresholds[key]

    def to_draft_ids(self, draft_to_target: Tensor, vocab_size: int) -> Tensor:
        """[V] int32, draft id of each target id, -1 where there is none.

        Built once for each map, wherever its tensor comes from, and again in the same memory when its values have
        changed. Maps are kept, with what a captured graph may read of them: a drafter has one, not one for each call.
        """
        key = (draft_to_target.device, draft_to_target.data_ptr(), len(draft_to_target), vocab_size)
        version = draft_to_target._version
        found = self._inverses.get(key)
        if found is not None and found[1] == version:
            return found[2]
        device = draft_to_target.device
        inverse = torch.empty(vocab_size, dtype=torch.int32, device=device) if found is None else found[2]
        inverse.fill_(-1)
        inverse[draft_to_target] = torch.arange(len(draft_to_target), dtype=torch.int32, device=device)
        # The map is held too, so that no other one can come to lie at its address.
        self._inverses[key] = (draft_to_target, version, inverse)
        return inverse
