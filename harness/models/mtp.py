"""The MTP layer (multi-token prediction) that lies inside a target's own checkpoint, run as an autoregressive head.

    features_t = target's hidden state of x_t, after its final norm
    hidden_t   = layer(eh_proj([enorm(embed(x_{t+1})); hnorm(features_t)]))       the embedding is 0 at position 0
    logits     = head(shared_head.norm(hidden_t))

One layer, of the target's own type (with experts where the target has any), is run for every step of the chain. The
next step's features are hidden_t, or shared_head.norm(hidden_t) for GLM: see MtpConfig.norm_output.
Source: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 2.2; the layout of the public GLM checkpoints.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Glm4MoeLiteConfig

from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, mtp_account
from harness.models.checkpoint import (
    SINGLE,
    Checkpoint,
    CheckpointError,
    StoredRows,
    checkpoint_folder,
    read_fields,
    read_json,
)
from harness.models.decoder_layer import (
    View,
    layer_types,
    one_layer_config,
    use_slots,
    with_slots,
)
from harness.models.head import Head, HeadOutput, as_stored
from harness.models.layer_forward import join_embedded, project, run_layer
from harness.models.meta import on_meta
from harness.models.target import TargetModel
from harness.models.vocabulary import check_head_vocabulary


@dataclass(frozen=True)
class MtpConfig:
    """Which MTP layer, and what it does not share with the target."""

    layer_index: int
    """Number of the layer in the target's checkpoint: the first after the target's own."""
    own_head: bool = False
    """Whether `shared_head.head` is stored; otherwise the target's output matrix serves."""
    own_embedding: bool = False
    """Whether `embed_tokens` is stored; otherwise the target's embedding serves."""
    norm_output: bool = False
    """Whether the next step's features are taken after shared_head.norm, as the first step's are after the target's
    final norm. No file says, and readers of GLM checkpoints disagree: transformers' MtpLayer and SGLang's
    glm4_moe_nextn take them after it, vLLM's glm4_moe_lite_mtp before. The first draft token is the same either way."""

    @classmethod
    def for_target(cls, target: TargetModel, *, own_head: bool = False, own_embedding: bool = False) -> MtpConfig:
        """The layer after the target's own, chained as the target's type wants."""
        norm_output = target.config.model_type == Glm4MoeLiteConfig.model_type
        return cls(target.num_layers, own_head, own_embedding, norm_output)


class MtpHead(Head):
    """An MTP layer as a draft head."""

    def __init__(self, config: MtpConfig, target: TargetModel) -> None:
        layer_config = one_layer_config(target.config)
        super().__init__(layer_config, target)
        self.config = config
        hidden_size, eps = layer_config.hidden_size, layer_config.rms_norm_eps
        types = layer_types(layer_config, f"target {target.name}")
        slots_config = with_slots(layer_config)
        block = types.layer(slots_config, 0)
        use_slots(block, slots_config)
        block.enorm = types.norm(hidden_size, eps=eps)
        block.hnorm = types.norm(hidden_size, eps=eps)
        block.eh_proj = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        block.shared_head = nn.ModuleDict({"norm": types.norm(hidden_size, eps=eps)})
        if config.own_head:
            block.shared_head["head"] = nn.Linear(hidden_size, target.vocab_size, bias=False)
        if config.own_embedding:
            block.embed_tokens = nn.Embedding(target.vocab_size, hidden_size)
        # Nested so that the names of the parameters are those of the target's checkpoint.
        self.model = nn.ModuleDict({"layers": nn.ModuleDict({str(config.layer_index): block})})
        self.to(device=target.device)
        # not the module as a whole: the router's bias, a buffer, stays in float32
        for parameter in self.parameters():
            parameter.data = parameter.data.to(target.dtype)
        self.rotary = types.rotary(layer_config).to(target.device)

    @property
    def features_are_hidden(self) -> bool:
        return self.config.norm_output

    @property
    def decoder_layers(self) -> Sequence[Any]:
        return [self.block]

    @property
    def block(self) -> Any:
        """The decoder layer with the norms and the projection before it."""
        layers: Any = self.model["layers"]
        return layers[str(self.config.layer_index)]

    @property
    def embed_weight(self) -> Tensor:
        return self.block.embed_tokens.weight if self.config.own_embedding else self.target.embed_weight

    @property
    def has_own_output(self) -> bool:
        return self.config.own_head

    @property
    def output_matrix(self) -> Tensor:
        return self.block.shared_head["head"].weight if self.has_own_output else self.target.output_matrix

    def forward(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None, wanted: Tensor | None = None
    ) -> HeadOutput:
        block = self.block
        norms = block.enorm, block.hnorm
        joined, _ = join_embedded(token_ids, self.embed_weight, features, view, norms, positions)
        states = project(block.eh_proj, joined, view)
        states, hidden = run_layer(block, block.shared_head["norm"], self.rotary, states, positions, view, wanted)
        return HeadOutput(hidden if self.config.norm_output else states, hidden)


def load_mtp(
    path: str | Path | None,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
) -> MtpHead:
    """Load the frozen MTP layer of a target; path None is the target's own folder, where it normally lies.

    Of several layers the first is run, which `assumptions` tell.
    Raises ValueError when config.json announces none (num_nextn_predict_layers) or its weights are missing.
    """
    folder = target.path if path is None else checkpoint_folder(path, revision)
    if folder is None:
        raise ValueError(f"target {target.name}: expected a target loaded from a folder, found one made in memory")
    source = folder / CONFIG
    fields = read_fields(source)
    count = fields.get("num_nextn_predict_layers") or 0
    if count < 1:
        raise ValueError(
            f"{source}: expected num_nextn_predict_layers 1 or more, found {count}; "
            f"target {target.name} has no MTP layer, choose another drafter"
        )
    num_rows = target.vocab_size
    assumed: tuple[str, ...] = ()
    if folder != target.path:
        num_rows = fields.get("vocab_size", target.vocab_size)
        assumed = check_head_vocabulary(num_rows, folder, target, source)
    index = target.num_layers
    prefix = f"model.layers.{index}."
    with Checkpoint(folder) as checkpoint:
        if not any(name.startswith(prefix) for name in checkpoint.names):
            raise CheckpointError(
                f"{folder}: expected the tensors {prefix}* that num_nextn_predict_layers {count} announces, "
                f"found none; the MTP layer was left out of this copy of the checkpoint"
            )
        others = None if folder == target.path or target.path is None else read_fields(target.path / CONFIG)
        settled = mtp_account(folder, fields, accepted, checkpoint.names, target=others).settled()
        config = MtpConfig.for_target(
            target,
            own_head=f"{prefix}shared_head.head.weight" in checkpoint,
            own_embedding=f"{prefix}embed_tokens.weight" in checkpoint,
        )
        if num_rows != target.vocab_size:
            _leave_out_padding(checkpoint, prefix, num_rows, target)
        with on_meta(target.device):
            head = MtpHead(config, target)
        head.fill(checkpoint)
        checkpoint.check_used(settled.left_alone, prefix)
    head.path, head.assumptions = folder, (*settled.assumptions, *assumed)
    return head.eval().requires_grad_(False)


def _leave_out_padding(checkpoint: Checkpoint, prefix: str, num_rows: int, target: TargetModel) -> None:
    """Read the target's rows of what a layer of another folder has for every token. Raises CheckpointError for fewer
    rows than these, of which a layer that drafts all tokens cannot make up the others."""
    if num_rows < target.vocab_size:
        raise CheckpointError(
            f"{checkpoint.folder}: expected vocab_size {target.vocab_size}, that of target {target.name}, or more, "
            f"found {num_rows}; take the MTP layer of the target's own folder"
        )
    for name in ("shared_head.head.weight", "embed_tokens.weight"):
        checkpoint.read_rows(f"{prefix}{name}", StoredRows.of_ids(num_rows, target.vocab_size))


def save_mtp(head: MtpHead, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Add an MTP layer to a target's folder: its tensors to model.safetensors, its count to config.json.

    dtype: of the stored weights; None keeps the head's. Raises CheckpointError when the target is stored in shards.
    """
    folder = Path(folder)
    if not (folder / SINGLE).is_file():
        raise CheckpointError(f"{folder}: expected a target stored in {SINGLE}, found none; save the target first")
    tensors = {name: as_stored(tensor, dtype) for name, tensor in head.state_dict_public().items()}
    prefix = f"model.layers.{head.config.layer_index}."
    kept = {name: tensor for name, tensor in load_file(folder / SINGLE).items() if not name.startswith(prefix)}
    save_file(kept | tensors, folder / SINGLE, metadata={"format": "pt"})
    fields = read_json(folder / "config.json") | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def copy_without_mtp(folder: Path, copy: Path) -> Path:
    """Copy a target's folder without its MTP layers, for engines that refuse them; one that is there is taken as it is.

    copy: the new folder. Raises CheckpointError when the target is stored in shards.
    """
    if copy.is_dir():
        return copy
    if not (folder / SINGLE).is_file():
        raise CheckpointError(f"{folder}: expected a target stored in {SINGLE}, found none")
    fields = read_json(folder / "config.json")
    first, count = fields["num_hidden_layers"], fields.pop("num_nextn_predict_layers", 0)
    mtp = tuple(f"model.layers.{first + number}." for number in range(count))
    copy.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=copy.parent) as made:
        # whole or not at all: another process may look for it
        new = shutil.copytree(folder, Path(made) / copy.name, ignore=lambda *_: [SINGLE])
        tensors = load_file(folder / SINGLE)
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(mtp)}
        save_file(kept, new / SINGLE, metadata={"format": "pt"})
        (new / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        with suppress(OSError):
            new.rename(copy)
    return copy
