"""Subjects whose code drafts, calls both models and verifies in one call."""

from dataclasses import replace

import pytest
import torch

from harness.checks.certification.cases import SAMPLED, Case, Method
from harness.checks.certification.evaluate import laws
from harness.checks.certification.goodness_of_fit import fit
from harness.checks.certification.simulate import simulate
from harness.checks.certification.subject import EmittedTokens, Features, ModelRound, whole_rounds
from harness.checks.certification.toy_models import CONTROL, PLAIN, Profile
from harness.checks.certification.whole_rounds import PROMPT, ToyModel
from harness.config.schema import SettingsError
from kernels.contract import Verification

pytestmark = pytest.mark.fast
CASE = Case(CONTROL, Verification(Method.probabilistic), SAMPLED, True, profiles=(Profile(), Profile(temperature=0.5)))
LEVEL = 1e-9


def written_by(model, given, num_tokens):
    """Tokens that a model writes after the context, one pass a token."""
    token_ids = given.token_ids
    for _ in range(num_tokens):
        probs = (model(token_ids)[0, -1] / given.temperature).softmax(dim=0)
        token_ids = torch.cat([token_ids, torch.multinomial(probs, 1)[None]], dim=1)
    return token_ids[0, given.token_ids.shape[1] :].tolist()


def simulated(run_round, num_samples=4000, case=CASE):
    subject = whole_rounds("a package", run_round, Features())
    return simulate(subject, case, num_samples, num_samples // 4, 0, torch.device("cpu"))


def p_value(run_round):
    found = simulated(run_round)
    assert found.num_faults == 0
    return fit(found.counts, laws(CASE)).p_value


def test_rounds_that_emit_several_tokens_beyond_the_accepted_ones_have_the_law_of_the_target():
    """Would catch contexts that lack what was emitted, temperatures of other requests, and counts that are taken for
    lengths: naive HSD emits all K tokens of a round where it accepts none."""
    assert p_value(lambda given: EmittedTokens(written_by(given.target, given, 2), 0)) > LEVEL


@pytest.mark.parametrize(
    "wrong",
    [
        lambda given: EmittedTokens(written_by(given.draft, given, 2), 2),
        lambda given: EmittedTokens(written_by(given.target, replace(given, temperature=1.0), 2), 0),
        lambda given: EmittedTokens(written_by(given.target, replace(given, token_ids=given.token_ids[:, :1]), 2), 0),
    ],
    ids=["the drafter's tokens", "another temperature", "the prompt alone"],
)
def test_wrong_rounds_are_rejected(wrong):
    assert p_value(wrong) < LEVEL


@pytest.mark.parametrize(
    "found", [EmittedTokens([0], 2), EmittedTokens([], 0), EmittedTokens([7], 0), EmittedTokens([0] * 5, 0)], ids=str
)
def test_rounds_that_emit_what_they_may_not_are_faults(found):
    assert simulated(lambda given: found, 64).num_faults > 0


def test_the_draft_counts_are_those_of_the_rounds():
    found = simulated(lambda given: EmittedTokens(written_by(given.target, given, 3), 1), 400)
    assert found.num_draft_tokens == 3 * found.num_accepted > 0


def test_a_toy_model_answers_as_its_table_after_the_prompt():
    """Would catch a prompt that moves the state in which requests begin."""
    model = ToyModel(PLAIN.target_logits)
    token_ids = torch.tensor([[*PROMPT, 2, 1]])
    state = PLAIN.next_states(torch.tensor(2), torch.tensor(1))
    assert torch.equal(model(token_ids)[0], PLAIN.target_logits[[0, 2, int(state)]])


def test_calls_with_rows_are_refused_and_a_missing_function_is_named():
    subject = whole_rounds("a package", lambda given: EmittedTokens([0], 0), Features())
    with pytest.raises(ValueError, match="a package runs whole rounds"):
        subject.draw(torch.zeros(1, 3))
    with pytest.raises(SettingsError, match="expected run_round"):
        simulate(replace(subject, run_round=None), CASE, 16, 16, 0, torch.device("cpu"))


def test_a_round_gets_models_and_context():
    seen: list[ModelRound] = []

    def run_round(given):
        seen.append(given)
        return EmittedTokens([1, 2, 0], 0)

    simulated(run_round, 32)
    assert {given.num_draft_tokens for given in seen} == {3}
    assert {tuple(given.token_ids[0].tolist()) for given in seen} == {PROMPT}
    assert {given.temperature for given in seen} == {1.0, 0.5}
