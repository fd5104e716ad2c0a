"""Grammars through llguidance: JSON schema, regular expression, Lark; compiled once each, copied for every answer.

llguidance is imported when the first grammar is compiled, so that nothing else needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from harness.config.constraint import GrammarKind
from harness.engine.constraint.grammar_text import library_grammar, unusable
from harness.engine.constraint.matcher import Matcher, Reach, Walk

if TYPE_CHECKING:
    from torch import Tensor

MIN_MASKS_FOR_THREADS = 24
"""From so many masks on threads are faster: with 16 CPU cores 13 masks took 107 us one by one and about 150 on threads,
65 took 687 and 300 (answers of the built-in schemas, 6,144 tokens)."""


class GrammarMatcher(Matcher):
    """One answer's matcher; see `harness.engine.constraint.masks.Matcher`."""

    def __init__(self, matcher: Any, end_id: int) -> None:
        """end_id: a token that every mask of a complete answer allows."""
        self._matcher = matcher
        self._end_id = end_id

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def accept(self, token_ids: Sequence[int]) -> int:
        num_accepted: int = self._matcher.try_consume_tokens(token_ids)
        if num_accepted < len(token_ids):
            # a matcher that has failed accepts nothing
            self._check()
        return num_accepted

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and not self._matcher.rollback(num_tokens):
            self._check()

    def fill(self, words: Tensor) -> None:
        assert words.is_contiguous() and not words.is_cuda, "the matcher writes to the host's memory"
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.nbytes)
        self._check()

    def fill_together(self, walks: Sequence[Walk], words: Tensor) -> list[Reach]:
        """On several threads if there are enough masks. The library walks over the tokens and back by itself; that a
        token is allowed is read off the mask of its place."""
        assert words.is_contiguous() and not words.is_cuda, "the matchers write to the host's memory"
        start, num_bytes = words.data_ptr(), words.shape[1] * words.element_size()
        own: list[Any] = [walk.matcher for walk in walks]
        matchers = [matcher._matcher for matcher in own]
        still = [(matcher, walk.first) for matcher, walk in zip(matchers, walks, strict=True) if not walk.token_ids]
        moving = [
            (matcher, walk.first, list(walk.token_ids))
            for matcher, walk in zip(matchers, walks, strict=True)
            if walk.token_ids
        ]
        if len(still) + sum(len(tokens) + 1 for _, _, tokens in moving) < MIN_MASKS_FOR_THREADS:
            for matcher, first in still:
                matcher.unsafe_compute_mask_ptr(start + first * num_bytes, num_bytes)
            for matcher, first, tokens in moving:
                matcher.unsafe_compute_mask_ptr_with_draft_token(start + first * num_bytes, num_bytes, tokens)
        else:
            executor, place = _executor(), (start, num_bytes, len(words))
            if still:
                executor.unsafe_compute_mask_ptr(still, *place)
            if moving:
                executor.unsafe_compute_mask_ptr_with_draft_token(moving, *place)
        for matcher in own:
            matcher._check()
        bits = words.numpy().data
        return [matcher._reach(walk.first, walk.token_ids, bits) for walk, matcher in zip(walks, own, strict=True)]

    def _reach(self, first: int, token_ids: Sequence[int], bits: memoryview) -> Reach:
        """How far a walk of this matcher came: `bits` are the masks, [M, ceil(V / 32)] int32."""
        place, bit = self._end_id >> 5, self._end_id & 31
        number, last = first, first + len(token_ids)
        # an answer that is whole may be complete: only the matcher knows
        while not bits[number, place] >> bit & 1:
            token_id = token_ids[number - first] if number < last else -1
            if token_id < 0 or not bits[number, token_id >> 5] >> (token_id & 31) & 1:
                return Reach(number - first, False)
            number += 1
        num_allowed = self.accept(token_ids)
        reach = Reach(num_allowed, self.is_complete)
        self.rollback(num_allowed)
        return reach

    def _check(self) -> None:
        """The library stops at limits of its own (a grammar too complex): it cannot constrain the answer then."""
        if self._matcher.is_error():
            raise RuntimeError(f"expected a grammar that can be followed, llguidance says: {self._matcher.get_error()}")


@cache
def _executor() -> Any:
    """The library's threads, which all matchers of the process share."""
    from llguidance import LLExecutor

    return LLExecutor()


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps them."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        """
        Args:
            tokenizer: a fast tokenizer of transformers.
            vocab_size: rows of the model's output matrix, which may be more than the tokenizer has.
            eos_token_ids: tokens that end an answer where it is complete. The library takes only those that the
                tokenizer has; without any, the tokenizer's own end of sequence ends an answer.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(token_id for token_id in eos_token_ids if token_id < len(tokenizer))
        self._vocabulary: Any = None
        self._end_id = -1
        self._compiled: dict[tuple[GrammarKind, str], Any] = {}

    def matcher(self, kind: GrammarKind, text: str) -> GrammarMatcher:
        """A matcher at the start of a grammar.

        Raises:
            UnusableGrammarError: llguidance cannot follow it.
            ValueError: llguidance is not installed, or the tokenizer is not a fast one.
        """
        key = kind, text
        if key not in self._compiled:
            self._compiled[key] = self._compile(kind, text)
        return GrammarMatcher(self._compiled[key].deep_copy(), self._end_id)

    def _compile(self, kind: GrammarKind, text: str) -> Any:
        grammar = library_grammar(kind, text)
        from llguidance import LLMatcher

        if self._vocabulary is None:
            self._vocabulary = self._convert()
            self._end_id = self._vocabulary.eos_token
        matcher: Any
        try:
            matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
            reason = str(matcher.get_error())
        except ValueError as error:
            reason = str(error)
        if reason:
            raise unusable(kind, reason)
        return matcher

    def _convert(self) -> Any:
        """The vocabulary as llguidance wants it."""
        from llguidance.hf import from_tokenizer

        if not getattr(self._tokenizer, "is_fast", False):
            raise ValueError(
                f"constraint: expected a fast tokenizer of transformers, found {type(self._tokenizer).__name__}; "
                "grammars need one with a tokenizer.json"
            )
        return from_tokenizer(self._tokenizer, n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None)
