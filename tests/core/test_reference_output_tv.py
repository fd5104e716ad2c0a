"""The distance of a round's first token from the target: its closed form against enumeration through `verify`."""

import pytest
import torch

from kernels.contract import Draft, Verification
from kernels.reference.output_tv import output_tv
from kernels.reference.truncation import sampling_rows
from tests.support.emitted_laws import EXACT, Tree, emitted_law, law_of_method, random_tree
from tests.support.random_round import GREEDY, PLAIN, Method, Round

CASES = {
    "typical": Verification(Method.typical),
    "typical, loose": Verification(Method.typical, epsilon=0.3, delta=0.6),
    "lenient": Verification(Method.lenient, leniency=0.4),
    "lenient, nearly lossless": Verification(Method.lenient, leniency=0.95),
    "synthetic": Verification(Method.synthetic, rates=(0.7, 0.2)),
    "threshold": Verification(Method.threshold, single=0.5, acc=0.7),
    "threshold, single alone": Verification(Method.threshold, single=0.4),
    "strict": Verification(Method.strict),
    "probabilistic": Verification(Method.probabilistic),
    "block": Verification(Method.block),
}


FLY = Verification(Method.fly, window_size=1)


def closed_form(tree: Tree, verification: Verification, one_hot: bool = False) -> list[float]:
    """Of every draft path; the draft distributions of all paths are the same at the first position."""
    logits, draft = tree.round(one_hot)
    rows = sampling_rows(tree.sampling, torch.zeros(len(tree.paths), dtype=torch.long))
    return output_tv(logits, draft, rows, verification).tolist()


def distance_of_first_token(tree: Tree, law: torch.Tensor) -> float:
    return float((law.view(tree.vocab_size, -1).sum(dim=1) - tree.target_probs[0]).abs().sum() / 2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", [{}, {"temperature": 0.6}, {"top_k": 2}, {"temperature": 0.0}], ids=str)
def test_closed_form_equals_enumeration(case: str, setting: dict[str, float]):
    """Would catch a residual of the wrong scale, a threshold on the wrong side and a rejection that emits otherwise."""
    tree = random_tree(seed=7, num_draft_tokens=2, **setting)
    expected = distance_of_first_token(tree, law_of_method(tree, CASES[case]))
    drafted = tree.path_probs(tree.draft_probs) > 0
    for found, is_possible in zip(closed_form(tree, CASES[case]), drafted.tolist(), strict=True):
        assert not is_possible or found == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("verification", [*CASES.values(), FLY], ids=[*CASES, "fly"])
def test_a_one_hot_proposal_is_judged_by_its_tokens(verification: Verification):
    tree = random_tree(seed=3, num_draft_tokens=2)
    proposal = tree.propose(True, verification.method)
    found = closed_form(tree, verification, one_hot=True)
    for path in range(len(tree.paths)):
        only = torch.zeros(len(tree.paths), dtype=torch.float64)
        only[path] = 1.0
        law = emitted_law(tree, proposal, only, verification)
        assert found[path] == pytest.approx(distance_of_first_token(tree, law), abs=EXACT)


@pytest.mark.parametrize("setting", [{}, {"temperature": 0.6}, {"top_k": 2}], ids=str)
def test_flys_estimate_is_its_distance_on_average_over_drafts(setting: dict[str, float]):
    """Would catch a residual that does not lose what deferral keeps, and a window that counts its own token."""
    verification = Verification(Method.fly, window_size=2, entropy_threshold=0.1)
    tree = random_tree(seed=8, num_draft_tokens=3, **setting)
    found = torch.tensor(closed_form(tree, verification), dtype=torch.float64)
    average = float((tree.path_probs(tree.draft_probs) * found).sum())
    assert average > 0.01
    assert average == pytest.approx(distance_of_first_token(tree, law_of_method(tree, verification)), abs=EXACT)


def test_a_smaller_draft_vocabulary_is_laid_over_the_targets():
    tree = random_tree(seed=5, num_draft_tokens=2)
    reduced = Tree(tree.target, tree.proposed[:, :2], 2, tree.sampling, draft_ids=torch.tensor([2, 0]))
    for verification in (CASES["lenient"], CASES["typical"]):
        expected = distance_of_first_token(reduced, law_of_method(reduced, verification))
        drafted = (reduced.path_probs(reduced.draft_probs) > 0).nonzero()[:, 0]
        assert closed_form(reduced, verification)[int(drafted[0])] == pytest.approx(expected, abs=EXACT)
        assert expected > 0.01


def test_padded_slots_and_requests_without_drafts_have_no_distance():
    batch = Round([PLAIN, PLAIN, GREEDY, PLAIN], [3, 1, 2, 0], vocab_size=63)
    requests = torch.arange(4)
    alone = output_tv(batch.rows(requests), batch.draft(requests), batch.sampling, CASES["lenient"])
    assert alone[:2].min() > 0 and alone[2:].tolist() == [0.0, 0.0]
    padded = Draft(batch.token_ids, torch.tensor([3, 1, 2, -1]), batch.cache)
    found = output_tv(batch.target.flatten(0, 1), padded, batch.sampling, CASES["lenient"])
    torch.testing.assert_close(found, alone, rtol=0, atol=EXACT)


def test_the_control_with_shared_noise_has_no_closed_form():
    batch = Round([PLAIN], [1], vocab_size=8)
    only = torch.arange(1)
    with pytest.raises(ValueError, match="pr35461, which has no closed form"):
        output_tv(batch.rows(only), batch.draft(only), batch.sampling, Verification(Method.pr35461))
