"""Loaded models, kept for the cells of a sweep that share them."""

from __future__ import annotations

from dataclasses import astuple
from typing import Protocol

import torch

from harness.config import BackendConfig, DrafterConfig, TargetConfig, Weights
from harness.drafters.load import LoadedHead, load_head
from harness.models.random_target import random_target
from harness.models.target import TargetModel, load_target


def resolve_device(name: str) -> torch.device:
    """The device that a backend asks for.

    Raises:
        ValueError: a GPU is asked for and torch sees none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"backend.device: expected a GPU for {name}, torch sees none; use backend.device=cpu")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype that a backend asks for; None is the checkpoint's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def _target(config: TargetConfig, device: torch.device, dtype: torch.dtype | None) -> TargetModel:
    name, revision, trusted = config.name, config.revision, config.trust_remote_code
    if config.weights is Weights.random:
        return random_target(
            config.path,
            shape=config.shape,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trusted,
            name=name,
        )
    return load_target(config.path, device=device, dtype=dtype, revision=revision, trust_remote_code=trusted, name=name)


class _Model(Protocol):
    """Something whose layers may be fused."""

    def fuse(self) -> str | None: ...


class ModelStore:
    """One target at a time, and every drafting network asked for beside it."""

    def __init__(self) -> None:
        self._target_key: tuple[object, ...] | None = None
        self._target: TargetModel | None = None
        self._heads: dict[tuple[object, ...], LoadedHead | None] = {}
        self._fuses: bool | None = None

    def target(self, config: TargetConfig, backend: BackendConfig) -> TargetModel:
        """The target, loaded unless it is the one already held; another target takes its place."""
        key = (*astuple(config), backend.device, backend.dtype, backend.fused)
        if self._target is None or key != self._target_key:
            self._heads.clear()
            self._target = None
            device = resolve_device(backend.device)
            self._fuses = backend.fused
            self._target = _target(config, device, resolve_dtype(backend.dtype, device))
            self._fuse(self._target)
            self._target_key = key
        return self._target

    def head(self, config: DrafterConfig) -> LoadedHead | None:
        """The drafting network for the target held."""
        assert self._target is not None, "the target comes before its drafters"
        key = (config.kind, config.path, config.revision, config.weights, config.shape)
        if key not in self._heads:
            loaded = load_head(config, self._target)
            if loaded is not None:
                self._fuse(loaded.head)
            self._heads[key] = loaded
        return self._heads[key]

    def _fuse(self, model: _Model) -> None:
        """Make a model's layers ready for the fused operations if that is asked for, or on a GPU without asking.

        Raises ValueError when it is asked for and they do not allow it.
        """
        assert self._target is not None
        if self._fuses or (self._fuses is None and self._target.device.type == "cuda"):
            obstacle = model.fuse()
            if obstacle is not None and self._fuses:
                raise ValueError(
                    f"backend.fused: expected layers that can be fused, found that {obstacle}; use backend.fused=false"
                )
