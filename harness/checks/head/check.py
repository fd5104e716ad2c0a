"""Checks one pair: loads it, runs the protocol, compares with what is known, and tries what may be wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan

from harness.analysis.beyond_positions import drafts_beyond
from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate, paired_difference
from harness.checks.doctor.finding import Finding, Weight, problem, remark
from harness.checks.head.counted import of_counts
from harness.checks.head.forced import Forced
from harness.checks.head.loops import end_of, loops_of
from harness.checks.head.prompts import unused_format
from harness.checks.head.protocol import Protocol, Runs
from harness.checks.head.reach import reach
from harness.checks.head.references import Reference, references_of
from harness.checks.head.texts import StatesOfTexts, Text, texts_of
from harness.checks.head.trials import ON_TEXTS, Tried, better, try_askings, try_variants
from harness.checks.head.variants import Trial
from harness.config.drafter import NetworkConfig
from harness.drafters.registry import LoadedHead, load_head
from harness.models.head import Head
from harness.models.target import TargetModel
from harness.records.counts import DraftCounts
from harness.records.request import counts_of_rounds
from harness.workload.chat import PLAIN_TEXT_NOTE

FEW_TOKENS = 0.8
"""Share of the target's tokens that a draft vocabulary should hold."""


@dataclass(frozen=True)
class Compared:
    """A reference beside what was measured."""

    reference: Reference
    differences: dict[float, Estimate]
    """By temperature, of the acceptance length; empty where protocols differ."""

    @property
    def is_below(self) -> bool:
        """Whether less is accepted than when the reference was measured."""
        return any(item.high < 0 for item in self.differences.values())


@dataclass(frozen=True)
class Checked:
    """What was found of a pair."""

    protocol: Protocol
    cells: tuple[CellResult, ...]
    """Of the protocol, by temperature."""
    reached: dict[float, list[Estimate]]
    """By temperature, what a perfect drafter with the head's vocabulary keeps at each position."""
    num_draft_ids: int | None
    """Tokens that it can draft; None for all."""
    compared: tuple[Compared, ...]
    tried: tuple[Tried, ...]
    findings: tuple[Finding, ...]
    seconds: dict[str, float]
    """Of loading, the protocol and the trials."""
    refusal: str = ""
    """Why it was not loaded; nothing else is known then."""

    @property
    def diagnoses(self) -> list[Tried]:
        """The alternatives that are better, the best first."""
        return better(self.tried)

    @property
    def problems(self) -> list[Finding]:
        """What the runs show by themselves and has to be put right."""
        return [item for item in self.findings if item.weight is Weight.problem]

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found that has to be put right."""
        is_below = any(item.is_below for item in self.compared)
        return not (self.refusal or self.diagnoses or self.problems or is_below)


@dataclass
class _Clock:
    """Seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def check(
    protocol: Protocol, runs: Runs, *, tries: bool = True, reference: str | None = None, tell: Callable[[str], None]
) -> Checked:
    """Check a pair.

    Args:
        protocol: of the pair.
        runs: that run it.
        tries: whether alternatives are tried.
        reference: name of the only one that is compared; None finds those of the pair.
        tell: told what goes on.
    """
    known = references_of(protocol.cell, reference)
    clock, cell = _Clock(), protocol.cell
    try:
        with clock.of("loading"):
            models = runs.models(cell)
            target, loaded = models.target, models.head(cell.drafter)
    except ValueError as error:
        return Checked(protocol, (), {}, None, (), (), (), clock.seconds, str(error))
    with clock.of("protocol"):
        cells = runs.results(protocol.plan)
    texts = _texts(protocol, cells, target)
    draft_ids = _draft_ids(loaded)
    depth = cell.drafting.num_speculative_tokens
    reached = {float(item["temperature"]): reach(own, draft_ids, depth) for item, own in zip(cells, texts, strict=True)}
    tried: list[Tried] = []
    if tries:
        with clock.of("trials"):
            for item in _trials(protocol, runs, cells, [text for own in texts for text in own], target, loaded):
                if not tried or tried[-1].alternative != item.alternative:
                    tell(f"trying: {item.alternative}")
                tried.append(item)
    return Checked(
        protocol,
        tuple(cells),
        reached,
        None if draft_ids is None else len(draft_ids),
        tuple(_compared(protocol, cells, known)),
        tuple(tried),
        tuple(_findings(cells, reached, target, _prompt_ids(texts[0][0]))),
        clock.seconds,
    )


def _texts(protocol: Protocol, cells: Sequence[CellResult], target: TargetModel) -> list[list[Text]]:
    """The texts of each cell."""
    configs = protocol.plan.cells
    return [
        texts_of(config, cell.record, protocol.conversations, target, place)
        for place, (config, cell) in enumerate(zip(configs, cells, strict=True))
    ]


def _prompt_ids(text: Text) -> tuple[int, ...]:
    return text.token_ids[: text.num_prompt_tokens]


def _draft_ids(loaded: LoadedHead | None) -> list[int] | None:
    """Tokens of the target that can be drafted; None for all."""
    if loaded is None:
        return None
    if isinstance(loaded.head, TargetModel):
        shared = loaded.head.shared_tokens
        return None if shared is None else list(shared.target_ids)
    ids = loaded.head.draft_to_target
    return None if ids is None else ids.tolist()


def _trials(
    protocol: Protocol,
    runs: Runs,
    cells: Sequence[CellResult],
    texts: Sequence[Text],
    target: TargetModel,
    loaded: LoadedHead | None,
) -> Iterator[Tried]:
    cell = protocol.cell
    if loaded is not None and isinstance(loaded.head, Head) and isinstance(cell.drafter, NetworkConfig):
        # layers of its own that are not fused, which can be changed
        plain = load_head(cell.drafter, target)
        assert plain is not None and isinstance(plain.head, Head)
        forced = Forced(cell, cells[0].record, StatesOfTexts(target, texts))
        yield from try_variants(Trial(cell.drafter, target, plain.head, plain.folder), forced)
    yield from try_askings(protocol, runs, cells[-1])


def counts_by_prompt(cell: CellResult) -> dict[str, DraftCounts]:
    """The drafts of a cell of one sample."""
    return {item.prompt_id: counts_of_rounds(item.rounds) for item in cell.record.requests}


def _compared(protocol: Protocol, cells: Sequence[CellResult], known: Sequence[Reference]) -> Iterator[Compared]:
    for item in known:
        differences = {}
        if item.compares(protocol):
            for cell in cells:
                theirs, temperature = item.counts(float(cell["temperature"])), float(cell["temperature"])
                if theirs:
                    first, second = (
                        of_counts(cell.record, {(prompt_id, 0): found for prompt_id, found in counts.items()})
                        for counts in (theirs, counts_by_prompt(cell))
                    )
                    differences[temperature] = paired_difference(first, second, ON_TEXTS)
        yield Compared(item, differences)


def _findings(
    cells: Sequence[CellResult], reached: dict[float, list[Estimate]], target: TargetModel, prompt_ids: Collection[int]
) -> Iterator[Finding]:
    """What the runs show by themselves; `prompt_ids` are those of a prompt."""
    template, end = unused_format(target.tokenizer, prompt_ids), end_of(cells, target)
    if end is not None:
        yield end
    shown = {"the end of answers": end, "the chat template": template}
    loops = loops_of(cells, [name for name, found in shown.items() if found is not None])
    if loops is not None:
        yield loops
    beyond = max(drafts_beyond(cell.record) for cell in cells)
    if beyond > 0:
        yield problem(
            "untrained positions",
            f"{beyond:.0%} of the drafts began beyond the {cells[0].record.drafter_positions:,} positions that the "
            "head's file names (max_position_embeddings)",
            "train it on longer texts, or correct max_position_embeddings in its config.json if it was",
        )
    if template is not None:
        yield problem(
            "chat template",
            f"the target's tokenizer has the tokens of {template} chats, and the prompts hold none of them",
            "give the target's folder the chat_template that it was trained with",
        )
    elif any(PLAIN_TEXT_NOTE in cell.record.fallbacks for cell in cells):
        yield remark(
            "chat template", PLAIN_TEXT_NOTE, "if the head was made for chats, give the target's folder its template"
        )
    held = reached[float(cells[-1]["temperature"])][0]
    if not isnan(held.value) and held.value < FEW_TOKENS:
        yield remark(
            "draft vocabulary",
            f"it holds {held.value:.0%} of the tokens that the target writes here",
            "a larger draft vocabulary, or one counted on such texts, would allow more",
        )
