"""Which parameters of a model do what in a round: the output matrix, the embedding, the layers, what joins states.

What counts bytes and what counts operations both start from it. It does not know tokens, slots or time.

Shapes: V vocabulary, H hidden size, E experts.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedConfig

from harness.models.eagle3 import Eagle3Head
from harness.models.expert_weights import EXPERTS, MERGED
from harness.models.head import Head
from harness.models.mtp import MtpHead
from harness.models.target import TargetModel


def output_matrix(model: TargetModel | Head) -> Tensor:
    """[V, H] what gives the logits."""
    if isinstance(model, TargetModel):
        return model.causal_lm.lm_head.weight
    if isinstance(model, Eagle3Head):
        return model.lm_head.weight
    if isinstance(model, MtpHead) and model.config.own_head:
        return model.block.shared_head["head"].weight
    return output_matrix(model.target)


def embedding_of(model: TargetModel | Head) -> Tensor:
    """[V, H] what embeds the tokens that a model reads."""
    if isinstance(model, TargetModel):
        return model.embed_weight
    own = getattr(model.block if isinstance(model, MtpHead) else model, "embed_tokens", None)
    return model.target.embed_weight if own is None else own.weight


def layer_parameters(model: TargetModel | Head) -> list[tuple[str, nn.Parameter]]:
    """All parameters but the embedding and the output matrix, with their names."""
    embedding, output = embedding_of(model), output_matrix(model)
    module = model.causal_lm if isinstance(model, TargetModel) else model
    return [(name, item) for name, item in module.named_parameters() if item is not embedding and item is not output]


def joining_parameters(head: Head) -> list[nn.Parameter]:
    """Parameters that make features of the target's states; what makes them of the head's own is part of a pass."""
    if not isinstance(head, Eagle3Head):
        return []
    parts = [getattr(head, name, None) for name in ("fc", "fc_norm", "input_norm")]
    return [parameter for part in parts if part is not None for parameter in part.parameters()]


def is_merged_experts(name: str) -> bool:
    """Whether a parameter of this name holds the weights of all experts of a layer, [E, ...]."""
    _, experts, merged = name.rpartition(EXPERTS)
    return bool(experts) and merged in MERGED


def experts_of_token(config: PreTrainedConfig) -> int:
    """Experts that one token goes through; 0 where the layers have none."""
    return getattr(config, "num_experts_per_tok", 0)
