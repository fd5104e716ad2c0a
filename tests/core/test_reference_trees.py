"""Rules for trees are lossless, by exact enumeration of every tree and every answer; mistaken ones are not."""

from dataclasses import replace

import pytest
import torch

from harness.config.tree import branching
from kernels.contract import SiblingDraws
from kernels.methods import TreeMethod
from kernels.reference import kseq, tree_proposal
from kernels.reference.kseq import walk_by_kseq
from kernels.reference.recursive import walk_recursively
from kernels.reference.traversal import walk_by_traversal
from tests.support.tree_rounds import TreeModels, output_law

pytestmark = pytest.mark.fast

EXACT = 1e-12
SHAPES = {"1-1": branching(1, 1), "2-1": branching(2, 1), "2-2": branching(2, 2), "uneven": (-1, 0, -1, 0, 1)}
INDEPENDENT, DISTINCT = SiblingDraws
CASES = [(method, siblings) for method in TreeMethod for siblings in method.traits.siblings]


def models_of(shape):
    return TreeModels(3, 3 if shape == SHAPES["uneven"] else 2, seed=len(shape))


def variation(rule, shape, siblings, is_one_hot=False, models=None):
    """Total variation between the output's law and the target's; the mass must be whole."""
    models = models or models_of(shape)
    law, _ = output_law(models, shape, rule, siblings, is_one_hot)
    return float((law - models.sequence_law()).abs().sum() / 2)


def rule_of(method):
    return lambda tree, passes: method.rule().walk(tree, passes, None)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("method", "siblings"), CASES, ids=[f"{m.value} {s.value}" for m, s in CASES])
def test_the_output_has_the_targets_law(method, siblings, shape):
    """Would catch a wrong order of leaves, a law of siblings that forgets those before, a residual of another node."""
    assert variation(rule_of(method), shape, siblings) < EXACT


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
def test_certain_siblings_have_the_targets_law(method):
    """Trees whose tokens are given, whatever they are: of any law, since it is not asked for."""
    assert variation(rule_of(method), SHAPES["2-2"], DISTINCT, is_one_hot=True) < EXACT


def test_of_certain_siblings_recursive_and_traversal_accept_as_many():
    """The methods' table says that they follow the same law."""
    lengths = [
        output_law(models_of(shape), shape, rule_of(method), DISTINCT, is_one_hot=True)[1]
        for shape in (SHAPES["2-2"], SHAPES["uneven"])
        for method in TreeMethod
        if method.traits.is_strict_on_one_hot
    ]
    assert len(lengths) == 4 and lengths[0] > 1
    assert lengths[0] == pytest.approx(lengths[1], abs=EXACT) and lengths[2] == pytest.approx(lengths[3], abs=EXACT)


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
def test_drafters_that_lack_tokens_change_nothing(method):
    models = TreeModels(3, 2, seed=5, zeros=True)
    assert variation(rule_of(method), SHAPES["2-1"], DISTINCT, models=models) < EXACT


def test_traversal_accepts_more_than_recursive_rejection():
    """On the same trees; a traversal that stops early would not."""
    for siblings in SiblingDraws:
        models = models_of(SHAPES["2-2"])
        lengths = [
            output_law(models, SHAPES["2-2"], rule_of(method), siblings)[1]
            for method in (TreeMethod.recursive, TreeMethod.traversal)
        ]
        assert lengths[1] > lengths[0] + 0.005


def test_the_faulty_update_of_traversal_is_not_lossless():
    """a_u <- min(1, Z / (1 - S(x))), as in a public implementation."""

    def faulty(mass, chance, deleted_prob):
        return torch.where(deleted_prob < 1, mass / (1 - deleted_prob).clamp(min=1e-300), 1.0).clamp(max=1.0)

    def rule(tree, passes):
        return walk_by_traversal(tree, passes, faulty)

    # the context's chance stays 1 in either: it shows below it
    found = [variation(rule, SHAPES[name], siblings) for name in ("1-1", "2-2") for siblings in SiblingDraws]
    assert min(found) > 0.005


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
def test_the_wrong_law_of_siblings_is_not_lossless(method, monkeypatch):
    """Verified as independent though distinct."""
    laws = tree_proposal.TreeProposal.laws

    def independent(self, requests, places):
        return laws(replace(self, siblings=INDEPENDENT), requests, places)

    monkeypatch.setattr(tree_proposal.TreeProposal, "laws", independent)
    assert variation(rule_of(method), (-1, -1), DISTINCT, models=TreeModels(4, 1, seed=1)) > 0.005


def test_a_residual_that_is_not_normalised_is_not_lossless():
    def rule(tree, passes):
        return walk_recursively(tree, passes, lambda left, laws: (left - laws).clamp(min=1e-300))

    for siblings in SiblingDraws:
        assert variation(rule, (-1, -1), siblings, models=TreeModels(4, 1, seed=1)) > 0.005


def test_a_residual_of_kseq_that_ignores_the_discount_is_not_lossless():
    def rule(tree, passes):
        return walk_by_kseq(tree, passes, torch.ones_like)

    assert variation(rule, (-1, -1), INDEPENDENT, models=TreeModels(4, 1, seed=1)) > 0.005


def test_a_discount_of_kseq_that_is_a_little_off_changes_the_law_as_little(monkeypatch):
    """Either way, by a share of it at most. Would catch a bound that leaves out what follows the accepted token."""
    ratio = kseq.kseq_ratio
    for share in (-1e-4, 1e-4):

        def off(*rows, share=share):
            rho, left = ratio(*rows)
            return rho * (1 + share), left

        monkeypatch.setattr(kseq, "kseq_ratio", off)
        found = variation(rule_of(TreeMethod.kseq), SHAPES["2-1"], INDEPENDENT, models=TreeModels(3, 2, seed=3))
        assert 1e-7 < found < 1e-4
