"""Masks in the reference: as logits of -inf, before everything else; the law is the target's, restricted."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.contract import Draft, TokenMask, Verification
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw
from kernels.reference.draw import draw
from kernels.reference.logprobs import logprobs
from kernels.reference.proposal import Proposal, propose
from kernels.reference.token_mask import without_forbidden
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import verify
from tests.support.emitted_laws import EXACT, LOSSLESS, Tree, law_of_method, random_tree, total_variation
from tests.support.kernel_rounds import (
    LENGTHS,
    MIXED,
    KernelRound,
    assert_same_verdict,
    kernel_round,
    random_words,
    streams_of,
)
from tests.support.random_round import GREEDY, PLAIN, SAMPLED_METHODS, Method, Setting, sampling_of, verification_of

CPU = torch.device("cpu")
CAUGHT = 0.01
"""Total variation that a wrong version exceeds by far."""


def words_of(masks: list[list[int]], num_words: int = 1) -> Tensor:
    """Masks that allow the tokens listed."""
    bits = [[sum(1 << (token % 32) for token in mask if token // 32 == word) for word in range(num_words)]
            for mask in masks]  # fmt: skip
    return torch.tensor(bits).int()


def edited(logits: Tensor, mask: TokenMask, target_ids: Tensor | None = None) -> Tensor:
    """The same by the definition, token by token."""
    left = logits.clone()
    for row, index in enumerate(mask.rows.tolist()):
        words = [word % 2**32 for word in mask.words[index].tolist()]
        for place in range(logits.shape[1]):
            token = place if target_ids is None else int(target_ids[place])
            if index >= 0 and not (words[token // 32] >> (token % 32)) & 1:
                left[row, place] = -torch.inf
    return left


def without_masks(batch: KernelRound) -> KernelRound:
    """The round with edited logits."""
    assert batch.mask is not None
    draft = batch.draft
    if draft.logits is not None:
        assert draft.mask is not None
        flat = replace(draft.mask, rows=draft.mask.rows.flatten())
        cache = edited(draft.logits.flatten(0, 1), flat, draft.draft_to_target).view_as(draft.logits)
        draft = replace(draft, logits=cache, mask=None)
    return replace(batch, target_logits=edited(batch.target_logits, batch.mask), draft=draft, mask=None)


def test_bit_of_a_token():
    """Would catch the sign bit read as more than token 31."""
    left = without_forbidden(
        torch.zeros(3, 40), TokenMask(words_of([[31, 32, 39]], num_words=2), torch.tensor([0, -1, 0]))
    )
    assert left[0].isfinite().nonzero()[:, 0].tolist() == [31, 32, 39]
    assert left[1].isfinite().all()
    assert torch.equal(left[2], left[0])


@pytest.mark.parametrize("kind", ["cached", "smaller vocabulary", "one-hot", "padded"])
def test_masked_rounds_are_rounds_of_edited_logits(kind: str):
    """Would catch a mask that is forgotten in the draft's rows, or comes after truncation, under every method."""
    ids = torch.randperm(63, generator=torch.Generator().manual_seed(1))[:40] if kind == "smaller vocabulary" else None
    batch = kernel_round(
        MIXED, LENGTHS, 63, draft_vocab=ids, one_hot=kind == "one-hot", padded=kind == "padded", seed=2, masked=True,
        device=CPU,
    )  # fmt: skip
    plain = without_masks(batch)
    for method in SAMPLED_METHODS:
        assert_same_verdict(batch.expected(verification_of(method)), plain.expected(verification_of(method)))


@pytest.mark.parametrize("mapped", [False, True], ids=["same ids", "mapped ids"])
def test_masked_draws_are_draws_from_edited_logits(mapped: bool):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randperm(63, generator=generator)[:40] if mapped else None
    logits = 3 * torch.randn(6, 40 if mapped else 63, generator=generator)
    mask = TokenMask(random_words(5, 63, generator), torch.tensor([2, -1, 3, 4, -1, 2]))
    sampling, streams, plain = sampling_of(*MIXED), streams_of(6, 4), edited(logits, mask, ids)
    pairs = [
        (
            draw(logits, sampling, streams, Purpose.draft, ids, mask=mask),
            draw(plain, sampling, streams, Purpose.draft, ids),
        ),
        (coupled_draw(logits, sampling, streams, 63, ids, mask=mask), coupled_draw(plain, sampling, streams, 63, ids)),
    ]
    if not mapped:
        tokens = torch.arange(6)
        pairs.append((logprobs(logits, tokens, 9, sampling, mask), logprobs(plain, tokens, 9, sampling)))
    for found, right in pairs:
        for name in ("token_ids", "logprobs", "invalid", "token_logprob", "top_token_ids", "top_logprobs", "rank"):
            if hasattr(found, name):
                assert torch.equal(getattr(found, name), getattr(right, name))


class MaskedTree(Tree):
    """A tree whose target and draft rows have masks of their own after every path, some of them free."""

    def __init__(
        self, plain: Tree, seed: int, mask: int | None = None, cuts_first: bool = False, forgets_draft: bool = False
    ):
        """`mask` is that of all rows, random ones else; `cuts_first` and `forgets_draft` are mistakes of verification,
        while the laws it is compared with stay right."""
        super().__init__(plain.target, plain.proposed, plain.num_draft_tokens, plain.sampling)
        num_nodes, vocab_size = plain.target.shape
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.arange(1, 2**vocab_size).int()[:, None]
        rows = torch.randint(-1, len(self.words), (2, num_nodes), generator=generator)
        if mask is not None:
            rows[:] = mask
        self.target_rows, self.draft_rows = rows
        self.cuts_first, self.forgets_draft = cuts_first, forgets_draft
        rows_of = sampling_rows(plain.sampling, torch.zeros(num_nodes, dtype=torch.long))
        self.target_probs = process(edited(plain.target, TokenMask(self.words, rows[0])), rows_of).exp()
        self.draft_probs = process(edited(plain.proposed, TokenMask(self.words, rows[1])), rows_of).exp()

    def propose(self, one_hot: bool, method: Method) -> Proposal:
        logits, draft = self.round(one_hot)
        sampling = sampling_rows(self.sampling, torch.zeros_like(self.paths[:, 0]))
        if self.cuts_first:
            rows = sampling_rows(self.sampling, torch.zeros(len(logits), dtype=torch.long))
            logits = logits.masked_fill(process(logits, rows) == -torch.inf, -torch.inf)
        logits = without_forbidden(logits, TokenMask(self.words, self.target_rows[self.nodes].flatten()))
        if not self.forgets_draft:
            draft = replace(draft, mask=TokenMask(self.words, self.draft_rows[self.nodes[:, :-1]]))
        return propose(logits, draft, sampling, method.traits.reads_draft)


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
@pytest.mark.parametrize("one_hot", [False, True], ids=["cached", "one-hot"])
def test_lossless_method_under_masks(method: Method, one_hot: bool):
    """What is emitted has the target's law, restricted to what is allowed and renormalised."""
    plain = random_tree(seed=31, num_draft_tokens=2)
    tree = MaskedTree(plain, seed=1)
    for row, index in enumerate(tree.target_rows.tolist()):
        allowed = [index < 0 or bool(((index + 1) >> token) & 1) for token in range(3)]
        kept = plain.target_probs[row] * torch.tensor(allowed)
        torch.testing.assert_close(tree.target_probs[row], kept / kept.sum(), rtol=EXACT, atol=0)
    assert total_variation(tree, law_of_method(tree, Verification(method), one_hot)) < EXACT


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.value)
def test_lossless_method_under_masks_that_come_before_truncation(method: Method):
    tree = MaskedTree(random_tree(seed=32, num_draft_tokens=2, top_k=2), seed=2)
    assert total_variation(tree, law_of_method(tree, Verification(method))) < EXACT


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block], ids=lambda method: method.value)
def test_mask_forgotten_in_the_draft_rows_is_caught(method: Method):
    tree = MaskedTree(random_tree(seed=31, num_draft_tokens=2), seed=1, forgets_draft=True)
    assert total_variation(tree, law_of_method(tree, Verification(method))) > CAUGHT


@pytest.mark.parametrize("method", [Method.strict, Method.block], ids=lambda method: method.value)
def test_mask_after_truncation_is_caught(method: Method):
    """Top-2 of (.5, .3, .2) under a mask that forbids the first is (0, .6, .4), and not (0, 1, 0)."""
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().expand(13, 3)
    tree = Tree(target, target.flip(1), 2, sampling_of((1.0, 2, 1.0, 0.0)))
    for cuts_first in (False, True):
        masked = MaskedTree(tree, seed=2, mask=5, cuts_first=cuts_first)
        deviation = total_variation(masked, law_of_method(masked, Verification(method)))
        assert deviation > 0.3 if cuts_first else deviation < EXACT


def small_round(setting: Setting, target: list[list[float]], drafts: list[int]):
    """One request: its target logits, its drafts, and what else `verify` takes."""
    draft = Draft(torch.tensor([drafts]), torch.tensor([len(drafts)]))
    return torch.tensor(target), draft, sampling_of(setting), streams_of(1, 5)


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
@pytest.mark.parametrize("setting", [PLAIN, GREEDY], ids=["sampled", "greedy"])
def test_forbidden_draft_token_is_rejected_and_only_the_allowed_one_is_emitted(method: Method, setting: Setting):
    target, draft, sampling, streams = small_round(setting, [[9.0, 0.0, 8.0], [0.0, 0.0, 0.0]], [0])
    mask = TokenMask(words_of([[1]]), torch.tensor([0, 0]))
    rule = Verification(method, **({"rates": (0.0,)} if method is Method.synthetic else {}))
    verdict = verify(target, draft, sampling, rule, streams, mask)
    assert verdict.token_ids.tolist() == [[1, -1]]
    assert not verdict.invalid.any()


def test_synthetic_ignores_tokens_and_emits_an_allowed_one():
    target, draft, sampling, streams = small_round(PLAIN, [[9.0, 0.0, 8.0], [0.0, 5.0, 0.0]], [0])
    mask = TokenMask(words_of([[1], [2]]), torch.tensor([0, 1]))
    rule = Verification(Method.synthetic, rates=(1.0,))
    assert verify(target, draft, sampling, rule, streams, mask).token_ids.tolist() == [[0, 2]]


@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)
@pytest.mark.parametrize("setting", [PLAIN, GREEDY], ids=["sampled", "greedy"])
def test_row_without_an_allowed_token_is_flagged(method: Method, setting: Setting):
    target, draft, sampling, streams = small_round(setting, [[9.0, 0.0, 8.0], [0.0, 0.0, 0.0]], [0])
    rule = Verification(method, **({"rates": (1.0,)} if method is Method.synthetic else {}))
    verdict = verify(target, draft, sampling, rule, streams, TokenMask(words_of([[]]), torch.tensor([0, -1])))
    assert verdict.invalid.tolist() == [True]
    assert verdict.num_accepted.tolist() == [0]
    assert verdict.token_ids.tolist() == [[0, -1]]


def test_forbidden_nan_is_as_forbidden_as_any_logit():
    drawn = draw(
        torch.tensor([[torch.nan, 0.0, torch.inf]]), sampling_of(PLAIN), streams_of(1, 6), Purpose.draft,
        mask=TokenMask(words_of([[1]]), torch.tensor([0])),
    )  # fmt: skip
    assert (drawn.token_ids.tolist(), drawn.logprobs.tolist(), drawn.invalid.tolist()) == ([1], [0.0], [False])


@pytest.mark.parametrize(
    ("words", "rows", "message"),
    [
        (torch.zeros(1, 1).long(), torch.tensor([0]), "int32, found"),
        (torch.zeros(1, 2).int(), torch.tensor([0, 0]), r"one int64 per row, \[1\]; found \[2\]"),
        (torch.zeros(1, 2).int(), torch.tensor([1]), r"lie in 0..0, .* found \[1\]"),
        (torch.zeros(1, 1).int(), torch.tensor([0]), "must have 2 words, a bit for every token; found 1"),
    ],
    ids=["type", "rows", "no such mask", "too few words"],
)
def test_mask_that_does_not_fit_is_an_error(words: Tensor, rows: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        without_forbidden(torch.zeros(1, 33), TokenMask(words, rows))


def test_raw_logprobs_have_no_mask():
    mask = TokenMask(words_of([[1]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="a mask belongs to the processed distribution"):
        logprobs(torch.zeros(1, 3), torch.tensor([0]), 1, None, mask)
