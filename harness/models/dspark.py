"""The DSpark head: a DFlash head whose rows also depend on the token before them, by a small head over its blocks.

    row i = logits_i + W2 latent_i        latent_i from e_i = W1[x_{n-1+i}], the last known token or a draft token

    vanilla    latent_i = e_i
    gated      latent_i = sigmoid(gate_proj [h_i, e_i]) * e_i
    rnn        g, c, o = joint_proj [s_{i-1}, e_i, h_i];  s_i = sigmoid(g) s_{i-1} + (1 - sigmoid(g)) tanh(c);
               latent_i = tanh(o);  s before the first row is 0

h_i is the place's state after the final norm, which the logits are made of too. So the law of a draft token is known
once the one before it is drawn, as in a chain of forwards: any method for chains verifies such drafts. Blocks begin to
draft at the last known token unless the file says otherwise. W1 has a row for each token of the target, W2 for each one
that is drafted. Rank 0 leaves the rows as those of DFlash.

The confidence head of such files predicts whether a draft token is accepted (harness.models.confidence_head). It
changes no row; drafts end by it where the cell asks for that.

Three layouts are read: that of DeepSpec, whose fields stand beside those of the layers; that of SpecForge, in
`dflash_config`; and that of speculators, which is also written.
Source: Cheng et al., DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation (2026),
arXiv 2607.05147, and its code, deepseek-ai/DeepSpec.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from harness.config.models import AS_FILED, Anchor, Confidence, HeadChoices
from harness.models.accounting import OF_DRAFTER, Accepted
from harness.models.block_rows import BlockRows
from harness.models.checkpoint import Checkpoint, StoredRows
from harness.models.confidence_head import ConfidenceHead, PredictedConfidence
from harness.models.cost import Cost, ModelCost, total
from harness.models.dflash import DFlashHead, load_block_head
from harness.models.dflash_config import DFlashConfig
from harness.models.head_fits import stated_confidence, stated_markov
from harness.models.markov_rows import MarkovHead, MarkovRows
from harness.models.target import TargetModel

_TABLES = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"


@dataclass(frozen=True)
class DSparkConfig(DFlashConfig):
    """What config.json of a DSpark head says."""

    anchor: Anchor = Anchor.first
    markov_rank: int = 0
    """Width of a token's embedding in the Markov head; 0 for none."""
    markov_head_type: str = "vanilla"
    """vanilla, gated or rnn."""
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False
    """Whether the confidence head also reads the embedding of the token before."""
    confidence: Confidence = Confidence.row
    """By what drafts end; the file does not say it."""
    kind: ClassVar[str] = "dspark"

    def __post_init__(self) -> None:
        if self.markov_rank and self.markov_head_type == "rnn" and self.anchor is not Anchor.first:
            raise ValueError(
                "DSpark head: expected drafts that begin at the known token's place beside markov_head_type rnn, found "
                "drafts behind it; no public code says what the recurrence makes of that place"
            )

    @classmethod
    def own_fields(cls, data: dict[str, Any]) -> dict[str, Any]:
        rank, head_type = stated_markov(data)
        return {"markov_rank": rank, "markov_head_type": head_type} | stated_confidence(data)._asdict()

    @classmethod
    def _chosen(cls, data: dict[str, Any], target: TargetModel, source: object, choices: HeadChoices) -> dict[str, Any]:
        return super()._chosen(data, target, source, choices) | {"confidence": choices.confidence}

    def to_dict(self) -> dict[str, Any]:
        names = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
        return super().to_dict() | {name: getattr(self, name) for name in names}


class DSparkHead(DFlashHead):
    """A DSpark head; `markov_head` is None where its rank is 0."""

    config: DSparkConfig
    config_class = DSparkConfig

    def __init__(self, config: DSparkConfig, target: TargetModel, *, draft_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target, draft_token_ids=draft_token_ids)
        self.markov_head = None
        if config.markov_rank:
            sizes = config.layer.hidden_size, target.vocab_size, config.draft_vocab_size
            head = MarkovHead(config.markov_head_type, config.markov_rank, *sizes)
            self.markov_head = head.to(device=target.device, dtype=target.dtype)
        self.confidence_head = None
        if config.enable_confidence_head:
            num_embedded = config.markov_rank if config.confidence_head_with_markov else 0
            confidence = ConfidenceHead(config.layer.hidden_size + num_embedded)
            self.confidence_head = confidence.to(device=target.device, dtype=target.dtype)

    def rows(self, hidden: Tensor) -> BlockRows:
        logits = self.logits(hidden)
        return BlockRows(logits) if self.markov_head is None else MarkovRows(logits, hidden, self.markov_head)

    def confidence(self, hidden: Tensor) -> PredictedConfidence | None:
        if self.confidence_head is None or self.config.confidence is Confidence.row:
            return None
        markov = self.markov_head if self.config.confidence_head_with_markov else None
        table = None if markov is None else markov.markov_w1.weight
        multiplies = self.config.confidence is Confidence.survival
        return PredictedConfidence(hidden, self.confidence_head, table, multiplies=multiplies)

    @property
    def cost(self) -> ModelCost:
        """What its forwards cost, without the heads that work on rows: see rows_cost."""
        cost: ModelCost = super().cost
        of_rows = ("markov_head.", "confidence_head.")
        parts = [item for item in cost.named_parameters if not item[0].startswith(of_rows)]
        return replace(cost, named_parameters=tuple(parts))

    def rows_cost(self, num_slots: int, num_tokens: int) -> Cost:
        """Of each row of a slot an embedding, what makes it a latent, and W2; and its confidence, if drafts end by
        it."""
        return total(self._markov_cost(num_slots, num_tokens), self._confidence_cost(num_slots, num_tokens))

    def _confidence_cost(self, num_slots: int, num_tokens: int) -> Cost:
        if self.confidence_head is None or self.config.confidence is Confidence.row:
            return Cost()
        projection = self.confidence_head.proj.weight
        return Cost(
            weight_bytes=num_tokens * projection.nbytes, num_linear=2 * num_slots * num_tokens * projection.numel()
        )

    def _markov_cost(self, num_slots: int, num_tokens: int) -> Cost:
        if self.markov_head is None:
            return Cost()
        tables = {id(self.markov_head.markov_w1.weight), id(self.markov_head.markov_w2.weight)}
        others = [item for item in self.markov_head.parameters() if id(item) not in tables]
        projection, read = self.markov_head.markov_w2.weight, sum(item.nbytes for item in others)
        token_bytes = num_slots * self.markov_head.rank * projection.itemsize
        return Cost(
            weight_bytes=num_tokens * (read + token_bytes),
            output_bytes=num_tokens * projection.nbytes,
            num_linear=2 * num_slots * num_tokens * sum(item.numel() for item in others if item.ndim == 2),
            num_output=2 * num_slots * num_tokens * projection.numel(),
        )

    @classmethod
    def read_rows(cls, checkpoint: Checkpoint, num_rows: int, target: TargetModel, drafted: StoredRows) -> None:
        of_tokens, of_drafts = _TABLES
        checkpoint.read_rows(of_tokens, StoredRows.of_ids(num_rows, target.vocab_size))
        checkpoint.read_rows(of_drafts, drafted)


def load_dspark(
    path: str | Path,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> DSparkHead:
    """Load a frozen DSpark head for a target. Raises ValueError as load_target does."""
    return load_block_head(DSparkHead, path, target, revision, accepted, choices)
