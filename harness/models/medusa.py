"""The Medusa head: K small networks over the target's last state, each of which drafts one position by itself.

    states_k = hidden_t, then for every block: x + SiLU(linear(x))       hidden_t = the target's, after its final norm
    logits_k = output matrix of head k of states_k, or the target's      for x_{t + 2 + k}, k from 0

Source: Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (2024), and its
code: version 1 gives each head an output matrix, version 2 runs all through the target's. vLLM has files of its own.

Shapes: B rows, H hidden size, V_draft the tokens that are drafted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, head_account
from harness.models.checkpoint import Checkpoint, CheckpointError, StoredRows, named, read_fields
from harness.models.cost import Cost
from harness.models.head import Head
from harness.models.head_fits import check_medusa_fields
from harness.models.layer_forward import linear
from harness.models.meta import on_meta
from harness.models.target import TargetModel, check_copy
from harness.models.vocabulary import check_head_vocabulary

_BLOCK = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.linear\.(weight|bias)")
_OUTPUT = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.weight")
_VLLM_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_VLLM_OUTPUT = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")
_ORIGINAL_OUTPUT = re.compile(r"(?:medusa_heads\.)?lm_heads?(\.0)?\.weight")
"""In files of vLLM whose heads all run through the target's output matrix: a copy of it."""
TOKEN_MAP = "token_map"


@dataclass(frozen=True)
class MedusaConfig:
    """The sizes of a Medusa head."""

    num_heads: int
    """Draft tokens of a round at most."""
    num_layers: int
    """Blocks of each."""
    draft_vocab_size: int
    """V_draft."""
    has_bias: bool = True
    has_own_output: bool = True
    """Whether every head has an output matrix; else all use the target's."""
    logit_scale: float = 1.0

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], target: TargetModel, source: object) -> MedusaConfig:
        """What a config.json says of a model without weights; where the file has some, they count.

        Raises CheckpointError where it states no number of heads, or does not fit the target.
        """
        with named(source):
            check_medusa_fields(fields, target)
        of_vllm = "num_heads" in fields
        num_heads = fields.get("num_heads" if of_vllm else "medusa_num_heads")
        num_layers = fields.get("num_hidden_layers" if of_vllm else "medusa_num_layers", 1)
        if not (type(num_heads) is int and type(num_layers) is int and num_heads >= 1 and num_layers >= 1):
            raise CheckpointError(
                f"{source}: expected medusa_num_heads (or num_heads) of 1 or more with 1 or more blocks each, found "
                f"{num_heads!r} with {num_layers!r}"
            )
        shares_output = bool(fields.get("original_lm_head")) or str(fields.get("version")) == "2"
        has_bias = bool(fields.get("medusa_fc_bias")) if of_vllm else True
        scale = float(fields.get("logit_scale", 1.0))
        return cls(num_heads, num_layers, target.vocab_size, has_bias, not shares_output, scale)


class StoredNames:
    """What the tensors of a file are, by their names; of either layout."""

    def __init__(self, names: Collection[str]) -> None:
        """Raises ValueError where they are not those of heads from 0 on with as many blocks each."""
        self.by_own: dict[str, str] = {}
        """Name in a MedusaHead -> name in the file, of blocks and output matrices."""
        blocks = {name: found for name in names if (found := _BLOCK.fullmatch(name) or _VLLM_BLOCK.fullmatch(name))}
        self.has_bias = any(found[3] == "bias" for found in blocks.values())
        places = sorted({(int(found[1]), int(found[2])) for found in blocks.values()})
        self.num_heads = len({head for head, _ in places})
        self.num_layers = len({layer for _, layer in places})
        wanted = [(head, layer) for head in range(self.num_heads) for layer in range(self.num_layers)]
        if not places or places != wanted:
            raise ValueError(
                "expected tensors HEAD.BLOCK.linear.weight (or blocks.HEAD.layers.BLOCK.weight) of heads and blocks "
                f"from 0 on, as many blocks in each head, found those of {places or 'none'}"
            )
        self.by_own |= {f"{found[1]}.{found[2]}.linear.{found[3]}": name for name, found in blocks.items()}
        outputs: dict[int, str] = {}
        for name in names:
            own, of_vllm = _OUTPUT.fullmatch(name), _VLLM_OUTPUT.fullmatch(name)
            if own is not None and int(own[2]) == self.num_layers:
                outputs[int(own[1])] = name
            elif of_vllm is not None:
                outputs[int(of_vllm[1])] = name
        self.outputs = outputs
        """Head -> its output matrix in the file."""
        self.by_own |= {f"{head}.{self.num_layers}.weight": name for head, name in outputs.items()}


class _Block(nn.Module):
    """x + SiLU(linear(x))."""

    def __init__(self, hidden_size: int, has_bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size, bias=has_bias)

    def forward(self, states: Tensor) -> Tensor:
        return states + functional.silu(self.linear(states))


class MedusaHead(Head):
    """All heads of a Medusa model; its tensors have the names of the original code, HEAD.BLOCK.linear.weight."""

    config: MedusaConfig

    def __init__(self, config: MedusaConfig, target: TargetModel, *, draft_token_ids: Tensor | None = None) -> None:
        """draft_token_ids: [V_draft] int64 target ids that are drafted; None for those from 0 on."""
        super().__init__(target.config, target)
        self.config, size = config, target.hidden_size
        for index in range(config.num_heads):
            parts: list[nn.Module] = [_Block(size, config.has_bias) for _ in range(config.num_layers)]
            if config.has_own_output:
                parts.append(nn.Linear(size, config.draft_vocab_size, bias=False))
            self.add_module(str(index), nn.Sequential(*parts))
        self.to(device=target.device, dtype=target.dtype)
        self.draft_to_target = None if draft_token_ids is None else draft_token_ids.to(target.device, torch.int64)

    @property
    def decoder_layers(self) -> list[Any]:
        return []

    @property
    def has_latent_attention(self) -> bool:
        return False

    def fuse(self) -> str | None:
        """There are no decoder layers to fuse."""
        return None

    @property
    def vocab_size(self) -> int:
        return self.config.draft_vocab_size

    @property
    def hidden_size(self) -> int:
        return self.target.hidden_size

    def rows(
        self,
        # [B, H]
        hidden: Tensor,
        number: int,
    ) -> Tensor:
        """[B, number, V_draft] logits of the first heads, from the state of the last token that the target has read."""
        heads: list[Any] = [self._modules[str(index)] for index in range(number)]
        count = self.config.num_layers
        states = torch.stack([head[:count](hidden) for head in heads], dim=1)
        if self.config.has_own_output:
            rows = [linear(states[:, index], head[count].weight, None, False) for index, head in enumerate(heads)]
            logits = torch.stack(rows, dim=1)
        else:
            logits = self.target.logits(states.flatten(0, 1)).unflatten(0, states.shape[:2])
        return logits if self.config.logit_scale == 1 else logits * self.config.logit_scale

    def round_cost(self, num_slots: int, number: int) -> Cost:
        """What `rows` reads and multiplies."""
        heads: list[Any] = [self._modules[str(index)] for index in range(number)]
        blocks = [item for head in heads for item in head[: self.config.num_layers].parameters()]
        outputs = [head[-1].weight for head in heads] if self.config.has_own_output else [self.target.output_matrix]
        num_output = number * self.target.output_matrix.numel()
        if self.config.has_own_output:
            num_output = sum(weight.numel() for weight in outputs)
        return Cost(
            weight_bytes=sum(item.nbytes for item in blocks),
            output_bytes=sum(weight.nbytes for weight in outputs),
            num_linear=2 * num_slots * sum(item.numel() for item in blocks if item.ndim == 2),
            num_output=2 * num_slots * num_output,
        )


def load_medusa(folder: Path, target: TargetModel, *, accepted: Accepted = OF_DRAFTER) -> MedusaHead:
    """Load a frozen Medusa head for a target, in the layout of its code or of vLLM.

    Raises ValueError as load_target does, and where the file does not fit the target.
    """
    source = folder / CONFIG
    with Checkpoint(folder) as checkpoint:
        account = head_account("medusa", folder, read_fields(source), accepted, checkpoint.names)
        fields, settled = account.fields, account.settled()
        with named(source):
            check_medusa_fields(fields, target)
        with named(folder):
            stored = StoredNames(checkpoint.names)
        assumed = list(_told_of_sizes(fields, stored, source))
        own_output = bool(stored.outputs) and not fields.get("original_lm_head")
        if own_output and sorted(stored.outputs) != list(range(stored.num_heads)):
            raise CheckpointError(
                f"{folder}: expected an output matrix of each of {stored.num_heads} heads, or of none, found those of "
                f"{sorted(stored.outputs)}"
            )
        rows, token_ids = _drafted(checkpoint, fields, stored, target) if own_output else (None, None)
        size = target.vocab_size
        if rows is not None:
            num_kept = rows.read.stop if isinstance(rows.read, slice) else len(rows.read)
            num_rows = checkpoint.shape_of(stored.outputs[0])[0] if token_ids is None else _vocab_size(fields, source)
            assumed += check_head_vocabulary(num_rows, folder, target, source)
            size = num_kept
            for name in stored.outputs.values():
                checkpoint.read_rows(name, rows)
        scale = float(fields.get("logit_scale", 1.0))
        config = MedusaConfig(stored.num_heads, stored.num_layers, size, stored.has_bias, own_output, scale)
        with on_meta(target.device):
            head = MedusaHead(config, target, draft_token_ids=token_ids)
        head.fill(checkpoint, stored.by_own)
        if not own_output:
            what = f"that of target {target.name}, through which all heads run"
            for name in filter(_ORIGINAL_OUTPUT.fullmatch, checkpoint.names):
                check_copy(checkpoint, name, target.output_matrix, what, checkpoint.shape_of(name)[0])
        checkpoint.check_used(settled.left_alone)
    head.path, head.assumptions = folder, (*settled.assumptions, *assumed)
    return head.eval().requires_grad_(False)


def _told_of_sizes(fields: Mapping[str, Any], stored: StoredNames, source: Path) -> list[str]:
    """What config.json leaves to the tensors. Raises CheckpointError where it contradicts them."""
    told = []
    of_vllm = "num_heads" in fields
    num_heads = fields.get("num_heads" if of_vllm else "medusa_num_heads", stored.num_heads)
    num_layers = fields.get("num_hidden_layers" if of_vllm else "medusa_num_layers", stored.num_layers)
    if num_layers != stored.num_layers or num_heads > stored.num_heads:
        raise CheckpointError(
            f"{source}: expected {stored.num_heads} heads of {stored.num_layers} blocks, which its tensors are, found "
            f"{num_heads} of {num_layers}"
        )
    if num_heads < stored.num_heads:
        # the first public heads say 2, and their code takes all 5
        told.append(f"its file states {num_heads} heads, and all {stored.num_heads} that it holds are taken")
    if of_vllm and stored.has_bias and not fields.get("medusa_fc_bias"):
        told.append(
            "its file has biases and does not state medusa_fc_bias, and they are added as they were trained, while "
            "vLLM leaves them out"
        )
    return told


def _vocab_size(fields: Mapping[str, Any], source: Path) -> int:
    """Of the target of heads that draft some of its tokens. Raises CheckpointError where config.json has none."""
    found = fields.get("vocab_size")
    if type(found) is not int:
        raise CheckpointError(
            f"{source}: expected vocab_size, the target's token ids, of which {TOKEN_MAP} names some, found {found!r}; "
            "add the number to the file"
        )
    return found


def _drafted(
    checkpoint: Checkpoint, fields: Mapping[str, Any], stored: StoredNames, target: TargetModel
) -> tuple[StoredRows, Tensor | None]:
    """Which rows of the output matrices are read, and the target ids that they are for; None for those from 0 on."""
    num_rows = checkpoint.shape_of(stored.outputs[0])[0]
    if TOKEN_MAP not in checkpoint:
        return StoredRows(num_rows, slice(min(num_rows, target.vocab_size))), None
    ids = checkpoint.take(TOKEN_MAP, checkpoint.shape_of(TOKEN_MAP), of_ids=True).to(torch.int64)
    kept = (ids < target.vocab_size).nonzero().flatten()
    is_whole = num_rows > len(ids)
    if ids.unique().numel() != len(ids) or int(ids.min()) < 0 or (not is_whole and num_rows != len(ids)):
        raise CheckpointError(
            f"{checkpoint.folder}: expected {TOKEN_MAP} to name {num_rows} different token ids, those of the rows of "
            f"its output matrices, found {len(ids)}, {ids.unique().numel()} different"
        )
    return StoredRows(num_rows, ids[kept] if is_whole else kept), ids[kept]
