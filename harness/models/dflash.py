"""The DFlash head: a few layers that fill a whole block of draft tokens in one forward.

    context_t = hidden_norm(fc([states entering some layers of the target, for x_t]))          t < n - 1
    block     = layers(embed([x_{n-1}, mask, .., mask])), at the positions n - 1 .. n - 1 + K
    logits    = output matrix (norm(block_i)) for x_{n-1+i}, i = 1 .. K

With `anchor` first, as heads trained by DeepSpec are, the place of x_{n-1} gives the first draft token:

    block     = layers(embed([x_{n-1}, mask, .., mask])), at the positions n - 1 .. n - 2 + K
    logits    = output matrix (norm(block_i)) for x_{n+i}, i = 0 .. K - 1

n tokens are known, and the target has read all but the last. Each layer projects the same context to keys and values
of its own, which stay in the cache; the places of the block attend to all of them and to each other, in both
directions. So the logits depend on no draft token, but on the number of places: a shorter block gives other ones. The
layers are those of Qwen3. The embedding is the target's; so is the output matrix, unless the head has its own.

Two layouts are read: the original one (`dflash_config`) and that of speculators, which is also written.
Source: Chen et al., DFlash: Block Diffusion for Flash Speculative Decoding (2026), arXiv 2602.06036.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from harness.config.models import AS_FILED, HeadChoices
from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, head_account
from harness.models.block_rows import BlockRows
from harness.models.checkpoint import Checkpoint, CheckpointError, StoredRows, checkpoint_folder, read_fields
from harness.models.confidence_head import PredictedConfidence
from harness.models.cost import Cost, ModelCost
from harness.models.decoder_layer import View, layer_types, with_slots
from harness.models.dflash_config import DFlashConfig
from harness.models.draft_vocabulary import is_in_order, read_vocabulary, register_vocabulary
from harness.models.fused import layer as fused
from harness.models.head import Head
from harness.models.head_fits import NAMES
from harness.models.layer_forward import is_fused, linear, norm, run_layers
from harness.models.llama_layers import turned
from harness.models.meta import on_meta
from harness.models.target import OUTPUT, TargetModel, TargetOutput, check_copy
from harness.models.token_ids import missing_ids
from harness.models.vocabulary import check_head_vocabulary


class DFlashHead(Head):
    """A DFlash head.

    draft_token_ids: [V_draft] int64, the target ids it can propose, ascending; None for all of them, whose logits the
    target's output matrix gives.
    """

    config: DFlashConfig
    config_class: ClassVar[type[DFlashConfig]] = DFlashConfig

    def __init__(self, config: DFlashConfig, target: TargetModel, *, draft_token_ids: Tensor | None = None) -> None:
        super().__init__(config.layer, target)
        config.check_target(target)
        self.config = config
        self.aux_layers = config.aux_layers
        self.assumptions = config.assumptions
        layer, hidden_size = config.layer, config.layer.hidden_size
        types = layer_types(layer, f"{self.name} head")
        self.layers = nn.ModuleList(types.layer(with_slots(layer), index) for index in range(layer.num_hidden_layers))
        self.fc = nn.Linear(len(config.aux_layers) * hidden_size, hidden_size, bias=False)
        self.hidden_norm = types.norm(hidden_size, eps=layer.rms_norm_eps)
        self.norm = types.norm(hidden_size, eps=layer.rms_norm_eps)
        if draft_token_ids is not None:
            self.lm_head = nn.Linear(hidden_size, config.draft_vocab_size, bias=False)
        self.to(device=target.device, dtype=target.dtype)
        self.rotary = types.rotary(layer).to(target.device)
        if draft_token_ids is not None:
            register_vocabulary(self, self.name, config.draft_vocab_size, draft_token_ids)

    @property
    def name(self) -> str:
        """Of its kind, in errors."""
        return NAMES[self.config.kind]

    @property
    def vocab_size(self) -> int:
        return self.config.draft_vocab_size

    @property
    def has_own_output(self) -> bool:
        return hasattr(self, "lm_head")

    @property
    def output_matrix(self) -> Tensor:
        return self.lm_head.weight if self.has_own_output else self.target.output_matrix

    @property
    def joining(self) -> Sequence[nn.Parameter]:
        return [*self.fc.parameters(), *self.hidden_norm.parameters()]

    def context_cost(self, num_tokens: int) -> Cost:
        """What it costs to read the target's states of so many tokens: their context, its keys and values."""
        of_keys = [
            parameter
            for layer in self.decoder_layers
            for part in (layer.self_attn.k_proj, layer.self_attn.v_proj, layer.self_attn.k_norm)
            for parameter in part.parameters()
        ]
        cost: ModelCost = self.cost
        return replace(cost, joining=[*self.joining, *of_keys]).join(num_tokens)

    def features(self, output: TargetOutput) -> Tensor:
        """[B, T, H] the target's joined states, which `read` makes the context of."""
        return linear(torch.cat(output.aux, dim=-1), self.fc.weight, self.fc.bias, self.is_fused)

    def read(self, features: Tensor, positions: Tensor, view: View) -> None:
        """Write the keys and values of features, [B, T, H] at positions [B, T] int64, to the cache of a view."""
        context = norm(self.hidden_norm, features, view)
        if is_fused(view):
            assert view.rope_table is not None
            for index, layer in enumerate(self.decoder_layers):
                fused.store_context(layer, context, view.rope_table, *view.layer(index), view.slots, view.starts)
            return
        cos_sin = self.rotary(context, positions)
        for index, layer in enumerate(self.decoder_layers):
            attention = layer.self_attn
            shape = (*context.shape[:-1], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(context).view(shape)).transpose(1, 2)
            values = attention.v_proj(context).view(shape).transpose(1, 2)
            view.update(turned(keys, *cos_sin), values, index)

    def fill_block(self, token_ids: Tensor, positions: Tensor, view: View) -> Tensor:
        """[B, T, H] what `logits` takes, of the places of blocks.

        Args:
            token_ids: [B, T] int64, the last known token of each row and mask tokens.
            positions: [B, T] int64.
            view: of a cache that holds the context; its queries see that and all places of the block.
        """
        return run_layers(self.decoder_layers, self.norm, self.rotary, self.embed(token_ids), positions, view).normed

    def rows(self, hidden: Tensor) -> BlockRows:
        """The draft rows of blocks, from what `fill_block` gave of the places that draft, [B, K, H] without gaps."""
        return BlockRows(self.logits(hidden))

    def confidence(self, hidden: Tensor) -> PredictedConfidence | None:
        """What the head predicts of its drafts in these blocks, as `rows` takes them; None where the rows tell it."""
        return None

    def rows_cost(self, num_slots: int, num_tokens: int) -> Cost:
        """What so many rows of each slot cost beside their product with the output matrix."""
        return Cost()

    @classmethod
    def read_rows(cls, checkpoint: Checkpoint, num_rows: int, target: TargetModel, drafted: StoredRows) -> None:
        """Let the tables over tokens that a kind has in its file be those of a target.

        Args:
            num_rows: of the vocabulary that the file was made for.
            drafted: the rows of the tokens that the head drafts.
        """


AnyBlockHead = TypeVar("AnyBlockHead", bound=DFlashHead)


def load_dflash(
    path: str | Path,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> DFlashHead:
    """Load a frozen DFlash head for a target. Raises ValueError as load_target does."""
    return load_block_head(DFlashHead, path, target, revision, accepted, choices)


def load_block_head(
    kind: type[AnyBlockHead],
    path: str | Path,
    target: TargetModel,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> AnyBlockHead:
    """Load a frozen head of a kind that fills blocks, for a target. Raises ValueError as load_target does."""
    folder = checkpoint_folder(path, revision)
    source = folder / CONFIG
    fields = read_fields(source)
    with Checkpoint(folder) as checkpoint:
        account = head_account(kind.config_class.kind, folder, fields, accepted, checkpoint.names)
        config = kind.config_class.from_dict(account.fields, target, source, choices)
        settled, num_rows = account.settled(), config.layer.vocab_size
        assumed = check_head_vocabulary(num_rows, folder, target, source)
        vocabulary = read_vocabulary(checkpoint, config.draft_vocab_size, num_rows, target)
        size, ids = vocabulary.size, vocabulary.token_ids
        if OUTPUT in checkpoint:
            checkpoint.read_rows(OUTPUT, vocabulary.rows)
            # a matrix of its own over all tokens may be a copy of the target's
            ids = torch.arange(target.vocab_size, device="cpu") if ids is None else ids
        elif config.draft_vocab_size == num_rows and is_in_order(ids):
            size, ids = target.vocab_size, None
        else:
            raise CheckpointError(
                f"{folder}: expected {OUTPUT} for its own {config.draft_vocab_size} draft tokens, found none"
            )
        kind.read_rows(checkpoint, num_rows, target, vocabulary.rows)
        with on_meta(target.device):
            head = kind(config.of_vocabulary(target.vocab_size, size), target, draft_token_ids=ids)
        head.fill(checkpoint)
        what = f"that of target {target.name}, which the head is run with"
        check_copy(checkpoint, "embed_tokens.weight", target.embed_weight, what, num_rows)
        checkpoint.check_used(settled.left_alone)
    head.path = folder
    if config.draft_vocab_size == num_rows:
        are_drafted = not head.has_own_output
        assumed = (*assumed, *missing_ids(num_rows, target.vocab_size, are_drafted=are_drafted, are_read=False))
    head.assumptions = (*settled.assumptions, *head.assumptions, *assumed)
    return head.eval().requires_grad_(False)
