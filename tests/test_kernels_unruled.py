"""A method that has a name and a row of traits, and no rule: no core runs it by the rule of another one."""

import pytest

from kernels.acceptance_test import RULES
from kernels.contract import SiblingDraws, Verification
from kernels.methods import METHODS, TREE_METHODS, TreeMethod, VerificationMethod
from kernels.tree_walk import WALKS
from tests.kernel_rounds import kernel_round
from tests.kernel_tree_rounds import tree_round
from tests.random_round import GREEDY, PLAIN

CHAINS = {
    "sampled": lambda: kernel_round([PLAIN, GREEDY], [2, 1], 63),
    "at temperature 0": lambda: kernel_round([GREEDY], [2], 63),
    "without drafts": lambda: kernel_round([PLAIN], [0], 63),
}


def added(kind: type, traits_like: VerificationMethod | TreeMethod, monkeypatch: pytest.MonkeyPatch):
    """A member of an enum of methods that is true of what another one is."""
    member = object.__new__(kind)
    member._name_ = member._value_ = "newcomer"
    monkeypatch.setitem(METHODS if kind is VerificationMethod else TREE_METHODS, member, traits_like.traits)
    return member


refused = pytest.raises(ValueError, match="newcomer: expected a method with a rule in kernels")


@pytest.mark.parametrize("chains", CHAINS.values(), ids=CHAINS)
def test_a_method_for_chains_without_a_rule(chains, monkeypatch: pytest.MonkeyPatch):
    """Would catch a last `else` that runs it as probabilistic in both cores, where comparing them finds nothing."""
    method = added(VerificationMethod, VerificationMethod.probabilistic, monkeypatch)
    for core in (chains().expected, chains().found):
        with refused:
            core(Verification(method))


@pytest.mark.parametrize("shape", [(-1, -1, 0), (-1, 0)], ids=["tree", "one child a node"])
@pytest.mark.parametrize(
    ("kind", "like"),
    [(TreeMethod, TreeMethod.recursive), (VerificationMethod, VerificationMethod.synthetic)],
    ids=["for trees", "for both"],
)
def test_a_method_for_trees_without_a_rule(kind: type, like, shape, monkeypatch: pytest.MonkeyPatch):
    """Would catch a walk that takes it for recursive or synthetic, or for the chain method that its row names."""
    method = added(kind, like, monkeypatch)
    batch = tree_round([PLAIN], [shape], 63, SiblingDraws.independent)
    for core in (batch.expected, batch.found):
        with refused:
            core(method=method)


def test_a_kernel_that_is_launched_for_it_all_the_same(monkeypatch: pytest.MonkeyPatch):
    """Would catch a method that is listed as known to the kernels before they have its rule."""
    method = added(VerificationMethod, VerificationMethod.probabilistic, monkeypatch)
    monkeypatch.setattr("kernels.verify.RULES", (*RULES, method.value))
    with pytest.raises(Exception, match="expected a method with a rule"):
        kernel_round([PLAIN], [1], 63).found(Verification(method))


def test_every_method_has_its_rule():
    assert set(RULES) == {method.value for method in VerificationMethod}
    assert set(WALKS) == set(TreeMethod)
