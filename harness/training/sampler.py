"""Text drawn from a target, many rows at once, as training text of heads.

All rows stand at the same position. A row begins with a segment that is given, goes on as the target likes, and gets
the next segment whenever the target ends what it writes; so every token that is not given is a draw from the target's
distribution on what stands before it in its row. On a GPU one decoding step is a CUDA graph for each length of the
cache that is read.

Shapes: R rows, L tokens of a row, N segments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor

from harness.models.target import TargetModel

_BUCKET = 128


class Segments(NamedTuple):
    """Texts that are given, each with what the target writes behind it."""

    tokens: Tensor
    """[N, longest] int64."""
    lengths: Tensor
    """[N] int64, 1 or more."""
    following: Tensor
    """[N] int64, the segment after what the target writes behind each."""
    temperature: Tensor
    """[N] float32, at which it writes; NaN is the temperature of the row."""
    is_answer: Tensor
    """[N] bool, whether what it writes is an answer, and not a question."""
    most: Tensor
    """[N] int64, tokens that it writes at most, before `end` is given."""
    end: Tensor
    """[N] int64, the token that ends what it writes."""

    @classmethod
    def of(
        cls,
        tokens: list[list[int]],
        *,
        following: list[int],
        temperature: list[float] | None = None,
        is_answer: list[bool] | None = None,
        most: list[int] | None = None,
        end: list[int] | None = None,
    ) -> Segments:
        """Segments of so many token ids; without more: answers at the row's temperature, of any length."""
        number = len(tokens)
        padded = torch.zeros(number, max(map(len, tokens)), dtype=torch.int64)
        for index, row in enumerate(tokens):
            padded[index, : len(row)] = torch.tensor(row)
        return cls(
            padded,
            torch.tensor([len(row) for row in tokens]),
            torch.tensor(following),
            torch.tensor(temperature or [float("nan")] * number),
            torch.tensor(is_answer or [True] * number),
            torch.tensor(most or [1 << 30] * number),
            torch.tensor(end or [0] * number),
        )

    def to(self, device: torch.device) -> Segments:
        return Segments(*(tensor.to(device) for tensor in self))


class Sampled(NamedTuple):
    """Rows of text."""

    tokens: Tensor
    """[R, L] int64."""
    given: Tensor
    """[R, L] bool, whether a token was given; the others were drawn."""
    is_answer: Tensor
    """[R, L] bool, whether a token was drawn as part of an answer."""


class Sampler:
    """Draws rows of a fixed length from the target; all its state lies in device tensors that are reused."""

    def __init__(
        self, target: TargetModel, segments: Segments, end_ids: Collection[int], *, num_rows: int, length: int
    ) -> None:
        """end_ids: tokens by which the target ends what it writes."""
        device = target.device
        self._target, self._segments = target, segments.to(device)
        self._cache = target.new_cache(num_rows, -(-length // _BUCKET) * _BUCKET)
        self._ends = torch.zeros(target.vocab_size, dtype=torch.bool, device=device)
        self._ends[list(end_ids)] = True
        self._num_rows, self._length = num_rows, length
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._temperature = torch.ones(num_rows, device=device)
        self._segment, self._cursor, self._num_drawn = (
            torch.zeros(num_rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._tokens = torch.zeros(num_rows, length, dtype=torch.int64, device=device)
        self._given = torch.ones(num_rows, length, dtype=torch.bool, device=device)
        self._is_answer = torch.zeros_like(self._given)
        self._steps: dict[int, Callable[[], object]] = {}
        self.share_done = 0.0
        """Of the rows that are being drawn."""

    @torch.no_grad()
    def sample(
        self,
        # [R] int64, the first segment of each row
        first: Tensor,
        # [R] of each row; None is 1
        temperature: Tensor | None = None,
    ) -> Sampled:
        """Draw all rows anew."""
        self._segment.copy_(first)
        self._temperature.copy_(torch.ones_like(self._temperature) if temperature is None else temperature)
        self._cursor.fill_(1)
        self._num_drawn.zero_()
        self._tokens[:, 0] = self._segments.tokens[self._segment, 0]
        self._given[:, 0], self._is_answer[:, 0] = True, False
        on_gpu = self._target.device.type == "cuda"
        for position in range(self._length - 1):
            if not on_gpu or position % _BUCKET == 0:
                if on_gpu:
                    # launches run ahead of what is done
                    torch.cuda.synchronize()
                self.share_done = position / (self._length - 1)
            self._position.fill_(position)
            self._step_for(position // _BUCKET)()
        return Sampled(self._tokens.clone(), self._given.clone(), self._is_answer.clone())

    def _step_for(self, bucket: int) -> Callable[[], object]:
        if bucket not in self._steps:
            length = (bucket + 1) * _BUCKET
            on_gpu = self._target.device.type == "cuda"
            self._steps[bucket] = self._captured(length) if on_gpu else lambda: self._step(length)
        return self._steps[bucket]

    def _captured(self, length: int) -> Callable[[], object]:
        state = (self._segment, self._cursor, self._num_drawn, self._tokens, self._given, self._is_answer)
        before = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # warm-up outside the graph: libraries allocate their workspaces
                self._step(length)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(length)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        return graph.replay

    def _step(self, length: int) -> None:
        position, segments = self._position, self._segments
        positions = position.expand(self._num_rows)[:, None].contiguous()
        view = self._cache.view(slice(0, self._num_rows), positions, length)
        current = self._tokens.index_select(1, position)
        hidden = self._target.forward(current, positions, view).hidden[:, 0]
        logits = self._target.logits(hidden).float()
        own = segments.temperature[self._segment]
        temperature = torch.where(own.isnan(), self._temperature, own)[:, None]
        # Gumbel-max of logits / temperature, and the argmax at 0
        drawn = (logits - temperature * torch.empty_like(logits).exponential_().log()).argmax(-1)
        is_given = self._cursor < segments.lengths[self._segment]
        next_given = segments.tokens[self._segment, self._cursor.clamp(max=segments.tokens.shape[1] - 1)]
        is_cut = ~is_given & (self._num_drawn >= segments.most[self._segment])
        token = torch.where(is_given, next_given, torch.where(is_cut, segments.end[self._segment], drawn))
        ended = ~is_given & (is_cut | self._ends[drawn])
        self._tokens.index_copy_(1, position + 1, token[:, None])
        self._given.index_copy_(1, position + 1, (is_given | is_cut)[:, None])
        answers = ~is_given & ~is_cut & segments.is_answer[self._segment]
        self._is_answer.index_copy_(1, position + 1, answers[:, None])
        self._segment.copy_(torch.where(ended, segments.following[self._segment], self._segment))
        self._cursor.copy_(torch.where(ended, 0, self._cursor + is_given))
        self._num_drawn.copy_(torch.where(ended | is_given, 0, self._num_drawn + 1))
