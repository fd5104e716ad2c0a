"""The typed settings of one cell.

Hydra composes them, `harness.compose.compose` turns them into these objects once; no other layer handles dicts. Every
field says what it means and in which unit; validation sits in the dataclass, and invalid combinations are rejected in
`CellConfig`, by `harness.settings.invalid_combinations`. This module knows neither torch nor Hydra.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from enum import Enum

from harness.settings.acceptance_profiles import AcceptanceProfile
from harness.settings.constraint import ConstraintConfig
from harness.settings.imported import ImportPath, OrImported, named
from harness.settings.invalid_combinations import why_invalid
from harness.settings.models import DrafterConfig, DrafterKind, TargetConfig, require
from harness.settings.sampling import SamplingSettings
from kernels.methods import DraftSampling, Method, MethodTraits, OwnMethod, Verification, VerificationMethod

MAX_SPECULATIVE_TOKENS = 32
"""K at most: what the kernels take under every method (block verification holds the positions as the bits of a number),
and the same for all, so that no method of a sweep is left without a partner."""


class DraftSamplingChoice(Enum):
    """Draft sampling as configured; `auto` is resolved by the verification method."""

    auto = "auto"
    greedy = "greedy"
    sampled = "sampled"
    coupled = "coupled"


class CacheDtype(Enum):
    """Floating-point type of the draft-logit cache as configured; `auto` is the drafter's own."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class DrawnFrom(Enum):
    """Which values draft tokens are drawn from."""

    stored = "stored"
    unrounded = "unrounded"


class Layout(Enum):
    """Layout of a prompt file."""

    auto = "auto"
    mt_bench = "mt_bench"
    spec_bench = "spec_bench"
    gsm8k = "gsm8k"
    humaneval = "humaneval"
    json_schemas = "json_schemas"
    plain = "plain"


class TooLong(Enum):
    """What happens to a prompt that does not fit."""

    skip = "skip"
    error = "error"


class InvalidCombinationError(ValueError):
    """Settings that are valid one by one and have no meaning together; a sweep may skip such a cell."""


@dataclass
class DraftingConfig:
    """How much is proposed, and how it is drawn."""

    num_speculative_tokens: int = 4
    """K, draft tokens proposed per round; 32 at most."""
    sampling: DraftSamplingChoice = DraftSamplingChoice.auto
    """How the proposal is drawn; auto takes what the verification method is made for."""
    cache_dtype: CacheDtype = CacheDtype.auto
    """Type of the cached draft logits, which verification reads; auto is the drafter's own, in which nothing is
    rounded."""
    drawn_from: DrawnFrom = DrawnFrom.stored
    """Draw drafts from the logits as they are stored in the cache, or as the drafter gave them, before rounding; the
    second is biased under the methods that compare with the draft distribution."""

    def __post_init__(self) -> None:
        require(
            0 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS,
            "drafting.num_speculative_tokens",
            f"0 to {MAX_SPECULATIVE_TOKENS}",
            self.num_speculative_tokens,
        )


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

    def __post_init__(self) -> None:
        self.sampling.check("decoding")
        require(self.max_new_tokens >= 1, "decoding.max_new_tokens", "1 or more", self.max_new_tokens)

    @property
    def sampling(self) -> SamplingSettings:
        """What tokens are drawn from, of requests without parameters of their own."""
        return SamplingSettings(self.temperature, self.top_k, self.top_p, self.min_p)


@dataclass
class VerificationConfig:
    """The rule that turns draft tokens into output tokens."""

    method: OrImported[VerificationMethod] = VerificationMethod.probabilistic
    """The rule; or PACKAGE.MODULE:NAME, one of your own (kernels.methods.OwnMethod), on the reference core."""
    epsilon: float = 0.09
    """typical: upper bound of the acceptance threshold on the target probability."""
    delta: float = 0.3
    """typical: factor of exp(-entropy) in the threshold; entropy in nats."""
    leniency: float = 1.0
    """lenient: l in (0, 1]; 1 is probabilistic."""
    synthetic_rates: list[float] = field(default_factory=list)
    """synthetic: unconditional acceptance rate of each of the first positions, not increasing; 0 at the others."""
    synthetic_length: float | None = None
    """synthetic: mean acceptance length L <= K + 1, instead of rates: [1] * floor(L - 1) + [fraction] + zeros."""
    profile: AcceptanceProfile | None = None
    """synthetic: named rates of K positions, instead of rates (sources: harness/settings/acceptance_profiles.py)."""

    def __post_init__(self) -> None:
        self.method = named("verification.method", VerificationMethod.__members__, self.method)
        given = bool(self.synthetic_rates) + (self.synthetic_length is not None) + (self.profile is not None)
        wanted = "synthetic_rates" in self.traits.parameters
        require(
            given == int(wanted),
            "verification.synthetic_rates, synthetic_length, profile",
            "exactly one of them with method=synthetic and none with other methods ([] and null clear them)",
            f"{given} with method={self.method.value}",
        )
        require(
            self.synthetic_length is None or 1 <= self.synthetic_length < math.inf,
            "verification.synthetic_length",
            "1 or more, up to K + 1",
            self.synthetic_length,
        )
        self.verification(0)

    @property
    def rule(self) -> Method:
        """The method itself, imported where it is the user's own."""
        if not isinstance(self.method, ImportPath):
            return self.method
        return replace(self.method.load("verification.method", OwnMethod), value=self.method.value)

    @property
    def traits(self) -> MethodTraits:
        """What is true of the method."""
        return self.rule.traits

    def verification(self, num_speculative_tokens: int) -> Verification:
        """The method as the sampling core takes it, its synthetic rates filled up to K positions."""
        rates = list(self.synthetic_rates if self.profile is None else self.profile.rates)
        if self.synthetic_length is not None:
            accepted = self.synthetic_length - 1
            rates = [min(1.0, max(0.0, accepted - position)) for position in range(num_speculative_tokens)]
        rates += [0.0] * (num_speculative_tokens - len(rates))
        return Verification(self.rule, self.epsilon, self.delta, self.leniency, tuple(rates))


@dataclass
class WorkloadConfig:
    """The prompts and how they are played."""

    path: str | None = None
    """JSON Lines file (also .gz), or builtin:NAME for one of the package; null without a dataset is the built-in set of
    80 prompts."""
    layout: Layout = Layout.auto
    """Layout of the file; auto looks at the first record."""
    dataset: str | None = None
    """Hugging Face data set id."""
    subset: str | None = None
    """Configuration name of the data set."""
    split: str = "test"
    """Split of the data set."""
    column: str = "prompt"
    """Column of the data set that holds the prompt: text, or a list of texts (turns)."""
    categories: list[str] = field(default_factory=list)
    """Keep only these categories; empty keeps all."""
    num_prompts: int | None = None
    """Take this many prompts, evenly over the categories, chosen by the seed; null takes all."""
    num_requests: int | None = None
    """Oversample the prompts, in order, to this many conversations; null runs each prompt once."""
    num_turns: int | None = None
    """Turns of a prompt that are played, each after the model's answer to the one before; null plays all."""
    prompt_tokens: int | None = None
    """Cut or repeat every prompt to exactly so many tokens, for speed at fixed sizes; null leaves them as they are."""
    request_rate: float | None = None
    """Conversations that arrive per second, at random (a Poisson process); null: all wait for a slot from the start."""
    shuffle: bool = True
    """Deterministic order drawn from the seed; false keeps the file's order."""
    too_long: TooLong = TooLong.skip
    """A prompt that does not fit beside max_new_tokens: leave it out (counted in the record) or stop."""

    def __post_init__(self) -> None:
        require(self.path != "", "workload.path", "a JSON Lines file (workload.path=FILE)", "nothing")
        require(self.path is None or self.dataset is None, "workload", "path or dataset, not both", "both")
        require(
            self.request_rate is None or 0 < self.request_rate < math.inf,
            "workload.request_rate",
            "more than 0 conversations per second, or null",
            self.request_rate,
        )
        for name in ("num_prompts", "num_requests", "num_turns", "prompt_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"workload.{name}", "1 or more, or null", value)
        require(
            self.prompt_tokens is None or self.num_turns == 1,
            "workload.prompt_tokens",
            "workload.num_turns=1 beside it (a later turn holds the model's answer, which has no set length)",
            f"num_turns={'null' if self.num_turns is None else self.num_turns}",
        )


@dataclass
class BackendConfig:
    """What generates, and on which device."""

    kind: str = "local"
    """Which kind of server generates: local, or PACKAGE.MODULE:NAME."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU where there is one."""
    dtype: str = "auto"
    """float32, bfloat16, float16; auto is float32 on a CPU and the checkpoint's dtype on a GPU."""
    max_concurrency: int = 16
    """Slots: requests in flight at most."""
    max_length: int | None = None
    """Tokens a slot can hold; null takes what the longest request of the workload needs."""
    fused: bool | None = None
    """Run layers through fused operations of our own; null does so on a GPU, layer by layer where a model allows it."""
    graphs: bool | None = None
    """Run steps of a few fixed sizes, captured as CUDA graphs; null does so on a GPU."""
    prompt_tokens_beside_rounds: int | None = None
    """With graphs: prompt tokens that a step in which others decode reads at most, in whole rows and at least one; null
    sets no limit. Moves output tokens by rounding alone."""

    def __post_init__(self) -> None:
        named("backend.kind", {"local": "local"}, self.kind)
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
        limit = self.prompt_tokens_beside_rounds
        require(limit is None or limit >= 1, "backend.prompt_tokens_beside_rounds", "1 or more, or null", limit)


@dataclass
class MeasurementConfig:
    """How the cells of a run are measured and summarised; one for the whole run."""

    baseline: bool = True
    """Run the autoregressive baseline beside each target and decoding setting."""
    num_warmup_requests: int = 4
    """Requests run and thrown away before the first measured one of each cell."""
    num_blocks: int = 2
    """Blocks of requests; the cells take turns block by block, in alternating order (A B, then B A)."""
    expected_acceptance: bool = True
    """Record, per round, the acceptance that each chain method expects on the same drafts."""
    round_terms: bool = False
    """Also record, per draft position, the probabilities that `rejection-lab replay` needs."""
    num_resamples: int = 2000
    """Bootstrap resamples of the prompts."""
    confidence: float = 0.95
    """Level of the intervals."""

    def __post_init__(self) -> None:
        require(self.num_warmup_requests >= 0, "measurement.num_warmup_requests", "0 or more", self.num_warmup_requests)
        require(self.num_blocks >= 1, "measurement.num_blocks", "1 or more", self.num_blocks)
        require(self.num_resamples >= 100, "measurement.num_resamples", "100 or more", self.num_resamples)
        require(0.5 <= self.confidence < 1, "measurement.confidence", "a level in [0.5, 1)", self.confidence)
        require(
            self.expected_acceptance or not self.round_terms,
            "measurement.round_terms",
            "false without measurement.expected_acceptance=true, with which it is measured",
            self.round_terms,
        )


@dataclass
class CellConfig:
    """Everything that determines the result of one cell.

    Raises:
        InvalidCombinationError: if drafts and verification have no meaning together.
    """

    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    drafting: DraftingConfig = field(default_factory=DraftingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    verification: VerificationConfig = field(default_factory=VerificationConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    constraint: ConstraintConfig = field(default_factory=ConstraintConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    measurement: MeasurementConfig = field(default_factory=MeasurementConfig)
    seed: int = 0
    """Everything random is drawn from it: order of the prompts, drafts, verification."""

    def __post_init__(self) -> None:
        reason = self.invalid_reason()
        if reason is not None:
            raise InvalidCombinationError(reason)

    @property
    def is_baseline(self) -> bool:
        return self.drafter.kind is DrafterKind.none

    @property
    def draft_sampling(self) -> DraftSampling:
        """Draft sampling with `auto` resolved."""
        choice = self.drafting.sampling
        if choice is not DraftSamplingChoice.auto:
            return DraftSampling[choice.name]
        if not self.drafter.has_model:
            return DraftSampling.greedy
        return self.verification.traits.draft_samplings[0]

    @property
    def has_draft_cache(self) -> bool:
        """Whether the logits that drafts are drawn from are cached; the proposals are one-hot otherwise."""
        return self.drafter.has_model and self.draft_sampling is not DraftSampling.greedy

    @property
    def rounds_draft_logits(self) -> bool:
        """Whether the cache cannot hold what the drafter, which has the target's type, gives it."""
        return self.has_draft_cache and cache_rounds(self.drafting.cache_dtype.value, self.backend.dtype)

    @property
    def draws_unrounded(self) -> bool:
        """Whether drafts are drawn from other values than the cache holds."""
        return self.rounds_draft_logits and self.drafting.drawn_from is DrawnFrom.unrounded

    def invalid_reason(self) -> str | None:
        """Why this combination of settings has no meaning; None if it has one, as the baseline always does."""
        return None if self.is_baseline else why_invalid(self)


def cache_rounds(cache_dtype: str | None, dtype: str | None) -> bool:
    """Whether a draft-logit cache of one type cannot hold what a drafter of another gives it.

    Args:
        cache_dtype: auto is the drafter's own; None in records that are older than the setting.
        dtype: of the drafter, which is the target's.
    """
    return cache_dtype not in (None, "", "auto", "float32", dtype)
