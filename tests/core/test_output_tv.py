"""The distance of a round's first token from the target: its closed form against enumeration, and its bound.

Also of drafts that were drawn from other values than verification compares with.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import Draft, Streams, TokenMask, Verification
from kernels.random.streams import Purpose
from kernels.reference.draw import draw
from kernels.reference.output_tv import draft_tv, has_closed_form, output_tv
from kernels.reference.proposal import on_target_vocab
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import verify
from tests.support.emitted_laws import EXACT, Tree, emitted_law, law_of_method, random_tree
from tests.support.random_round import GREEDY, PLAIN, Method, Round, sampling_of

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


PROBABILISTIC, BLOCK = Verification(Method.probabilistic), Verification(Method.block)
UNROUNDED = {
    "probabilistic": PROBABILISTIC,
    "lenient": Verification(Method.lenient, leniency=0.4),
    "typical": Verification(Method.typical, epsilon=0.3, delta=0.6),
    "synthetic": Verification(Method.synthetic, rates=(0.7, 0.2)),
    "threshold": Verification(Method.threshold, single=0.5, acc=0.7),
    "strict": Verification(Method.strict),
}
SETTINGS = ({}, {"temperature": 0.6}, {"top_k": 2}, {"temperature": 0.0})


def other_logits(tree: Tree, seed: int = 0) -> Tensor:
    """[num_nodes, V_draft] what drafts are drawn from; far from the cached ones, so that a wrong formula shows."""
    noise = torch.randn(tree.proposed.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return tree.proposed + noise


def enumerated(tree: Tree, drawn: Tensor, verification: Verification) -> Tensor:
    """[V] law of the first token, by enumeration of every draft path and what verification makes of it."""
    drawing = Tree(tree.target, drawn, tree.num_draft_tokens, tree.sampling, tree.draft_ids)
    proposal = tree.propose(False, verification.method)
    law = emitted_law(tree, proposal, drawing.path_probs(drawing.draft_probs), verification)
    return law.view(tree.vocab_size, -1).sum(dim=1)


def distance(tree: Tree, law: Tensor) -> float:
    return float((law - tree.target_probs[0]).abs().sum() / 2)


def closed_form_of_drawn(tree: Tree, drawn: Tensor, verification: Verification) -> list[float]:
    """Of every draft path: all have the same first distributions, and which token was drawn must not matter."""
    logits, draft = tree.round(one_hot=False)
    rows = sampling_rows(tree.sampling, torch.zeros(len(tree.paths), dtype=torch.long))
    first = drawn[:1].expand(len(tree.paths), -1)
    return output_tv(logits, draft, rows, verification, first).tolist()


@pytest.mark.parametrize("case", UNROUNDED)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_closed_form_of_unrounded_drafts_equals_enumeration(case: str, setting: dict[str, float]):
    tree = random_tree(seed=7, num_draft_tokens=2, **setting)
    drawn = other_logits(tree)
    if setting.get("temperature") == 0:
        # one-hot: the token that was drawn is the argmax of what it was drawn from
        drawn = tree.proposed
    expected = distance(tree, enumerated(tree, drawn, UNROUNDED[case]))
    paths = Tree(tree.target, drawn, 2, tree.sampling).path_probs(tree.draft_probs) > 0
    for found, is_possible in zip(
        closed_form_of_drawn(tree, drawn, UNROUNDED[case]),
        paths.tolist(),
        strict=True,
    ):
        if setting.get("temperature") != 0 or is_possible:
            assert found == pytest.approx(expected, abs=EXACT)
    if case == "strict" or (case.startswith("probabilistic") and setting.get("temperature") == 0):
        assert expected == pytest.approx(0, abs=EXACT)


def test_some_mass_is_lost_where_something_is_cut():
    """Else the enumeration above would not reach drafts that their cached distribution cannot have produced."""
    tree = random_tree(seed=7, num_draft_tokens=2, top_k=2)
    drawing = Tree(tree.target, other_logits(tree), 2, tree.sampling)
    assert float((drawing.draft_probs[0] * (tree.draft_probs[0] == 0)).sum()) > 0.01


def wrong_laws(target: Tensor, drawn: Tensor, cached: Tensor) -> dict[str, Tensor]:
    """Copies of the closed form of probabilistic verification with a mistake each, [V]."""
    possible = cached > 0
    accepts = (target / torch.where(possible, cached, 1.0)).clamp(max=1.0) * possible
    kept, lost = drawn * accepts, (drawn * ~possible).sum()
    of_cache, of_drawn = ((target - other).clamp(min=0) for other in (cached, drawn))
    of_cache, of_drawn = of_cache / of_cache.sum(), of_drawn / of_drawn.sum()
    return {
        "residual of the drawn-from distribution": kept + lost * target + (1 - kept.sum() - lost) * of_drawn,
        "lost drafts emit from the residual": kept + (1 - kept.sum()) * of_cache,
        "accepts as if the cache had been drawn from": cached * accepts + (1 - (cached * accepts).sum()) * of_cache,
        "right": kept + lost * target + (1 - kept.sum() - lost) * of_cache,
    }


def test_wrong_closed_forms_would_be_caught():
    tree = random_tree(seed=7, num_draft_tokens=2, top_k=2)
    drawn = other_logits(tree)
    drawing = Tree(tree.target, drawn, 2, tree.sampling)
    laws = wrong_laws(tree.target_probs[0], drawing.draft_probs[0], tree.draft_probs[0])
    right = enumerated(tree, drawn, PROBABILISTIC)
    torch.testing.assert_close(laws.pop("right"), right, rtol=0, atol=EXACT)
    for name, law in laws.items():
        assert float((law - right).abs().sum()) > 1e-3, name


def test_block_of_one_token_is_probabilistic_and_has_no_short_form_of_more():
    one = random_tree(seed=4, num_draft_tokens=1)
    drawn = other_logits(one)
    expected = distance(one, enumerated(one, drawn, BLOCK))
    assert closed_form_of_drawn(one, drawn, BLOCK) == pytest.approx([expected] * 3, abs=EXACT) and expected > 0.01
    assert has_closed_form(BLOCK, 2, draws_unrounded=False) and not has_closed_form(BLOCK, 2, draws_unrounded=True)
    two = random_tree(seed=4, num_draft_tokens=2)
    with pytest.raises(ValueError, match="found 2 tokens drawn from another"):
        closed_form_of_drawn(two, other_logits(two), BLOCK)


@pytest.mark.parametrize("setting", SETTINGS[:3], ids=str)
def test_the_bias_stays_within_its_bound(setting: dict[str, float]):
    """And the bound is of use: the bias comes to a good part of it. A lenient rule may go beyond it by itself."""
    largest = 0.0
    for seed in range(12):
        tree = random_tree(seed=seed, vocab_size=4, num_draft_tokens=1, **setting)
        drawn = other_logits(tree, seed)
        rows = sampling_rows(tree.sampling, torch.zeros(len(tree.paths), dtype=torch.long))
        _, draft = tree.round(one_hot=False)
        bound = draft_tv(draft, rows, drawn[:1].expand(len(tree.paths), -1))
        direct = (process(drawn[:1], tree.sampling).exp() - process(tree.proposed[:1], tree.sampling).exp()).abs()
        assert bound.tolist() == pytest.approx([float(direct.sum()) / 2] * len(bound), abs=EXACT)
        bias = torch.tensor(closed_form_of_drawn(tree, drawn, PROBABILISTIC))
        assert bool((bias <= bound + EXACT).all())
        largest = max(largest, float((bias / bound.clamp(min=EXACT)).max()))
    assert largest > 0.5


def test_a_smaller_draft_vocabulary_of_unrounded_drafts_is_laid_over_the_targets():
    tree = random_tree(seed=5, num_draft_tokens=2)
    reduced = Tree(tree.target, tree.proposed[:, :2], 2, tree.sampling, draft_ids=torch.tensor([2, 0]))
    drawn = other_logits(reduced)
    expected = distance(reduced, enumerated(reduced, drawn, PROBABILISTIC))
    known = [row for row, path in enumerate(reduced.paths.tolist()) if path[0] in (0, 2)]
    found = closed_form_of_drawn(reduced, drawn, PROBABILISTIC)
    assert [found[row] for row in known] == pytest.approx([expected] * len(known), abs=EXACT) and expected > 0.01
    spread = on_target_vocab(torch.tensor([[0.25, 0.75]]), torch.tensor([2, 0]), 3)
    assert spread.tolist() == [[0.75, 0.0, 0.25]]


def test_padded_slots_temperature_0_and_rows_without_a_distribution():
    target, drawn = torch.randn(2, 5, 2, 7, generator=torch.Generator().manual_seed(3)).double()
    drawn, cache = drawn[:, 0], torch.zeros(5, 2, 7, dtype=torch.float64)
    cache[3, 0, 2] = torch.inf
    draft = Draft(torch.ones(5, 1, dtype=torch.long), torch.tensor([1, -1, 1, 1, 0]), cache)
    sampling = sampling_of(PLAIN, PLAIN, GREEDY, PLAIN, PLAIN)
    bias = output_tv(target.flatten(0, 1), draft, sampling, PROBABILISTIC, drawn).tolist()
    assert bias[0] > 0.01 and bias[1:] == pytest.approx([0.0] * 4, abs=EXACT)
    bound = draft_tv(draft, sampling, drawn).tolist()
    assert bound[0] >= bias[0] and bound[1:] == pytest.approx([0.0, 0.0, 0.5, 0.0])


def test_a_mask_of_the_drafts_holds_for_what_they_were_drawn_from():
    """Masked is as if the logits were -inf: the same as rows that have them there."""
    generator = torch.Generator().manual_seed(2)
    target, drawn = torch.randn(2, 2, 7, generator=generator).double()
    cache = torch.randn(1, 1, 7, generator=generator).double()
    one = torch.ones(1, dtype=torch.long)
    mask = TokenMask(torch.tensor([[0b0101101]], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.long))
    forbidden = torch.tensor([False, True, False, False, True, False, True])
    cut_draft = Draft(2 * one[:, None], one, cache.masked_fill(forbidden, -torch.inf))
    cut = drawn[:1].masked_fill(forbidden, -torch.inf)
    masked, sampling = replace(cut_draft, logits=cache, mask=mask), sampling_of(PLAIN)
    assert draft_tv(masked, sampling, drawn[:1]).tolist() == draft_tv(cut_draft, sampling, cut).tolist()
    found = output_tv(target, masked, sampling, PROBABILISTIC, drawn[:1])
    assert found.tolist() == output_tv(target, cut_draft, sampling, PROBABILISTIC, cut).tolist() and float(found) > 0.01


def test_real_draws_have_the_bias_of_the_closed_form():
    """Drafts drawn by the draft sampler from float32 logits of some size, verified from a bfloat16 cache of them."""
    num_rows, generator = 120_000, torch.Generator().manual_seed(1)
    target, logits = 1.5 * torch.randn(2, 1, 5, generator=generator)
    logits = logits + 100.0
    zeros = torch.zeros(num_rows, dtype=torch.long)
    sampling = sampling_rows(sampling_of(PLAIN), zeros)
    streams = Streams(torch.arange(num_rows), zeros + 5, zeros + 1)
    token_ids = draw(logits.expand(num_rows, -1), sampling, streams, Purpose.draft).token_ids
    counts = torch.ones_like(zeros)

    def emitted(cache: Tensor) -> tuple[Tensor, Draft]:
        draft = Draft(token_ids[:, None], counts, cache.expand(num_rows, 1, -1))
        verdict = verify(target.repeat_interleave(2 * num_rows, 0), draft, sampling, PROBABILISTIC, streams)
        return verdict.token_ids[:, 0].bincount(minlength=5) / num_rows, draft

    target_probs = process(target, sampling_of(PLAIN)).exp()[0]
    found, draft = emitted(logits.bfloat16())
    few = Draft(draft.token_ids[:1], counts[:1], draft.logits[:1])
    expected = float(output_tv(target.expand(2, -1), few, sampling_of(PLAIN), PROBABILISTIC, logits)[0])
    assert expected > 0.01
    # at 4 standard deviations of each of 5 frequencies
    noise = 5 * 4 * 0.5 / num_rows**0.5 / 2
    assert float((found - target_probs).abs().sum() / 2) == pytest.approx(expected, abs=noise)
    assert float((emitted(logits)[0] - target_probs).abs().sum() / 2) < noise < expected
