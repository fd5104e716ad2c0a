"""Toy pairs of a target and a drafter, each a table of logits indexed by the last tokens: their laws are known exactly.

The exact law of a request's first tokens, in float64, is written apart from the code that it tests:

softmax of logit / T; top-k keeps the k largest; top-p the smallest set of largest probabilities, renormalised after
top-k, whose mass reaches top_p; min-p what has at least min_p times the largest probability. T = 0 is the argmax.

Shapes: C states, V the target's vocabulary, V_draft the drafter's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from harness.checks.certification.toy_edits import ToyEdits
from harness.drafters.shared_rows import SharedRows
from harness.models.block_rows import BlockRows
from harness.models.candidate_rows import CandidateSelector, SelectorRows
from harness.models.markov_rows import MarkovHead, MarkovRows
from harness.models.shared_tokens import SharedTokens


@dataclass(frozen=True)
class ToyModels:
    """A Markov target and a Markov drafter that see the last `order` tokens."""

    name: str
    target_logits: Tensor
    """[C, V] float32, C = V ** order; row of the state, which is the last `order` tokens as digits in base V."""
    draft_logits: Tensor
    """[C, V_draft] float32."""
    num_tokens: int
    """Output tokens of a request whose joint law is tested."""
    draft_to_target: Tensor | None = None
    """[V_draft] int64, target id of each draft id; None when the vocabularies are the same."""
    allowed: Tensor | None = None
    """[C, V] bool, tokens that a grammar allows after each state, to target and drafter alike; None: all of them."""
    token_ids: Tensor | None = None
    """[V] int64, increasing: the ids under which a subject sees the tokens; None when they are 0..V-1."""
    num_spread_ids: int = 0
    """Vocabulary that the subject sees where `token_ids` are given."""
    other_logit: float = -math.inf
    """Logit of its other tokens, in target and drafter; above -inf only where every request's truncation cuts them."""

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[1]

    @property
    def num_ids(self) -> int:
        """Size of the vocabulary that the subject sees."""
        return self.vocab_size if self.token_ids is None else self.num_spread_ids

    def rows_seen(self, logits: Tensor) -> Tensor:
        """[C, V] logits -> [C, num_ids], the rows that the subject sees; a drafter's the same, or as they are."""
        if self.token_ids is None:
            return logits
        rows = logits.new_full((len(logits), self.num_ids), self.other_logit)
        rows[:, self.token_ids] = logits
        return rows

    def numbers_of(self) -> Tensor:
        """[num_ids] int64, the models' own number of each token that the subject sees, -1 for one it does not have."""
        device = self.target_logits.device
        numbers = torch.arange(self.vocab_size, device=device)
        if self.token_ids is None:
            return numbers
        return torch.full((self.num_ids,), -1, device=device).scatter_(0, self.token_ids, numbers)

    def spread(self, name: str, token_ids: tuple[int, ...], num_ids: int, other_logit: float = -math.inf) -> ToyModels:
        """The same pair and law in a larger vocabulary."""
        assert self.draft_to_target is None and self.allowed is None
        ids = torch.tensor(token_ids)
        return replace(self, name=name, token_ids=ids, num_spread_ids=num_ids, other_logit=other_logit)

    @property
    def num_states(self) -> int:
        return self.target_logits.shape[0]

    @property
    def num_codes(self) -> int:
        """Number of sequences of `num_tokens` tokens."""
        return self.vocab_size**self.num_tokens

    def next_states(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """The states after one more token; both int64 and of one shape."""
        return (states * self.vocab_size + token_ids) % self.num_states

    def in_dtype(self, dtype: torch.dtype) -> ToyModels:
        """The pair that a model in `dtype` would be: its logits are rounded, and its law with them."""
        return replace(self, target_logits=self.target_logits.to(dtype), draft_logits=self.draft_logits.to(dtype))

    def on(self, device: torch.device) -> ToyModels:
        """The same pair on a device."""
        ids = None if self.draft_to_target is None else self.draft_to_target.to(device)
        allowed = None if self.allowed is None else self.allowed.to(device)
        token_ids = None if self.token_ids is None else self.token_ids.to(device)
        return replace(
            self,
            target_logits=self.target_logits.to(device),
            draft_logits=self.draft_logits.to(device),
            draft_to_target=ids,
            allowed=allowed,
            token_ids=token_ids,
        )

    def under(self, grammar: tuple[tuple[int, ...], ...]) -> ToyModels:
        """The pair under a grammar, the tokens that it allows after each state."""
        allowed = torch.zeros(self.target_logits.shape, dtype=torch.bool)
        for state, token_ids in enumerate(grammar):
            allowed[state, list(token_ids)] = True
        return replace(self, name=f"{self.name}, grammar", allowed=allowed)


def random_models(
    name: str,
    vocab_size: int,
    order: int,
    num_tokens: int,
    seed: int,
    draft_noise: float = 0.8,
    sharpness: float = 0.9,
    draft_to_target: tuple[int, ...] | None = None,
    offset: float = 0.0,
) -> ToyModels:
    """A pair with normal logits; the drafter is the target with noise added, so that drafts are accepted at times.

    Args:
        name: for tables.
        vocab_size: V.
        order: tokens that the pair looks back on.
        num_tokens: length of the tested joint law.
        seed: of the numbers.
        draft_noise: standard deviation of what the drafter adds.
        sharpness: standard deviation of the target's logits.
        draft_to_target: the target's ids that the drafter knows; None is all.
        offset: of all logits, which leaves the law as it is.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab_size**order, vocab_size)
    target = offset + sharpness * torch.randn(shape, generator=generator)
    draft = target + draft_noise * torch.randn(shape, generator=generator)
    if draft_to_target is None:
        return ToyModels(name, target, draft, num_tokens)
    ids = torch.tensor(draft_to_target)
    return ToyModels(name, target, draft[:, ids].contiguous(), num_tokens, ids)


def peaked_models(leads: tuple[tuple[float, ...], ...]) -> ToyModels:
    """A pair that looks back on one token: the target's logits suit T = 0.1; the drafter's are those and `leads`.

    Args:
        leads: [V][V], added to the logits of each state.
    """
    flat = random_models("peaked drafts", len(leads), order=1, num_tokens=3, seed=13)
    return replace(
        flat, target_logits=0.1 * flat.target_logits, draft_logits=0.1 * flat.draft_logits + torch.tensor(leads)
    )


def shared_models(name: str, target_ids: tuple[int, ...], draft_ids: tuple[int, ...], num_draft_ids: int) -> ToyModels:
    """A pair with other token ids, whose drafter drafts the tokens that both have, by the object that the engine uses.

    Args:
        name: for tables.
        target_ids: increasing, of the shared tokens among six.
        draft_ids: the drafter's ids of them.
        num_draft_ids: ids of the drafter in all.
    """
    whole = random_models(name, vocab_size=6, order=1, num_tokens=3, seed=17)
    rows = torch.randn(6, num_draft_ids, generator=torch.Generator().manual_seed(18))
    rows[:, list(draft_ids)] = whole.draft_logits[:, list(target_ids)]
    shared = SharedRows(SharedTokens(target_ids, draft_ids, ()), torch.device("cpu"))
    restricted = shared.restricted(rows, torch.ones(6, dtype=torch.bool))
    return replace(whole, draft_logits=restricted, draft_to_target=shared.target_ids)


def block_models(name: str, make: Callable[[Tensor, Tensor], BlockRows], parameters: nn.Module) -> ToyModels:
    """A pair whose drafter makes its rows as a head of blocks does, by the object that the engine uses.

    Args:
        name: for tables.
        make: from logits [C, 1, V] and states [C, 1, H = 3] of places; the state of a row is the token before it.
        parameters: those of `make`, which are drawn.
    """
    whole, generator = random_models(name, vocab_size=6, order=1, num_tokens=3, seed=25), torch.Generator()
    generator.manual_seed(26)
    with torch.no_grad():
        for parameter in parameters.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        hidden = torch.randn(6, 1, 3, generator=generator)
        rows = make(whole.draft_logits.unsqueeze(1), hidden).row(0, torch.arange(6), None)
    return replace(whole, draft_logits=rows.clone())


def biased_models() -> ToyModels:
    """Drafts with the bias of a DSpark head's gated Markov head."""
    head = MarkovHead("gated", rank=2, hidden_size=3, vocab_size=6, draft_vocab_size=6)
    return block_models("bias of the token before", partial(MarkovRows, head=head), head)


def candidate_models() -> ToyModels:
    """Drafts among the three candidates of a DFlash2 head's selector, of six tokens."""
    selector = CandidateSelector(top_k=3, rank=2, hidden_size=3, vocab_size=6, draft_vocab_size=6)
    return block_models("candidates", partial(SelectorRows, selector=selector), selector)


PLAIN = random_models("plain", vocab_size=4, order=2, num_tokens=4, seed=3)
"""Both look at the last two tokens."""
WIDE = random_models("wide", vocab_size=8, order=1, num_tokens=3, seed=5)
"""Wide enough for top-k, top-p and min-p to cut something in every row."""
NARROW_DRAFT = random_models("narrow draft", vocab_size=6, order=1, num_tokens=3, seed=7, draft_to_target=(4, 1, 5, 2))
"""The drafter knows four of six tokens, in another order."""
SHARED = shared_models("shared tokens", target_ids=(1, 2, 4, 5), draft_ids=(6, 0, 3, 2), num_draft_ids=7)
"""The drafter has seven tokens of its own, four of which are among the target's six."""
BIASED, CANDIDATES = biased_models(), candidate_models()
"""Draft rows as DSpark and DFlash2 heads make them; of the second each has three tokens with mass."""
CONTROL = random_models("control", vocab_size=3, order=1, num_tokens=3, seed=21, draft_noise=1.0, sharpness=1.0)
"""Few sequences and much rejection: deviations stand out."""
STEPS = replace(CONTROL, name="control of four tokens", num_tokens=4)
"""The same where the first token is drawn without drafts."""
GRAMMAR = ((0, 2, 3, 5), (0, 1, 2, 3, 4, 5), (1, 2), (0, 1, 4, 5), (2, 3, 4), (1, 5))
"""Tokens that may follow each of six; after the second token all may, so that its rows are free. Wherever it forbids,
it allows a token that the drafter of NARROW_DRAFT knows."""
MASKED = random_models("wide", vocab_size=6, order=1, num_tokens=3, seed=9).under(GRAMMAR)
MASKED_NARROW_DRAFT = NARROW_DRAFT.under(GRAMMAR)
"""Under a grammar; the second with a drafter that knows fewer tokens."""
MASKED_CONTROL = CONTROL.under(((0, 1), (1, 2), (0, 2)))
PEAKED = peaked_models(
    ((0.0, 0.0, 0.0, 0.0), (0.0, -3.0, -6.0, -6.2), (-5.3, 0.0, -5.2, -5.4), (-7.5, -7.3, 0.0, -7.4))
)
"""For T = 0.1, where the second or the third token of some draft rows has a probability of 1e-13 to 1e-33, and the
target often takes it. Behind the first children there remains more of a row, and less, than SMALLEST_REST."""
NUM_SPREAD_IDS = 3 * 2048 + 5
"""Kernels read a row in chunks of 2,048 tokens: three whole ones and the beginning of a fourth."""
SPREAD = random_models("spread", vocab_size=5, order=1, num_tokens=3, seed=11).spread(
    "spread", (7, 2047, 4096, 5000, NUM_SPREAD_IDS - 1), NUM_SPREAD_IDS
)
"""In a row of several chunks, one of which has no token with mass."""
ABOVE_ZEROS = random_models("above zeros", vocab_size=8, order=1, num_tokens=3, seed=6, offset=7.0).spread(
    "spread over zeros", (3, 2040, 2047, 2048, 4095, 4096, 6143, NUM_SPREAD_IDS - 1), NUM_SPREAD_IDS, other_logit=0.0
)
"""The same with thousands of tokens of logit 0, which top-k cuts, and top-p at a temperature of at most .5."""

NUM_TREE_SPREAD_IDS = 3 * 4 * 2048 + 5
"""The kernels of trees give a program four chunks at a time: three whole groups and the beginning of a fourth, so that
up to four programs share a request and meet after each step of its walk."""
TREE_SPREAD = random_models("spread", vocab_size=5, order=1, num_tokens=3, seed=11).spread(
    "spread over programs", (7, 8191, 8192, 16500, NUM_TREE_SPREAD_IDS - 1), NUM_TREE_SPREAD_IDS
)
TREE_ABOVE_ZEROS = random_models("above zeros", vocab_size=8, order=1, num_tokens=3, seed=6, offset=7.0).spread(
    "spread over programs and zeros",
    (3, 2047, 8191, 8192, 12288, 16383, 16384, NUM_TREE_SPREAD_IDS - 1),
    NUM_TREE_SPREAD_IDS,
    other_logit=0.0,
)
"""The same with thousands of tokens of logit 0, which top-k cuts."""


class Profile(NamedTuple):
    """The sampling parameters of one request."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def processed_row(logits: Tensor, profile: Profile) -> Tensor:
    """The distribution of one row.

    Args:
        logits: [V], any floating dtype, finite, or -inf where forbidden; no two of them equal at a cut.
        profile: its numbers are taken in float32, as a sampler receives them.

    Returns:
        [V] float64.
    """
    values = logits.double().cpu()
    temperature, top_p, min_p = (
        float(torch.tensor(value, dtype=torch.float32)) for value in (profile.temperature, profile.top_p, profile.min_p)
    )
    if temperature == 0:
        return torch.nn.functional.one_hot(values.argmax(), len(values)).double()
    probs, order = torch.softmax(values / temperature, dim=0).sort(descending=True)
    keeps = torch.ones_like(probs, dtype=torch.bool)
    if 0 < profile.top_k < len(probs):
        keeps[profile.top_k :] = False
    left = probs * keeps / (probs * keeps).sum()
    keeps &= (left.cumsum(0) - left < top_p) & (probs >= min_p * probs[0])
    kept = probs * keeps
    return torch.zeros_like(probs).scatter_(0, order, kept / kept.sum())


def exact_law(models: ToyModels, profile: Profile, edits: ToyEdits | None = None) -> Tensor:
    """Probability of every sequence of the models' first `num_tokens` tokens, from state 0.

    Returns:
        [V ** num_tokens] float64; the index is the sequence as digits in base V, first token first.
    """
    logits = models.target_logits
    if models.allowed is not None:
        logits = logits.masked_fill(~models.allowed, -torch.inf)
    rows = torch.stack([processed_row(row, profile) for row in logits])
    tokens = torch.arange(models.vocab_size)
    law, states = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    texts: list[list[int]] = [[]]
    for _ in range(models.num_tokens):
        of_texts = rows[states]
        if edits is not None:
            pairs = zip(logits[states].cpu(), texts, strict=True)
            of_texts = torch.stack([processed_row(edits.row(row, text), profile) for row, text in pairs])
            texts = [[*text, token] for text in texts for token in tokens.tolist()]
        law = (law[:, None] * of_texts).flatten()
        states = models.next_states(states[:, None], tokens).flatten()
    return law
