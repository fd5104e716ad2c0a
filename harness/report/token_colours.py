"""Shows a text with accepted, recovered and bonus tokens told apart: by colour, or by marks where there is no colour.

Pure: takes records and a decoding function, returns strings. This module does not know models, terminals or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple, TextIO

from harness.analysis.definitions import metric
from harness.records.request import RequestRecord, RoundRecord

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are not yet a character."""


class TokenKind(Enum):
    """How a token came into the output."""

    target = "target"
    """Drawn from the target without a draft: the first token, and rounds in which nothing was proposed."""
    accepted = "accepted"
    recovered = "recovered"
    bonus = "bonus"


class Piece(NamedTuple):
    """A stretch of text that one kind of token made."""

    kind: TokenKind
    text: str


class _Look(NamedTuple):
    """How tokens of a kind are told apart."""

    meaning: str
    marks: tuple[str, str]
    colour: str


_RESET = "\x1b[0m"
LOOKS = {
    TokenKind.accepted: _Look("accepted draft", ("", ""), "\x1b[32m"),
    TokenKind.recovered: _Look("recovered after a rejection", ("‹", "›"), "\x1b[1;31m"),
    TokenKind.bonus: _Look("bonus after a fully accepted draft", ("«", "»"), "\x1b[1;36m"),
    TokenKind.target: _Look("target alone", ("[", "]"), "\x1b[90m"),
}
"""In the order of the legend."""


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether a stream gets colours: a terminal, unless NO_COLOR is set or TERM is dumb; FORCE_COLOR insists."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environment.get("TERM") != "dumb"


def token_kinds(rounds: Sequence[RoundRecord]) -> tuple[TokenKind, ...]:
    """The kind of each output token of a request, in order."""
    return tuple(kind for item in rounds for kind in _kinds_of_round(item))


def _kinds_of_round(item: RoundRecord) -> list[TokenKind]:
    if item.num_proposed_tokens == 0:
        return [TokenKind.target] * item.num_output_tokens
    if item.cut_reason is not None:
        # a cut takes the recovered or bonus token away, so that whatever is left was drafted and accepted
        return [TokenKind.accepted] * item.num_output_tokens
    all_accepted = item.num_accepted_tokens == item.num_proposed_tokens
    last = TokenKind.bonus if all_accepted else TokenKind.recovered
    return [TokenKind.accepted] * item.num_accepted_tokens + [last]


def pieces(
    token_ids: Sequence[int], kinds: Sequence[TokenKind], decode: Callable[[Sequence[int]], str]
) -> tuple[Piece, ...]:
    """Split the text of some tokens into stretches of one kind.

    Args:
        token_ids: the output tokens.
        kinds: the kind of each of them.
        decode: token ids to text; the text of a longer sequence must continue that of a shorter one, but for a
            replacement character at its end. A character whose bytes come from several tokens goes to the last one.

    Returns:
        Pieces whose texts, joined, are the text of all tokens. A piece that is not accepted is one token, so that
        two recovered tokens in a row can be told apart; accepted tokens of neighbouring rounds are joined.
    """
    assert len(token_ids) == len(kinds), f"expected a kind for each of {len(token_ids)} tokens, found {len(kinds)}"
    found: list[Piece] = []
    num_written = 0
    for index, kind in enumerate(kinds):
        text = decode(token_ids[: index + 1])
        # all but the last replacement character are final: they are bytes that make no character
        is_open = text.endswith(REPLACEMENT) and index + 1 < len(token_ids)
        num_settled = len(text) - 1 if is_open else len(text)
        if num_settled > num_written:
            found.append(Piece(kind, text[num_written:num_settled]))
            num_written = num_settled
    return tuple(_join_accepted(found))


def _join_accepted(found: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for kind, group in groupby(found, key=lambda piece: piece.kind):
        members = list(group)
        if kind is TokenKind.accepted:
            members = [Piece(kind, "".join(piece.text for piece in members))]
        joined += members
    return joined


def without_end(text: Sequence[Piece], num_characters: int) -> tuple[Piece, ...]:
    """The stretches without so many characters at their end, such as a stop string."""
    kept = list[Piece]()
    for piece in reversed(text):
        length = max(0, len(piece.text) - num_characters)
        num_characters -= len(piece.text) - length
        kept += [piece._replace(text=piece.text[:length])] if length else []
    return tuple(reversed(kept))


def render(text: Sequence[Piece], colour: bool) -> str:
    """The text with colours, or with marks around everything that was not accepted."""
    return "".join(_coloured(piece) if colour else _marked(piece) for piece in text)


def _coloured(piece: Piece) -> str:
    return f"{LOOKS[piece.kind].colour}{piece.text}{_RESET}"


def _marked(piece: Piece) -> str:
    """A line break inside marks is shown as a sign and done after them, so that marks never span lines."""
    if piece.kind is TokenKind.accepted:
        return piece.text
    opening, closing = LOOKS[piece.kind].marks
    body = piece.text.rstrip("\n")
    breaks = len(piece.text) - len(body)
    return f"{opening}{body}{'⏎' * breaks}{closing}{chr(10) * breaks}"


def legend(colour: bool) -> str:
    """One line that says what the colours or marks mean."""
    return "  ".join(render([Piece(kind, look.meaning)], colour) for kind, look in LOOKS.items())


def logprob_lines(record: RequestRecord, decode: Callable[[Sequence[int]], str]) -> list[str]:
    """A line for each output token with its log-probability, its rank and the best tokens; none where not recorded."""
    found = record.logprobs
    if found is None:
        return []

    def entry(token_id: int, logprob: float | None) -> str:
        return f"{decode((token_id,))!r} {'-inf' if logprob is None else format(logprob, '.3f')}"

    lines = []
    for place, token_id in enumerate(record.output_token_ids):
        best = map(entry, found.top_token_ids[place], found.top[place])
        lines.append("  ".join([entry(token_id, found.token[place]), f"rank {found.rank[place]}", *best]))
    return lines


def acceptance_line(record: RequestRecord) -> str:
    """The acceptance of one request in one line, by the definitions of harness.analysis.definitions."""
    num_tokens, counts = record.num_output_tokens, record.counts
    if not record.rounds:
        known = f": accepted {counts.num_accepted_tokens}/{counts.num_draft_tokens} drafted" if counts else ""
        return f"{num_tokens} tokens{known}"
    # numpy is needed only here, and help must come at once
    from harness.analysis.sums import request_sums

    reduced = request_sums([record], wall_s=1.0)
    total = {name: float(values.sum()) for name, values in reduced.sums.items()}
    num_drafts = int(total["num_drafts"])
    if not num_drafts:
        return f"{num_tokens} tokens, nothing drafted"
    by_position = [_value(f"acceptance_rate_per_pos_{i + 1}", total) for i in range(reduced.num_positions)]
    return (
        f"{num_tokens} tokens, {num_drafts} drafts: accepted {total['num_accepted_tokens']:.0f}"
        f"/{total['num_draft_tokens']:.0f} drafted ({_value('acceptance_rate', total):.0%}), "
        f"{metric('mean_acceptance_length').label} {_value('mean_acceptance_length', total):.2f}, "
        f"by position {' '.join(f'{rate:.0%}' for rate in by_position)}"
    )


def _value(name: str, total: Mapping[str, float]) -> float:
    """A metric that is a ratio of sums."""
    item = metric(name)
    assert item.denominator is not None, f"{name} is not a ratio"
    return sum(total[part] for part in item.numerators) / total[item.denominator]
