"""Sizes and settings of one training run of the zoo: the real ones and tiny ones for a test on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ModelSize:
    """A Llama."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int = 64


@dataclass(frozen=True)
class Sizes:
    """What differs between the real run and a smoke test."""

    vocab_size: int = 6144
    target: ModelSize = ModelSize(256, 704, 10, 4, 2)
    draft_model: ModelSize = ModelSize(128, 384, 3, 2, 1)
    head_intermediate_size: int = 1024
    aux_layers: tuple[int, ...] = (2, 5, 7)
    draft_vocab_size: int = 4096
    parallel_intermediate_size: int = 256
    """Of the P-EAGLE head, which is small, so that all built-in models together stay so."""
    parallel_draft_vocab_size: int = 1536
    num_unrolled: int = 4
    """Draft steps a head is trained on; K of the expected lengths reported."""
    max_documents: int | None = None
    """Corpus documents used; None is all."""
    num_generated: int = 45_000
    num_generated_heldout: int = 1_500
    num_prompts: int = 100_000
    target_length: int = 1024
    """Tokens of a training row of the target; also its maximal position."""
    target_rows: int = 64
    sample_length: int = 512
    """Tokens of a sampled row, which is also a training row of the heads."""
    sample_rows: int = 4096
    """Rows sampled at once."""
    num_sample_batches: int = 10
    num_heldout_rows: int = 1024
    """Sampled rows kept for measuring acceptance."""
    head_rows: int = 48
    sampled_share: float = 0.75
    """Share of a head's training rows that were sampled from the target; the rest is corpus."""


SMOKE_SIZES = Sizes(
    vocab_size=512,
    target=ModelSize(64, 96, 4, 2, 1, 32),
    draft_model=ModelSize(32, 64, 2, 2, 1, 32),
    head_intermediate_size=96,
    aux_layers=(1, 2, 3),
    draft_vocab_size=256,
    parallel_intermediate_size=48,
    parallel_draft_vocab_size=128,
    num_unrolled=3,
    max_documents=150,
    num_generated=150,
    num_generated_heldout=40,
    num_prompts=64,
    target_length=64,
    target_rows=4,
    sample_length=48,
    sample_rows=8,
    num_sample_batches=3,
    num_heldout_rows=8,
    head_rows=4,
)


@dataclass(frozen=True)
class Settings:
    """One run of the script."""

    corpus: Path
    out: Path
    seed: int = 20_261_120
    device: str = "cpu"
    compile: bool = False
    seconds_target: float = 430.0
    seconds_head: float = 420.0
    steps: int | None = None
    """Fixed number of optimizer steps for every model, instead of the time budgets."""
    learning_rate_target: float = 3e-3
    learning_rate_head: float = 2e-3
    weight_decay: float = 0.1
    dropout: float = 0.05
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def tokenizer_folder(self) -> Path:
        return self.out / "tokenizer"

    @property
    def data_path(self) -> Path:
        return self.out / "data.npz"

    @property
    def target_folder(self) -> Path:
        return self.out / "target"

    @property
    def mtp_path(self) -> Path:
        return self.out / "mtp" / "layer.safetensors"

    @property
    def sampled_path(self) -> Path:
        return self.out / "sampled.npy"
