"""A suffix automaton over several texts that grow token by token: where the end of a text has occurred before.

Source: Blumer et al., The smallest automaton recognizing the subwords of a text (1985), in the form that grows online;
used for drafts by SAM decoding (arXiv 2411.10666) and suffix decoding (arXiv 2411.04975). A state stands for the
substrings that end at the same places; its link leads to the longest of their suffixes that ends elsewhere, too.
"""

from __future__ import annotations

from typing import NamedTuple

ROOT = 0


class Match(NamedTuple):
    """An earlier occurrence of the longest suffix that is followed by something."""

    length: int
    """Of the suffix, in tokens; 0 where no suffix has such an occurrence."""
    text: int
    """The text in which it occurs."""
    following: int
    """Index in that text of the token that follows it."""


class SuffixAutomaton:
    """Texts and the automaton of all their substrings.

    A token costs constant time, amortised over all of them, and about 0.7 kB.
    """

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.num_tokens = 0
        """Of all texts."""
        self._last: list[int] = []
        # by state: transitions, link, length of the longest substring, and an occurrence that something follows
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._place: list[tuple[int, int] | None] = [None]

    def begin(self) -> int:
        """Number of a new, empty text."""
        self.texts.append([])
        self._last.append(ROOT)
        return len(self.texts) - 1

    def append(self, text: int, token: int) -> None:
        """Let a text grow by one token."""
        last, end = self._last[text], len(self.texts[text])
        self.texts[text].append(token)
        self.num_tokens += 1
        # what ended here is followed by something from now on, and so is every suffix of it
        self._place[last] = (text, end)
        state = self._link[last]
        while state > ROOT and self._place[state] is None:
            self._place[state] = (text, end)
            state = self._link[state]
        self._last[text] = self._extended(last, token)

    def longest_match(self, text: int) -> Match:
        """The longest suffix of a text that occurs elsewhere, in it or in another one, with a token behind it."""
        state = self._last[text]
        while state > ROOT:
            place = self._place[state]
            if place is not None:
                return Match(self._length[state], *place)
            state = self._link[state]
        return Match(0, text, 0)

    def continuation(self, text: int, match: Match, num_tokens: int) -> list[int]:
        """What follows a match of a text, at most so many tokens.

        Where the match lies in the text itself and what follows reaches its end, it goes on with its own beginning, as
        a text that repeats itself does.
        """
        source = self.texts[match.text]
        found = source[match.following : match.following + num_tokens]
        if match.text == text and found:
            found += [found[index % len(found)] for index in range(num_tokens - len(found))]
        return found

    def _extended(self, last: int, token: int) -> int:
        """The state of a whole text after one more token; `last` is the state before."""
        known = self._next[last].get(token)
        if known is not None:
            if self._length[known] == self._length[last] + 1:
                return known
            return self._clone(last, token, known)
        state = self._state({}, ROOT, self._length[last] + 1, None)
        while last >= 0 and token not in self._next[last]:
            self._next[last][token] = state
            last = self._link[last]
        if last >= 0:
            known = self._next[last][token]
            exact = self._length[known] == self._length[last] + 1
            self._link[state] = known if exact else self._clone(last, token, known)
        return state

    def _clone(self, state: int, token: int, known: int) -> int:
        """Part off the substrings of `known` that are no longer than those of `state` with the token behind them."""
        clone = self._state(dict(self._next[known]), self._link[known], self._length[state] + 1, self._place[known])
        self._link[known] = clone
        while state >= 0 and self._next[state].get(token) == known:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _state(self, following: dict[int, int], link: int, length: int, place: tuple[int, int] | None) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._place.append(place)
        return len(self._next) - 1
