"""Whether two runs of the same cells gave the same tokens, request by request.

This module compares records; it does not know how they came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.schema import CellRecord


@dataclass(frozen=True)
class SameTokens:
    """What a comparison of two runs found."""

    num_cells: int
    """Cells of the first run."""
    num_requests: int
    """Requests of the first run."""
    missing: tuple[str, ...]
    """Cells that the second run does not have: other models, prompts or settings have another id."""
    different: tuple[tuple[str, int, int], ...]
    """Cells with other tokens: id, requests that differ or are not there, requests."""

    changed: tuple[str, ...] = ()
    """Objects of the user's own whose source file is another than in the first run."""

    @property
    def is_same(self) -> bool:
        return not self.missing and not self.different

    @property
    def lines(self) -> list[str]:
        """The verdict, for a reader."""
        changed = [f"{path}: its source file is another than when the cells were recorded" for path in self.changed]
        if self.is_same:
            return [
                *changed,
                f"the same tokens: {self.num_requests} of {self.num_requests} requests in {self.num_cells} cells",
            ]
        different = [
            f"cell {cell_id}: {num_different} of {num_requests} requests have other tokens"
            for cell_id, num_different, num_requests in self.different
        ]
        different += [
            f"cell {cell_id}: not among the new cells, so its models, prompts, device or settings were others"
            for cell_id in self.missing
        ]
        return [
            *changed,
            *different,
            "expected the same tokens, which another machine, device or version of a package need not give; "
            "the provenance of both reports says what differs",
        ]


def same_tokens(first: Sequence[CellRecord], second: Sequence[CellRecord]) -> SameTokens:
    """Compare the output tokens of every request of every cell.

    Args:
        first, second: the cells of two runs; cells of the same id belong together.
    """
    others = {record.cell_id: record for record in second}
    different = []
    before, after = _imported(first), _imported(second)
    for record in first:
        if record.cell_id in others:
            again = {item.key: item.output_token_ids for item in others[record.cell_id].requests}
            # without token ids nothing shows that they are the same
            num_different = sum(
                again.get(item.key) != item.output_token_ids or not item.output_token_ids for item in record.requests
            )
            num_different += len(again.keys() - {item.key for item in record.requests})
            if num_different:
                different.append((record.cell_id, num_different, len(record.requests)))
    return SameTokens(
        num_cells=len(first),
        num_requests=sum(len(record.requests) for record in first),
        missing=tuple(record.cell_id for record in first if record.cell_id not in others),
        different=tuple(different),
        changed=tuple(path for path, digest in before.items() if after.get(path, digest) != digest),
    )


def _imported(records: Sequence[CellRecord]) -> dict[str, str]:
    """The digest of the source file of each object of the user's own, where records have it."""
    digests = [item.get("imported", {}) for record in records for item in record.provenances]
    return {path: digest for found in digests for path, digest in found.items()}
