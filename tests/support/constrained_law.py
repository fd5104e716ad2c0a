"""Exact law of the output under a policy, over several rounds, through the functions that the engine itself calls.

From every state all draft paths are enumerated with their probability (under masks where the grammar state says so),
then all patterns of draft tokens that pass, and all tokens that may follow; the grammar state rules on each. What is
not decided yet goes on in the next round.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from harness.engine.constrained_drafts import ConstrainedDrafts
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.masks import Masks
from kernels.contract import Draft, Sampling, TokenMask, Verification
from kernels.reference.proposal import propose
from kernels.reference.token_mask import without_forbidden
from kernels.reference.truncation import process, sampling_rows
from tests.support.emitted_laws import acceptance_odds, count_accepted, emission_weights

Law = dict[tuple[int, ...], float]
CPU = torch.device("cpu")


class Chains(NamedTuple):
    """A Markov target and a Markov drafter, as logits, and what shapes both."""

    target: Tensor
    """[V, V] float64."""
    draft: Tensor
    """[V, V] float64."""
    sampling: Sampling
    """[1]."""


def probabilities(logits: Tensor, sampling: Sampling, mask: TokenMask | None = None) -> Tensor:
    """[n, V] processed, under the mask."""
    logits = logits if mask is None else without_forbidden(logits, mask)
    return process(logits, sampling_rows(sampling, torch.zeros(len(logits), dtype=torch.long))).exp()


def constrained_target(chains: Chains, grammar_state: GrammarState, length: int) -> Law:
    """What the law must be: the target, restricted to what the grammar allows and renormalised."""
    law: Law = {}
    waiting = [((), 1.0, grammar_state)]
    while waiting:
        tokens, probability, state = waiting.pop()
        if len(tokens) == length or (state.in_answer and state.matcher.is_complete):
            law[tokens] = probability
            continue
        masks = Masks(1, chains.target.shape[1])
        looking = deepcopy(state)
        looking.before_verification((), masks)
        row = torch.tensor(looking.target_rows(masks))
        last = tokens[-1] if tokens else 0
        for token, share in enumerate(
            probabilities(chains.target[last : last + 1], chains.sampling, TokenMask(masks.words, row))[0].tolist()
        ):
            if share > 0:
                after = deepcopy(state)
                after.after_verification((token,))
                waiting.append(((*tokens, token), probability * share, after))
    return law


def law_of(
    chains: Chains, grammar_state: GrammarState, verification: Verification, num_drafts: int, length: int
) -> Law:
    """Law of the first `length` tokens, fewer where an answer is whole before."""
    law: Law = {}
    # what happens next depends on the tokens, and under `late` on where rounds ended too
    waiting: dict[tuple[object, ...], tuple[float, GrammarState]] = {((), ""): (1.0, grammar_state)}
    while waiting:
        key = next(iter(waiting))
        probability, state = waiting.pop(key)
        tokens = key[0]
        if len(tokens) >= length or (state.in_answer and state.matcher.is_complete):
            law[tokens[:length]] = law.get(tokens[:length], 0.0) + probability
            continue
        for emitted, share, after in round_from(chains, state, verification, num_drafts, tokens[-1] if tokens else 0):
            next_key = (*tokens, *emitted), str(after.matcher.states), after.in_answer
            known = waiting.get(next_key, (0.0, after))[0]
            waiting[next_key] = known + probability * share, after
    return law


def round_from(chains: Chains, grammar_state: GrammarState, verification: Verification, num_drafts: int, last: int):
    """Everything that a round can keep: (tokens, probability, the grammar state afterwards)."""
    for path in product(range(chains.target.shape[1]), repeat=num_drafts):
        looking = deepcopy(grammar_state)
        masks_drafts = looking.in_answer and looking.masks_drafts
        masks = Masks(num_drafts + 1, chains.target.shape[1])
        masked = ConstrainedDrafts({0: looking}, masks, 1, num_drafts, CPU) if masks_drafts else None
        path_probability, rows = 1.0, chains.draft[[last, *path[:-1]]]
        for step, token in enumerate(path):
            mask = masked.before(step, None) if masked else None
            path_probability *= float(probabilities(rows[step : step + 1], chains.sampling, mask)[0, token])
            if masked:
                masked.after(torch.tensor([token]))
        if path_probability == 0:
            continue
        if masked:
            masked.end()
        in_front = masked.target_rows[0] if masked else []
        looking.before_verification(path, masks, masked.lookaheads[0] if masked else None)
        found = in_front + looking.target_rows(masks)
        target_mask = TokenMask(masks.words, torch.tensor(found))
        draft = Draft(
            torch.tensor([path]),
            torch.tensor([looking.num_drafts_to_verify]),
            rows[None],
            mask=masked.cached() if masked else None,
        )
        logits = without_forbidden(chains.target[[last, *path]], target_mask)
        for emitted, share in outcomes(logits, draft, chains.sampling, verification):
            after = deepcopy(looking)
            num_kept = after.after_verification(emitted).num_kept_tokens
            yield emitted[:num_kept], path_probability * share, after


def outcomes(logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification):
    """Everything that verification can emit for one draft path: (tokens, probability)."""
    proposal = propose(logits, draft, sampling, verification.traits.reads_draft)
    assert not proposal.impossible.any()
    probability = acceptance_odds(proposal, verification).probability()
    num_drafts = int(draft.num_draft_tokens)
    for pattern in product([False, True], repeat=num_drafts):
        passes = torch.tensor([[*pattern, *[False] * (probability.shape[1] - num_drafts)]])
        each = torch.where(passes, probability, 1 - probability)[:, :num_drafts]
        share = float(each.prod())
        if share == 0:
            continue
        num_accepted = count_accepted(proposal, verification, passes)
        weights = emission_weights(proposal, verification, num_accepted)[0]
        accepted = draft.token_ids[0, : int(num_accepted)].tolist()
        for token, weight in enumerate((weights / weights.sum()).tolist()):
            if weight > 0:
                yield (*accepted, token), share * weight


def total_variation(first: Law, second: Law) -> float:
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys()) / 2
