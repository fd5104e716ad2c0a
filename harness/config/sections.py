"""The typed settings of a cell that have no file of their own: decoding, verification, backend, measurement.

Every field says what it means and in which unit; what one section allows is checked in its dataclass. This module does
not know which sections fit together.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from harness.config.acceptance_profiles import AcceptanceProfile
from harness.config.imported import ImportPath, OrImported, named
from harness.config.models import require
from harness.config.sampling import SamplingSettings
from kernels.methods import NAMED_METHODS, Method, MethodTraits, OwnMethod, Rule, TreeMethod, VerificationMethod
from kernels.methods.fly import Fly
from kernels.verification import Verification

MAX_LOGPROBS = 20
"""Alternatives of an output token that a record may hold; as many as the common servers give."""


FLY_WINDOW_SIZE = Fly.fly_window_size
"""Where K allows it: vLLM's default too."""


class LogprobsMode(Enum):
    """Which distribution recorded log-probabilities are of."""

    raw = "raw"
    processed = "processed"


@dataclass
class DecodingConfig:
    """The distribution of the output, and where it ends."""

    temperature: float = 1.0
    """0 is greedy decoding."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""
    min_p: float = 0.0
    """0 is off."""
    max_new_tokens: int = 64
    """Output tokens of a request at most."""
    ignore_eos: bool = False
    """Go on past the end-of-sequence token; recorded, because it inflates acceptance."""
    logprobs: int | None = None
    """Record the log-probability of every output token and of so many best tokens beside it; null records none."""
    logprobs_mode: LogprobsMode = LogprobsMode.raw
    """Of the target's logits as they are, or of the distribution that tokens are drawn from."""

    def __post_init__(self) -> None:
        self.sampling.check("decoding")
        require(self.max_new_tokens >= 1, "decoding.max_new_tokens", "1 or more", self.max_new_tokens)
        fits = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        require(fits, "decoding.logprobs", f"0 to {MAX_LOGPROBS}, or null", self.logprobs)

    @property
    def sampling(self) -> SamplingSettings:
        """What tokens are drawn from, of requests without parameters of their own."""
        return SamplingSettings(self.temperature, self.top_k, self.top_p, self.min_p)


def own_method(path: ImportPath, key: str) -> OwnMethod:
    """The method of the user's own that a setting names: a Rule class, with its defaults, or an object of one.

    Raises:
        ValueError: there is no such rule, or it is incomplete.
    """
    found = path.load(key)
    try:
        rule = found() if isinstance(found, type) and issubclass(found, Rule) else found
        return OwnMethod(rule, path.value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {error}") from error


@dataclass
class VerificationConfig:
    """The rule that turns draft tokens into output tokens."""

    method: OrImported[VerificationMethod | TreeMethod] = VerificationMethod.probabilistic
    """The rule; or PACKAGE.MODULE:NAME, one of your own (kernels.methods.Rule)."""
    epsilon: float = 0.09
    """typical: upper bound of the acceptance threshold on the target probability."""
    delta: float = 0.3
    """typical: factor of exp(-entropy) in the threshold; entropy in nats."""
    leniency: float = 1.0
    """lenient: l in (0, 1]; 1 is probabilistic."""
    threshold_single: float = 1.0
    """threshold: target probability from which a draft token passes for certain, in (0, 1]."""
    threshold_acc: float = 1.0
    """threshold: divisor of the target probability with which it passes else, in (0, 1]; 1 is strict."""
    synthetic_rates: list[float] = field(default_factory=list)
    """synthetic: unconditional acceptance rate of each of the first positions, not increasing; 0 at the others, and
    the first K where there are more, so that one list serves a sweep over K."""
    synthetic_tree_rates: list[list[float]] = field(default_factory=list)
    """synthetic with drafting.tree: for each depth the rates of a node's first, second and further children, given that
    the node was accepted; at most 1 together, and 0 for depths and children beyond. What is left of 1, the rates of
    children that a node lacks among it, ends the draft there."""
    synthetic_length: float | None = None
    """synthetic: mean acceptance length L <= K + 1, instead of rates: [1] * floor(L - 1) + [fraction] + zeros."""
    profile: AcceptanceProfile | None = None
    """synthetic: named rates of K positions, or of trees, instead of rates (sources:
    harness/config/acceptance_profiles.py)."""
    fly_window_size: int | None = None
    """fly: draft tokens behind a rejected one that must pass by themselves, 1 to K - 1; null takes 6, or K - 1 where
    that is less, which defers a draft's first token alone."""
    fly_entropy_threshold: float = 0.3
    """fly: least entropy of the target at which a rejected draft token may be deferred, in nats."""
    fly_entropy_top_k: int = 3
    """fly: most likely tokens that the entropy is summed over."""

    def __post_init__(self) -> None:
        self.method = named("verification.method", NAMED_METHODS, self.method)
        of_trees = self.profile is not None and self.profile.is_of_trees
        of_chains = self.profile is not None and not of_trees
        # chains and trees of one sweep may have rates each
        given = max(
            bool(self.synthetic_rates) + (self.synthetic_length is not None) + of_chains,
            bool(self.synthetic_tree_rates) + of_trees,
        )
        wanted = "synthetic_rates" in self.rule.kind.settings()
        of_rates = ("synthetic_rates", "synthetic_length", "synthetic_tree_rates", "profile")
        found = ", ".join(name for name in of_rates if getattr(self, name) not in ([], None)) or "none of them"
        require(
            given == int(wanted),
            "verification.synthetic_rates, synthetic_length, profile (of trees: synthetic_tree_rates, profile)",
            "exactly one of them with method=synthetic and none with other methods",
            f"{found} with method={self.method.value}; clear the others, of which verification=synthetic sets both "
            "lists (verification.synthetic_rates=[], synthetic_tree_rates=[], synthetic_length=null, profile=null)",
        )
        require(
            self.synthetic_length is None or 1 <= self.synthetic_length < math.inf,
            "verification.synthetic_length",
            "1 or more, up to K + 1",
            self.synthetic_length,
        )
        # also of methods that another choice leaves unused
        for method in NAMED_METHODS.values():
            method.rule(**self._parameters(method, len(self.synthetic_rates)))

    @property
    def rule(self) -> Method:
        """The method itself, imported where it is the user's own."""
        if not isinstance(self.method, ImportPath):
            return self.method
        return own_method(self.method, "verification.method")

    @property
    def traits(self) -> MethodTraits:
        """What is true of the method."""
        return self.rule.traits

    @property
    def rates(self) -> list[float]:
        """Of chains, also those of a profile; empty with a mean length, and where there are none."""
        return list(self.synthetic_rates if self.profile is None else self.profile.rates)

    @property
    def tree_rates(self) -> list[list[float]]:
        """Of trees, also those of a profile; empty where there are none."""
        named = () if self.profile is None else self.profile.tree_rates
        return [list(level) for level in named or self.synthetic_tree_rates]

    def verification(self, num_speculative_tokens: int) -> Verification:
        """The method as the sampling core takes it, its synthetic rates for K positions, its window chosen."""
        method = self.rule
        given = {} if isinstance(method, OwnMethod) else self._parameters(method, num_speculative_tokens)
        return Verification(method, **given)

    def _parameters(self, method: VerificationMethod | TreeMethod, num_speculative_tokens: int) -> dict[str, Any]:
        """Of these settings, the parameters of a method."""
        rates = self.rates
        if self.synthetic_length is not None:
            accepted = self.synthetic_length - 1
            rates = [min(1.0, max(0.0, accepted - position)) for position in range(num_speculative_tokens)]
        rates = (rates + [0.0] * num_speculative_tokens)[:num_speculative_tokens]
        window = self.fly_window_size
        if window is None:
            window = max(1, min(FLY_WINDOW_SIZE, num_speculative_tokens - 1))
        changed = {
            "synthetic_rates": tuple(rates),
            "synthetic_tree_rates": tuple(map(tuple, self.tree_rates)),
            "fly_window_size": window,
        }
        return {name: changed.get(name, getattr(self, name)) for name in method.parameter_names}


BACKENDS = {
    "local": "harness.backends.local.local:LocalBackend",
    "server": "harness.backends.server.server:ServerBackend",
}
"""backend.kind -> class, imported when a cell asks for it; other names are PACKAGE.MODULE:NAME themselves."""


@dataclass
class BackendConfig:
    """What generates, and on which device."""

    kind: str = "local"
    """What generates: local, server, or PACKAGE.MODULE:NAME."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU where there is one."""
    dtype: str = "auto"
    """float32, bfloat16, float16; auto is float32 on a CPU and the checkpoint's dtype on a GPU."""
    weight_dtype: str = "auto"
    """auto is dtype; fp8 rounds the projections of the target's layers to 8 bits (e4m3, a scale an output): another
    target, with a baseline of its own. Llama and Qwen3 alone."""
    kv_cache_dtype: str = "auto"
    """auto is dtype; fp8 rounds keys and values to 8 bits (e4m3), the drafter's too. Not for latent attention."""
    max_concurrency: int = 16
    """Slots: requests in flight at most."""
    max_length: int | None = None
    """Tokens a slot can hold; null takes what the longest request of the workload needs."""
    fused: bool | None = None
    """Run layers through the fused operations; null does so on a GPU, layer by layer where a model allows it."""
    graphs: bool | None = None
    """Run steps of a few fixed sizes, captured as CUDA graphs; null does so on a GPU."""
    prompt_tokens_beside_rounds: int | None = None
    """With graphs: prompt tokens that a step in which others decode reads at most, in whole groups of rows (16 tokens,
    a few less, or a wider row) and at least one; null sets no limit. Moves output tokens by rounding alone."""

    def __post_init__(self) -> None:
        named("backend.kind", BACKENDS, self.kind)
        require(
            self.dtype in ("auto", "float32", "bfloat16", "float16"),
            "backend.dtype",
            "auto, float32, bfloat16 or float16",
            self.dtype,
        )
        for name in ("weight_dtype", "kv_cache_dtype"):
            require(getattr(self, name) in ("auto", "fp8"), f"backend.{name}", "auto or fp8", getattr(self, name))
        is_device = re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device) is not None
        require(is_device, "backend.device", "auto, cpu, cuda or cuda:N", self.device)
        require(self.max_concurrency >= 1, "backend.max_concurrency", "1 or more", self.max_concurrency)
        require(self.max_length is None or self.max_length >= 2, "backend.max_length", "2 or more", self.max_length)
        limit = self.prompt_tokens_beside_rounds
        require(limit is None or limit >= 1, "backend.prompt_tokens_beside_rounds", "1 or more, or null", limit)


GOODPUT_LIMITS = ("max_ttft_ms", "max_tpot_ms", "max_e2e_ms")
"""Settings of the section measurement that a good request keeps."""


@dataclass
class MeasurementConfig:
    """How the cells of a run are measured and summarised; one for the whole run."""

    baseline: bool = True
    """Run the autoregressive baseline beside each target and decoding setting."""
    num_warmup_requests: int = 4
    """Requests that run before the first measured one of each cell, and are discarded."""
    num_blocks: int = 2
    """Blocks of requests; the cells take turns block by block, in alternating order (A B, then B A)."""
    expected_acceptance: bool = True
    """Record, per round, the acceptance that each chain method expects on the same drafts."""
    round_terms: bool = False
    """Also record, per draft position, the probabilities that `rejection-lab replay` needs."""
    multi_draft_terms: bool = False
    """With them also record what 1 to 8 drafts a position would be worth there, for sampled drafts of a model. It is
    computed beside the clock; on a CPU that can take several times as long as what is measured."""
    num_resamples: int = 2000
    """Bootstrap resamples of the prompts."""
    confidence: float = 0.95
    """Level of the intervals."""
    max_ttft_ms: float | None = None
    """Goodput: longest time to the first token of a good request; null sets no limit."""
    max_tpot_ms: float | None = None
    """Goodput: longest time per further output token of a good request; null sets no limit."""
    max_e2e_ms: float | None = None
    """Goodput: longest duration of a good request; null sets no limit."""

    def __post_init__(self) -> None:
        require(self.num_warmup_requests >= 0, "measurement.num_warmup_requests", "0 or more", self.num_warmup_requests)
        require(self.num_blocks >= 1, "measurement.num_blocks", "1 or more", self.num_blocks)
        require(self.num_resamples >= 100, "measurement.num_resamples", "100 or more", self.num_resamples)
        require(0.5 <= self.confidence < 1, "measurement.confidence", "a level in [0.5, 1)", self.confidence)
        for name in GOODPUT_LIMITS:
            value = getattr(self, name)
            require(value is None or value > 0, f"measurement.{name}", "more than 0, or null", value)
        require(
            self.expected_acceptance or not self.round_terms,
            "measurement.round_terms",
            "false without measurement.expected_acceptance=true, with which it is measured",
            self.round_terms,
        )
        require(
            self.round_terms or not self.multi_draft_terms,
            "measurement.multi_draft_terms",
            "false without measurement.round_terms=true, beside which it is recorded",
            self.multi_draft_terms,
        )
