"""What the engine hands to a drafter, and what it asks of one.

A round: `propose` -> the target's forward -> verification -> `extend`. All tensors lie on the target's device; a
drafter that reads one of them on the host cannot be captured in a CUDA graph.

Shapes: B rows that may decode (slots 0..B - 1), R rows of a part of a target step, T tokens of such a row, K draft
tokens per round, H hidden size, C capacity of a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from harness.models.cost import Cost
from harness.models.fused.row_groups import RowGroups
from harness.models.target import TargetOutput
from kernels.contract import Draft, Sampling, Streams, TokenMask
from kernels.core import Core


class DraftMasks(Protocol):
    """The masks under which the drafts of a round are drawn; the host looks at each token before the next is drawn."""

    def before(self, step: int, own_words: Tensor | None) -> TokenMask:
        """The masks of one draft step, `rows` [B].

        Args:
            step: 0 for the first draft token.
            own_words: [ceil(V / 32)] int32 on the host, the tokens that the drafter knows; None when it knows all.
        """
        ...

    def after(self, token_ids: Tensor) -> None:
        """Advance over the tokens that the step drew, [B] int64 ids of the target's vocabulary."""
        ...

    def cached(self) -> TokenMask:
        """The masks of all steps, `rows` [B, K]."""
        ...


@dataclass(frozen=True)
class Batch:
    """The slots that get K draft tokens."""

    rows: slice | Tensor
    """Where each row's keys and values go: slice(0, B), or [B] int64 slots (the spare one for rows that idle)."""
    num_rows: int
    """B."""
    num_speculative_tokens: int
    """K, or fewer in a step whose rounds draft fewer (drafting.depth); at least 1 in `propose`."""
    token_ids: Tensor
    """[B, C] int64, the tokens of each row so far."""
    sampling: Sampling
    """[B]."""
    streams: Streams
    """[B]; positions are those of the first draft token, which is the number of tokens so far; 1 for a row that
    idles."""
    core: Core
    """The engine's sampling core, which draws the drafts too."""
    length: int
    """The largest of `lengths`, known on the host, or a bound of it."""
    masks: DraftMasks | None = None
    """None when the drafts of all rows are free."""

    @property
    def lengths(self) -> Tensor:
        """[B] int64, number of tokens of each row so far."""
        return self.streams.positions


@dataclass(frozen=True)
class ReadPart:
    """Rows of a target step whose output tokens are known: what a drafter may learn from them."""

    rows: slice | Tensor
    """Slots: slice(0, R), or [R] int64, a slot as often as it has rows."""
    token_ids: Tensor
    """[R, T] int64, what the target read."""
    next_ids: Tensor
    """[R, T] int64, the token that follows each of them; valid ids without a meaning where none is known."""
    positions: Tensor
    """[R, T] int64, absolute positions of token_ids."""
    length: int
    """Highest position + 1."""
    has_prompts: bool
    """Whether some rows are of prompts; else all are rounds."""
    output: TargetOutput
    """The target's hidden states at these positions."""
    groups: RowGroups | None = None
    """Rows of prompts that fused attention reads together, for the view of a cache."""


@dataclass(frozen=True)
class TargetStep:
    """A step of the target: its parts, whose tokens are numbered row after row, part after part."""

    num_rows: int
    """B."""
    parts: tuple[ReadPart, ...]
    last: Tensor
    """[B] int64, number of the last token of each slot whose next token is known; any number for a slot that has none
    yet."""
    is_undecided: Tensor
    """[B] bool, slots of which nothing was decided: what is kept of them stays, as the next step starts from where this
    one did."""


class DrafterCost(NamedTuple):
    """What a drafter reads and multiplies in a round."""

    draft: Cost = Cost()
    """Before verification."""
    extend: Cost = Cost()
    """After it."""


class Drafter(Protocol):
    """Proposes tokens: `propose` before every target step, `extend` after it."""

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Target layers whose entering state the drafter reads; () for the final hidden state alone."""
        ...

    @property
    def num_parameters(self) -> int:
        """Parameters of the drafting network, without what it shares with the target."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Memory of the drafter's own key-value cache."""
        ...

    @property
    def logit_cache_bytes(self) -> int:
        """Memory of the persistent draft-logit cache and of the row statistics kept beside it."""
        ...

    @property
    def drawn_rows(self) -> Tensor | None:
        """[S, V_draft] what the first draft tokens of the last proposal were drawn from, for measurement; None where
        that is what is cached, or nothing is."""
        ...

    def propose(self, batch: Batch) -> Draft:
        """Propose up to K tokens for each row; those of a row that does not decode have no meaning."""
        ...

    def extend(self, step: TargetStep) -> None:
        """Read the tokens and states of a target step."""
        ...

    def clear(self, slot: int) -> None:
        """Forget everything about a slot whose request met NaN."""
        ...

    def state(self) -> Sequence[Tensor]:
        """The tensors that `extend` changes and the next `propose` starts from.

        Keys, values and draft logits that a round writes before it reads them are not among them.
        """
        ...

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """What a round reads and multiplies.

        Args:
            num_slots: slots that decode.
            num_speculative_tokens: K.
            length: tokens in each slot, the last of which the target has not read.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """What a drafter may have beside it that drafts for a request from others."""

    def forget(self) -> None:
        """Drop what requests left; called before the first request of every block, so that no block depends on what
        ran before it."""
        ...


@runtime_checkable
class KeepsTexts(Protocol):
    """What a drafter may have beside it that keeps the tokens of slots, so as to read each of them once."""

    def begin(self, slot: int) -> None:
        """Forget the tokens of a slot, where another request begins.

        Called before the step that reads its first token; until the next call tokens are added, and none changes.
        """
        ...


@runtime_checkable
class MovesSlots(Protocol):
    """What a drafter may have beside it, so that steps without CUDA graphs need not compute rows of empty slots."""

    def move(self, source: int, destination: int) -> None:
        """Let one slot hold, between two rounds, all that another one does."""
        ...


@runtime_checkable
class ReadsWhileDrafting(Protocol):
    """The further method of a drafter that reads a round's new tokens in `propose`, for steps without drafts."""

    def read(self, batch: Batch) -> None:
        """Read the tokens that `propose` would read, and propose nothing; the next round may draft again."""
        ...


class StatelessDrafter:
    """The parts of the protocol that are the same for every drafter without a network and caches; add `propose`."""

    aux_layers: tuple[int, ...] = ()
    num_parameters = 0
    cache_bytes = 0
    logit_cache_bytes = 0
    drawn_rows: Tensor | None = None

    def extend(self, step: TargetStep) -> None:
        """The tokens arrive with every batch."""

    def clear(self, slot: int) -> None:
        """Nothing is kept."""

    def move(self, source: int, destination: int) -> None:
        """Nothing is kept."""

    def state(self) -> Sequence[Tensor]:
        return ()

    def cost(self, num_slots: int, num_speculative_tokens: int, length: int) -> DrafterCost:
        """Nothing is read that counts beside a model."""
        return DrafterCost()


def forget_requests(drafter: Drafter) -> None:
    """Begin a block: nothing that requests before it left takes part in a draft."""
    if isinstance(drafter, Remembers):
        drafter.forget()
