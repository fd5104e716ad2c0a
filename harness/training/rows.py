"""Rows of text that a target wrote, as files of a training run; each is whole, or not there.

Shapes: R rows of a file, L tokens of a row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PATTERN = "rows-*.npz"


class Rows(NamedTuple):
    """Rows of text."""

    tokens: NDArray[np.int32]
    """[R, L]."""
    is_answer: NDArray[np.bool_]
    """[R, L], whether a token was drawn as part of an answer."""
    temperature: NDArray[np.float32]
    """[R], at which answers were drawn."""


class RowFiles:
    """The files of one folder, by number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def numbers(self) -> list[int]:
        """Those that are there, ascending."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.folder.glob(_PATTERN))

    @property
    def num_rows(self) -> int:
        """Of all files; runs may have written files of other sizes."""
        total = 0
        for number in self.numbers:
            with np.load(self._path(number)) as file:
                total += len(file["temperature"])
        return total

    def _path(self, number: int) -> Path:
        return self.folder / f"rows-{number:05d}.npz"

    def write(self, number: int, rows: Rows) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(number)
        unfinished = self.folder / f".{path.name}.{os.getpid()}"
        try:
            with unfinished.open("wb") as file:
                np.savez(file, **rows._asdict())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def read(self) -> Rows:
        """All rows, in the order of their files."""
        parts = []
        for number in self.numbers:
            with np.load(self._path(number)) as file:
                parts.append(Rows(*(file[name] for name in Rows._fields)))
        return Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def frequent_tokens(rows: Rows, vocab_size: int, number: int) -> tuple[Tensor, float]:
    """The most frequent tokens of answers.

    Returns:
        [number] int64 ids, ascending, and the share of all tokens of answers that they are.
    """
    counts = np.bincount(rows.tokens[rows.is_answer], minlength=vocab_size)
    ids = np.argsort(-counts, kind="stable")[:number]
    return torch.from_numpy(np.sort(ids)), float(counts[ids].sum() / max(1, counts.sum()))
