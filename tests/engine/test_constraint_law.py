"""The law of the output under each policy, by exact enumeration over several rounds, and token by token."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.engine.constraint.grammar_state import GrammarState
from kernels.contract import DraftSampling, Sampling, Verification, VerificationMethod
from tests.support.constrained_law import Chains, constrained_target, law_of, total_variation
from tests.support.toy_grammar import grammar_state_of
from tests.support.toy_markov import outputs, toy_engine, toy_requests, transitions

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
