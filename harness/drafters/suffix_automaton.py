"""A suffix automaton of a text that grows token by token: where its end has occurred before.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985), in the form that grows online;
used for drafts by SAM decoding (arXiv 2411.10666). A state stands for the substrings that end at the same places; its
link leads to the longest of their suffixes that ends elsewhere, too.
"""

from __future__ import annotations

from typing import NamedTuple

ROOT = 0


class Match(NamedTuple):
    """An earlier occurrence of the longest suffix that has one."""

    length: int
    """Of the suffix, in tokens; 0 where none has occurred before."""
    following: int
    """Index of the token that follows the occurrence."""


class SuffixAutomaton:
    """A text and the automaton of its substrings.

    A token costs constant time, amortised over all of them, and about 0.7 kB.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last = ROOT
        # by state: transitions, link, length of the longest substring, and the token behind its first occurrence
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._following = [0]

    def append(self, token: int) -> None:
        """Let the text grow by one token."""
        self.tokens.append(token)
        size, state = len(self.tokens), self._last
        new = self._last = self._state({}, ROOT, size, size)
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            known = self._next[state][token]
            exact = self._length[known] == self._length[state] + 1
            self._link[new] = known if exact else self._clone(state, token, known)

    def longest_match(self) -> Match:
        """The longest suffix of the text that has occurred before."""
        state = self._link[self._last]
        return Match(self._length[state], self._following[state]) if state > ROOT else Match(0, 0)

    def continuation(self, match: Match, num_tokens: int) -> list[int]:
        """What follows a match, at most so many tokens.

        Where that reaches the end of the text it goes on with its own beginning, as a text that repeats itself does.
        """
        found = self.tokens[match.following : match.following + num_tokens]
        return found + [found[index % len(found)] for index in range(num_tokens - len(found))]

    def _clone(self, state: int, token: int, known: int) -> int:
        """Part off the substrings of `known` that are no longer than those of `state` with the token behind them."""
        copy = dict(self._next[known])
        clone = self._state(copy, self._link[known], self._length[state] + 1, self._following[known])
        self._link[known] = clone
        while state >= 0 and self._next[state].get(token) == known:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _state(self, following: dict[int, int], link: int, length: int, behind: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._following.append(behind)
        return len(self._next) - 1
