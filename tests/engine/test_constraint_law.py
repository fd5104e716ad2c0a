"""The law of the output under each policy, by exact enumeration over several rounds, and token by token.

Exact law of the output under a policy, over several rounds, through the functions that the engine itself calls.

From every state all draft paths are enumerated with their probability (under masks where the grammar state says so),
then all patterns of draft tokens that pass, and all tokens that may follow; the grammar state rules on each. What is
not decided yet goes on in the next round.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from harness.config.sampling import SamplingSettings
from harness.engine.constrained_drafts import ConstrainedDrafts
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.masks import Masks
from kernels.contract import Draft, DraftSampling, Sampling, TokenMask, Verification, VerificationMethod
from kernels.reference.proposal import propose
from kernels.reference.token_mask import without_forbidden
from kernels.reference.truncation import process, sampling_rows
from tests.support.emitted_laws import acceptance_odds, count_accepted, emission_weights
from tests.support.toy_grammar import grammar_state_of
from tests.support.toy_markov import outputs, toy_engine, toy_requests, transitions

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


EXACT = 1e-12
LENGTH = 4
SHORT = 3
VOCAB_SIZE = 4
Method = VerificationMethod


def chains(**setting: float) -> Chains:
    sampling = Sampling.same_for_all(
        1, setting.get("temperature", 1.0), int(setting.get("top_k", 0)), 1.0, 0.0, torch.device("cpu")
    )
    target, draft = (transitions(VOCAB_SIZE, seed).double().log() for seed in (int(setting.get("seed", 12)), 19))
    return Chains(target, draft, sampling)


def deviation(
    policy: str,
    method: Method,
    num_drafts: int,
    length: int = SHORT,
    state: GrammarState | None = None,
    **setting: float,
) -> float:
    """Total variation from the constrained target."""
    pair = chains(**setting)
    found = law_of(pair, state or grammar_state_of(policy), Verification(method), num_drafts, length)
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)
    return total_variation(found, constrained_target(pair, grammar_state_of(policy), length))


@pytest.mark.parametrize(
    ("method", "length"), [(Method.probabilistic, LENGTH), (Method.block, SHORT)], ids=["probabilistic", "block"]
)
@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_the_law_is_the_constrained_targets(policy, method, length):
    """Would catch: a refused token drawn again without the mask, drafts drawn under another mask than they are verified
    under, a mask at the wrong position, a bonus token without one, a cut that favours some tokens."""
    assert deviation(policy, method, 2, length) < EXACT


@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_the_law_is_the_constrained_targets_with_proposals_taken_as_certain(policy):
    assert deviation(policy, Method.strict, num_drafts=1) < EXACT


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block, Method.strict], ids=lambda item: item.value)
@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_the_law_is_the_constrained_targets_with_drafts_drawn_freely(policy, method):
    assert deviation(policy, method, 2, state=grammar_state_of(policy, masks_drafts=False)) < EXACT


class LeavesOutRefused(GrammarState):
    """A broken copy: what the grammar refuses of free drafts is not verified, as if they were drawn under masks."""

    def target_rows(self, masks):
        self.masks_drafts = True
        rows = super().target_rows(masks)
        self.masks_drafts = False
        return rows


def test_freely_drawn_drafts_that_are_refused_must_be_verified_too():
    state = grammar_state_of("mask", masks_drafts=False)
    state.__class__ = LeavesOutRefused
    assert deviation("mask", Method.probabilistic, 2, state=state) > 0.01


def test_the_control_late_is_found_out():
    """The grammar that starts a round late does not hold: what must fail, fails."""
    assert deviation("late", Method.probabilistic, num_drafts=2) > 0.03


def test_with_truncation_only_mask_keeps_the_law():
    """Top-k chooses from all tokens before a refusal and from the allowed ones after it: commit is lossy then."""
    assert deviation("mask", Method.probabilistic, num_drafts=1, top_k=2, seed=25) < EXACT
    assert deviation("commit", Method.probabilistic, num_drafts=1, top_k=2, seed=25) > 0.01


def tokens_of(policy, num_tokens, method, draft_sampling, temperature=1.0, draft_seed=19, masks_drafts=True, **options):
    engine = toy_engine(
        transitions(VOCAB_SIZE, 12),
        transitions(VOCAB_SIZE, draft_seed),
        method,
        draft_sampling,
        num_speculative_tokens=num_tokens,
        max_new_tokens=12,
        num_slots=75,
        sampling=SamplingSettings(temperature),
        constrained=True,
        **options,
    )
    states = (grammar_state_of(policy, masks_drafts=masks_drafts) for _ in range(150))
    return outputs(engine, [replace(item, grammar_state=next(states)) for item in toy_requests(150)])


@cache
def coupled_tokens_alone():
    """One token at a time, each under the mask."""
    return tokens_of("mask", 0, Method.coupled, DraftSampling.coupled)


@pytest.mark.parametrize("masks_drafts", [True, False], ids=["masked", "free"])
@pytest.mark.parametrize("policy", ["commit", "mask"])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_coupled_tokens_depend_on_neither_policy_nor_drafter_nor_depth(policy, num_tokens, masks_drafts):
    """A refused token is drawn again with the noise of its position, and the largest of the allowed stays what it was.

    Would catch any token lost, doubled or drawn at the wrong place where the engine cuts a round.
    """
    alone = coupled_tokens_alone()
    assert any(len(set(tokens)) == VOCAB_SIZE for tokens in alone.values())
    given = policy, num_tokens, Method.coupled, DraftSampling.coupled
    assert tokens_of(*given, masks_drafts=masks_drafts) == alone
    assert tokens_of("late", 3, Method.coupled, DraftSampling.coupled) != alone


@pytest.mark.parametrize("masks_drafts", [True, False], ids=["masked", "free"])
@pytest.mark.parametrize("overlaps", [False, True], ids=["one after another", "launched ahead"])
@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_steps_in_parts_give_the_same_tokens(policy, overlaps, masks_drafts):
    """Would catch a step launched as one graph that had to be cut or masked, and a round seen too late."""
    alone = coupled_tokens_alone()
    options = {"graphs": True, "overlaps": overlaps, "masks_drafts": masks_drafts}
    assert tokens_of(policy, 3, Method.coupled, DraftSampling.coupled, **options) == alone
    assert tokens_of(policy, 0, Method.coupled, DraftSampling.coupled, **options) == alone


@pytest.mark.parametrize("masks_drafts", [True, False], ids=["masked", "free"])
@pytest.mark.parametrize("policy", ["late", "commit", "mask"])
def test_steps_in_parts_draw_from_the_same_masked_rows(policy, masks_drafts):
    """With sampled drafts a mask of the wrong row or of another round shows at once."""
    expected = tokens_of(policy, 3, Method.probabilistic, DraftSampling.sampled, masks_drafts=masks_drafts)
    for limit in (None, 1):
        for overlaps in (False, True):
            options = {"graphs": True, "prompt_tokens_beside_rounds": limit, "overlaps": overlaps}
            found = tokens_of(
                policy, 3, Method.probabilistic, DraftSampling.sampled, masks_drafts=masks_drafts, **options
            )
            assert found == expected


@pytest.mark.parametrize("options", [{}, {"graphs": True, "overlaps": True}], ids=["eager", "launched ahead"])
@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_every_answer_of_a_lossless_policy_is_valid(policy, options):
    grammar_states = [grammar_state_of(policy) for _ in range(150)]
    engine = toy_engine(
        transitions(VOCAB_SIZE, 12),
        transitions(VOCAB_SIZE, 19),
        Method.block,
        DraftSampling.sampled,
        num_speculative_tokens=3,
        max_new_tokens=60,
        num_slots=40,
        constrained=True,
        **options,
    )
    requests = [
        replace(item, grammar_state=grammar_state)
        for item, grammar_state in zip(toy_requests(150), grammar_states, strict=True)
    ]
    run = engine.run(requests, lambda record: None)
    assert run.num_invalid == 0
    for record in run.requests:
        grammar_state = requests[int(record.prompt_id)].grammar_state
        assert record.finish_reason.value == "grammar" and grammar_state.matcher.is_complete
        # the marker is never fed, and every token after it is
        assert list(record.output_token_ids[record.num_reasoning_tokens :]) == grammar_state.matcher.fed
        assert record.output_token_ids[record.num_reasoning_tokens - 1] == 3
