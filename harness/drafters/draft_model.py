"""An independent draft model as the head of a chain: it reads tokens only, never the target's states."""

from __future__ import annotations

from torch import Tensor

from harness.models.decoder_layer import View
from harness.models.head import HeadOutput
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetModel, TargetOutput


class DraftModelHead:
    """Adapts a causal language model with the target's vocabulary to the protocol of a chain's head."""

    aux_layers: tuple[int, ...] = ()
    draft_to_target: Tensor | None = None

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self.vocab_size = model.vocab_size
        self.num_parameters = model.num_parameters

    def new_cache(self, num_slots: int, capacity: int) -> SlotCache:
        return self.model.new_cache(num_slots, capacity)

    def features(self, output: TargetOutput) -> Tensor:
        """[B, T, 0]: nothing of the target's states is read."""
        return output.hidden[..., :0]

    def __call__(self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None) -> HeadOutput:
        hidden = self.model.forward(token_ids, positions, view).hidden
        return HeadOutput(hidden[..., :0], hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)
