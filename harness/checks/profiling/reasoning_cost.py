"""Times the rounds of a constrained request after contexts of different lengths, by kind of parser.

Beside the parsers stands a control that copies the history. What was found is written as bench_reasoning.md, .html and
.tex for people, .json for programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from torch import Tensor

from harness.checks.profiling.reasoning_config import ReasoningCostConfig
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.masks import Masks
from harness.engine.constraint.matcher import Matcher
from harness.engine.constraint.parsers.harmony import FinalChannel
from harness.engine.constraint.parsers.markers import AnyToken, OneToken, SeveralTokens
from harness.engine.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.engine.constraint.parsers.parser import ReasoningParser, State
from harness.engine.constraint.parsers.text_markers import TextMarkers
from harness.engine.constraint.policies.mask import Mask
from harness.records.provenance import provenance
from harness.report.document import Document, Section, write_report
from harness.report.files import json_text
from harness.report.number_format import Number
from harness.report.table import Entry, Table

MARKER = (1, 2, 3)
FENCE = 4
CONTROL = "control: copies the history"
FIRST_OTHER = 5
"""Ids from here on are neither of a marker nor of a fence."""


class CopiedHistory(ReasoningParser):
    """Control: keeps the sequence, and searches a copy of it in every round."""

    def start(self) -> State:
        return ()

    def step(self, token_id: int, state: State) -> State | None:
        raise AssertionError("it looks at the whole sequence")

    def end_index_in(self, delta: Sequence[int], state: State) -> int | None:
        assert isinstance(state, tuple)
        history = [*state, *delta]
        return history.index(MARKER[0]) - len(state) if MARKER[0] in history else None

    def after(self, delta: Sequence[int], state: State) -> State:
        assert isinstance(state, tuple)
        return (*state, *delta)


NUM_IDS = 1000
"""Ids that the context is made of."""
SPELT = {MARKER[0]: b"</", MARKER[1]: b"think", MARKER[2]: b">", FENCE: b"```"} | {
    # one token in fifty spells what ends a marker, so that it has to be looked at
    FIRST_OTHER + number: b" a>b" if number % 50 == 0 else b" word"
    for number in range(NUM_IDS)
}
"""What the tokens spell."""
PARSERS: dict[str, ReasoningParser] = {
    "one token (zoo, glm)": OneToken(MARKER[0]),
    "one of two tokens (qwen3, glm5)": AnyToken(MARKER[:2]),
    "text over tokens (deepseek)": TextMarkers(["</think>", "<tool_call>"], SPELT),
    "channels (harmony)": FinalChannel(MARKER[0], MARKER[2], SPELT | {MARKER[1]: b"final"}),
    "several tokens": SeveralTokens(MARKER),
    "outside of a code block": OutsideCodeBlock(OneToken(MARKER[0]), {FENCE: "```"}),
    CONTROL: CopiedHistory(),
}
CHUNK = 64
"""Tokens that the context is read in at a time."""


class ParserCost(NamedTuple):
    """One parser at one context."""

    parser: str
    context: int
    median_us: float


class _NoAnswer(Matcher):
    """A grammar that is never asked, since reasoning does not end."""

    is_complete = False

    def accept(self, token_ids: Sequence[int]) -> int:
        raise AssertionError("reasoning does not end")

    def rollback(self, num_tokens: int) -> None:
        raise AssertionError("reasoning does not end")

    def fill(self, words: Tensor) -> None:
        raise AssertionError("reasoning does not end")


def measure(config: ReasoningCostConfig) -> list[ParserCost]:
    """Time every kind of parser at every context."""
    return [
        ParserCost(name, int(context), _median_us(parser, int(context), config, _num_rounds(name, config)))
        for name, parser in PARSERS.items()
        for context in config.contexts
    ]


def tokens(start: int, count: int) -> list[int]:
    """Tokens of a text without a marker: the same for every parser."""
    return [FIRST_OTHER + place % NUM_IDS for place in range(start, start + count)]


def _num_rounds(name: str, config: ReasoningCostConfig) -> int:
    """A control that keeps the history takes milliseconds a round."""
    return min(config.rounds, 50) if name == CONTROL else config.rounds


def _median_us(parser: ReasoningParser, context: int, config: ReasoningCostConfig, num_rounds: int) -> float:
    grammar_state = GrammarState(parser, _NoAnswer(), Mask())
    masks = Masks(1, NUM_IDS)
    for start in range(0, context, CHUNK):
        grammar_state.after_verification(tokens(start, min(CHUNK, context - start)))
    times = []
    for number in range(num_rounds):
        drafted = tokens(context + number, config.draft_tokens)
        grammar_state.before_verification(drafted, masks)
        grammar_state.target_rows(masks)
        times.append(grammar_state.after_verification(tokens(context + number, config.draft_tokens + 1)).host_us)
    return median(times)


STEM = "bench_reasoning"
TITLE = "What looking for the end of reasoning costs"
NOTE = (
    "Median microseconds that the host spends on one round of one request while reasoning goes on: the drafts looked "
    "at before verification, and the tokens that were emitted. Columns: tokens of the sequence so far."
)


def table(costs: Sequence[ParserCost]) -> Table:
    """One row per parser, one column per context."""
    contexts = list(dict.fromkeys(item.context for item in costs))
    rows: list[tuple[Entry, ...]] = []
    for name in dict.fromkeys(item.parser for item in costs):
        found = {item.context: item.median_us for item in costs if item.parser == name}
        rows.append((name, *(Number(found[context], decimals=1) for context in contexts)))
    return Table(TITLE, ("parser", *(f"{context:,}" for context in contexts)), tuple(rows))


def write_costs(config: ReasoningCostConfig, costs: Sequence[ParserCost]) -> Path:
    """Write bench_reasoning as .json, .md, .html and .tex; returns the path of the .md."""
    folder, origin = Path(config.output), provenance()
    content = {"settings": config, "costs": [item._asdict() for item in costs], "provenance": origin}
    section = Section("Microseconds per round", (f"{NOTE} K = {config.draft_tokens}.",), tables=(table(costs),))
    document = Document(TITLE, sections=(section,), provenance=[origin])
    return write_report(document, folder, STEM, {f"{STEM}.json": json_text(content)})[0]
