"""From logits to the processed distribution: temperature, then top-k, then top-p, then min-p (see thresholds).

Shapes: N rows, V entries of the vocabulary at hand (the target's or the drafter's), n rows of those.

Temperature 0 puts everything on the largest logit, the lowest id among equals. A processed row is the raw logits with
four numbers: largest logit, temperature, threshold and log-normaliser. No float64 copy of all rows is kept; the few
that are needed in full are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import RowStats, Sampling
from .thresholds import thresholds

ELEMENTS_PER_CHUNK = 65536
"""Logits worked on at a time on a CPU, so that their float64 copy stays in a core's cache."""
ELEMENTS_PER_GPU_CHUNK = 2**25
"""The same on a GPU, where a chunk must be worth its launches; 256 MiB a float64 copy."""


BLOCK = 64
"""Tokens among which the largest is looked for element by element."""


def rows_per_chunk(rows: Tensor) -> int:
    """How many of the `rows` ([N, V]) to work on at a time."""
    num_elements = ELEMENTS_PER_CHUNK if rows.device.type == "cpu" else ELEMENTS_PER_GPU_CHUNK
    return max(1, num_elements // rows.shape[1])


def sampling_rows(sampling: Sampling, index: Tensor | slice) -> Sampling:
    """The sampling parameters of the requests in `index` ([N] int64), with fields [N]."""
    return sampling.each(lambda field: field[index])


@dataclass(frozen=True)
class Processed:
    """N processed distributions."""

    logits: Tensor
    """[N, V] raw, any floating dtype."""
    maximum: Tensor
    """[N] the largest logit, of the dtype of the logits."""
    shift: Tensor
    """[N] float64, the largest logit, which is subtracted before anything else; 0 where it is not finite."""
    temperature: Tensor | None
    """[N] float64, positive; None when all are 1."""
    threshold: Tensor | None
    """[N] float64, the smallest scaled logit that survives; None when nothing is cut anywhere."""
    log_normalizer: Tensor
    """[N] float64, log of the sum of exponentials of the scaled logits (logit - shift) / T that survive."""
    certain: Tensor
    """[N] int64, the token that has all the mass where the row is greedy; token 0 where it is invalid, so that nothing
    downstream meets a NaN; else -1."""
    invalid: Tensor
    """[N] bool, the logits are all -inf, or hold NaN or +inf."""

    def scaled(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """[n, V] float64, (logit - shift) / T of the logits in `rows`, cut or not."""
        temperature = None if self.temperature is None else self.temperature[rows]
        logits = self.logits[rows] if isinstance(rows, slice) else self.logits.index_select(0, rows)
        return _scale(logits, self.shift[rows], temperature)

    def logprobs(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """[n, V] float64, the distributions in `rows`; -inf where cut."""
        threshold = None if self.threshold is None else self.threshold[rows]
        values = _cut(self.scaled(rows), threshold)
        values -= self.log_normalizer[rows, None]
        certain = self.certain[rows]
        index = (certain >= 0).nonzero()[:, 0]
        if len(index):
            values[index] = -torch.inf
            values[index, certain[index]] = 0.0
        return values

    def probs(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """[n, V] float64."""
        return self.logprobs(rows).exp_()

    def logprobs_at(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """float64, of the common shape of `rows` and `token_ids` (int64)."""
        temperature = None if self.temperature is None else self.temperature[rows]
        values = _scale(self.logits[rows, token_ids], self.shift[rows], temperature)
        if self.threshold is not None:
            values.masked_fill_(values < self.threshold[rows], -torch.inf)
        certain = self.certain[rows]
        certainty = torch.where(certain == token_ids, 0.0, -torch.inf).double()
        return torch.where(certain >= 0, certainty, values - self.log_normalizer[rows])


def _scale(logits: Tensor, shift: Tensor, temperature: Tensor | None) -> Tensor:
    """A float64 copy, less the shift of each row and divided by its temperature.

    A sum of exponentials around 1 has a logarithm that nothing absorbs, however large the logits are.
    """
    scaled = logits.to(torch.float64, copy=True)
    scaled -= shift.view(shift.shape + (1,) * (scaled.dim() - shift.dim()))
    if temperature is not None:
        scaled /= temperature.view(temperature.shape + (1,) * (scaled.dim() - temperature.dim()))
    return scaled


def _cut(scaled: Tensor, threshold: Tensor | None) -> Tensor:
    return scaled if threshold is None else scaled.masked_fill_(scaled < threshold[:, None], -torch.inf)


def processed(logits: Tensor, sampling: Sampling, each: Callable[[slice, Tensor], None] | None = None) -> Processed:
    """The processed distributions of N rows.

    Args:
        logits: [N, V], any floating dtype.
        sampling: fields [N].
        each: gets rows a chunk at a time with their weights, [n, V] float64: the distributions before they are
            normalised, without a meaning for rows that are certain. It may write to them. Not called where all rows
            are greedy.
    """
    greedy = sampling.temperature == 0
    if bool(greedy.all()):
        return _greedy(logits)
    maximum = logits.amax(dim=1)
    shift = _finite(maximum)
    temperature = _unless_one(torch.where(greedy, 1.0, sampling.temperature).double())
    threshold = torch.full_like(shift, -torch.inf) if _cuts(sampling) else None
    log_normalizer = torch.empty_like(shift)
    step = rows_per_chunk(logits)
    for first in range(0, len(logits), step):
        rows = slice(first, first + step)
        scaled = _scale(logits[rows], shift[rows], None if temperature is None else temperature[rows])
        if threshold is not None:
            threshold[rows] = thresholds(scaled, sampling_rows(sampling, rows))
            _cut(scaled, threshold[rows])
        weights = scaled.exp_()
        log_normalizer[rows] = weights.sum(dim=1).log_()
        if each is not None:
            each(rows, weights)
    invalid = ~log_normalizer.isfinite()
    certain = torch.where(invalid, 0, -1)
    sure = (greedy & ~invalid).nonzero()[:, 0]
    if len(sure):
        certain[sure] = largest(logits[sure])
    return Processed(logits, maximum, shift, temperature, threshold, log_normalizer, certain, invalid)


def largest(rows: Tensor) -> Tensor:
    """[N, V] -> [N] int64, the largest of each row, the lowest id among equals; of a NaN in rows that hold one.

    torch looks for an argmax element by element, for a maximum by vectors: hence the largest block first.
    """
    num_blocks = rows.shape[1] // BLOCK
    if num_blocks < 2:
        return rows.argmax(dim=1)
    rest = rows[:, num_blocks * BLOCK :]
    maxima = [rows[:, : num_blocks * BLOCK].unflatten(1, (num_blocks, BLOCK)).amax(dim=2)]
    if rest.shape[1]:
        maxima.append(rest.amax(dim=1, keepdim=True))
    first = torch.cat(maxima, dim=1).argmax(dim=1, keepdim=True) * BLOCK
    tokens = first + torch.arange(BLOCK, device=rows.device)
    # beyond the last block the last token stands in, which comes after itself
    inside = rows.gather(1, tokens.clamp_(max=rows.shape[1] - 1))
    return first[:, 0] + inside.argmax(dim=1)


def _greedy(logits: Tensor) -> Processed:
    """Rows that are all greedy: they need no sum, as the largest logit tells a row without a distribution too."""
    certain = largest(logits)
    maximum = logits.gather(1, certain[:, None])[:, 0]
    invalid = ~maximum.isfinite()
    certain = certain.masked_fill_(invalid, 0)
    return Processed(logits, maximum, _finite(maximum), None, None, maximum.double(), certain, invalid)


def known_rows(logits: Tensor, sampling: Sampling, row_stats: RowStats) -> Processed:
    """The processed distributions of rows whose statistics were kept; none of them is greedy.

    Args:
        logits: [N, V], any floating dtype, with -inf where a mask forbids a token.
        sampling: fields [N], as they were processed with.
        row_stats: fields [N], as `keep_row_stats` left them.
    """
    shift, temperature = _finite(row_stats.maximum), _unless_one(sampling.temperature.double())
    invalid = row_stats.normalizer.isnan()
    threshold = _scale(row_stats.threshold, shift, temperature) if _cuts(sampling) else None
    log_normalizer = row_stats.normalizer.log().masked_fill_(invalid, torch.nan)
    certain = torch.where(invalid, 0, -1)
    return Processed(logits, row_stats.maximum, shift, temperature, threshold, log_normalizer, certain, invalid)


def _finite(maximum: Tensor) -> Tensor:
    """[N] float64 shifts."""
    shift = maximum.double()
    return shift.masked_fill(~shift.isfinite(), 0.0)


def _unless_one(temperature: Tensor) -> Tensor | None:
    return temperature if bool((temperature != 1).any()) else None


def _cuts(sampling: Sampling) -> bool:
    if not sampling.truncates:
        return False
    return bool(((sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)).any())


def process(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities after temperature, top-k, top-p and min-p.

    Args:
        logits: [N, V], any floating dtype.
        sampling: fields [N]; use `sampling_rows` to gather them.

    Returns:
        [N, V] float64, -inf where cut. A row that is all -inf or holds NaN or +inf comes back with all mass on token 0.
    """
    return processed(logits, sampling).logprobs()


def _smallest_survivors(rows: Processed) -> Tensor:
    """[N] float32, the smallest raw logit that survives truncation; -inf where nothing is cut."""
    found = torch.full_like(rows.log_normalizer, -torch.inf, dtype=torch.float32)
    if rows.threshold is None:
        return found
    for part in torch.arange(len(found), device=found.device).split(rows_per_chunk(rows.logits)):
        # A token is cut by comparing its scaled logit, so it is those that say which raw logits survive.
        survives = rows.scaled(part) >= rows.threshold[part, None]
        smallest = torch.where(survives, rows.logits[part].float(), torch.inf).amin(dim=1)
        found[part] = torch.where(survives.all(dim=1), -torch.inf, smallest)
    return found


def keep_row_stats(rows: Processed, sampling: Sampling, row_stats: RowStats) -> None:
    """Write the statistics of N rows into `row_stats`.

    Args:
        rows: the processed rows.
        sampling: fields [N], as they were processed with.
        row_stats: fields [N], written in place. At temperature 0 the normalizer is 1 and nothing is cut; a row without
            a distribution has the normalizer NaN.
    """
    greedy = sampling.temperature == 0
    normalizer = rows.log_normalizer.exp().masked_fill(greedy, 1.0).masked_fill(rows.invalid, torch.nan)
    row_stats.maximum.copy_(rows.maximum)
    row_stats.normalizer.copy_(normalizer)
    row_stats.threshold.copy_(_smallest_survivors(rows).masked_fill(greedy | rows.invalid, -torch.inf))
