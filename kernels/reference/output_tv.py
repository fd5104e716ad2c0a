"""How far the first token of a round is from the target's distribution, in closed form and without sampling noise.

    law(x) = kept(x) + lost p_1(x) + (1 - lost - sum kept) after(x)       output_tv = 1/2 sum_x |law(x) - p_1(x)|

kept is the mass that is drafted and accepted, averaged over the drafts that might have been drawn, after the law of the
token after a rejection: those of each rule (kernels.methods.rule.Rule.first_token). q_1 is what the first draft token
is drawn from, q'_1 what the cache holds of it: the same, unless the cache rounds and drafts are drawn before that. lost
is the mass of q_1 where q'_1 is 0: such a draft is cut (kernels.reference.proposal), and the target decides. Lossless
methods have 0 where q_1 = q'_1, and where they do not read it at all.

Probabilistic verification is then off by TV(q_1, q'_1) at most. It turns a draft token x into x or what follows its
rejection, by a rule K(x, .) that knows p_1 and q'_1 only: law = q_1 K, and p_1 = q'_1 K, because it is lossless for
drafts from q'_1; K brings no two distributions further apart. Lenient adds its own distance to this.

fly keeps more than probabilistic verification: of a first token x that fails, the share g(x) that is deferred, which
the residual loses in proportion. So its distance is sum_x [q_1(x) - p_1(x)]+ g(x), the probability that the first token
is deferred. g depends on the drafts behind x. What is computed is that probability given the drafts that were drawn:
its mean over drafts is the distance.

Of the first token only: what follows an accepted one has the same form with the next rows. Of block with K > 1 and
q_1 != q'_1 the first token depends on the later drafts too, so it has no such short form.

`draft_tv` is how far the distribution that drafts are drawn from is from the one that verification compares with.

    draft_tv = TV(q, q') = 1/2 sum_x |q(x) - q'(x)|     q: drawn from, q': in the cache, of a round's first token

The two differ where the cache rounds what the drafter gives and drafts are drawn before that. It bounds what this
does to the output.

Shapes: R requests, V the target's vocabulary, V_draft the drafter's, N rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Draft, Guarantee, Sampling, Verification
from ..methods import VerificationMethod
from ..methods.rule import FirstDrafts
from .proposal import Proposal, on_target_vocab, propose
from .target_rows import present_slots
from .token_mask import allowed_draft_logits
from .truncation import processed, sampling_rows


def has_closed_form(verification: Verification, num_draft_tokens: int, draws_unrounded: bool) -> bool:
    """Whether `output_tv` knows the distance of a method for drafts of up to so many tokens."""
    if _is_exact(verification, draws_unrounded):
        return True
    return verification.rule.knows_first_token(num_draft_tokens, draws_unrounded)


def _is_exact(verification: Verification, draws_unrounded: bool) -> bool:
    """A lossless method of ours whose drafts come from the very distribution that it compares with, if it does."""
    is_ours = isinstance(verification.method, VerificationMethod) and verification.guarantee is Guarantee.lossless
    return is_ours and not (draws_unrounded and verification.traits.reads_draft)


def output_tv(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    drawn_logits: Tensor | None = None,
) -> Tensor:
    """Total variation between the law of the first emitted token, given the context, and the target's distribution.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded as for `verify`.
        draft: the proposals; of their tokens only those of one-hot proposals matter, and all of them to fly.
        sampling: fields [R].
        verification: the method and its parameters.
        drawn_logits: [R, V_draft], any floating dtype, what the first draft tokens were drawn from; None: the cache.

    Returns:
        [R] float64 in [0, 1], of fly an unbiased estimate; 0 for requests without a draft token that can be verified,
        which emit from the target.

    Raises:
        ValueError: the method has no closed form (`has_closed_form`).
    """
    if not has_closed_form(verification, draft.token_ids.shape[1], drawn_logits is not None):
        if verification.guarantee is Guarantee.biased:
            raise ValueError(
                f"output_tv: expected a method with independent noise, found {verification.method.value}, which has no "
                "closed form"
            )
        raise ValueError(
            f"output_tv: expected one draft token or drafts from the distribution that {verification.method.value} "
            f"compares with, found {draft.token_ids.shape[1]} tokens drawn from another, which have no closed form"
        )
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        drawn_logits = None if drawn_logits is None else drawn_logits[present]
        distance = output_tv(target_logits, left, sampling_rows(sampling, present), verification, drawn_logits)
        return distance.new_zeros(len(draft.token_ids)).index_copy_(0, present, distance)
    distance = torch.zeros(len(draft.token_ids), dtype=torch.float64, device=target_logits.device)
    if draft.token_ids.shape[1] == 0 or _is_exact(verification, drawn_logits is not None):
        return distance
    proposal = propose(target_logits, draft, sampling, reads_draft=True)
    requests = _drafted(proposal, draft, is_averaged=drawn_logits is not None).nonzero()[:, 0]
    target_probs = proposal.target.probs(proposal.rows[requests, 0])
    cached_probs = _cached_probs(proposal, requests, target_probs)
    drawn_probs = cached_probs
    if drawn_logits is not None:
        drawn_probs = _drawn_probs(drawn_logits, draft, sampling, proposal, requests, cached_probs)
    drafts = FirstDrafts(requests, target_probs, drawn_probs, cached_probs)
    found = verification.rule.first_token(proposal, drafts)
    if isinstance(found, Tensor):
        return found
    assert found is not None, "knows_first_token says so"
    kept, lost, after = found
    law = kept + lost * target_probs + (1.0 - lost - kept.sum(dim=1, keepdim=True)) * after
    distance[requests] = (law - target_probs).abs().sum(dim=1) / 2
    return distance


def _drafted(proposal: Proposal, draft: Draft, is_averaged: bool) -> Tensor:
    """[R] bool, whether there is a first draft token to verify.

    Where the drawn-from distribution is known, a token that the cached one cannot have produced counts too: the law is
    averaged over all tokens, so that which of them was drawn must not matter.
    """
    usable = proposal.num_usable > 0
    if not is_averaged:
        return usable
    first = draft.token_ids[:, 0]
    inside = (first >= 0) & (first < proposal.target.logits.shape[1]) & (draft.num_draft_tokens > 0)
    return usable | (inside & ~proposal.one_hot & ~proposal.target.invalid[proposal.rows[:, 0]])


def _cached_probs(proposal: Proposal, requests: Tensor, like: Tensor) -> Tensor:
    """[n, V] float64, q'_1 of some requests; 0 everywhere for a row without a distribution."""
    found = torch.zeros_like(like)
    one_hot = proposal.one_hot[requests]
    certain, drawn = one_hot.nonzero()[:, 0], (~one_hot).nonzero()[:, 0]
    found[certain, proposal.token_ids[requests[certain], 0]] = 1.0
    if proposal.draft is not None and len(drawn):
        rows = proposal.draft_rows[requests[drawn], 0]
        probs = proposal.draft.probs(rows).masked_fill_(proposal.draft.invalid[rows, None], 0.0)
        found[drawn] = on_target_vocab(probs, proposal.draft_to_target, like.shape[1])
    return found


def _drawn_probs(
    drawn_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    proposal: Proposal,
    requests: Tensor,
    cached_probs: Tensor,
) -> Tensor:
    """[n, V] float64, q_1 of some requests; one-hot proposals are what they are."""
    slots = requests if draft.idx_mapping is None else draft.idx_mapping[requests]
    logits = allowed_draft_logits(drawn_logits[requests], draft, slots, 0)
    rows = processed(logits, sampling_rows(draft.sampling or sampling, requests))
    found = on_target_vocab(rows.probs(), proposal.draft_to_target, cached_probs.shape[1])
    return torch.where(proposal.one_hot[requests, None], cached_probs, found)


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
    settings = sampling_rows(draft.sampling or sampling, requests)
    cached, drawn = (
        processed(allowed_draft_logits(logits, draft, slots, 0), settings)
        for logits in (draft.logits[slots, 0], drawn_logits[requests])
    )
    cached_probs = cached.probs().masked_fill_(cached.invalid[:, None], 0.0)
    found[requests] = (drawn.probs() - cached_probs).abs().sum(dim=1) / 2
    return found
