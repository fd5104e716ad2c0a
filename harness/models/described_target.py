"""A target as its files describe it, for what needs no layer: tokenizer, positions, vocabulary. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.models import TargetConfig, Weights
from harness.models.described import described_target
from harness.models.token_ids import TOKENIZER, has_tokenizer
from harness.models.tokenizer import eos_token_ids, load_own_tokenizer
from harness.models.zoo import zoo_path


@dataclass(frozen=True)
class DescribedTarget:
    """What a `TargetModel` of these files has under the same names."""

    name: str
    tokenizer: Any
    tokenizer_stands_in: bool
    num_positions: int
    vocab_size: int
    eos_token_ids: frozenset[int]


class SizesHere(NamedTuple):
    """What a draft head depends on of its target."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int


def target_sizes_here(target: TargetConfig) -> SizesHere | None:
    """The sizes in a target's files; None where they are not on this machine."""
    described = described_target(target)
    fields = {} if described is None else described.fields
    sizes = [fields.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")]
    found = [size for size in sizes if type(size) is int]
    return SizesHere(target.name, *found) if len(found) == len(sizes) else None


def tokenizer_folder_here(target: TargetConfig) -> Path | None:
    """The folder of the tokenizer that a target is run with; None where it is not on this machine."""
    described = described_target(target)
    if described is None:
        return None
    own = None if target.shape is not None else described.source.parent
    stands_in = target.weights is Weights.random and (own is None or not has_tokenizer(own))
    return zoo_path("target", with_weights=False) if stands_in or own is None else own


def num_positions_here(target: TargetConfig) -> int | None:
    """Tokens that a sequence of a target may have; None where no file on this machine says."""
    described = described_target(target)
    found = None if described is None else described.fields.get("max_position_embeddings")
    return found if type(found) is int else None


def target_here(target: TargetConfig) -> DescribedTarget | None:
    """A target by its files; None where they are not on this machine, or only loading it tells.

    Raises:
        CheckpointError: its tokenizer is damaged.
    """
    described, num_positions = described_target(target), num_positions_here(target)
    if described is None or num_positions is None or target.trust_remote_code:
        return None
    own, folder = None if target.shape is not None else described.source.parent, tokenizer_folder_here(target)
    if type(described.vocab_size) is not int or folder is None or not (folder / TOKENIZER).is_file():
        return None
    stands_in = folder != own
    tokenizer = load_own_tokenizer(folder)
    eos = eos_token_ids(
        described.fields.get("eos_token_id"), None if stands_in else tokenizer, own, described.vocab_size
    )
    return DescribedTarget(target.name, tokenizer, stands_in, num_positions, described.vocab_size, eos)
