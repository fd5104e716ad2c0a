"""Verification: a round's draft tokens become output tokens. Every method goes through `verify`.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.

All random numbers of a round are addressed by (purpose, absolute position, round): the acceptance uniform of X_i at
the position of X_i, the recovered or bonus token at its own position (the nodes of a tree: verify_tree). Only the
coupled method, and the biased control pr35461, use noise that does not change with the round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..checks import check_num_tokens, check_shape, no_rule
from ..contract import (
    Draft,
    Sampling,
    Streams,
    TokenMask,
    Verification,
    VerificationMethod,
    VerificationResult,
)
from ..methods import OwnMethod, TreeMethod
from ..streams import Purpose, gumbel, uniform
from .block import block_odds, log_prefix_ratios
from .choose import choose
from .coupled import Noise, verify_coupled
from .fly import with_deferred
from .greedy import verify_greedy
from .odds import Odds, up_to_first_failure, up_to_last_success
from .own_method import own_emission, own_odds
from .pr35461 import shared_choice, shared_uniforms
from .probabilistic import probabilistic_odds
from .proposal import Compared, Proposal, propose
from .residual import emission
from .synthetic import synthetic_odds
from .target_rows import present_slots
from .token_mask import without_forbidden
from .tree_shape import check_parents
from .truncation import sampling_rows
from .typical import typical_odds
from .verdict import assemble, place
from .verify_tree import verify_trees

Method = VerificationMethod


def acceptance_rule(verification: Verification) -> Callable[[Proposal], Odds]:
    """What `acceptance_odds` are by a method.

    Raises:
        ValueError: the method has no rule by odds, whatever its row in kernels.methods says.
    """
    match verification.method:
        case OwnMethod() as method:
            return partial(own_odds, method)
        case Method.strict | Method.greedy | Method.probabilistic | Method.fly | Method.pr35461:
            return probabilistic_odds
        case Method.block:
            return block_odds
        case Method.lenient:
            return partial(probabilistic_odds, leniency=verification.leniency)
        case Method.typical:
            return partial(typical_odds, epsilon=verification.epsilon, delta=verification.delta)
        case Method.synthetic:
            return partial(synthetic_odds, rates=verification.synthetic_rates)
        case method:
            raise no_rule(method, "kernels.reference.verify.acceptance_rule")


def acceptance_odds(proposal: Proposal, verification: Verification) -> Odds:
    """[R, K] the probability with which the method lets each draft token pass; fly natively, before it defers any."""
    return acceptance_rule(verification)(proposal)


def count_accepted(proposal: Proposal, verification: Verification, passes: Tensor) -> Tensor:
    """[R, K] bool, the draft tokens that pass by their odds -> [R] int64 number of accepted tokens."""
    if verification.traits.defers:
        passes = with_deferred(passes, proposal, verification)
    counts = up_to_first_failure if verification.traits.stops_at_first_failure else up_to_last_success
    return counts(passes, proposal)


def emission_weights(proposal: Proposal, verification: Verification, num_accepted: Tensor) -> Tensor:
    """[R, V] float64 unnormalised law of the token that follows `num_accepted` ([R] int64) accepted ones."""
    method = verification.method
    if isinstance(method, OwnMethod) and method.emission is not None:
        return own_emission(method, proposal, num_accepted)
    if method.traits.emits_from_target:
        return emission(proposal, num_accepted, scale=None)
    if method is Method.block:
        ratios = log_prefix_ratios(proposal).gather(1, num_accepted[:, None])[:, 0].exp()
        return emission(proposal, num_accepted, scale=ratios)
    return emission(proposal, num_accepted, scale=proposal.target.log_normalizer.new_ones(len(num_accepted)))


def _verify_by_odds(proposal: Proposal, verification: Verification, streams: Streams) -> tuple[Tensor, Tensor]:
    """([R] number of accepted tokens, [R] the token after them) for every method that tests draft tokens by odds."""
    shared = verification.method is Method.pr35461
    width = proposal.token_ids.shape[1]
    positions = streams.positions[:, None] + torch.arange(width, device=streams.positions.device)
    if shared:
        uniforms = shared_uniforms(streams, positions)
    else:
        uniforms = uniform(streams.seeds[:, None], Purpose.accept, positions, streams.rounds[:, None])
    passes = acceptance_odds(proposal, verification).passes(uniforms)
    num_accepted = count_accepted(proposal, verification, passes)
    weights = emission_weights(proposal, verification, num_accepted)
    position = streams.positions + num_accepted
    if shared:
        return num_accepted, shared_choice(weights, streams, position)
    recovers = num_accepted < proposal.num_draft_tokens
    purposes = torch.where(recovers, int(Purpose.residual), int(Purpose.bonus))
    return num_accepted, choose(weights, uniform(streams.seeds, purposes, position, streams.rounds))


def verify(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    mask: TokenMask | None = None,
    reads_stats: bool = False,
    noise_of: Noise = gumbel,
) -> VerificationResult:
    """Turn a round's draft tokens into output tokens: the accepted ones, then one recovered or bonus token.

    Args:
        target_logits: [N, V], any floating dtype; the K_r + 1 rows of a request lie together, row i conditioned on its
            first i draft tokens. N is R * (K + 1) when request r's rows begin at r * (K + 1), whatever its K_r; else
            sum(K_r + 1), request after request.
        draft: the proposals, K_r of them for request r; -1 of them mark a padded slot, of which nothing is read.
        sampling: fields [R]; they shape the target's distribution, and the draft's too unless the draft has a
            sampling of its own. At temperature 0 a draft
            token is accepted iff it is the target's argmax, under every method but synthetic and fly.
        verification: the method and its parameters.
        streams: fields [R]; `positions` is the position of the first token the round may emit.
        mask: of the target rows, `rows` [N]; None when they are all free. A forbidden draft token is rejected under
            every method but synthetic, which ignores tokens; what synthetic emits after them is allowed.
        reads_stats: take `draft.row_stats` at their word; else the draft rows are read again.
        noise_of: gives the noise of the coupled method.

    Returns:
        VerificationResult, fields [R]. A request is flagged invalid when its verification reached a row without a
        distribution or a draft token that its draft distribution cannot have produced; such a draft token is not
        accepted, and the token emitted in its place comes from the target (token 0 if the target has no distribution).

    Raises:
        ValueError: the rows do not add up, or greedy verification meets a temperature above 0 (kernels.verify flags
            both); the mask does not fit the rows, the draft is a tree and the method is for chains, or has
            more tokens in a row than the target, synthetic verification has too few rates, an OwnMethod returns
            something else than it should, or the method has no rule here.
    """
    check_shape(draft, verification)
    if draft.parents is not None:
        check_parents(draft.parents, draft.token_ids)
    if draft.logits is not None:
        check_num_tokens(draft.logits.shape[2], target_logits.shape[1], "draft.logits")
    if mask is not None:
        target_logits = without_forbidden(target_logits, mask)
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        streams = Streams(streams.seeds[present], streams.positions[present], streams.rounds[present])
        given = sampling_rows(sampling, present)
        verdict = verify(target_logits, left, given, verification, streams, None, reads_stats, noise_of)
        return place(verdict, present, len(draft.token_ids))
    if draft.parents is not None or isinstance(verification.method, TreeMethod):
        return verify_trees(target_logits, draft, sampling, verification, streams)
    is_coupled = verification.method is Method.coupled
    if not is_coupled:
        # Also for a batch at temperature 0, whose argmax no rule decides.
        acceptance_rule(verification)
    is_greedy = bool((sampling.temperature == 0).all())
    if verification.traits.greedy_only and not is_greedy:
        raise ValueError(
            "greedy verification is defined only at temperature 0, found temperatures up to "
            f"{float(sampling.temperature.max()):g}; choose a sampling method for this batch"
        )
    compared = Compared.of(target_logits, draft, sampling)
    if is_greedy and verification.traits.keeps_argmax:
        return verify_greedy(compared, draft)
    reads_draft = verification.traits.reads_draft
    proposal = propose(target_logits, draft, sampling, reads_draft, compared, reads_stats)
    if reads_draft:
        compared = compared._replace(proposal=proposal)
    if is_coupled:
        num_accepted, last_token_ids = verify_coupled(proposal, streams, noise_of)
    else:
        num_accepted, last_token_ids = _verify_by_odds(proposal, verification, streams)
    invalid = (num_accepted == proposal.num_usable) & proposal.impossible
    return assemble(proposal.token_ids, num_accepted, last_token_ids, invalid, compared)
