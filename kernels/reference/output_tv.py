"""How far the first token of a round is from the target's distribution, in closed form and without sampling noise.

    law(x) = kept(x) + (1 - sum kept) * after(x)        output_tv = 1/2 sum_x |law(x) - p_1(x)|

    typical     kept = q_1 where p_1 passes its threshold, else 0      after = p_1
    lenient     kept = min(q_1, p_1 / l)                               after = [p_1 - q_1]+ normalised, or p_1 if all 0
    synthetic   kept = a_1 q_1                                         after = p_1

kept is the mass that is drafted and accepted, averaged over the drafts that might have been drawn. Lossless methods
have 0. Of the first token only: what follows an accepted one has the same form with the next rows.

Letters: R requests, V the target's vocabulary, N rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contract import Draft, Guarantee, Sampling, Verification, VerificationMethod
from kernels.reference.proposal import Proposal, propose
from kernels.reference.target_rows import present_slots
from kernels.reference.truncation import sampling_rows
from kernels.reference.typical import entropies

Method = VerificationMethod


def output_tv(target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification) -> Tensor:
    """Total variation between the law of the first emitted token, given the context, and the target's distribution.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded as for `verify`.
        draft: the proposals; of their tokens only those of one-hot proposals matter.
        sampling: fields [R].
        verification: the method and its parameters.

    Returns:
        [R] float64 in [0, 1]; 0 for requests without a usable draft token, which emit from the target.

    Raises:
        ValueError: the method has no closed form (pr35461).
    """
    if verification.method is Method.pr35461:
        raise ValueError("output_tv: expected a method with independent noise, found pr35461, which has no closed form")
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        distance = output_tv(target_logits, left, sampling_rows(sampling, present), verification)
        return distance.new_zeros(len(draft.token_ids)).index_copy_(0, present, distance)
    distance = torch.zeros(len(draft.token_ids), dtype=torch.float64, device=target_logits.device)
    if verification.guarantee is Guarantee.lossless or draft.token_ids.shape[1] == 0:
        return distance
    proposal = propose(target_logits, draft, sampling, reads_draft=True)
    requests = (proposal.num_usable > 0).nonzero()[:, 0]
    target_probs = proposal.target.probs(proposal.rows[requests, 0])
    draft_probs = _draft_probs(proposal, requests, target_probs)
    kept, after = _parts(proposal, verification, requests, target_probs, draft_probs)
    law = kept + (1.0 - kept.sum(dim=1, keepdim=True)) * after
    distance[requests] = (law - target_probs).abs().sum(dim=1) / 2
    return distance


def _draft_probs(proposal: Proposal, requests: Tensor, like: Tensor) -> Tensor:
    """[n, V] float64, q_1 of some requests over the target's vocabulary."""
    found = torch.zeros_like(like)
    one_hot = proposal.one_hot[requests]
    certain, drawn = one_hot.nonzero()[:, 0], (~one_hot).nonzero()[:, 0]
    found[certain, proposal.token_ids[requests[certain], 0]] = 1.0
    if proposal.draft is not None and len(drawn):
        probs = proposal.draft.probs(proposal.draft_rows[requests[drawn], 0])
        if proposal.draft_to_target is None:
            found[drawn, : probs.shape[1]] = probs
        else:
            found[drawn[:, None], proposal.draft_to_target] = probs
    return found


def _parts(
    proposal: Proposal, verification: Verification, requests: Tensor, target_probs: Tensor, draft_probs: Tensor
) -> tuple[Tensor, Tensor]:
    """(kept, after), [n, V] each."""
    match verification.method:
        case Method.typical:
            entropy = entropies(proposal.target)[proposal.rows[requests, 0]]
            threshold = (verification.delta * torch.exp(-entropy)).clamp(max=verification.epsilon)
            passes = (target_probs > threshold[:, None]) | (target_probs == 1)
            return draft_probs * passes, target_probs
        case Method.synthetic:
            return draft_probs * verification.synthetic_rates[0], target_probs
        case _:
            assert verification.method is Method.lenient, verification.method
            missing = (target_probs - draft_probs).clamp_(min=0.0)
            mass = missing.sum(dim=1, keepdim=True)
            after = torch.where(mass > 0, missing / torch.where(mass > 0, mass, 1.0), target_probs)
            return torch.minimum(draft_probs, target_probs / verification.leniency), after
