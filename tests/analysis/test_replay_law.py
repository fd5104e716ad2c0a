"""Replay's estimators are unbiased: by exact enumeration, and against what the engine accepts of the drafts it drew.

A round over every draft path of a tiny vocabulary, and the exact acceptance of each method by plain enumeration.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from harness.analysis.replay.estimators import (
    REPLAYED,
    Estimator,
    _some_passes,
    estimators_of,
    reaching,
    replayed_rules,
    rule_name,
)
from harness.config.sampling import SamplingSettings
from harness.records.acceptance_terms import DraftTerms, RequestTerms, RoundTerms, check_terms_of, collect_terms
from kernels.contract import Draft, DraftSampling, Sampling, Verification, VerificationMethod
from kernels.reference.acceptance import AcceptanceTerms, acceptance_terms
from kernels.reference.masses import coupled_agreement
from kernels.verification import probe
from tests.support.synthetic_cells import cell_record
from tests.support.toy_markov import toy_engine, toy_requests, transitions

Method = VerificationMethod
Floats = NDArray[np.float64]


class ReplayTree:
    """Random distributions after every prefix; every path of K draft tokens is one request of a batch."""

    def __init__(self, seed: int, vocab_size: int = 3, num_draft_tokens: int = 3, num_unknown: int = 0) -> None:
        """num_unknown: last tokens of the vocabulary that the drafter never proposes."""
        generator = np.random.default_rng(seed)
        self.vocab_size, self.num_draft_tokens = vocab_size, num_draft_tokens
        self.target: dict[tuple[int, ...], Floats] = {}
        self.draft: dict[tuple[int, ...], Floats] = {}
        for depth in range(num_draft_tokens + 1):
            for prefix in product(range(vocab_size), repeat=depth):
                self.target[prefix] = generator.dirichlet(np.full(vocab_size, 0.7))
                known = generator.dirichlet(np.full(vocab_size - num_unknown, 0.7))
                self.draft[prefix] = np.append(known, np.zeros(num_unknown))
        self.paths = list(product(range(vocab_size - num_unknown), repeat=num_draft_tokens))

    @property
    def path_probs(self) -> Floats:
        """[paths] probability that a path is drafted."""
        return np.array([np.prod([self.draft[path[:i]][token] for i, token in enumerate(path)]) for path in self.paths])

    def terms(self) -> RoundTerms:
        """The recorded terms of a batch with every path once."""
        depths = range(self.num_draft_tokens)
        rows = [self.target[path[:depth]] for path in self.paths for depth in range(self.num_draft_tokens + 1)]
        cache = np.array([[self.draft[path[:depth]] for depth in depths] for path in self.paths])
        num_paths = len(self.paths)
        draft = Draft(
            torch.tensor(self.paths),
            torch.full((num_paths,), self.num_draft_tokens),
            torch.tensor(cache).log(),
        )
        plain = Sampling(
            torch.ones(num_paths),
            torch.zeros(num_paths, dtype=torch.long),
            torch.ones(num_paths),
            torch.zeros(num_paths),
        )
        return round_terms(acceptance_terms(torch.tensor(np.array(rows)).log(), draft, plain))

    def exact(self, rule: Verification) -> Floats:
        """[K] P(A >= i), by definition: every path, and for block every pattern of positions that pass."""
        if rule.method is Method.block:
            return sum(prob * self._block(path) for path, prob in zip(self.paths, self.path_probs, strict=True))  # type: ignore[return-value]
        found = np.zeros(self.num_draft_tokens)
        for path, prob in zip(self.paths, self.path_probs, strict=True):
            accepted = [self._accept(rule, path[:i], token) for i, token in enumerate(path)]
            found += prob * np.cumprod(accepted)
        return found

    def _accept(self, rule: Verification, prefix: tuple[int, ...], token: int) -> float:
        """Probability that a method that goes token by token accepts a drafted token."""
        target, draft = self.target[prefix], self.draft[prefix]
        match rule.method:
            case Method.strict:
                return target[token]
            case Method.coupled:
                joint = 1 / np.maximum(target / target[token], draft / draft[token]).sum()
                return joint / draft[token]
            case Method.probabilistic | Method.lenient:
                return min(1.0, target[token] / (rule.rule.parameters.get("leniency", 1.0) * draft[token]))
            case Method.typical:
                entropy = -(target * np.log(target)).sum()
                return float(target[token] > min(rule.rule.epsilon, rule.rule.delta * np.exp(-entropy)))
        raise AssertionError(rule)

    def _block(self, path: tuple[int, ...]) -> Floats:
        """[K] P(A >= i | path), A the last position that passes."""
        ratio, thresholds = 1.0, []
        for depth, token in enumerate(path):
            target, draft = self.target[path[:depth]], self.draft[path[:depth]]
            ratio = min(1.0, ratio * target[token] / draft[token])
            after = path[: depth + 1]
            residual = np.maximum(ratio * self.target[after] - self.draft[after], 0).sum()
            is_last = depth == len(path) - 1
            thresholds.append(ratio if is_last or ratio == 1 else residual / (residual + 1 - ratio))
        found = np.zeros(len(path))
        for pattern in product([False, True], repeat=len(path)):
            weight = np.prod([h if passes else 1 - h for h, passes in zip(thresholds, pattern, strict=True)])
            num_accepted = max((i for i, passes in enumerate(pattern, start=1) if passes), default=0)
            found[:num_accepted] += weight
        return found


def round_terms(terms: AcceptanceTerms) -> RoundTerms:
    """Terms of a batch of full drafts of one length, each a request of its own."""
    columns = {name: column.numpy() for name, column in terms._asdict().items()}
    drafts = [
        DraftTerms(1, {name: column[row] for name, column in columns.items()}) for row in range(len(columns["overlap"]))
    ]
    return collect_terms("toy", [RequestTerms.of((str(row), 0, 0), (draft,)) for row, draft in enumerate(drafts)])


RULES = replayed_rules(leniencies=(0.6,), thresholds=((0.4, 0.5), (1.0, 0.9)))
EXACT = 1e-12
STANDARD_ERRORS = 5
"""A sound estimator leaves them with probability 6e-7."""


def prefix_ratios(terms):
    """[D, K] P_1 .. P_K of block verification."""
    ratio = np.ones(len(terms.request))
    columns = []
    for step in (terms.of_positions("target_prob") / terms.of_positions("draft_prob")).T:
        ratio = np.minimum(1, ratio * step)
        columns.append(ratio)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_every_estimator_has_the_exact_expectation(rule, seed):
    tree = ReplayTree(seed)
    terms, exact = tree.terms(), tree.exact(rule)
    for estimator in estimators_of(rule):
        np.testing.assert_allclose(tree.path_probs @ reaching(terms, rule, estimator), exact, atol=EXACT)


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_every_estimator_is_exact_where_the_drafter_lacks_tokens(rule):
    """Would catch target mass outside the draft's vocabulary that shared noise leaves out."""
    tree = ReplayTree(7, vocab_size=4, num_draft_tokens=2, num_unknown=1)
    terms, exact = tree.terms(), tree.exact(rule)
    for estimator in estimators_of(rule):
        np.testing.assert_allclose(tree.path_probs @ reaching(terms, rule, estimator), exact, atol=EXACT)


def test_before_the_draw_varies_no_more_than_given_the_drafts():
    """At each position, and less than a sampled 0 or 1 there."""
    tree = ReplayTree(1)
    terms, law = tree.terms(), tree.path_probs
    for rule in RULES[:4]:
        exact = tree.exact(rule)
        given, before = (law @ reaching(terms, rule, item) ** 2 - exact**2 for item in Estimator)
        assert (before <= given + EXACT).all() and (given < exact * (1 - exact)).all()
        assert before[0] == pytest.approx(0, abs=EXACT), "before the first draw nothing is left to chance"


def test_wrong_formulas_are_found_by_enumeration():
    """The errors that the exact tests must catch: block without h, block's overlap without its prefix."""
    tree = ReplayTree(0)
    terms, law = tree.terms(), tree.path_probs
    block, probabilistic = Verification(Method.block), Verification(Method.probabilistic)
    without_thresholds = law @ _some_passes(prefix_ratios(terms))
    without_prefix = law @ reaching(terms, probabilistic, Estimator.before)
    assert abs(without_thresholds - tree.exact(block))[:-1].min() > 0.01
    assert abs(without_prefix - tree.exact(block))[1:].min() > 0.005


def test_agreement_with_shared_noise_given_the_draft_token():
    """The closed form against draws with the same Gumbel noise."""
    generator = np.random.default_rng(2)
    num_draws, vocab_size = 200_000, 5
    target, draft = generator.dirichlet(np.ones(vocab_size), size=2)
    noise = generator.gumbel(size=(num_draws, vocab_size))
    drafted, drawn = (np.argmax(np.log(probs) + noise, axis=1) for probs in (draft, target))
    rows = [torch.tensor(probs).expand(vocab_size, -1) for probs in (target, draft)]
    expected = coupled_agreement(*rows, torch.arange(vocab_size)).numpy()
    for token in range(vocab_size):
        agrees = drawn[drafted == token] == token
        error = np.sqrt(expected[token] * (1 - expected[token]) / len(agrees))
        assert abs(agrees.mean() - expected[token]) <= STANDARD_ERRORS * error


TARGET, DRAFT = transitions(6, seed=11), transitions(6, seed=12)


@cache
def recorded(method, *, num_requests=700, eos_token_ids=frozenset(), draft_sampling=None, **options):
    """(terms of a run with this method, [D] number of accepted tokens of each draft)."""
    engine = toy_engine(
        TARGET,
        DRAFT,
        method,
        draft_sampling or (DraftSampling.coupled if method is Method.coupled else DraftSampling.sampled),
        num_speculative_tokens=3,
        max_new_tokens=14,
        num_slots=300,
        eos_token_ids=eos_token_ids,
        expected_acceptance=True,
        round_terms=True,
        **options,
    )
    run = engine.run(toy_requests(num_requests), lambda record: None)
    cell = cell_record(run.requests)
    terms = collect_terms(cell.cell_id, run.terms)
    check_terms_of(terms, cell)
    rounds = {item.key: item.rounds for item in run.requests}
    places = zip(terms.request, terms.round_index, strict=True)
    return terms, np.array([rounds[terms.keys[request]][index].num_accepted_tokens for request, index in places])


def standard_errors(accepted, estimate):
    """How many standard errors the mean of the sampled numbers lies above that of the estimate.

    Given what went before, the excess of a round has expectation 0: its square root of n law needs no independence.
    """
    excess = accepted - estimate.sum(axis=1)
    if not excess.any():
        return 0.0  # typical verification draws nothing
    return excess.mean() / (excess.std() / np.sqrt(len(excess)))


DRAWN_METHODS = REPLAYED


@pytest.mark.parametrize("method", DRAWN_METHODS, ids=lambda method: method.value)
def test_sampled_and_replayed_acceptance_agree_in_the_engine(method):
    """With the real random streams over many rounds; the recorded drafts go on after the first rejection."""
    terms, accepted = recorded(method)
    rule = probe(method, 3)
    assert len(accepted) > 4000 and (accepted < 3).mean() > 0.3
    for estimator in estimators_of(rule):
        assert abs(standard_errors(accepted, reaching(terms, rule, estimator))) < STANDARD_ERRORS


@pytest.mark.parametrize("method", [Method.coupled, Method.block], ids=lambda method: method.value)
def test_they_agree_with_truncation_and_a_smaller_draft_vocabulary(method):
    """Would catch terms of the raw distributions, and draft ids taken for the target's."""
    sampling, draft_ids = SamplingSettings(1.0, top_p=0.95), torch.tensor([1, 2, 4, 5])
    terms, accepted = recorded(method, sampling=sampling, draft_ids=draft_ids)
    rule = Verification(method)
    assert (terms.of_positions("target_prob") == 0).any() and (accepted == 2).any()
    for estimator in Estimator:
        assert abs(standard_errors(accepted, reaching(terms, rule, estimator))) < STANDARD_ERRORS


def test_a_wrong_replay_would_disagree_with_the_engine():
    """Block without h, and every other method in the place of the run's own."""
    terms, accepted = recorded(Method.block)
    assert standard_errors(accepted, _some_passes(prefix_ratios(terms))) < -2 * STANDARD_ERRORS
    for method in (Method.strict, Method.coupled, Method.probabilistic):
        other = reaching(terms, Verification(method), Estimator.given)
        assert standard_errors(accepted, other) > STANDARD_ERRORS


def test_given_the_drafts_holds_where_drafts_are_left_out_because_of_their_tokens():
    """A drafted end of sequence leaves a draft out. The other estimator averages over tokens that were never kept."""
    terms, accepted = recorded(Method.probabilistic, num_requests=2500, eos_token_ids=frozenset({4}))
    rule = Verification(Method.probabilistic)
    assert abs(standard_errors(accepted, reaching(terms, rule, Estimator.given))) < STANDARD_ERRORS
    assert abs(standard_errors(accepted, reaching(terms, rule, Estimator.before))) > STANDARD_ERRORS


def test_terms_are_of_the_step_that_they_are_recorded_with():
    """Steps in rows of fixed sizes, as in CUDA graphs, whose memory the next step overwrites."""
    plain, _ = recorded(Method.probabilistic, num_requests=40)
    in_rows, _ = recorded(Method.probabilistic, num_requests=40, graphs=True)
    order = {key: row for row, key in enumerate(plain.keys)}
    assert sorted(plain.keys) == sorted(in_rows.keys)
    first, second = (terms.of_positions("target_prob") for terms in (in_rows, plain))
    for row, key in enumerate(in_rows.keys):
        np.testing.assert_allclose(first[in_rows.request == row], second[plain.request == order[key]], rtol=1e-6)


@pytest.mark.parametrize(
    "options", [{"draft_sampling": DraftSampling.greedy}, {"temperature": 0.0}], ids=["one-hot drafts", "temperature 0"]
)
def test_methods_of_one_law_have_one_value(options):
    """Would catch one-hot proposals taken for draws from the draft's distribution."""
    terms, accepted = recorded(Method.strict, num_requests=60, **options)
    same = [reaching(terms, rule, item) for rule in RULES[:4] for item in Estimator]
    for found in same[1:]:
        np.testing.assert_allclose(found, same[0], atol=EXACT)
    if "temperature" in options:
        for rule in RULES:
            np.testing.assert_array_equal(reaching(terms, rule, Estimator.given).sum(axis=1), accepted)
