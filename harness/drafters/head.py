"""The settings of a draft head: a network that leans on the target's states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import NetworkConfig
from harness.config.models import Anchor, HeadChoices, require

if TYPE_CHECKING:
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup


@dataclass(frozen=True)
class HeadConfig(NetworkConfig):
    """Unless a head has its own way, it drafts token by token."""

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.chain import ChainDrafter
        from harness.drafters.tree import TreeHeadDrafter

        if setup.tree is not None:
            return TreeHeadDrafter(setup.head, setup.draft_sampling, setup.shape, setup.tree, setup.caching)
        return ChainDrafter(setup.head, setup.draft_sampling, setup.shape, setup.caching)


@dataclass(frozen=True)
class LayeredHeadConfig(HeadConfig):
    """Of a head that reads the states of several layers."""

    aux_layers: tuple[int, ...] = ()
    """Layers of the target, counted from 0, whose entering states the head reads; empty: those that its file says. The
    state after the last layer is that entering layer n of n."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.aux_layers
        different = len(set(layers)) == len(layers) and all(index >= 0 for index in layers)
        require(different, "drafter.aux_layers", "different layers, counted from 0", list(layers))

    @property
    def head_choices(self) -> HeadChoices:
        return HeadChoices(self.aux_layers)


@dataclass(frozen=True)
class BlockHeadConfig(LayeredHeadConfig):
    """Of a head that fills a block of draft tokens in one forward."""

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.block import BlockDrafter
        from harness.models.dflash import DFlashHead

        assert isinstance(setup.head, DFlashHead)
        return BlockDrafter(setup.head, setup.draft_sampling, setup.shape, setup.caching)


@dataclass(frozen=True)
class AnchoredHeadConfig(BlockHeadConfig):
    """Of one whose file may leave open what the first place of a block predicts."""

    anchor: Anchor | None = None
    """What the first place of a block predicts: mask is nothing, first is the first draft token; null: what its file
    says."""

    @property
    def head_choices(self) -> HeadChoices:
        return HeadChoices(self.aux_layers, self.anchor)
