"""The contract of the sampling core: what `verify` and `draw` take and return, for the kernels and for the reference.

Shapes: R requests in the batch, K the largest number of draft tokens of a request in the batch,
V the target's vocabulary, V_draft the drafter's, S slots of the persistent draft-logit cache, M bit masks.
The methods are those of kernels.methods, which settings and reports import without this module: it knows torch, though
not at import time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

# subjects of a certification import the names of methods from here
from .methods import DraftSampling, Guarantee, SiblingDraws, VerificationMethod  # noqa: F401
from .verification import Verification  # noqa: F401

if TYPE_CHECKING:
    from torch import Tensor, device


ANY_TOKEN, NO_TOKEN = -(2**31), -1
"""In the place of a token of an ending: every token fits, or none. NO_TOKEN in a tree of drafts: no node."""


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters of each request; they shape the target's and the draft's distribution alike."""

    temperature: Tensor
    """[R] float32; 0 means greedy."""
    top_k: Tensor
    """[R] int64; 0 means off."""
    top_p: Tensor
    """[R] float32; 1 means off."""
    min_p: Tensor
    """[R] float32; 0 means off."""
    truncates: bool = True
    """False promises that no request cuts anything, so that a GPU need not look: its values cannot be read in time."""
    is_mixed: bool = False
    """Some requests cut and others do not: a GPU gives each kind the kernels, and thereby the tokens, of a batch of its
    own. Without it, where `truncates`, all requests take the kernels of those that cut."""

    @classmethod
    def same_for_all(
        cls, num_rows: int, temperature: float, top_k: int, top_p: float, min_p: float, device: device | None = None
    ) -> Sampling:
        """Parameters that every row shares, fields [num_rows]; 0, 1 and 0 turn top-k, top-p and min-p off."""
        import torch

        return cls(
            temperature=torch.full((num_rows,), temperature, dtype=torch.float32, device=device),
            top_k=torch.full((num_rows,), top_k, dtype=torch.int64, device=device),
            top_p=torch.full((num_rows,), top_p, dtype=torch.float32, device=device),
            min_p=torch.full((num_rows,), min_p, dtype=torch.float32, device=device),
            truncates=top_k > 0 or top_p < 1 or min_p > 0,
        )

    def each(self, change: Callable[[Tensor], Tensor]) -> Sampling:
        """The same promises of other requests: every field is changed in the same way."""
        cuts = change(self.top_k), change(self.top_p), change(self.min_p)
        return Sampling(change(self.temperature), *cuts, self.truncates, self.is_mixed)


@dataclass(frozen=True)
class Streams:
    """Where each request stands in its random streams (see kernels.random.streams)."""

    seeds: Tensor
    """[R] int64."""
    positions: Tensor
    """[R] int64; absolute position, in the request's token sequence, of the first token this round may emit."""
    rounds: Tensor
    """[R] int64; the request's own count of rounds, 0 for the draw that ends the prefill."""


@dataclass(frozen=True)
class RowStats:
    """What one pass over rows of raw logits leaves: enough to compute the probability of any of their tokens.

        p(x) = exp((logit(x) - maximum) / T) / normalizer    where logit(x) >= threshold, else 0

    For drafts they are kept beside the cached logits, so that verification need not read a whole row to know q(X).
    Fields have one common shape, [N] or, beside a draft-logit cache, [S, >= K].
    """

    maximum: Tensor
    """float32, the largest raw logit."""
    normalizer: Tensor
    """float64, sum of exp((logit - maximum) / T) over the tokens that survive; 1 at temperature 0; NaN if the row has
    no distribution."""
    threshold: Tensor
    """float32, the smallest raw logit that survives truncation; -inf when nothing is cut."""

    @classmethod
    def empty(cls, *size: int, device: device | None = None) -> RowStats:
        """Room for `draw` to fill, fields [size]; what it holds has no meaning yet."""
        import torch

        return cls(
            maximum=torch.empty(size, dtype=torch.float32, device=device),
            normalizer=torch.empty(size, dtype=torch.float64, device=device),
            threshold=torch.empty(size, dtype=torch.float32, device=device),
        )

    def at(self, places: Any) -> RowStats:
        """The statistics at an index of the fields."""
        return RowStats(self.maximum[places], self.normalizer[places], self.threshold[places])


@dataclass(frozen=True)
class TokenMask:
    """Which tokens a grammar allows in each row of logits: a forbidden one is as if its logit were -inf.

    That comes first: temperature and truncation see what is left. A row without an allowed token has no distribution.
    Token ids are the target's, also where the rows are a drafter's with a vocabulary of its own.
    """

    words: Tensor
    """[M, >= ceil(V / 32)] int32; bit v % 32 of word v // 32 is set where token v is allowed. Bits from V on are
    ignored."""
    rows: Tensor
    """int64, which of the M each row of logits has, -1 where everything is allowed; of the shape of the rows:
    [number of rows] for target rows and for a draw, [S, >= K] beside a draft-logit cache. The same `words` may serve
    both."""


@dataclass(frozen=True)
class Draft:
    """The proposals of one round."""

    token_ids: Tensor
    """[R, K] int64, ids of the target's vocabulary; entries at or beyond num_draft_tokens are ignored. -1 before that
    is a placeholder, where nothing was drafted: it is rejected with all that follows it, without a flag, and the token
    in its place comes from the target. Not for a token that was drawn and then withdrawn because of what it is: the
    residual depends on it, so it stays, and a mask of the target row forbids it."""
    num_draft_tokens: Tensor
    """[R] int64, 0..K; -1 marks a padded slot, for which nothing is read or emitted. The reference raises a ValueError
    for other values; the kernels, which do not read them on the host, take a larger one as K and flag its request, and
    a smaller one as -1."""
    logits: Tensor | None = None
    """[S, >= K, V_draft] the persistent cache of raw draft logits, V_draft at most V; None when the proposals are
    one-hot."""
    idx_mapping: Tensor | None = None
    """[R] int64, row of `logits` that belongs to each request; None means row r for request r."""
    draft_to_target: Tensor | None = None
    """[V_draft] int64, target id of each draft id; None when the vocabularies are the same."""
    row_stats: RowStats | None = None
    """Of the rows of `logits`, as `draw` wrote them; None: verification reads the rows again."""
    mask: TokenMask | None = None
    """That the rows of `logits` were drawn under, `rows` [S, >= K]; None when they were all free. Where it is another
    than they were drawn under, so is the distribution that verification takes for theirs."""
    parents: Tensor | None = None
    """[R, K] int64, index of the draft token that each one follows, smaller than its own; -1 for the children of the
    context. The K draft tokens are then the nodes of a tree, siblings in the order in which they were drawn, and target
    row i + 1 is conditioned on the path to node i. Siblings are drawn from one row of `logits`, that of the first of
    them; a token of NO_TOKEN is no node: its row had no further token. None: a chain, in which each follows the one
    before it. Trees are verified by synthetic and the methods of kernels.methods.TREE_METHODS. The reference raises a
    ValueError for a parent that is not smaller; the kernels, which do not read parents on the host, never reach its
    token."""
    siblings: SiblingDraws = SiblingDraws.independent
    """How the children of a node were drawn; without `logits` and at temperature 0 they count as certain."""
    sampling: Sampling | None = None
    """Fields [R], that the proposals were drawn with; None: with the round's own. For engines that draft with the
    temperature alone, or keep target rows or draft rows over the temperature already. Where the round's temperature
    is 0 it is not read; elsewhere a temperature of 0 makes the largest logit of a row certain, the lowest id among
    equals, and any other token impossible."""


@dataclass(frozen=True)
class Drawn:
    """One token per row."""

    token_ids: Tensor
    """[N] int64, ids of the target's vocabulary."""
    logprobs: Tensor
    """[N] float32, log probability of the token under the processed distribution; NaN where invalid."""
    invalid: Tensor
    """[N] bool, the row was all -inf or forbidden, or held an allowed NaN or +inf, or its temperature is NaN; its token
    id is 0 and has no meaning."""


@dataclass(frozen=True)
class VerificationResult:
    """What one round of verification emits: accepted draft tokens, then one recovered or bonus token."""

    token_ids: Tensor
    """[R, K + 1] int64; entries beyond num_accepted + 1 are -1, and all of a padded slot's."""
    num_accepted: Tensor
    """[R] int64; the token after them is recovered if num_accepted < num_draft_tokens, else bonus; 0 for a padded
    slot."""
    invalid: Tensor
    """[R] bool, verification reached a row without a distribution (all -inf or forbidden, NaN or +inf, a temperature of
    NaN), or a draft token that its own draft distribution cannot have produced; that draft token and those after it
    were not accepted. A core that does not read counts on the host also flags a request with more than K draft tokens,
    and, with token 0, all requests of packed target rows that are not as many as the counts say. Greedy verification is
    not defined at a temperature above 0: there a core flags the request and accepts nothing, or, where it reads
    temperatures on the host, raises a ValueError as the reference does."""
    compared: object = None
    """What the core laid side by side to decide, a kernels.reference.proposal.Compared; None from a core that keeps
    nothing of it."""
    path: Tensor | None = None
    """[R, K] int64, index in the draft of each accepted token, root first; -1 beyond num_accepted. The token after them
    has target row path[num_accepted - 1] + 1. None: a chain, of which the first num_accepted were accepted."""


@dataclass(frozen=True)
class Deferred:
    """Which rows of a round wait for the host."""

    num_draft_tokens: Tensor
    """[R] int64; -1 for rows that emit nothing, the deferred ones among them."""
    is_undecided: Tensor
    """[R] bool, these rows."""


@dataclass(frozen=True)
class LogitEdits:
    """How the target rows of each request change before temperature and truncation; kernels.edit_logits has the rule.

    F is the largest number of tokens of a request that have a bias or end it.
    """

    repetition_penalty: Tensor
    """[R] float32, above 0; 1 is off."""
    frequency_penalty: Tensor
    """[R] float32; 0 is off."""
    presence_penalty: Tensor
    """[R] float32; 0 is off."""
    min_tokens: Tensor
    """[R] int64, output tokens before the request may end; 0 is off."""
    token_ids: Tensor
    """[R, F] int32, the tokens with a bias and those that end the request, each once in a row; -1 is none."""
    biases: Tensor
    """[R, F] float32, what is added to the logits of these tokens."""
    ends: Tensor
    """[R, F] bool, these tokens end the request."""

    def rows(self, num_requests: int) -> LogitEdits:
        """Of the first requests; views."""
        return LogitEdits(*(field[:num_requests] for field in vars(self).values()))


class TokenTally(NamedTuple):
    """The distinct tokens of each slot's text and how often they occur, so that an edit reads no whole text.

    The kernels keep it; the reference, which reads the text, leaves it alone. A slot's tokens are those of
    `LogitEdits.token_ids` first, then those that occur, then the drafts of the round under way that do not.
    """

    token_ids: Tensor
    """[S, M] int32, M at least F + C + K."""
    num_outputs: Tensor
    """[S, M] int32, how often each occurs in the output."""
    in_prompt: Tensor
    """[S, M] int8, 1 for one that occurs in the prompt."""
    num_read: Tensor
    """[S] int64, tokens of the text that are counted; 0 of a slot that begins a request."""
    num_kept: Tensor
    """[S] int64, tokens in the list without the drafts."""
    num_listed: Tensor
    """[S] int64, with them."""

    @classmethod
    def empty(cls, num_slots: int, size: int, device: device | None = None) -> TokenTally:
        """Of slots that begin a request; `size` is M."""
        import torch

        lists = (torch.zeros(num_slots, size, dtype=each, device=device) for each in (torch.int32,) * 2 + (torch.int8,))
        return cls(*lists, *(torch.zeros(num_slots, dtype=torch.int64, device=device) for _ in range(3)))


class Texts(NamedTuple):
    """What the requests of a batch have said so far, a row each; more rows may follow."""

    token_ids: Tensor
    """[>= R, C] int64, the tokens of prompt and output."""
    lengths: Tensor
    """[>= R] int64, how many."""
    prompt_lengths: Tensor
    """[>= R] int64, how many of them are the prompt's."""


class Slots(NamedTuple):
    """The requests of a batch between rounds, a row each; more rows may follow."""

    token_ids: Tensor
    """[> R, C] int64, every token so far. What would lie beyond C goes to the last place."""
    lengths: Tensor
    """[>= R] int64, how many."""
    rounds: Tensor
    """[>= R] int64, rounds so far."""
    spare: int
    """A row of token_ids without a request: what is written there has no meaning."""


Verdict = VerificationResult
"""The name of VerificationResult before version 0.2, for subjects that import it; goes with version 0.3."""
