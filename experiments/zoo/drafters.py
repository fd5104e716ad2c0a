"""The drafters of a training run, fresh: networks in float32, what runs them over text, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments.zoo.data import TrainingData
from experiments.zoo.sampling import GIVEN, load_sampled
from experiments.zoo.settings import Settings
from experiments.zoo.target_training import llama, save_causal_lm
from experiments.zoo.tokenizer import END_OF_TEXT_ID
from harness.models.eagle import EagleConfig, EagleHead
from harness.models.eagle3 import Eagle3Config, Eagle3Head, load_eagle3
from harness.models.head import Head, save_head
from harness.models.mtp import MtpConfig, MtpHead
from harness.models.peagle import MASK_HIDDEN, PEagleConfig, PEagleHead
from harness.models.target import TargetModel
from harness.training.drafter import Drafter, drafter_of, initialize
from harness.training.unrolled import HeadChain, ModelChain, ParallelChain

Save = Callable[[], None]
KINDS = ("eagle", "eagle3", "mtp", "draft_model", "peagle")


def make_drafter(kind: str, settings: Settings, target: TargetModel, data: TrainingData) -> tuple[Drafter, Save]:
    """A fresh drafter of a kind, and what writes it."""
    if kind == "draft_model":
        return _draft_model(settings, target)
    head: EagleHead | Eagle3Head | MtpHead
    sizes, folder = settings.sizes, settings.out / kind
    changes: dict[str, Any] = {"intermediate_size": sizes.head_intermediate_size}
    if kind == "eagle":
        head = EagleHead(EagleConfig.for_target(target, **changes), target)
    elif kind == "mtp":
        head = MtpHead(MtpConfig.for_target(target), target)
    else:
        changes["aux_layers"] = sizes.aux_layers
        if kind == "eagle3":
            ids = frequent_tokens(settings, data, sizes.draft_vocab_size)
            head = Eagle3Head(Eagle3Config.for_target(target, len(ids), **changes), target, draft_token_ids=ids)
        else:
            changes["intermediate_size"] = sizes.parallel_intermediate_size
            ids = frequent_tokens(settings, data, sizes.parallel_draft_vocab_size)
            # a token after which nothing is known of the text
            config = PEagleConfig.for_target(target, len(ids), mask_token_id=END_OF_TEXT_ID, **changes)
            head = PEagleHead(config, target, draft_token_ids=ids)
    initialize(head)
    if isinstance(head, PEagleHead) and (settings.out / "eagle3").is_dir():
        start_from(head, load_eagle3(settings.out / "eagle3", target))
    head.float().requires_grad_(True)
    lengths = sizes.sample_length, sizes.num_unrolled
    chain = ParallelChain(head, *lengths) if isinstance(head, PEagleHead) else HeadChain(head, *lengths)
    save = (
        partial(save_mtp_layer, head, settings) if kind == "mtp" else partial(save_head, head, folder, torch.bfloat16)
    )
    return drafter_of(head, chain, learns_features=kind == "eagle"), save


def _draft_model(settings: Settings, target: TargetModel) -> tuple[Drafter, Save]:
    sizes, folder = settings.sizes, settings.out / "draft_model"
    causal_lm = llama(sizes.draft_model, sizes.vocab_size, sizes.target_length, settings.device)
    model = TargetModel(causal_lm, target.tokenizer, name="draft_model")
    chain = ModelChain(model, sizes.sample_length, sizes.num_unrolled)
    save = partial(save_causal_lm, causal_lm, folder, settings.tokenizer_folder)
    return Drafter(causal_lm, chain, chain.num_pairs, lambda output: output.hidden[..., :0], model.logits), save


def start_from(head: PEagleHead, eagle3: Eagle3Head) -> None:
    """Give a head the weights of an EAGLE-3 head of one layer, as far as its sizes go; its mask_hidden stays.

    It keeps its own vocabulary, whose tokens must be among the other's, and of the feed-forward's units those with the
    largest weights.
    """
    assert eagle3.draft_to_target is not None and head.draft_to_target is not None
    weights: dict[str, Tensor] = dict(eagle3.named_parameters())
    place = torch.full((head.target.vocab_size,), -1, device=eagle3.draft_to_target.device)
    place[eagle3.draft_to_target] = torch.arange(len(eagle3.draft_to_target), device=place.device)
    rows = place[head.draft_to_target]
    if int(rows.min()) < 0:
        raise ValueError(
            f"P-EAGLE head: expected a draft vocabulary within that of the EAGLE-3 head it starts from, found "
            f"{int((rows < 0).sum())} tokens beside it; train eagle3 on the same data, or move its folder away"
        )
    weights["lm_head.weight"] = weights["lm_head.weight"][rows]
    gate, up, down = (f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
    sizes = weights[gate].float().norm(dim=1) * weights[up].float().norm(dim=1) * weights[down].float().norm(dim=0)
    units = sizes.topk(head.config.layer.intermediate_size).indices.sort().values
    weights |= {gate: weights[gate][units], up: weights[up][units], down: weights[down][:, units]}
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name != MASK_HIDDEN:
                parameter.copy_(weights[name])


def save_mtp_layer(head: Head, settings: Settings) -> None:
    """Save the layer beside the target; the last stage merges it, when no stage reads the target any more."""
    settings.mtp_path.parent.mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict_public(), settings.mtp_path)


def frequent_tokens(settings: Settings, data: TrainingData, number: int) -> Tensor:
    """[number] the most frequent token ids of sampled text and corpus, ascending."""
    vocab_size = settings.sizes.vocab_size
    sampled = np.bincount(load_sampled(settings).ravel() % GIVEN, minlength=vocab_size).astype(np.float64)
    corpus = np.bincount(data.tokens, minlength=vocab_size).astype(np.float64)
    share = settings.sizes.sampled_share
    frequency = share * sampled / sampled.sum() + (1 - share) * corpus / corpus.sum()
    ids = np.argsort(-frequency, kind="stable")[:number]
    kept = frequency[ids].sum()
    print(f"draft vocabulary: the {len(ids)} most frequent tokens are {kept:.2%} of the text", flush=True)
    return torch.from_numpy(np.sort(ids))
