"""How far the distribution that drafts are drawn from is from the one that verification compares with.

    draft_tv = TV(q, q') = 1/2 sum_x |q(x) - q'(x)|     q: drawn from, q': in the cache, of a round's first token

The two differ where the cache rounds what the drafter gives and drafts are drawn before that. It bounds what this
does to the output (kernels.reference.output_tv).

Shapes: R requests, V_draft the drafter's vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contract import Draft, Sampling
from kernels.reference.token_mask import allowed_draft_logits
from kernels.reference.truncation import processed, sampling_rows


def draft_tv(draft: Draft, sampling: Sampling, drawn_logits: Tensor) -> Tensor:
    """Total variation between the drawn-from and the cached draft distribution of the first draft token.

    Args:
        draft: the proposals, with a cache; its masks hold for both.
        sampling: fields [R].
        drawn_logits: [R, V_draft], any floating dtype, what the first draft tokens were drawn from.

    Returns:
        [R] float64 in [0, 1]; 0 without a draft token, and at temperature 0, where nothing is compared. A cached row
        without a distribution counts as 0 everywhere, so that the distance is 1/2 there.
    """
    assert draft.logits is not None, "one-hot proposals have one distribution"
    found = torch.zeros(len(draft.token_ids), dtype=torch.float64, device=draft.logits.device)
    requests = ((draft.num_draft_tokens > 0) & (sampling.temperature > 0)).nonzero()[:, 0]
    if len(requests) == 0:
        return found
    slots = requests if draft.idx_mapping is None else draft.idx_mapping[requests]
    settings = sampling_rows(sampling, requests)
    cached, drawn = (
        processed(allowed_draft_logits(logits, draft, slots, 0), settings)
        for logits in (draft.logits[slots, 0], drawn_logits[requests])
    )
    cached_probs = cached.probs().masked_fill_(cached.invalid[:, None], 0.0)
    found[requests] = (drawn.probs() - cached_probs).abs().sum(dim=1) / 2
    return found
