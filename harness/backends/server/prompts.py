"""From conversations to what a server is asked: chat text as token ids, and as messages for one that takes no ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.backends.server.held_tokens import byte_vocabulary
from harness.backends.stops_of_cell import StopsOfCell
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerConfig
from harness.config.models import TargetConfig
from harness.config.sampling import SamplingSettings
from harness.config.workload import TooLong
from harness.engine.constraint.answer_check import AnswerCheck
from harness.engine.stop_strings import StopStrings
from harness.models.gguf import gguf_tokenizer, is_gguf
from harness.records.request import StopFound
from harness.workload.chat import chat_messages, decode_answer, encode_chat, encode_prompt, tools_of
from harness.workload.conversations import Conversation, exact_length

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "*.jinja", "config.json")

READ_AGAIN = 16
"""Tokens that an answer may have more when it is read again in the next turn."""


@dataclass(frozen=True)
class Question:
    """One turn of a conversation as the server gets it."""

    conversation: Conversation
    turn: int
    token_ids: tuple[int, ...]
    """The whole conversation up to this turn."""
    messages: tuple[dict[str, Any], ...]
    sampling: SamplingSettings
    grammar: str | None = None
    """Of the answer; None without a policy at the end of reasoning."""
    stops: StopStrings | None = None
    """End the answer by its text; None without any."""

    @property
    def seed(self) -> int:
        return self.conversation.turn_seed(self.turn)

    @property
    def key(self) -> tuple[str, int, int]:
        """As `RequestRecord.key`."""
        return self.conversation.prompt.prompt_id, self.turn, self.conversation.sample


class ServedPrompts:
    """The questions of one cell."""

    def __init__(self, cell: CellConfig) -> None:
        self._cell = cell
        self.max_length: int | None = None
        """Tokens of prompt and answer that the server takes; None where it does not say."""
        self.notes: dict[str, None] = {}
        self.edits: dict[str, None] = {}
        """Settings by which some request changes logits: the cell's, or those of its own line."""
        self._stops = StopsOfCell(cell, lambda: self.tokenizer)

    @cached_property
    def tokenizer(self) -> Any:
        """The workload's: that of the target's folder."""
        # transformers and torch take seconds
        from harness.models.checkpoint import checkpoint_folder
        from harness.models.tokenizer import load_tokenizer

        target = self._cell.target
        if is_gguf(target.path):
            return gguf_tokenizer(Path(str(target.path)).expanduser())
        folder = checkpoint_folder(target_path(target), target.revision, TOKENIZER_FILES)
        return load_tokenizer(folder, target.trust_remote_code)

    @cached_property
    def vocabulary(self) -> dict[bytes, int]:
        """The tokenizer's tokens by their bytes."""
        return byte_vocabulary(self.tokenizer)

    @property
    def has_stops(self) -> bool:
        """Whether text ended some answer, or could have."""
        return self._stops.are_used

    @cached_property
    def answer_check(self) -> AnswerCheck | None:
        """What is asked of every answer; None without a policy at the end of reasoning."""
        constraint = self._cell.constraint
        return AnswerCheck(constraint, self.tokenizer) if isinstance(constraint, AnswerConfig) else None

    def question(self, conversation: Conversation, answers: Sequence[str]) -> Question | None:
        """The turn after some answers; None if it does not fit the server.

        Raises:
            ValueError: it does not fit, and workload.too_long is `error`.
        """
        prompt, cell = conversation.prompt, self._cell
        messages = chat_messages(prompt, answers)
        encoded = encode_chat(self.tokenizer, messages, cell.workload.thinking, tools_of(prompt))
        if encoded.note is not None:
            self.notes[encoded.note] = None
        wanted = cell.workload.prompt_tokens
        token_ids = tuple(encoded.token_ids if wanted is None else exact_length(encoded.token_ids, wanted))
        room = None if self.max_length is None else self.max_length - cell.decoding.max_new_tokens
        if room is not None and len(token_ids) > room:
            if cell.workload.too_long is TooLong.error:
                raise ValueError(
                    f"prompt {prompt.prompt_id}, turn {len(answers) + 1}: expected at most {room} tokens beside "
                    f"max_new_tokens, found {len(token_ids)}; lower it or set workload.too_long=skip"
                )
            return None
        own, default = prompt.sampling, cell.decoding.sampling
        sampling = default if own is None else own.over(default)
        self.edits |= dict.fromkeys(sampling.edits)
        check = self.answer_check
        grammar = None if check is None else check.grammar(prompt.prompt_id, prompt.schema)
        stops = self._stops.of(prompt, sampling.min_tokens)
        return Question(conversation, len(answers), token_ids, tuple(messages), sampling, grammar, stops)

    def num_needed(self, conversation: Conversation) -> int:
        """Tokens that the last turn of a conversation may take, with answers as long as they may be."""
        cell, prompt = self._cell, conversation.prompt
        if cell.workload.prompt_tokens is not None:
            return cell.workload.prompt_tokens + cell.decoding.max_new_tokens
        answers = [""] * (len(prompt.turns) - 1)
        encoded = encode_prompt(self.tokenizer, prompt, answers, cell.workload.thinking)
        # an answer is read again as text, which may have other tokens
        between = prompt.num_generated_between
        return len(encoded.token_ids) + (between + 1) * cell.decoding.max_new_tokens + between * READ_AGAIN

    def decode(self, token_ids: Sequence[int], stop: StopFound | None = None) -> str:
        """The text of an answer, up to its stop string if it has one."""
        return decode_answer(self.tokenizer, token_ids, stop)

    def gives_text(self, token_ids: Sequence[int], text: str) -> bool:
        """Whether the workload's tokenizer gives the server's text for its token ids."""
        return same_text(self.decode(token_ids), text)


def same_text(ours: str, theirs: str) -> bool:
    """Whether a server gave the text that we make of its token ids.

    Blanks, and what a server holds back of an unfinished character at the end, are no difference.
    """
    one, other = ("".join(text.replace("\ufffd", "").split()) for text in (ours, theirs))
    return one.startswith(other) or other.startswith(one)


def target_path(target: TargetConfig) -> str:
    """The target's folder or Hugging Face id; the zoo's own where there is none."""
    from harness.models.zoo import zoo_path

    return str(zoo_path("target")) if target.path is None else target.path


def drafter_path(cell: CellConfig) -> str:
    """The drafter's folder or Hugging Face id; empty for one without a checkpoint."""
    from harness.models.zoo import zoo_path

    drafter = cell.drafter
    if not drafter.has_model:
        return ""
    if drafter.path is not None:
        return drafter.path
    return str(zoo_path(drafter.kind.value)) if cell.target.is_built_in else ""
