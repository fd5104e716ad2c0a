"""Verification: a round's draft tokens become output tokens. Every method goes through `verify`.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.

All random numbers of a round are addressed by (purpose, absolute position, round): the acceptance uniform of X_i at
the position of X_i, the recovered or bonus token at its own position (the nodes of a tree: verify_tree). Only the
coupled method, and the biased control pr35461, use noise that does not change with the round.
"""

from __future__ import annotations

from torch import Tensor

from ..checks import check_num_tokens, check_shape
from ..contract import (
    Draft,
    Sampling,
    Streams,
    TokenMask,
    Verification,
    VerificationResult,
)
from ..methods import OwnMethod, Rule, TreeMethod
from ..random.streams import gumbel
from .coupled import Noise
from .greedy import verify_greedy
from .own_method import Checked
from .proposal import Compared, propose
from .target_rows import present_slots
from .token_mask import without_forbidden
from .tree_shape import check_parents
from .truncation import sampling_rows
from .verdict import assemble, place
from .verify_tree import verify_trees


def rule_of(verification: Verification) -> Rule:
    """The rule of a method; what one of the user's own returns is checked, and kept to what the target allows."""
    return Checked(verification.method) if isinstance(verification.method, OwnMethod) else verification.rule


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
            more tokens in a row than the target, synthetic verification has too few rates, or a rule of the user's own
            returns something else than it should.
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
    num_accepted, last_token_ids = rule_of(verification).run(proposal, streams, noise_of)
    invalid = (num_accepted == proposal.num_usable) & proposal.impossible
    return assemble(proposal.token_ids, num_accepted, last_token_ids, invalid, compared)
