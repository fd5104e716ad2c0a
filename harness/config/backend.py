"""The section `backend`: what generates, and on which device.

The settings of the built-in backends stand here, since models and the engine, which know no backend, read those of the
local one. What runs is named by each and imported when a cell asks for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from harness.config.imported import ImportPath
from harness.config.models import require
from harness.config.union import name_of, union_of

MAX_RANKS = 64
"""Of one target: more than the GPUs of a host, and a typing error."""
BACKENDS = {"local": "harness.config.backend:Local", "server": "harness.config.backend:Server"}
"""Name -> PACKAGE.MODULE:CLASS of the settings."""


@dataclass(frozen=True)
class BackendConfig:
    """The settings that every backend has.

    One of the user's own is `backend=PACKAGE.MODULE:NAME`: a class of harness.backends.backend.Backend, which has
    these, or settings with more of them.
    """

    runs: ClassVar[str]
    """PACKAGE.MODULE:CLASS of what generates, a harness.backends.backend.Backend."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU where there is one. Of a server: what it runs on, to stand in
    tables."""
    dtype: str = "auto"
    """float32, bfloat16, float16; auto is float32 on a CPU and the checkpoint's dtype on a GPU. Of a server:
    its type, to stand in tables."""
    max_concurrency: int = 16
    """Slots: requests in flight at most."""
    max_length: int | None = None
    """Tokens a slot can hold; null takes what the longest request of the workload needs."""

    def __post_init__(self) -> None:
        require(
            self.dtype in ("auto", "float32", "bfloat16", "float16"),
            "backend.dtype",
            "auto, float32, bfloat16 or float16",
            self.dtype,
        )
        is_device = re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device) is not None
        require(is_device, "backend.device", "auto, cpu, cuda or cuda:N", self.device)
        require(self.max_concurrency >= 1, "backend.max_concurrency", "1 or more", self.max_concurrency)
        require(self.max_length is None or self.max_length >= 2, "backend.max_length", "2 or more", self.max_length)

    @property
    def kind(self) -> str:
        """Its name."""
        return name_of(self, BACKENDS)

    @property
    def rounded(self) -> dict[str, str]:
        """What of the target is rounded to which type, by setting, or `auto`."""
        return {}

    def __reduce__(self) -> Any:
        """Another process imports one of the user's own by its path."""
        name, settings = BACKEND.parts(self)
        return partial(backend_of, name, **settings), ()


@dataclass(frozen=True)
class Local(BackendConfig):
    """The engine of this repository, on a CPU or a GPU."""

    runs = "harness.backends.local.local:LocalBackend"

    weight_dtype: str = "auto"
    """auto is dtype; fp8 rounds the projections of the target's layers to 8 bits (e4m3, a scale an output): another
    target, with a baseline of its own. Llama and Qwen3 alone."""
    kv_cache_dtype: str = "auto"
    """auto is dtype; fp8 rounds keys and values to 8 bits (e4m3), the drafter's too. Not for latent attention."""
    fused: bool | None = None
    """Run layers through the fused operations; null does so on a GPU, layer by layer where a model allows it."""
    graphs: bool | None = None
    """Run steps of a few fixed sizes, on a GPU captured as CUDA graphs; null does so on a GPU."""
    compile: bool | None = None
    """Let torch compile layers that are transformers' own (target.layers), for steps of fixed sizes (backend.graphs);
    null does so on a GPU, of targets of a billion parameters or more. Not for trees, draft models and heads. Moves
    output tokens by rounding alone."""
    tensor_parallel: int = 1
    """Ranks, each a process with a GPU (on a CPU a process), that compute the target's layers together, each a part of
    every layer, by the plan of transformers. Drafters, draws and verification stay on the first. Layers are
    transformers' own then (target.layers). Moves output tokens by rounding alone."""
    prompt_tokens_beside_rounds: int | None = None
    """With graphs: prompt tokens that a step in which others decode reads at most, in whole groups of rows (16 tokens,
    a few less, or a wider row) and at least one; null sets no limit. Moves output tokens by rounding alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, dtype in self.rounded.items():
            require(dtype in ("auto", "fp8"), f"backend.{name}", "auto or fp8", dtype)
        has_graphs = self.graphs or (self.graphs is None and self.device != "cpu")
        if self.compile and not has_graphs:
            found = "null on a CPU" if self.graphs is None else "false"
            raise ValueError(
                "backend.compile: expected false, or null, without steps of fixed sizes, found true with "
                f"backend.graphs={found}; set backend.graphs=true"
            )
        ranks = self.tensor_parallel
        require(1 <= ranks <= MAX_RANKS, "backend.tensor_parallel", f"1 to {MAX_RANKS}", ranks)
        if ranks > 1:
            # what only layers of our own have
            for name, dtype in self.rounded.items():
                require(dtype == "auto", f"backend.{name}", "auto with backend.tensor_parallel above 1", dtype)
            one_each = re.fullmatch(r"auto|cpu|cuda", self.device) is not None
            require(one_each, "backend.device", "auto, cpu or cuda with backend.tensor_parallel above 1", self.device)
        limit = self.prompt_tokens_beside_rounds
        require(limit is None or limit >= 1, "backend.prompt_tokens_beside_rounds", "1 or more, or null", limit)

    @property
    def rounded(self) -> dict[str, str]:
        return {"weight_dtype": self.weight_dtype, "kv_cache_dtype": self.kv_cache_dtype}

    def on(self, device_type: str) -> Local:
        """The settings with those filled in that a device decides.

        Args:
            device_type: cpu or cuda: of the device that harness.config.device.resolve_device gives.

        Raises:
            ValueError: layers are to be compiled for steps that have no fixed sizes there.
        """
        dtype = "float32" if self.dtype == "auto" and device_type == "cpu" else self.dtype
        graphs = device_type == "cuda" if self.graphs is None else self.graphs
        fused, compiles = self.fused, self.compile
        if device_type == "cpu":
            fused, compiles = bool(fused), bool(compiles)
            # refused while graphs are still what was asked for
            replace(self, device=device_type)
        return replace(self, device=device_type, dtype=dtype, graphs=graphs, fused=fused, compile=compiles)


OF_LOCAL = frozenset(f"backend.{item.name}" for item in fields(Local) if item not in fields(BackendConfig))
"""Settings of the local engine alone."""


@dataclass(frozen=True)
class Server(BackendConfig):
    """Any server with an OpenAI-compatible interface; the section `server` says which."""

    runs = "harness.backends.server.server:ServerBackend"


@dataclass(frozen=True)
class RunByOwn(BackendConfig):
    """A backend of the user's own without settings: a class of harness.backends.backend.Backend."""

    builder: ImportPath = field(kw_only=True)

    def __reduce__(self) -> Any:
        """Nothing is imported before it generates."""
        return partial(RunByOwn, **vars(self)), ()

    @property
    def kind(self) -> str:
        return self.builder

    @property
    def runs(self) -> str:  # type: ignore[override]
        return self.builder


def backend_of(name: str, **settings: Any) -> BackendConfig:
    """A backend with its settings; those that are not given have their defaults.

    Args:
        name: built-in, or PACKAGE.MODULE:NAME.
        settings: by name.

    Raises:
        ValueError: there is no such backend, or a setting is out of range.
        TypeError: it has no such setting.
    """
    found: BackendConfig = BACKEND.build(name, settings)
    return found


BACKEND = union_of(
    BackendConfig,
    BACKENDS,
    own=(RunByOwn, "a class of harness.backends.backend.Backend"),
    section="backend",
    tag="kind",
    default="local",
    doc="What generates, and on which device.",
    tag_doc="What generates: the engine of this repository, or a server (section server); or PACKAGE.MODULE:NAME, a "
    "backend of your own (harness.backends.backend).",
)
