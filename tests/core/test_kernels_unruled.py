"""A method whose rule is incomplete, or that is none: no core runs it by the rule of another one."""

import pytest

from kernels.contract import SiblingDraws, Verification
from kernels.methods import Guarantee, MethodTraits, OwnMethod, Rule, TreeMethod, VerificationMethod
from kernels.methods.hooks import COUPLED, ENTROPY, OWN, Hooks, hooks_of
from kernels.methods.lenient import Lenient
from kernels.methods.probabilistic import Probabilistic
from kernels.methods.recursive import Recursive
from tests.support.kernel_rounds import kernel_round
from tests.support.kernel_tree_rounds import tree_round
from tests.support.own_methods import Half, HalfStrict
from tests.support.random_round import PLAIN


def own(base: type[Rule], **functions: object) -> OwnMethod:
    return OwnMethod(type("Own", (base,), functions)(), "rules:mine")


LOSSY = MethodTraits(Guarantee.lossy, reads_draft=True)


@pytest.mark.parametrize("method", ["probabilistic", None, Half()], ids=["name", "none", "rule"])
def test_what_is_no_method_cannot_be_verified_by(method: object):
    with pytest.raises(ValueError, match=r"expected a method of kernels\.methods"):
        Verification(method)


@pytest.mark.parametrize(
    ("base", "functions", "words"),
    [
        (Rule, {}, "expected a rule with `traits`"),
        (Rule, {"traits": LOSSY}, "expected a rule with `odds`"),
        (
            Half,
            {"revised": lambda self, passes, proposal: passes},
            "expected `revised` of rules whose traits say",
        ),
        (Half, {"traits": MethodTraits(Guarantee.lossy, defers=True)}, "expected `revised` of rules"),
        (Lenient, {"odds": Half.odds}, "expected `hooks` of its own beside odds, found those of Lenient"),
        (Probabilistic, {"traits": LOSSY, "scale": Rule.scale}, "expected `hooks` of its own beside scale"),
    ],
)
def test_an_incomplete_rule_is_refused_by_name(base: type[Rule], functions: dict, words: str):
    """Would catch a last `else` that runs it as probabilistic, or the hooks of the rule that it was derived from."""
    with pytest.raises(ValueError, match=f"rules:mine: {words}"):
        own(base, **functions)


def test_an_incomplete_rule_of_the_table_is_refused_by_both_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(VerificationMethod.strict, "path", ".rule:Rule")
    monkeypatch.delitem(vars(VerificationMethod.strict), "kind", raising=False)
    with pytest.raises(ValueError, match="strict: expected a rule with `traits`"):
        Verification(VerificationMethod.strict)
    monkeypatch.undo()
    assert Verification(VerificationMethod.strict).traits.guarantee is Guarantee.lossless


def test_a_rule_without_hooks_is_refused_by_the_kernels_alone(monkeypatch: pytest.MonkeyPatch):
    batch, method = kernel_round([PLAIN], [2], 63), OwnMethod(HalfStrict(), "rules:mine")
    assert batch.expected(Verification(method)).token_ids.shape == (1, 3)
    with pytest.raises(ValueError, match=r"rules:mine: expected a rule with `hooks`, .* the reference core runs it"):
        batch.found(Verification(method))
    monkeypatch.setattr(Recursive, "tree_hooks", classmethod(lambda cls: None))
    tree = tree_round([PLAIN], [(-1, -1, 0)], 63, SiblingDraws.independent)
    assert tree.expected(method=TreeMethod.recursive).path is not None
    with pytest.raises(ValueError, match="recursive: expected a rule with `tree_hooks`"):
        tree.found(method=TreeMethod.recursive)


def some(*_: object) -> None:
    """Stands for a hook, which nothing compiles here."""


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({}, "expected one of limit, test, count, noise=COUPLED, .* found none of them"),
        ({"limit": some, "test": some}, "found limit, test"),
        ({"limit": some, "noise": COUPLED}, "found limit, noise=COUPLED"),
        ({"limit": some, "noise": "pink"}, "expected noise to be one of fresh, coupled, shared, found 'pink'"),
        ({"count": some}, "expected all of count and mass_passes"),
        ({"limit": some, "revise": some}, "expected all of may_defer and revise"),
        ({"test": some, "statistic": OWN, "of_row": some}, "expected all of of_chunks"),
        (
            {"test": some, "statistic": ENTROPY, "of_row": some, "of_chunks": some},
            "expected all of of_chunks",
        ),
    ],
)
def test_hooks_that_decide_nothing_or_twice_are_refused(hooks: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Hooks(**hooks)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"count": some, "mass_passes": some}, "without count"),
        ({"limit": some, "may_defer": some, "revise": some}, "without may_defer and revise"),
        ({"noise": COUPLED}, "without noise other than FRESH"),
        ({"limit": some, "uniform": some}, "without uniform"),
        ({"limit": some, "left": some}, "without left, residual or count"),
    ],
)
def test_hooks_that_contradict_the_traits_are_refused(hooks: dict, words: str):
    """Would catch kernels that decide by another kind of rule than the reference."""
    method = own(Half, hooks=classmethod(lambda cls: Hooks(**hooks)))
    with pytest.raises(ValueError, match=f"Own: expected hooks {words}, as its traits"):
        hooks_of(method)


def test_every_method_of_the_table_has_hooks():
    assert all(hooks_of(method) is hooks_of(method) for method in VerificationMethod)
    assert all(method.kind.tree_hooks() for method in TreeMethod)


def test_hooks_that_forget_the_emission_are_refused():
    """Would catch a lossless rule whose next token comes from another law on the kernels."""
    method = own(HalfStrict, hooks=classmethod(lambda cls: Hooks(limit=some)))
    with pytest.raises(ValueError, match="Own: expected hooks with left, residual or count"):
        hooks_of(method)
