"""Draft heads with random weights, for any target: of the sizes that the public heads have, or of a given config.json.

EAGLE and EAGLE-3 heads are one Llama layer of the target's widths, as the public ones are for Llama and Qwen3 alike;
P-EAGLE heads are four, as those of amazon/gpt-oss-20b-p-eagle and the default of speculators. Heads that fill blocks
are five layers of Qwen3: DFlash with blocks of 16, as z-lab/Qwen3-8B-DFlash-b16; DSpark with blocks of 7 and a vanilla
Markov head of rank 256, as deepseek-ai/dspark_qwen3_8b_block7; DFlash2 with blocks of 8, as
z-lab/Qwen3.8-27B-DFlash2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from harness.config.models import AS_FILED, Confidence, HeadChoices
from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, head_account
from harness.models.aux_layer_ids import default_aux_layers
from harness.models.checkpoint import read_fields
from harness.models.decoder_layer import head_layer_config, layer_config, layer_fields
from harness.models.dflash import AnyBlockHead, DFlashHead
from harness.models.dflash2 import DFlash2Head
from harness.models.dflash_config import DFlashConfig
from harness.models.dspark import DSparkHead
from harness.models.eagle import EagleConfig, EagleHead
from harness.models.eagle3 import Eagle3Head
from harness.models.eagle3_config import Eagle3Config
from harness.models.head import Head
from harness.models.llama_config import LlamaConfig
from harness.models.medusa import MedusaConfig, MedusaHead
from harness.models.mtp import MtpConfig, MtpHead
from harness.models.peagle import PEagleConfig, PEagleHead
from harness.models.random_weights import RandomWeights, made_on, random_fingerprint
from harness.models.target import TargetModel
from harness.models.vocabulary import check_head_vocabulary

DRAFT_VOCAB_SIZE = 32_000
"""Of the public EAGLE-3 heads; a smaller vocabulary is taken whole."""
NUM_PEAGLE_LAYERS = 4
NUM_DFLASH_LAYERS = 5
BLOCK_SIZES = {"dflash": 16, "dspark": 7, "dflash2": 8}
MARKOV_RANK = 256
CONV_GROUP_SIZE, SELECTOR_TOP_K = 16, 16
NUM_MEDUSA_HEADS = 5
SEED = "drafter"

AnyHead = TypeVar("AnyHead", bound=Head)
AnyConfig = TypeVar("AnyConfig", Eagle3Config, PEagleConfig, DFlashConfig)


def random_eagle(target: TargetModel, folder: Path | None = None, accepted: Accepted = OF_DRAFTER) -> EagleHead:
    """An EAGLE head without a bias. folder: whose config.json gives other sizes.

    Raises ValueError as load_eagle does, or, without a folder, for a target whose layers such heads are not made of.
    """
    assumed: tuple[str, ...] = ()
    if folder is None:
        config = EagleConfig(_llama_layer(target), bias=False)
    else:
        fields, assumed = _read("eagle", folder, accepted)
        config = EagleConfig.from_dict(fields, folder / CONFIG)
        check_head_vocabulary(config.layer.vocab_size, None, target, folder / CONFIG)
        config = config.of_vocabulary(target.vocab_size)
    return _drawn(lambda owner: EagleHead(config, owner), target, config.to_dict(), assumed)


def random_eagle3(
    target: TargetModel,
    folder: Path | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> Eagle3Head:
    """An EAGLE-3 head over `default_aux_layers`, its draft vocabulary spread evenly over the target's.

    folder: whose config.json gives other sizes. choices: what counts in place of these. Raises ValueError as
    `random_eagle` does.
    """
    assumed: tuple[str, ...] = ()
    if folder is None:
        config = Eagle3Config(**_eagle3_sizes(target, choices))
    else:
        config, assumed = _read_config(Eagle3Config, folder, target, accepted, choices)
    return _drawn_eagle3(Eagle3Head, config, target, assumed)


def random_peagle(
    target: TargetModel,
    folder: Path | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> PEagleHead:
    """A P-EAGLE head like `random_eagle3`'s, whose mask token is the last one of the target's vocabulary.

    folder, choices: as there. Raises ValueError as `random_eagle` does.
    """
    assumed: tuple[str, ...] = ()
    if folder is None:
        sizes = _eagle3_sizes(target, choices, NUM_PEAGLE_LAYERS)
        config = PEagleConfig(**sizes, mask_token_id=target.vocab_size - 1)
    else:
        config, assumed = _read_config(PEagleConfig, folder, target, accepted, choices)
    return _drawn_eagle3(PEagleHead, config, target, assumed)


def random_dflash(
    target: TargetModel,
    folder: Path | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> DFlashHead:
    """A DFlash head that drafts all tokens, whose mask token is the last one of the target's vocabulary.

    The layers that make its context are spread evenly between the second and the last but three, as in the original
    code. folder, choices: as for `random_eagle3`. Raises ValueError as `random_eagle` does.
    """
    return _random_block(DFlashHead, target, folder, accepted, choices, {})


def random_dspark(
    target: TargetModel,
    folder: Path | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> DSparkHead:
    """A DSpark head like `random_dflash`'s; arguments and errors as there."""
    is_asked = choices.confidence is not Confidence.row
    confidence = {"enable_confidence_head": is_asked, "confidence_head_with_markov": is_asked}
    own = {"markov_rank": MARKOV_RANK, "confidence": choices.confidence} | confidence
    return _random_block(DSparkHead, target, folder, accepted, choices, own)


def random_dflash2(
    target: TargetModel,
    folder: Path | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> DFlash2Head:
    """A DFlash2 head like `random_dflash`'s, whose convolutions change nothing; arguments and errors as there."""
    group_size = math.gcd(CONV_GROUP_SIZE, target.hidden_size)
    own = {"conv_group_size": group_size, "selector_top_k": min(SELECTOR_TOP_K, target.vocab_size)}
    head = _random_block(DFlash2Head, target, folder, accepted, choices, own)
    with torch.no_grad():
        for layer in head.decoder_layers:
            layer.attention_conv.make_identity()
            layer.mlp_conv.make_identity()
    return head


def _random_block(
    kind: type[AnyBlockHead],
    target: TargetModel,
    folder: Path | None,
    accepted: Accepted,
    choices: HeadChoices,
    own: dict[str, Any],
) -> AnyBlockHead:
    """A head of a kind that fills blocks; `own` are fields of its configuration where no folder says them."""
    assumed: tuple[str, ...] = ()
    if folder is None:
        config = kind.config_class.for_target(
            target,
            aux_layers=choices.aux_layers or spread_layers(NUM_DFLASH_LAYERS, target.num_layers),
            block_size=BLOCK_SIZES[kind.config_class.kind],
            mask_token_id=target.vocab_size - 1,
            own=own,
            num_hidden_layers=NUM_DFLASH_LAYERS,
        )
        config = config if choices.anchor is None else replace(config, anchor=choices.anchor)
    else:
        config, assumed = _read_config(kind.config_class, folder, target, accepted, choices)
    size, ids = config.draft_vocab_size, None
    if size < target.vocab_size:
        ids = spread_ids(size, target.vocab_size)
    make = partial(kind, config, draft_token_ids=ids)
    return _drawn(make, target, config.to_dict(), assumed, config.layer.num_hidden_layers)


def random_medusa(target: TargetModel, folder: Path | None = None, accepted: Accepted = OF_DRAFTER) -> MedusaHead:
    """A Medusa model of five heads of one block with output matrices of their own, as that for Vicuna.

    folder: whose config.json gives other numbers. Raises ValueError as load_medusa does.
    """
    assumed: tuple[str, ...] = ()
    config = MedusaConfig(NUM_MEDUSA_HEADS, 1, target.vocab_size)
    if folder is not None:
        fields, assumed = _read("medusa", folder, accepted)
        config = MedusaConfig.from_dict(fields, target, folder / CONFIG)
    return _drawn(lambda owner: MedusaHead(config, owner), target, asdict(config), assumed)


def spread_layers(number: int, num_layers: int) -> tuple[int, ...]:
    """Layers whose entering states a DFlash head of so many layers reads: different ones, as many as fit."""
    first, last = min(2, num_layers - 1), max(num_layers - 2, 1)
    return tuple(
        sorted({min(round(first + index * (last - first) / (number - 1)), num_layers - 1) for index in range(number)})
    )


def _eagle3_sizes(target: TargetModel, choices: HeadChoices, num_layers: int = 1) -> dict[str, Any]:
    """Fields of an Eagle3Config for a target."""
    return {
        "layer": _llama_layer(target, num_layers),
        "draft_vocab_size": min(DRAFT_VOCAB_SIZE, target.vocab_size),
        "aux_layers": choices.aux_layers or default_aux_layers(target.num_layers),
        "target_hidden_size": target.hidden_size,
        "verifier": target.name,
    }


def _num_drafted(config: Eagle3Config | DFlashConfig, target: TargetModel) -> int:
    """Draft tokens of a file: all of the target's where they are all of the file's."""
    is_all = config.draft_vocab_size == config.layer.vocab_size
    return target.vocab_size if is_all else min(config.draft_vocab_size, target.vocab_size)


def _read(kind: str, folder: Path, accepted: Accepted) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of a folder's config.json, and what is assumed of them; its tensors are not read."""
    account = head_account(kind, folder, read_fields(folder / CONFIG), accepted, ())
    return account.fields, account.settled().assumptions


def _read_config(
    kind: type[AnyConfig], folder: Path, target: TargetModel, accepted: Accepted, choices: HeadChoices
) -> tuple[AnyConfig, tuple[str, ...]]:
    fields, assumed = _read(kind.kind, folder, accepted)
    config = kind.from_dict(fields, target, folder / CONFIG, choices)
    check_head_vocabulary(config.layer.vocab_size, None, target, folder / CONFIG)
    return config.of_vocabulary(target.vocab_size, _num_drafted(config, target)), assumed


def _drawn_eagle3(
    kind: Callable[..., AnyHead], config: Eagle3Config, target: TargetModel, assumed: tuple[str, ...]
) -> AnyHead:
    """A head of the EAGLE-3 layouts, with an embedding of its own where it needs one."""
    own_embedding = config.layer.hidden_size != target.hidden_size
    ids = spread_ids(config.draft_vocab_size, target.vocab_size)
    make = partial(kind, config, draft_token_ids=ids, own_embedding=own_embedding)
    return _drawn(make, target, config.to_dict(), assumed, config.layer.num_hidden_layers)


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


def _llama_layer(target: TargetModel, num_layers: int = 1) -> PreTrainedConfig:
    """So many Llama layers of the target's widths, heads and positions."""
    fields = layer_fields(head_layer_config(target.config))
    fields |= {"model_type": LlamaConfig.model_type, "num_hidden_layers": num_layers}
    return layer_config(fields, f"target {target.name}", is_stack=num_layers > 1)


def _drawn(
    make: Callable[[TargetModel], AnyHead],
    target: TargetModel,
    fields: dict[str, Any],
    assumed: tuple[str, ...] = (),
    num_layers: int = 1,
) -> AnyHead:
    """A frozen head made for a target, where the target is, and drawn."""
    with made_on(target.device, target.dtype):
        head = make(target)
    head.fill(RandomWeights(SEED, num_layers, device=target.device, dtype=target.dtype))
    head.assumptions = (*assumed, *head.assumptions)
    head.random_fingerprint = random_fingerprint(SEED, {"kind": type(head).__name__} | fields)
    return head.eval().requires_grad_(False)
