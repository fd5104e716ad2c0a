"""A random draft head of every kind for a tiny target: how it is made, saved, loaded and run. The tests of all heads go
through KINDS."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.models.dflash import DFlashHead, load_dflash
from harness.models.dflash2 import DFlash2Config, DFlash2Head, load_dflash2
from harness.models.dflash_config import DFlashConfig
from harness.models.dspark import DSparkConfig, DSparkHead, load_dspark
from harness.models.eagle import EagleConfig, EagleHead, load_eagle
from harness.models.eagle3 import Eagle3Head, load_eagle3
from harness.models.eagle3_config import Eagle3Config
from harness.models.head import save_head
from harness.models.mtp import MtpConfig, MtpHead, load_mtp, save_mtp
from harness.models.peagle import PEagleConfig, PEagleHead, load_peagle
from harness.models.target import TargetModel
from harness.models.tree_places import TreePlaces
from tests.support.tiny_models import NUM_LAYERS, positions_from, random_tokens, randomize

DRAFT_IDS = torch.tensor([0, 1, 4, 9, 16, 25, 36, 49, 60])
AUX_LAYERS, MASK_TOKEN_ID, BLOCK_SIZE, NUM_MASKED = (1, 2, 4), 11, 5, 3
LOADERS: dict[str, Any] = {
    "eagle": load_eagle,
    "eagle3": load_eagle3,
    "peagle": load_peagle,
    "dflash": load_dflash,
    "dspark": load_dspark,
    "dflash2": load_dflash2,
    "mtp": load_mtp,
}
KINDS = tuple(LOADERS)
_BLOCKS = {"mask_token_id": MASK_TOKEN_ID, "num_hidden_layers": 2, "block_size": BLOCK_SIZE}
_SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}
_OF_STATES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "eagle3": (Eagle3Config, Eagle3Head, {}),
    "peagle": (PEagleConfig, PEagleHead, {"mask_token_id": MASK_TOKEN_ID, "num_hidden_layers": 2}),
    "dflash": (DFlashConfig, DFlashHead, _BLOCKS),
    "dspark": (DSparkConfig, DSparkHead, _BLOCKS | {"own": {"markov_rank": 6, "markov_head_type": "gated"}}),
    "dflash2": (DFlash2Config, DFlash2Head, _BLOCKS | {"own": _SELECTOR}),
}
"""Heads that read states of several layers: configuration, head, and the fields that they need."""

_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_LAYER = {*_PROJECTIONS, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"}
_NORMED = {*_LAYER, "input_layernorm"}
_OF_QWEN3 = {*_NORMED, "self_attn.q_norm", "self_attn.k_norm"}
_MTP = {*_NORMED, "enorm", "hnorm", "eh_proj", "shared_head.norm"}
MTP_PREFIX = f"model.layers.{NUM_LAYERS}."


def _of_layers(*names: set[str]) -> set[str]:
    return {f"layers.{index}.{name}.weight" for index, each in enumerate(names) for name in each}


_OF_EAGLE3 = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
_FIRST = {*_NORMED, "hidden_norm"}
_OF_DFLASH = _OF_EAGLE3 | {"hidden_norm.weight"} | _of_layers(_OF_QWEN3, _OF_QWEN3)
TENSORS: dict[str, set[str]] = {
    "eagle": {"fc.weight"} | _of_layers(_LAYER),
    "eagle3": _OF_EAGLE3 | _of_layers(_FIRST),
    "peagle": _OF_EAGLE3 | {"mask_hidden"} | _of_layers(_FIRST, _NORMED),
    "dflash": _OF_DFLASH,
    "dspark": _OF_DFLASH
    | {
        f"markov_head.{name}" for name in ("markov_w1.weight", "markov_w2.weight", "gate_proj.weight", "gate_proj.bias")
    },
    "dflash2": _OF_DFLASH
    | {f"candidate_selector.{name}_codebook" for name in ("predecessor", "successor")}
    | {"candidate_selector.hidden_projection.weight"}
    | {
        f"layers.{index}.{part}_conv.{name}"
        for index in range(2)
        for part in ("attention", "mlp")
        for name in ("base_kernel", "kernel_projection.weight")
    },
    "mtp": {f"{MTP_PREFIX}{name}.weight" for name in _MTP},
}
"""The names that public files of a kind have."""


def make_head(
    kind: str,
    target: TargetModel,
    draft_ids: Tensor | None = DRAFT_IDS,
    *,
    own_embedding: bool = False,
    own_output: bool = True,
    seed: int = 3,
    **changes: Any,
) -> Any:
    """A random head that is not trained; `changes` are fields of its configuration. draft_ids: None drafts all tokens,
    with an output matrix that is the target's where the format knows one."""
    if kind == "eagle":
        head: Any = EagleHead(EagleConfig.for_target(target, **changes), target, own_embedding=own_embedding)
    elif kind == "mtp":
        head = MtpHead(MtpConfig.for_target(target, own_embedding=own_embedding, **changes), target)
    else:
        config_class, head_class, needed = _OF_STATES[kind]
        size = target.vocab_size if draft_ids is None else len(draft_ids)
        given = {"aux_layers": AUX_LAYERS} | needed | changes
        if issubclass(config_class, DFlashConfig):
            config = config_class.for_target(target, draft_vocab_size=None if draft_ids is None else size, **given)
        else:
            config = config_class.for_target(target, size, **given)
        owned = {"own_embedding": True} if own_embedding else {}
        owned |= {} if own_output else {"own_output": False}
        head = head_class(config, target, draft_token_ids=draft_ids, **owned)
    randomize(head, seed)
    return head.eval().requires_grad_(False)


def save(head: Any, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write a head's files; an MTP layer goes into its target's."""
    (save_mtp if isinstance(head, MtpHead) else save_head)(head, folder, dtype)


def load_quietly(kind: str, folder: Path, target: TargetModel) -> Any:
    """Load, where a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return LOADERS[kind](folder, target)


def run(head: Any, num_rows: int = 2, num_pairs: int = 6) -> tuple[Tensor, Any, Any]:
    """Tokens [B, T + 1], the target's output for them, and a chain head's for the pairs [B, T]."""
    tokens = random_tokens(num_rows, num_pairs + 1)
    starts = [0] * num_rows
    output = head.target.forward(tokens, positions_from(starts, num_pairs + 1), None, head.aux_layers)
    features = head.features(output)[:, :-1]
    return tokens, output, head(tokens[:, 1:], features, positions_from(starts, num_pairs), None)


def logits_of(head: Any) -> Tensor:
    """[.., V_draft] of a few known tokens and, where a head has them, its masked places behind them."""
    if isinstance(head, DFlashHead):
        return block_logits(head)
    return masked_logits(head)[2] if isinstance(head, PEagleHead) else head.logits(run(head)[2].hidden)


def masked_logits(head: PEagleHead, num_pairs: int = 5) -> tuple[Tensor, list[Tensor], Tensor]:
    """Tokens [1, T + 1], states [T, H] of the target, and logits [T + M, V_draft] of known and masked pairs."""
    tokens = random_tokens(1, num_pairs + 1)
    output = head.target.forward(tokens, positions_from([0], num_pairs + 1), None, head.aux_layers)
    features = torch.cat((head.features(output)[:, :-1], head.mask_features().expand(1, NUM_MASKED, -1)), dim=1)
    token_ids = torch.cat((tokens[:, 1:], torch.full((1, NUM_MASKED), head.config.mask_token_id)), dim=1)
    hidden = head(token_ids, features, positions_from([0], num_pairs + NUM_MASKED), None).hidden
    return tokens, [state[0, :-1] for state in output.aux], head.logits(hidden)[0]


def block_logits(head: DFlashHead, num_known: int = 6) -> Tensor:
    """[places, V_draft] of a whole block after so many tokens, the first of whose places is the last token, as if each
    draft token were the one of its number."""
    tokens, num_read = random_tokens(1, num_known), num_known - 1
    positions, cache = positions_from([0], num_read), head.new_cache(1, num_read + BLOCK_SIZE)
    output = head.target.forward(tokens[:, :-1], positions, None, head.aux_layers)
    head.read(head.features(output), positions, cache.view(slice(0, 1), positions, num_read))
    block = torch.cat((tokens[:, -1:], torch.full((1, BLOCK_SIZE - 1), head.config.mask_token_id)), dim=1)
    sees = torch.ones(BLOCK_SIZE, BLOCK_SIZE, dtype=torch.bool)
    tree = TreePlaces(torch.tensor([num_read]), torch.arange(BLOCK_SIZE), sees)
    view = cache.view(slice(0, 1), tree.absolute, num_read + BLOCK_SIZE, tree)
    rows = head.rows(head.fill_block(block, tree.absolute, view))
    return torch.cat([rows.row(step, torch.tensor([step]), None) for step in range(BLOCK_SIZE)])
