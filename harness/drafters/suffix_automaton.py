"""A suffix automaton of texts that grow token by token: where the end of one of them has occurred before.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985), in the form that grows online;
used for drafts by SAM decoding (arXiv 2411.10666). For several texts see Mohri, Moreno and Weinstein, General suffix
automaton construction algorithm and space bounds (2009). A state stands for the substrings that end at the same places;
its link leads to the longest of their suffixes that ends elsewhere, too.

Of the occurrences of a suffix that a token follows one counts: the last at which it was looked up, that is, at which it
was the whole text or the longest suffix that had occurred elsewhere; before that, the first. So a token is noted in two
states, where the last occurrence of all would ask for the whole chain of links.
"""

from __future__ import annotations

from typing import NamedTuple

ROOT = 0


class Match(NamedTuple):
    """The occurrence that counts of the longest suffix that has one with a token behind it."""

    length: int
    """Of the suffix, in tokens; 0 where none has occurred before."""
    text: int
    """Number of the text that holds the occurrence."""
    following: int
    """Index of the token that follows the occurrence there."""


class SuffixAutomaton:
    """Texts, which may grow in turns, and the automaton of their substrings.

    A token costs constant time, amortised over all tokens of a text, and about 0.7 kB.
    """

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.num_tokens = 0
        """Of all texts."""
        self._end: list[int] = []
        """By text, the state of the whole of it."""
        # by state: transitions, link, length of the longest substring, and the token behind the occurrence that counts,
        # which exists once there is a transition
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._text = [0]
        self._following = [0]

    def begin(self) -> int:
        """Begin a text without tokens; returns its number."""
        self.texts.append([])
        self._end.append(ROOT)
        return len(self.texts) - 1

    def append(self, text: int, token: int) -> None:
        """Let a text grow by one token."""
        self.texts[text].append(token)
        self.num_tokens += 1
        size, state = len(self.texts[text]), self._end[text]
        for looked_up in (state, self._link[state]):
            if looked_up > ROOT:
                self._text[looked_up], self._following[looked_up] = text, size - 1
        known = self._next[state].get(token)
        if known is not None:
            # another text has been here
            exact = self._length[known] == size
            self._end[text] = known if exact else self._clone(state, token, known)
            return
        new = self._end[text] = self._state({}, ROOT, size, text, size)
        while state >= 0 and token not in self._next[state]:
            if not self._next[state]:
                self._text[state], self._following[state] = text, size - 1
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            known = self._next[state][token]
            exact = self._length[known] == self._length[state] + 1
            self._link[new] = known if exact else self._clone(state, token, known)

    def longest_match(self, text: int) -> Match:
        """The longest suffix of a text that has an occurrence, here or in another text, with a token behind it."""
        state = self._end[text]
        while state > ROOT and not self._next[state]:
            state = self._link[state]
        return Match(self._length[state], self._text[state], self._following[state]) if state > ROOT else Match(0, 0, 0)

    def continuation(self, text: int, match: Match, num_tokens: int) -> list[int]:
        """What follows a match, at most so many tokens.

        Where a match in the text itself reaches its end it goes on with its own beginning, as a text that repeats
        itself does.
        """
        found = self.texts[match.text][match.following : match.following + num_tokens]
        if match.text != text:
            return found
        return found + [found[index % len(found)] for index in range(num_tokens - len(found))]

    def _clone(self, state: int, token: int, known: int) -> int:
        """Part off the substrings of `known` that are no longer than those of `state` with the token behind them."""
        copy, place = dict(self._next[known]), (self._text[known], self._following[known])
        clone = self._state(copy, self._link[known], self._length[state] + 1, *place)
        self._link[known] = clone
        while state >= 0 and self._next[state].get(token) == known:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _state(self, following: dict[int, int], link: int, length: int, text: int, behind: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._text.append(text)
        self._following.append(behind)
        return len(self._next) - 1
