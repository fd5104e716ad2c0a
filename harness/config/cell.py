"""One cell: its sections of settings together, and their invalid combinations.

Hydra composes the settings and `harness.runner.plan.compose` turns them into these objects once; no other layer handles
dicts. This module knows neither torch nor Hydra, nor that a sweep may skip a cell without a meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.config.backend import BACKEND, BackendConfig, Local, backend_of
from harness.config.constraint import (
    CONSTRAINT,
    AnswerConfig,
    AnswerDrafts,
    ConstraintConfig,
    GrammarConfig,
    PolicyKind,
    constraint_of,
)
from harness.config.drafter import DRAFTER, DrafterConfig, DrafterKind, drafter_of, tree_drafters
from harness.config.drafting import (
    DraftingConfig,
    DraftSamplingChoice,
    DrawnFrom,
    SiblingsChoice,
    cache_rounds,
    siblings_of,
)
from harness.config.imported import ImportPath, is_import_path
from harness.config.models import TargetConfig
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.server import SERVER, Engine, ServerConfig, server_of
from harness.config.tree import DynamicTree, most_children
from harness.config.tree_combinations import TREE_COMBINATIONS
from harness.config.union import Union
from harness.config.verification import VERIFICATION
from harness.config.workload import WorkloadConfig
from kernels.methods import DraftSampling, OwnMethod, SiblingDraws, VerificationMethod
from kernels.verification import Verification

UNIONS: dict[str, Union] = {union.section: union for union in (DRAFTER, VERIFICATION, CONSTRAINT, BACKEND, SERVER)}
"""The sections of a cell whose value is one of several dataclasses."""


class InvalidCombinationError(ValueError):
    """Settings that are valid one by one and invalid in combination; a sweep may skip such a cell."""


@dataclass
class CellConfig:
    """Everything that determines the result of one cell.

    Raises:
        InvalidCombinationError: drafts and verification are an invalid combination.
    """

    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: DrafterConfig = field(default_factory=lambda: drafter_of(DrafterKind.none))
    drafting: DraftingConfig = field(default_factory=DraftingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    verification: Verification = field(default_factory=lambda: Verification(VerificationMethod.probabilistic))
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    constraint: ConstraintConfig = field(default_factory=lambda: constraint_of(PolicyKind.free_text))
    backend: BackendConfig = field(default_factory=lambda: backend_of(BACKEND.default))
    server: ServerConfig = field(default_factory=lambda: server_of(Engine.plain))
    measurement: MeasurementConfig = field(default_factory=MeasurementConfig)
    seed: int = 0
    """Everything random is drawn from it: order of the prompts, drafts, verification."""

    def __post_init__(self) -> None:
        reason = self.invalid_reason()
        if reason is not None:
            raise InvalidCombinationError(reason)

    @property
    def imported(self) -> dict[str, ImportPath]:
        """The objects of the user's own that it uses, by setting."""
        named: dict[str, object] = {"backend.kind": self.backend.kind, "drafter.kind": self.drafter.kind}
        named["constraint.policy"] = self.constraint.policy
        if not self.is_baseline:
            named["verification.method"] = self.verification.method.value
        if self.is_served:
            named["server.engine"] = self.server.engine
        if isinstance(self.constraint, AnswerConfig):
            named["constraint.parser"] = self.constraint.parser
        return {key: ImportPath(name) for key, name in named.items() if isinstance(name, str) and is_import_path(name)}

    @property
    def is_baseline(self) -> bool:
        return self.drafter.kind is DrafterKind.none

    @property
    def is_served(self) -> bool:
        """Whether a server generates, whose models this process never loads."""
        return self.backend.kind == "server"

    @property
    def local(self) -> Local:
        """The settings of the engine of this repository, which generates."""
        assert isinstance(self.backend, Local), f"another generates: {self.backend.kind}"
        return self.backend

    @property
    def draft_sampling(self) -> DraftSampling:
        """Draft sampling with `auto` resolved."""
        choice = self.drafting.sampling
        if choice is not DraftSamplingChoice.auto:
            return DraftSampling[choice.name]
        if not self.drafter.traits.has_network or self.drafts_dynamic_tree:
            return DraftSampling.greedy
        if self.is_served and not isinstance(self.verification.method, OwnMethod):
            of_engine = self.server.traits.drafts_of(self.verification.method)
            return self.verification.traits.draft_samplings[0] if of_engine is None else of_engine[0]
        return self.verification.traits.draft_samplings[0]

    @property
    def has_draft_cache(self) -> bool:
        """Whether the logits that drafts are drawn from are cached, which a drafter of one's own is asked for; the
        proposals are one-hot otherwise."""
        return not self.drafter.traits.is_one_hot and self.draft_sampling is not DraftSampling.greedy

    @property
    def rounds_draft_logits(self) -> bool:
        """Whether the cache cannot hold what the drafter, which has the target's type, gives it."""
        return self.has_draft_cache and cache_rounds(self.drafting.cache_dtype.value, self.backend.dtype)

    @property
    def draws_unrounded(self) -> bool:
        """Whether drafts are drawn from other values than the cache holds."""
        return self.rounds_draft_logits and self.drafting.drawn_from is DrawnFrom.unrounded

    @property
    def drafts_tree(self) -> bool:
        """Whether its drafts are trees."""
        return not self.is_baseline and self.drafting.tree is not None

    @property
    def drafts_dynamic_tree(self) -> bool:
        """Whether the drafter chooses the nodes of each round's tree."""
        return self.drafts_tree and self.drafting.has_dynamic_tree

    @property
    def siblings(self) -> SiblingDraws:
        """How the children of a node of a tree are drawn, with `auto` resolved."""
        choice = self.drafting.siblings
        if choice is not SiblingsChoice.auto:
            return SiblingDraws[choice.name]
        return siblings_of(self.verification.traits)

    @property
    def refusal(self) -> str | None:
        """Why the method cannot verify drafts of this number and shape; None if it can."""
        shape, levels = self.drafting.tree_shape, None
        if shape is not None:
            levels = [shape.width] * shape.depth if isinstance(shape, DynamicTree) else most_children(shape)
        return self.verification.rule.refusal(self.drafting.num_speculative_tokens, levels)

    def invalid_reason(self) -> str | None:
        """Why this combination of settings is invalid; None if it is valid, as the baseline always is."""
        for applies, reason in INVALID_COMBINATIONS:
            if not self.is_baseline and applies(self):
                found = {name: getattr(self, name) for name in ("draft_sampling", "siblings", "refusal")}
                found |= {"drafter_refusal": self.drafter.refusal(self), "tree_drafters": ", ".join(tree_drafters())}
                return reason.format(**vars(self), **found)
        return None


def _samplings(cell: CellConfig) -> tuple[DraftSampling, ...]:
    return cell.verification.traits.draft_samplings


def _lacks_method(cell: CellConfig) -> bool:
    """Whether the engine that serves does not verify such drafts in this way."""
    method = cell.verification.method
    found = None if isinstance(method, OwnMethod) else cell.server.traits.drafts_of(method)
    return cell.is_served and cell.draft_sampling not in (found or ())


def _draws_under_masks(cell: CellConfig) -> bool:
    return isinstance(cell.constraint, GrammarConfig) and cell.constraint.drafts is AnswerDrafts.masked


INVALID_COMBINATIONS: tuple[tuple[Callable[[CellConfig], bool], str], ...] = (
    (
        lambda cell: cell.is_served and cell.drafter.kind not in cell.server.traits.drafters,
        "server={server.engine.value} cannot run drafter={drafter.kind.value}; choose another drafter or engine "
        "(harness/backends/server/README.md)",
    ),
    (
        _lacks_method,
        "server={server.engine.value} does not verify {draft_sampling.value} drafts by "
        "verification={verification.method.value}; harness/backends/server/README.md lists what each engine does",
    ),
    *TREE_COMBINATIONS,
    (
        lambda cell: cell.drafting.num_speculative_tokens == 0,
        "0 draft tokens (drafting.num_speculative_tokens, or drafting.depth) are nothing that "
        "drafter={drafter.kind.value} proposes; the run without drafts is drafter=none, which measurement.baseline "
        "adds by itself",
    ),
    (lambda cell: cell.drafter.refusal(cell) is not None, "{drafter_refusal}"),
    (
        lambda cell: cell.drafter.traits.is_of_target and getattr(cell.backend, "tensor_parallel", 1) > 1,
        "drafter={drafter.kind.value} drafts with the target's own layers, which several ranks compute for the target "
        "alone; use backend.tensor_parallel=1, or another drafter",
    ),
    (
        lambda cell: cell.drafter.traits.is_one_hot and DraftSampling.greedy not in _samplings(cell),
        "verification={verification.method.value} needs a drafter with a distribution; drafter={drafter.kind.value} "
        "has none",
    ),
    (
        lambda cell: cell.drafter.traits.is_one_hot and cell.draft_sampling is not DraftSampling.greedy,
        "drafter={drafter.kind.value} has no distribution to draw from; use drafting.sampling=greedy (or auto)",
    ),
    (
        lambda cell: cell.verification.traits.greedy_only and cell.decoding.temperature > 0,
        "verification={verification.method.value} is defined only at decoding.temperature=0; at other temperatures "
        "choose a sampling method",
    ),
    (
        lambda cell: cell.verification.traits.decided_by_noise and cell.draft_sampling not in _samplings(cell),
        "verification={verification.method.value} decides by the noise that its drafts were drawn with, found "
        "{draft_sampling.value} drafts; use drafting.sampling=coupled (or auto), or verification=strict",
    ),
    (
        lambda cell: cell.draft_sampling is DraftSampling.coupled and DraftSampling.coupled not in _samplings(cell),
        "coupled drafts share their noise with the target's draw, which must never reach "
        "verification={verification.method.value} (biased output); use drafting.sampling=sampled, or "
        "verification=coupled",
    ),
    (
        lambda cell: (
            cell.has_draft_cache and cell.drafting.cache_dtype.value != "auto" and cell.backend.dtype == "auto"
        ),
        "drafting.cache_dtype={drafting.cache_dtype.value} with backend.dtype=auto does not say whether it rounds the "
        "drafter's logits; give backend.dtype too",
    ),
    (lambda cell: cell.refusal is not None, "verification={verification.method.value}: {refusal}"),
    (
        lambda cell: cell.draft_sampling not in _samplings(cell),
        "verification={verification.method.value} does not take {draft_sampling.value} drafts; use "
        "drafting.sampling=auto",
    ),
    (
        lambda cell: cell.drafting.min_confidence > 0 and _draws_under_masks(cell),
        "drafting.min_confidence={drafting.min_confidence} ends drafts before the host has seen their masks; use "
        "constraint.drafts=free",
    ),
    (
        lambda cell: cell.drafting.depth is not None and isinstance(cell.constraint, AnswerConfig),
        "drafting.depth={drafting.depth} cannot be followed across the end of reasoning, found "
        "constraint={constraint.policy.value}; use constraint=free_text or drafting.depth=null",
    ),
    (
        lambda cell: isinstance(cell.constraint, GrammarConfig) and cell.verification.traits.ignores_tokens,
        "verification={verification.method.value} accepts tokens whatever they are, so it cannot hold an answer to a "
        "grammar; use another method, or constraint=none",
    ),
    (
        lambda cell: (
            cell.workload.thinking is False
            and isinstance(cell.constraint, AnswerConfig)
            and cell.constraint.parser != "none"
        ),
        "workload.thinking=false ends reasoning in the prompt, so that constraint.parser={constraint.parser} finds no "
        "end in the answer; use constraint.parser=none",
    ),
    (
        lambda cell: cell.target.is_built_in and not cell.is_served and cell.workload.thinking is not None,
        "workload.thinking switches reasoning in a chat template, and target={target.name} has none that heeds it; "
        "leave it out",
    ),
)
"""Invalid combinations, why, and what to do instead; the first that applies is reported."""
