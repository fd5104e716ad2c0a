"""The stop strings of a cell's requests: those of a prompt's own line, else decoding.stop. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from harness.config.cell import CellConfig
from harness.engine.stop_strings import StopStrings, spelt_by
from harness.workload.prompt import Prompt


class StopsOfCell:
    """Makes each list of stop strings once, since it takes a walk over the vocabulary."""

    def __init__(self, cell: CellConfig, tokenizer: Callable[[], Any]) -> None:
        """tokenizer: gives the target's, of transformers; not called where no request has stop strings."""
        self._strings = tuple(cell.decoding.stop)
        self._tokenizer = tokenizer
        self._made: dict[tuple[str, ...], StopStrings] = {}

    @cached_property
    def _bytes_of(self) -> dict[int, bytes]:
        return spelt_by(self._tokenizer())

    def of(self, prompt: Prompt, min_tokens: int) -> StopStrings | None:
        """Those of a prompt's requests; None where they have none.

        Args:
            min_tokens: of the requests; a stop string that is complete within so many ends no answer.
        """
        strings = self._strings if prompt.stop is None else prompt.stop
        if not strings:
            return None
        if strings not in self._made:
            self._made[strings] = StopStrings(strings, self._bytes_of)
        return self._made[strings].after(min_tokens)

    @property
    def are_used(self) -> bool:
        """Whether a request so far has stop strings."""
        return bool(self._made)
