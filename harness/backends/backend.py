"""What every kind of backend offers, and the class of a kind. Knows no kind, no sweep and no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from harness.config.backend import BackendConfig
from harness.config.cell import CellConfig
from harness.config.imported import ImportPath
from harness.records.acceptance_terms import RequestTerms
from harness.records.counts import DraftCounts, Knowledge
from harness.records.gc_off import gc_off
from harness.records.request import RequestRecord
from harness.records.schema import Failure
from harness.workload.conversations import Conversation


class RefusedArm(ValueError):
    """What runs is not what the cell's name says; the message holds the evidence."""


OnRequest = Callable[[int], None]
"""Called with the number of output tokens of every finished request."""


@dataclass(frozen=True)
class BackendRun:
    """The records of some conversations, as a backend returns them."""

    requests: tuple[RequestRecord, ...]
    """In the order they finished."""
    wall_s: float
    num_skipped_turns: int = 0
    """Turns left out because they did not fit beside max_new_tokens, and the turns after them."""
    terms: tuple[RequestTerms, ...] = ()
    """Of the requests' full drafts, if they are recorded."""
    counts: DraftCounts | None = None
    """Of all its drafts together, where neither rounds nor requests have counts."""
    reported: Mapping[str, float] = field(default_factory=dict)
    """Counts of the server itself during the run, by its own names."""
    failures: tuple[Failure, ...] = ()
    """Requests that got no answer, which are not among `requests`."""


@dataclass(frozen=True)
class Facts:
    """What a backend found out about its cell: everything in a record that is neither a setting nor a request."""

    backend: BackendConfig
    """The settings as they were resolved: `device` and `dtype`, of the local engine `fused` and `graphs` too."""
    models: Mapping[str, str]
    """Role -> digest of the weights, of the target and of a drafter with weights; part of the cell's identity."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Counts of a CellRecord by field name: parameters, bytes of caches and graphs."""
    fallbacks: tuple[str, ...] = ()
    """Everything so far that changed speed or results without being asked for."""
    assumptions: tuple[str, ...] = ()
    """What its models' files do not say and was taken, or what the user vouched for; one sentence each."""
    rounded_weights: str = ""
    """How the target's checkpoint was rounded to fewer bits, as a label; empty where it was not, or it is not known."""
    aux_layers: tuple[int, ...] = ()
    """Layers of the target whose entering states the drafter reads."""
    drafter_positions: int = 0
    """Positions that the drafter's file names; 0 where it names none."""
    shared_mass: float | None = None
    """See CellRecord; of the rows of this session so far."""
    num_shared_rows: int = 0
    """Draft rows that this is the mean of."""
    knowledge: Knowledge = Knowledge.rounds
    """How much its records say about drafts."""
    sampling_core: str | None = None
    """Implementation that verified; None where it is not known."""
    draft_core: str | None = None
    """Implementation that drew the drafts; None where it is not known."""


OnRound = Callable[[], None]
"""Called after every round, or ten times a second where rounds are not seen; what it raises ends the run."""
Keep = Callable[[BackendRun], None]
"""Called with what has ended since the last call: whole conversations, their requests in the order they finished, and
as `wall_s` the time that these took and in which nothing was in flight, without that of the requests in flight."""
KEEP_EVERY_S = 60.0
"""Measured seconds between two calls of Keep, at least."""


class Backend(Protocol):
    """One cell on one kind of server.

    A kind may lack `weights`, if it cannot tell, and the arguments `keep` and `on_round` of `generate`: a run that is
    killed then loses the block under way, and one that is stopped ends when the next request has finished. It may have
    `start_note`, a line about what getting ready took, which is told when the first requests have run, or None,
    `warm_up`, called in the place of `generate` for requests whose results are discarded, and `check`, called with the
    record of the whole cell: what it raises fails the cell, and nothing of it is kept.
    """

    Shared: ClassVar[Callable[[], Any]]
    """Makes what the cells of a run share, such as loaded models; called once per run."""

    def __init__(self, cell: CellConfig, shared: Any) -> None: ...

    @staticmethod
    def resolved(cell: CellConfig) -> CellConfig:
        """The cell with its open settings (a device, a dtype) filled in where that needs no loading."""

    @staticmethod
    def prepare_together(backends: Sequence[Any], conversations: Sequence[Conversation]) -> None:
        """Get cells of this kind ready that take turns at the same conversations.

        Raises:
            ValueError: something does not fit; nothing expensive has happened yet.
        """

    def weights(self) -> Mapping[str, str]:
        """`Facts.models`, known before weights are loaded."""

    def generate(
        self,
        conversations: Sequence[Conversation],
        on_request: OnRequest | None = None,
        start_s: float = 0.0,
        keep: Keep | None = None,
        on_round: OnRound | None = None,
    ) -> BackendRun:
        """Run conversations, every turn after the model's answer to the one before.

        Args:
            conversations: in the order of admission or arrival; some of those that were prepared for.
            on_request: called with every finished request.
            start_s: seconds on the records' clock at the start.
            keep: called every KEEP_EVERY_S, while the clock stands where the load can stand still. The run that is
                returned counts and times all conversations; the requests, terms and failures that `keep` got may be
                missing there.
            on_round: see there.

        Raises:
            ValueError: a prompt does not fit and workload.too_long is `error`.
            RefusedArm: what runs is not what the cell's name says; what this call gave to `keep` is forgotten.
        """

    def facts(self) -> Facts:
        """What the backend found out about its cell; called after it has generated."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of output tokens."""


def backend_class(config: BackendConfig) -> type[Backend]:
    """The class that generates by some settings.

    Raises:
        ValueError: it cannot be imported.
    """
    with gc_off():
        found: type[Backend] = ImportPath(config.runs).load("backend.kind")
    return found
