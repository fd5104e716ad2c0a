"""Draft heads with random weights, for any target: of the sizes that the public heads have, or of a given config.json.

EAGLE and EAGLE-3 heads are one Llama layer of the target's widths, as the public ones are for Llama and Qwen3 alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from harness.models.checkpoint import read_json
from harness.models.decoder_layer import head_layer_config, layer_config, layer_fields
from harness.models.eagle import EagleConfig, EagleHead
from harness.models.eagle3 import Eagle3Head
from harness.models.eagle3_config import Eagle3Config, default_aux_layers
from harness.models.head import Head
from harness.models.mtp import MtpConfig, MtpHead
from harness.models.random_weights import RandomWeights, made_on, random_fingerprint
from harness.models.target import TargetModel
from harness.models.vocabulary import check_vocab_size

DRAFT_VOCAB_SIZE = 32_000
"""Of the public EAGLE-3 heads; a smaller vocabulary is taken whole."""
SEED = "drafter"

AnyHead = TypeVar("AnyHead", bound=Head)


def random_eagle(target: TargetModel, folder: Path | None = None) -> EagleHead:
    """An EAGLE head without a bias. folder: whose config.json gives other sizes.

    Raises ValueError as load_eagle does, or, without a folder, for a target whose layers such heads are not made of.
    """
    if folder is None:
        config = EagleConfig(_llama_layer(target), bias=False)
    else:
        source = folder / "config.json"
        config = EagleConfig.from_dict(read_json(source), source)
        check_vocab_size(config.layer.vocab_size, target, source)
    return _drawn(lambda owner: EagleHead(config, owner), target, config.to_dict())


def random_eagle3(target: TargetModel, folder: Path | None = None) -> Eagle3Head:
    """An EAGLE-3 head over `default_aux_layers`, its draft vocabulary spread evenly over the target's.

    folder: whose config.json gives other sizes. Raises ValueError as `random_eagle` does.
    """
    if folder is None:
        config = Eagle3Config(
            _llama_layer(target),
            min(DRAFT_VOCAB_SIZE, target.vocab_size),
            default_aux_layers(target.num_layers),
            target.hidden_size,
            verifier=target.name,
        )
    else:
        source = folder / "config.json"
        config = Eagle3Config.from_dict(read_json(source), target, source)
        check_vocab_size(config.layer.vocab_size, target, source)
    own_embedding = config.layer.hidden_size != target.hidden_size

    def make(owner: TargetModel) -> Eagle3Head:
        ids = spread_ids(config.draft_vocab_size, target.vocab_size)
        return Eagle3Head(config, owner, draft_token_ids=ids, own_embedding=own_embedding)

    return _drawn(make, target, config.to_dict())


def random_mtp(target: TargetModel) -> MtpHead:
    """The MTP layer of a target whose configuration announces one.

    It has an output matrix of its own, as the public checkpoints store one, unless the target's is its embedding.
    Raises ValueError when none is announced.
    """
    count = getattr(target.config, "num_nextn_predict_layers", None) or 0
    if count < 1:
        raise ValueError(
            f"target {target.name}: expected num_nextn_predict_layers 1 or more in its configuration, found {count}; "
            f"it has no MTP layer, choose another drafter"
        )
    config = MtpConfig.for_target(target, own_head=not target.config.tie_word_embeddings)
    return _drawn(lambda owner: MtpHead(config, owner), target, asdict(config))


def spread_ids(num_ids: int, vocab_size: int) -> Tensor:
    """[num_ids] int64 on the CPU: different ids below vocab_size, ascending, evenly spread."""
    return torch.arange(num_ids, device="cpu") * vocab_size // num_ids


def _llama_layer(target: TargetModel) -> PreTrainedConfig:
    """One Llama layer of the target's widths, heads and positions."""
    fields = layer_fields(head_layer_config(target.config))
    return layer_config(fields | {"model_type": LlamaConfig.model_type}, f"target {target.name}")


def _drawn(make: Callable[[TargetModel], AnyHead], target: TargetModel, fields: dict[str, Any]) -> AnyHead:
    """A frozen head made for a target, where the target is, and drawn."""
    with made_on(target.device, target.dtype):
        head = make(target)
    head.fill(RandomWeights(SEED, 1, device=target.device, dtype=target.dtype))
    head.random_fingerprint = random_fingerprint(SEED, {"kind": type(head).__name__} | fields)
    return head.eval().requires_grad_(False)
