"""The DFlash2 head: a DFlash head with convolutions in its layers, whose draft tokens a selector chooses among few.

    inside each layer    y = norm(x);  kernels = kernel_projection(y)
                         out = convolve(part(convolve(y, first kernel)), second kernel);  x + out
                         part: the attention, then the feed-forward part
    convolve             sum over taps t of (base_t + kernels_t of the place) * the state of the place t before it
    row i                for the selector_top_k best tokens c of logits_i, -inf elsewhere:
                         logits_i[c] + sum(predecessor[token before it] * hidden_projection(h_i) * successor[c])

The token before the first draft token is the last known one; h_i is the place's state after the final norm. The base of
a kernel has a weight for each component of a state, and what follows from the state has one for each group of them. A
convolution begins with its block: the places of the context are not convolved.

The law of a draft token is known once the one before it is drawn, as in a chain of forwards, and gives all but a few
tokens probability 0. So any method for chains verifies such drafts; recovered tokens come from all tokens. The package
draws drafts at the temperature alone; here top-k and top-p cut them as all drafts.

Layers may attend through windows: a place then sees the sliding_window - 1 places before it, and its block. Windows
that are no shorter than a slot have no effect; with shorter ones the layers run unfused.

The layout of z-lab (`dflash_config`) is read, and that of speculators, which is also written.
Source: the package dflash 0.1.0 (`DFlash2DraftModel`), https://inco.ai/blog/dflash2 (2026).

Shapes: B rows, T places of a block, K draft tokens, H hidden size, r rank, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.config.models import AS_FILED, HeadChoices
from harness.models.accounting import OF_DRAFTER, Accepted
from harness.models.attention import fold_mask
from harness.models.block_rows import BlockRows
from harness.models.candidate_rows import CandidateSelector, SelectorRows
from harness.models.checkpoint import Checkpoint, StoredRows
from harness.models.cost import Cost, ModelCost
from harness.models.decoder_layer import FusedView, View
from harness.models.dflash import DFlashHead, load_block_head
from harness.models.dflash_config import SPECULATORS, DFlashConfig
from harness.models.fused import layer as fused
from harness.models.head_fits import stated_selector, stated_windows
from harness.models.layer_forward import is_fused, norm
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetModel

_OF_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
_PREDECESSORS, _SUCCESSORS = "candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"


@dataclass(frozen=True)
class DFlash2Config(DFlashConfig):
    """What config.json of a DFlash2 head says."""

    conv_kernel_size: int = 2
    """Taps of a convolution."""
    conv_group_size: int = 16
    """Components of a state that share what follows from it of a kernel."""
    selector_rank: int = 256
    selector_top_k: int = 16
    """Candidates of a draft token."""
    windows: tuple[int | None, ...] = ()
    """Of each layer, how many places its queries see, their own included; None for all. () for all of all layers."""
    kind: ClassVar[str] = "dflash2"

    @classmethod
    def own_fields(cls, data: dict[str, Any]) -> dict[str, Any]:
        return stated_selector(data)._asdict() | {"windows": stated_windows(data)}

    @classmethod
    def of_layer(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Windows are those of `windows`."""
        return {name: value for name, value in fields.items() if name not in _OF_WINDOWS}

    @property
    def shortest_window(self) -> int | None:
        """Places that the layer with the shortest window sees; None where all see all."""
        return min((window for window in self.windows if window is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        fields = super().to_dict() | {name: getattr(self, name) for name in names}
        if self.shortest_window is not None:
            types = ["full_attention" if window is None else "sliding_attention" for window in self.windows]
            windows = {"layer_types": types, "sliding_window": self.shortest_window, "use_sliding_window": True}
            fields[SPECULATORS] = fields[SPECULATORS] | windows
            fields["sliding_window_non_causal"] = True
        return fields


class GroupedConvolution(nn.Module):
    """The two convolutions around a part of a layer; its tensors have the names of the original code."""

    def __init__(self, hidden_size: int, num_taps: int, group_size: int) -> None:
        super().__init__()
        self.num_taps, self.num_groups = num_taps, hidden_size // group_size
        self.base_kernel = nn.Parameter(torch.empty(2, num_taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * num_taps * self.num_groups, bias=False)

    def around(
        self,
        # [B, T, H]
        states: Tensor,
        part: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """[B, T, H] what the part makes of convolved states, convolved; both kernels follow from the given states."""
        kernels = self.kernel_projection(states).unflatten(-1, (2, self.num_taps, self.num_groups))
        between = part(self._convolve(states, kernels[..., 0, :, :], self.base_kernel[0]))
        return self._convolve(between, kernels[..., 1, :, :], self.base_kernel[1])

    def _convolve(
        self,
        # [B, T, H]
        states: Tensor,
        # [B, T, taps, groups]
        kernels: Tensor,
        # [taps, H]
        base: Tensor,
    ) -> Tensor:
        grouped, length = states.unflatten(-1, (self.num_groups, -1)), states.shape[1]
        found = self._weight(kernels, base, 0) * grouped
        for tap in range(1, min(self.num_taps, length)):
            before = functional.pad(grouped[:, : length - tap], (0, 0, 0, 0, tap, 0))
            found = torch.addcmul(found, self._weight(kernels, base, tap), before)
        return found.flatten(-2)

    def _weight(self, kernels: Tensor, base: Tensor, tap: int) -> Tensor:
        """[B, T, groups, H / groups] of one tap."""
        return base[tap].view(self.num_groups, -1) + kernels[..., tap, :, None]

    def make_identity(self) -> None:
        """Let it change nothing, as training begins with."""
        self.base_kernel.zero_()
        self.base_kernel[:, 0] = 1
        self.kernel_projection.weight.zero_()


class DFlash2Head(DFlashHead):
    """A DFlash2 head."""

    config: DFlash2Config
    config_class = DFlash2Config

    def __init__(self, config: DFlash2Config, target: TargetModel, *, draft_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target, draft_token_ids=draft_token_ids)
        sizes = config.layer.hidden_size, config.conv_kernel_size, config.conv_group_size
        place: dict[str, Any] = {"device": target.device, "dtype": target.dtype}
        for layer in self.layers:
            layer.attention_conv = GroupedConvolution(*sizes).to(**place)
            layer.mlp_conv = GroupedConvolution(*sizes).to(**place)
        selector = config.selector_top_k, config.selector_rank, config.layer.hidden_size
        selected = CandidateSelector(*selector, target.vocab_size, config.draft_vocab_size)
        self.candidate_selector = selected.to(**place)

    def new_cache(self, num_slots: int, capacity: int) -> SlotCache:
        """An empty cache; one whose places a window does not reach is for unfused layers."""
        window = self.config.shortest_window
        if self.is_fused and window is not None and window < capacity:
            self.fusion_obstacle = f"they attend through windows of {window} places, of slots of {capacity}"
            self.is_fused = False
        return super().new_cache(num_slots, capacity)

    def fill_block(self, token_ids: Tensor, positions: Tensor, view: View) -> Tensor:
        states = self.embed(token_ids)
        if is_fused(view):
            return self._fill_fused(states, view)
        angles, masks = self.rotary(states, positions), self._masks(positions, view)
        for layer, mask in zip(self.decoder_layers, masks, strict=True):
            attend = partial(_attended, layer, angles, mask, view)
            states = states + layer.attention_conv.around(norm(layer.input_layernorm, states, view), attend)
            normed = norm(layer.post_attention_layernorm, states, view)
            states = states + layer.mlp_conv.around(normed, layer.mlp)
        return norm(self.norm, states, view)

    def _masks(self, positions: Tensor, view: View) -> list[Tensor]:
        """For each layer what its queries see, folded as slots_attention takes it."""
        assert view.mask is not None
        num_groups, num_places = self.decoder_layers[0].self_attn.num_key_value_groups, positions.shape[1]
        found: dict[int | None, Tensor] = {None: fold_mask(view.mask, num_groups, num_places)}
        windows = self.config.windows or (None,) * len(self.decoder_layers)
        for window in {window for window in windows if window is not None}:
            distance = positions[:, None, :, None] - torch.arange(view.mask.shape[-1], device=positions.device)
            mask = view.mask.masked_fill(distance.abs() >= window, float("-inf"))
            found[window] = fold_mask(mask, num_groups, num_places)
        return [found[window] for window in windows]

    def _fill_fused(self, states: Tensor, view: FusedView) -> Tensor:
        residual: Tensor | None = None
        table = view.rope_table
        assert table is not None
        for index, layer in enumerate(self.decoder_layers):
            keys, values = view.layer(index)
            attend = partial(_attended_fused, layer, table, keys, values, view)
            normed, entering = fused.add_norm(layer.input_layernorm, states, residual)
            attended = layer.attention_conv.around(normed, attend)
            normed, residual = fused.add_norm(layer.post_attention_layernorm, attended, entering)
            states = layer.mlp_conv.around(normed, partial(fused.feed_forward, layer.mlp))
        return fused.add_norm(self.norm, states, residual)[0]

    def rows(self, hidden: Tensor) -> BlockRows:
        return SelectorRows(self.logits(hidden), hidden, self.candidate_selector)

    @property
    def cost(self) -> ModelCost:
        """What its forwards cost, without the selector, which works on rows: see rows_cost."""
        cost: ModelCost = super().cost
        parts = [item for item in cost.named_parameters if not item[0].startswith("candidate_selector.")]
        return replace(cost, named_parameters=tuple(parts))

    def rows_cost(self, num_slots: int, num_tokens: int) -> Cost:
        """Of each row of a slot a projected state, a predecessor, and the successors of its candidates."""
        selector, num_rows = self.candidate_selector, num_slots * num_tokens
        projection, rank, num_candidates = selector.hidden_projection.weight, selector.rank, selector.top_k
        return Cost(
            weight_bytes=projection.nbytes + num_rows * (1 + num_candidates) * rank * projection.itemsize,
            num_linear=2 * num_rows * projection.numel(),
        )

    @classmethod
    def read_rows(cls, checkpoint: Checkpoint, num_rows: int, target: TargetModel, drafted: StoredRows) -> None:
        checkpoint.read_rows(_PREDECESSORS, StoredRows.of_ids(num_rows, target.vocab_size))
        checkpoint.read_rows(_SUCCESSORS, drafted)


def _attended(layer: Any, angles: tuple[Tensor, Tensor], mask: Tensor, view: View, states: Tensor) -> Tensor:
    found: Tensor = layer.self_attn(states, angles, mask, view)[0]
    return found


def _attended_fused(layer: Any, table: Tensor, keys: Tensor, values: Tensor, view: FusedView, states: Tensor) -> Tensor:
    found = fused.attend(
        layer, states, table, keys, values, view.slots, view.starts, tree=view.tree_rows, groups=view.grouped_rows
    )
    # a convolution takes the sum of shares
    return found if found.ndim == states.ndim else found.sum(0).to(states.dtype)


def load_dflash2(
    path: str | Path,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> DFlash2Head:
    """Load a frozen DFlash2 head for a target. Raises ValueError as load_target does."""
    return load_block_head(DFlash2Head, path, target, revision, accepted, choices)
