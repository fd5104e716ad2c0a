"""Prompt lookup: the tokens that followed the last occurrence of the sequence's own suffix.

Source: prompt lookup decoding (A. Saxena, 2023), as in transformers' and vLLM's n-gram speculators. The proposal is
one-hot. A row whose suffix has not occurred before gets no draft tokens in that round. All rows are looked up at once,
on the device that holds their tokens.

Shapes: B rows, C capacity of a row, K draft tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.drafters.protocol import Batch, StatelessDrafter
from kernels.contract import Draft


def lookup(
    # [B, C] int64
    token_ids: Tensor,
    # [B] int64
    lengths: Tensor,
    longest: int,
    shortest: int,
    num_tokens: int,
) -> tuple[Tensor, Tensor]:
    """The tokens after the most recent earlier occurrence of the longest matching suffix of each row.

    Args:
        token_ids: what a row holds beyond its length is not looked at.
        lengths: number of tokens of each row, at least 1.
        longest, shortest: lengths of the suffixes that are looked up.
        num_tokens: K.

    Returns:
        ([B, K] int64 token ids, [B] int64 number of them that exist).
    """
    capacity = token_ids.shape[1]
    places = torch.arange(capacity, device=token_ids.device)
    last = lengths.unsqueeze(1) - 1
    # [B, C]: how many tokens up to each place, backwards, equal those up to the end
    matched = torch.zeros_like(token_ids)
    unbroken = places < last
    for back in range(longest):
        suffix = token_ids.gather(1, (last - back).clamp_min(0))
        at_place = token_ids.gather(1, (places - back).clamp_min(0).expand_as(token_ids))
        unbroken = unbroken & (at_place == suffix) & (places >= back)
        matched += unbroken
    # the longest suffix wins, then the most recent place
    score = torch.where(matched >= shortest, matched * capacity + places, -1)
    best = score.amax(dim=1, keepdim=True)
    first = torch.where(best >= 0, best % capacity + 1, lengths.unsqueeze(1))
    count = (lengths.unsqueeze(1) - first).clamp(max=num_tokens).squeeze(1)
    wanted = first + torch.arange(num_tokens, device=token_ids.device)
    return token_ids.gather(1, wanted.clamp(max=capacity - 1)), count


class NgramDrafter(StatelessDrafter):
    """Looks the proposal up in the request's own sequence, prompt included."""

    def __init__(self, longest: int, shortest: int) -> None:
        self.longest = longest
        self.shortest = shortest

    def propose(self, batch: Batch) -> Draft:
        found = lookup(batch.token_ids, batch.lengths, self.longest, self.shortest, batch.num_speculative_tokens)
        return Draft(*found)
