"""Loaded models, kept for the cells of a sweep that share them, and their meta models, from which memory is counted."""

from __future__ import annotations

from dataclasses import astuple
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn

from harness.config.backend import Local
from harness.config.device import resolve_device, resolve_dtype, resolve_graphs
from harness.config.drafter import DrafterConfig
from harness.config.models import Layers, TargetConfig, Weights
from harness.drafters.registry import LoadedHead, load_head
from harness.models import direct_layer
from harness.models.accounting import Accepted
from harness.models.fp8_linear import FP8
from harness.models.meta import META
from harness.models.random_target import random_target
from harness.models.target import TargetModel, load_target
from harness.models.weight_layout import Joined, blocked_bytes, lay_out

if TYPE_CHECKING:
    from harness.models.general.ranks import Ranks

FP8_CAPABILITY = (8, 9)
"""Of the first GPUs that convert e4m3."""


def target_of(
    config: TargetConfig,
    device: torch.device | str,
    dtype: torch.dtype | None,
    in_fp8: bool = False,
    num_ranks: int = 1,
) -> TargetModel:
    """The target that settings name, loaded, or drawn where its weights are random; errors as of `load_target`.

    num_ranks: of which this process is one; layers are transformers' then.
    """
    given: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "revision": config.revision,
        "trust_remote_code": config.trust_remote_code,
        "name": config.name,
        "in_fp8": in_fp8,
        "accepted": Accepted("target", tuple(config.accept_unknown)),
        "layers": config.layers if num_ranks == 1 else Layers.transformers,
        "num_ranks": num_ranks,
    }
    if config.weights is Weights.random:
        return random_target(config.path, shape=config.shape, **given)
    return load_target(config.path, **given)


class Wish(Enum):
    """Whether layers are made ready for the fused operations, or for torch to compile."""

    no = "no"
    where_possible = "where_possible"
    required = "required"

    @classmethod
    def of(cls, asked: bool | None, device: torch.device) -> Wish:
        """What a backend asks for; without saying, it asks for either on a GPU where it is possible."""
        if asked is None:
            return cls.where_possible if device.type == "cuda" else cls.no
        return cls.required if asked else cls.no


class _Model(Protocol):
    """Something whose layers may be fused."""

    def fuse(self) -> str | None: ...


class Models:
    """A target and the drafting networks asked for beside it, on one device; each is loaded when it is first asked for.

    On the meta device nothing takes memory, and invalid checkpoints are refused all the same.
    """

    def __init__(
        self,
        config: TargetConfig,
        device: torch.device,
        dtype: torch.dtype | None,
        fusion: Wish = Wish.no,
        compilation: Wish = Wish.no,
        has_fp8_weights: bool = False,
        has_fp8_cache: bool = False,
        num_ranks: int = 1,
    ) -> None:
        self.device = device
        self._num_ranks = num_ranks
        self._ranks: Ranks | None = None
        self._has_fp8_weights = has_fp8_weights
        self._has_fp8_cache = has_fp8_cache
        self._config = config
        self._dtype = dtype
        self._fusion = fusion
        self._compilation = compilation
        self._target: TargetModel | None = None
        self._heads: dict[tuple[object, ...], LoadedHead | None] = {}

    @property
    def target(self) -> TargetModel:
        if self._target is None:
            if self._num_ranks > 1 and self.device.type != "meta":
                target: TargetModel = self._sharded_target()
            else:
                target = target_of(self._config, self.device, self._dtype, self._has_fp8_weights, self._num_ranks)
                if self._has_fp8_cache:
                    _keep_in_fp8(target)
                self._lay_out(target.causal_lm, target)
            self._fuse(target)
            self._compile(target)
            self._target = target
        return self._target

    def _sharded_target(self) -> TargetModel:
        """The target of several ranks, which are started.

        Raises:
            RankDiedError: a rank ended, or could not load.
        """
        # torch.distributed is imported for several ranks alone
        from harness.models.general.ranks import Ranks
        from harness.models.general.sharded_target import OtherRank, load_together

        ranks = Ranks(self._num_ranks, self.device.type, OtherRank)
        try:
            target = load_together(ranks, partial(target_of, self._config, dtype=self._dtype))
        except BaseException:
            ranks.close()
            raise
        self._ranks = ranks
        return target

    def close(self) -> None:
        """End the other ranks, if there are any."""
        if self._ranks is not None:
            self._ranks.close()

    def head(self, config: DrafterConfig) -> LoadedHead | None:
        """The drafting network for the target; None for the kinds that have none."""
        key = _head_key(config)
        if key not in self._heads:
            loaded = load_head(config, self.target)
            if loaded is not None and not loaded.is_of_target:
                if self._has_fp8_cache and isinstance(loaded.head, TargetModel):
                    _keep_in_fp8(loaded.head)
                self._lay_out(loaded.module, loaded.head)
                self._fuse(loaded.head)
            self._heads[key] = loaded
        return self._heads[key]

    @property
    def has_target(self) -> bool:
        """Whether the target has been loaded."""
        return self._target is not None

    def has_head(self, config: DrafterConfig) -> bool:
        """Whether a drafting network has been loaded."""
        return _head_key(config) in self._heads

    def _lay_out(self, network: nn.Module, model: object) -> None:
        lay_out(network, in_blocks=self._fusion is Wish.no, joined=_joined_of(model))

    def blocked_bytes(self, network: nn.Module, model: object) -> int:
        """Memory that a model's network takes beside its weights, because they lie there in blocks too."""
        is_laid_out = self.device.type == "cpu" and self._fusion is Wish.no
        return blocked_bytes(network, _joined_of(model)) if is_laid_out else 0

    def _fuse(self, model: _Model) -> None:
        """Make a model's layers ready for the fused operations if that is asked for.

        Raises ValueError when they do not allow what is required.
        """
        obstacle = None if self._fusion is Wish.no else model.fuse()
        if obstacle is not None and self._fusion is Wish.required:
            raise ValueError(
                f"backend.fused: expected layers that can be fused, found that {obstacle}; use backend.fused=false"
            )

    def _compile(self, target: TargetModel) -> None:
        """Let torch compile a target's layers, if that is asked for; on the meta device there is nothing to run.

        Raises ValueError where they cannot be compiled and that is required.
        """
        is_required = self._compilation is Wish.required
        if self._compilation is Wish.no or (self.device.type == "meta" and not is_required):
            return
        obstacle = target.compile(is_asked=is_required)
        if obstacle is not None and is_required:
            raise ValueError(
                f"backend.compile: expected layers that torch can compile, found that {obstacle}; use "
                "backend.compile=false"
            )


def _joined_of(model: object) -> Joined:
    """The products of a model that may be one: none where code of transformers asks each module for its own."""
    is_general = isinstance(model, TargetModel) and model.runs_code_of_transformers
    return (lambda network: ()) if is_general else direct_layer.joined


class StoredModels(NamedTuple):
    """The models of some cells, twice."""

    meta_models: Models
    loaded: Models


class ModelStore:
    """The models of one target at a time."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._models: StoredModels | None = None

    def models(self, config: TargetConfig, backend: Local) -> StoredModels:
        """The models for a target, those already held if it is the same; another target takes their place at once, so
        that their memory is free before the next ones are counted."""
        in_fp8 = backend.weight_dtype == "fp8", backend.kv_cache_dtype == "fp8"
        device = resolve_device(backend.device)
        compilation = Wish.of(backend.compile, device) if resolve_graphs(backend.graphs, device) else Wish.no
        num_ranks = backend.tensor_parallel
        key = (*astuple(config), backend.device, backend.dtype, backend.fused, compilation, *in_fp8, num_ranks)
        if self._models is None or key != self._key:
            if self._models is not None:
                self._models.loaded.close()
            self._models = None
            if num_ranks > 1:
                _check_devices(backend, device)
            if in_fp8[1]:
                _check_converts(device)
            dtype = resolve_dtype(backend.dtype, device)
            wishes = Wish.of(backend.fused, device), compilation
            given = *wishes, *in_fp8, num_ranks
            self._models = StoredModels(*(Models(config, each, dtype, *given) for each in (META, device)))
            self._key = key
        return self._models


def _check_devices(backend: Local, device: torch.device) -> None:
    """Raise ValueError unless there is a device for each rank; before anything is loaded."""
    found = torch.cuda.device_count()
    if device.type == "cuda" and backend.tensor_parallel > found:
        raise ValueError(
            f"backend.tensor_parallel: expected at most {found}, the GPUs that this process sees, found "
            f"{backend.tensor_parallel}"
        )
    if device.type == "cpu" and found:
        raise ValueError(
            "backend.tensor_parallel: expected a GPU for each rank, since transformers takes those that it sees, found "
            "backend.device=cpu; set CUDA_VISIBLE_DEVICES= (empty) to run on the CPU"
        )


def _keep_in_fp8(model: TargetModel) -> None:
    """Let caches of a model, and of heads on it, hold 8 bits. Raises ValueError where attention cannot read them."""
    if model.has_latent_attention:
        raise ValueError(
            f"backend.kv_cache_dtype=fp8: expected keys and values of heads, found the latents of {model.name}; use "
            "backend.kv_cache_dtype=auto"
        )
    model.cache_dtype = FP8


def _check_converts(device: torch.device) -> None:
    """Raise ValueError unless kernels of a device convert e4m3; before any weight is loaded."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else FP8_CAPABILITY
    if capability < FP8_CAPABILITY:
        raise ValueError(
            "backend.kv_cache_dtype=fp8: expected a GPU of compute capability 8.9 or higher, found "
            f"{'.'.join(map(str, capability))}; use backend.kv_cache_dtype=auto"
        )


def _head_key(config: DrafterConfig) -> tuple[object, ...]:
    sources = config.kind, config.path, config.revision, config.weights, config.shape
    return *sources, *config.accept_unknown, config.head_choices, *config.network_key
