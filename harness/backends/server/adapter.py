"""What every engine's adapter offers: how a server is started and asked, and what its answers say of drafts.

A plain adapter is one of an engine that drafts nothing. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from harness.backends.server.chunk_steps import ChunkSteps
from harness.backends.server.counters import Counters
from harness.backends.server.load_result import Answered
from harness.backends.server.reply import Reply
from harness.backends.server.rounds import Steps, Unsplit
from harness.config.cell import CellConfig
from harness.config.sampling import SamplingSettings
from harness.records.counts import DraftCounts, Knowledge
from kernels.methods import DraftSampling


@dataclass(frozen=True)
class Evidence:
    """What a server says about itself."""

    version: str | None = None
    log: str | None = None
    """What it printed while it started; None where it was not started here."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The answer of `Adapter.info_path`."""


class Adapter:
    """One cell on one engine."""

    health_path: ClassVar[str] = "/health"
    completions_path: ClassVar[str] = "/v1/completions"
    """Of the endpoint that takes token ids."""
    reply: ClassVar[type[Reply]] = Reply
    """Reads its stream of events."""
    version_path: ClassVar[str | None] = None
    info_path: ClassVar[str | None] = None
    """What the server says about its settings."""
    metrics_path: ClassVar[str] = "/metrics"
    """Where its counters are, if it has some. Those of a plain server show whether it drafts."""
    tokens_counter: ClassVar[str | None] = None
    """Output tokens of the server for all its clients together."""
    cache_counters: ClassVar[tuple[str, ...]] = ()
    """Prompt tokens that it did not compute."""
    keeps_connections: ClassVar[bool] = True
    """Whether it keeps a connection after an answer, as it announces."""
    num_held: ClassVar[int] = 0
    """Tokens at the end of an answer that it may not tell."""
    tells_every_step: ClassVar[bool] = False
    """Whether steps without drafts are told apart from those whose draft was rejected."""
    full_depth: ClassVar[str] = ""
    """Options with which every step of a drafter with a model drafts K tokens, unless fewer are left; empty where an
    engine may draft fewer by itself, as under a budget of tokens."""
    notes: ClassVar[Mapping[Knowledge, tuple[str, ...]]] = {}
    """What readers of this engine's drafts must know, by how they are known."""

    def __init__(self, cell: CellConfig, drafter: str) -> None:
        """cell: what runs. drafter: path or name of the drafter as the server knows it; empty without one."""
        self.cell = cell
        self.drafter = drafter

    @property
    def num_tokens(self) -> int:
        """K; 0 without drafts."""
        return 0 if self.cell.is_baseline else self.cell.drafting.num_speculative_tokens

    @property
    def samples_drafts(self) -> bool:
        """Whether drafts are drawn, and not the most probable tokens."""
        return self.cell.draft_sampling is DraftSampling.sampled

    def speculation(self) -> tuple[str, ...]:
        """Arguments of the command line for the cell's drafter and method."""
        return ()

    def reasoning(self) -> tuple[str, ...]:
        """Arguments with which the server finds the end of reasoning, behind which a grammar begins."""
        return ()

    def details(self) -> tuple[str, ...]:
        """Arguments of the command line with which the server tells most of its drafts; versions may lack them."""
        return ()

    def weights(self) -> tuple[str, ...]:
        """Arguments with which the server draws random weights, where the cell's are."""
        return ()

    def served_target(self, path: str, folder: Path) -> str:
        """The target as the engine takes it: its path, or that of a copy.

        Args:
            path: folder or Hugging Face id of the target.
            folder: where copies lie.
        """
        return path

    def environment(self) -> dict[str, str]:
        """Variables of the environment for them."""
        return {}

    def config_file(self) -> str:
        """Text of the file that {config} stands for."""
        return ""

    def request_fields(self, sampling: SamplingSettings, seed: int) -> dict[str, Any]:
        """What a request says beside its prompt, model and length.

        Args:
            sampling: of the request.
            seed: of 63 bits.
        """
        return {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": seed % 2**31}

    def grammar_fields(self, grammar: str) -> dict[str, Any]:
        """Fields of a request that give the grammar of its answer, in the language of constraint.kind."""
        return {}

    def drafts(self, reply: Reply) -> Steps | DraftCounts | Unsplit | None:
        """The drafts that an answer reports: every step, counts, their number, or nothing.

        Raises:
            MalformedAnswer: it contradicts itself.
        """
        return None

    def chunk_steps(self, answered: Sequence[Answered], counts: DraftCounts) -> ChunkSteps | None:
        """The steps of all answers of a block, where chunks show them and answers do not tell; None where not."""
        return None

    def counts(self, added: Counters) -> DraftCounts | None:
        """The drafts of a block by the server's counters; None where it has none."""
        return None

    def reported(self, replies: Sequence[Reply]) -> dict[str, float]:
        """What answers count that has no place in our definitions, by the engine's names."""
        return {}

    def version_of(self, answer: Mapping[str, Any]) -> str | None:
        """The engine's version in the answer of `version_path`."""
        found = answer.get("version")
        return None if found is None else str(found)

    def slot_length(self, num_tokens: int) -> int:
        """Positions that the server is told to give each request; its own limit may have a coarser step.

        Args:
            num_tokens: of prompt and answer of the longest request.
        """
        return num_tokens

    def max_length(self, model: Mapping[str, Any]) -> int | None:
        """Tokens of prompt and answer that a request may have; None where the server does not say.

        Args:
            model: what it lists of the model.
        """
        found = model.get("max_model_len")
        return None if found is None else int(found)

    def refuse(self, evidence: Evidence) -> None:
        """Raise RefusedArm where the server says that it does something else than the cell's name says."""

    def doubts(self, evidence: Evidence) -> tuple[str, ...]:
        """What the server leaves open of the cell's name, and known faults of its version; asked where it drafts."""
        return ()

    def notes_on_edits(self, edits: Collection[str]) -> tuple[str, ...]:
        """Where the engine takes settings that change logits otherwise than the local engine, if they are in use.

        Args:
            edits: their names.
        """
        return ()

    def sampling_fields(self, sampling: SamplingSettings, no_top_k: int) -> dict[str, Any]:
        """All sampling parameters, so that no default, such as one of generation_config.json, takes part.

        Args:
            sampling: of the request.
            no_top_k: what the engine takes for no top-k.
        """
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or no_top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "ignore_eos": self.cell.decoding.ignore_eos,
            **({"min_tokens": sampling.min_tokens} if sampling.min_tokens else {}),
            **(
                {"logit_bias": {str(token): bias for token, bias in sampling.biases.items()}} if sampling.biases else {}
            ),
        }


def counts_of_steps(added: Counters, counter: str, depth: int) -> DraftCounts | None:
    """The drafts of a block by counters that vLLM and llama.cpp name alike; None where there are none.

    Args:
        added: what was added to the counters.
        counter: their names, with {} for what each counts.
        depth: K.
    """
    names = ("drafts", "draft_tokens", "accepted_tokens")
    drafts, drafted, accepted = (added.total(counter.format(name)) for name in names)
    if drafts is None or drafted is None or accepted is None:
        return None
    by_position = added.by_position(counter.format("accepted_tokens_per_pos"))
    return DraftCounts(drafts, drafted, accepted, positions_of_constant_depth(drafts, drafted, depth), by_position)


def positions_of_constant_depth(num_drafts: int, num_draft_tokens: int, depth: int) -> tuple[int, ...] | None:
    """Drafts with a token at each position, where all have the same depth; None where they differ."""
    return (num_drafts,) * depth if num_draft_tokens == num_drafts * depth else None
