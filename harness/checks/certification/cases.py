"""The cases of certification: every lossless way to draft and verify, in every dtype and truncation, and mixed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle

import torch

from harness.checks.certification.depth_rules import DepthRule
from harness.checks.certification.engine_steps import REQUESTS_PER_ENGINE_SLOT
from harness.checks.certification.subject import Features
from harness.checks.certification.toy_edits import ToyEdits
from harness.checks.certification.toy_models import (
    ABOVE_ZEROS,
    BIASED,
    CANDIDATES,
    CONTROL,
    MASKED,
    MASKED_NARROW_DRAFT,
    NARROW_DRAFT,
    PEAKED,
    PLAIN,
    SHARED,
    SPREAD,
    STEPS,
    WIDE,
    Profile,
    ToyModels,
)
from harness.config.tree import DynamicTree
from kernels import methods
from kernels.contract import DraftSampling, SiblingDraws, Verification, VerificationMethod
from kernels.methods.hooks import runs_on_kernels
from kernels.verification import probe

Method = VerificationMethod
GREEDY, SAMPLED, COUPLED = DraftSampling.greedy, DraftSampling.sampled, DraftSampling.coupled

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ALONE = Profile()
TRUNCATIONS: dict[str, tuple[ToyModels, tuple[Profile, ...]]] = {
    "none": (PLAIN, (ALONE, Profile(temperature=0.7))),
    "top-k": (WIDE, (Profile(top_k=4),)),
    "top-p": (WIDE, (Profile(temperature=0.8, top_p=0.8),)),
    "min-p": (WIDE, (Profile(temperature=1.3, min_p=0.3),)),
    "mixed": (
        WIDE,
        (
            Profile(temperature=0.0),
            Profile(temperature=0.9, top_k=4, top_p=0.85),
            Profile(temperature=0.0, top_k=3, top_p=0.5),
            Profile(temperature=1.2, top_k=5, min_p=0.15),
        ),
    ),
}
"""Truncation of a case: the pair, and the sampling parameters that its requests take in turn. `none` takes two
temperatures, because at 1 a forgotten one does not show. `mixed` mixes greedy requests with sampled ones that cut
differently."""
UNCUT_BESIDE_CUT = (Profile(temperature=1.4), Profile(temperature=0.9, top_k=4, top_p=0.85))
Drafts = tuple[methods.Method, DraftSampling, bool]
"""Verification, draft sampling, and whether the draft logits are cached (else the proposal is one-hot)."""


def drafts_of(method: methods.Method) -> tuple[Drafts, ...]:
    """Every way to draft for a method."""
    return tuple((method, sampling, sampling is not GREEDY) for sampling in method.traits.draft_samplings)


DRAFTS = tuple(
    drafts
    for method in Method
    if method.traits.guarantee is methods.Guarantee.lossless and not method.traits.greedy_only
    for drafts in drafts_of(method)
)
BY_STRICT: Drafts = Method.strict, GREEDY, False
BY_COUPLED: Drafts = Method.coupled, COUPLED, True
BY_PROBABILISTIC: Drafts = Method.probabilistic, SAMPLED, True
BY_BLOCK: Drafts = Method.block, SAMPLED, True
"""What stands for all ways where cases are few."""
CONSTANT, RAGGED = (3,), (3, 1, 0, 2)
PENALTIES = ToyEdits(repetition=1.6, frequency=0.5, presence=0.7)
ALL_EDITS = replace(PENALTIES, frequency=-0.4, min_tokens=2, biases=((1, 0.8), (2, -0.5)), ends=(2,))
REQUESTS_PER_SLOT, REQUESTS_PER_FEW_SLOTS = 4, 64
"""The second where few requests are in flight, so that not many batches end with fewer."""


@dataclass(frozen=True)
class Case:
    """One way to draft and verify, on one pair."""

    models: ToyModels
    verification: Verification
    draft_sampling: DraftSampling
    cached: bool
    """Whether verification gets the draft logits; without them every proposal counts as one-hot."""
    truncation: str = "none"
    profiles: tuple[Profile, ...] = (ALONE,)
    """Sampling parameters that the requests take in turn."""
    dtype: str = "float32"
    cache_dtype: str | None = None
    """Another dtype of the draft-logit cache than the one drafts are drawn from: wrong, for a control."""
    lengths: tuple[int, ...] = CONSTANT
    """Draft tokens of a request's rounds, again and again; requests begin at different places."""
    row_stats: bool = True
    """Keep the statistics of the drafted rows for verification, if the subject can."""
    padded_slots: bool = False
    """Fill the batch with padded slots."""
    padded_rows: bool = False
    """Target rows at r * (K + 1)."""
    trees: tuple[tuple[int, ...], ...] = ()
    """Trees of drafts of a request's rounds, again and again: the parent of each draft token, -1 for the context.
    `lengths` are their sizes. Empty for chains."""
    dynamic_tree: DynamicTree | None = None
    """Trees of the tokens that the drafter finds most probable; `lengths` is their size. None for others."""
    siblings: SiblingDraws = SiblingDraws.independent
    depth_rule: DepthRule | None = None
    """Keeps fewer drafts than `lengths`; only with models whose vocabularies are the same."""
    edits: ToyEdits | None = None
    """Changes the target rows; only with models whose tokens are not spread, in rows of equal number."""

    @property
    def requests_per_slot(self) -> int:
        """Requests that a slot serves, one after another."""
        if self.depth_rule is not None and self.depth_rule.is_of_step:
            return REQUESTS_PER_ENGINE_SLOT
        return REQUESTS_PER_FEW_SLOTS if self.is_spread and self.drafts_trees else REQUESTS_PER_SLOT

    @property
    def num_speculative_tokens(self) -> int:
        return max(self.lengths)

    @property
    def drafts_trees(self) -> bool:
        return bool(self.trees) or self.dynamic_tree is not None

    @property
    def is_ragged(self) -> bool:
        """Whether rounds of a batch differ in their number of drafts."""
        return len(self.lengths) > 1 or self.depth_rule is not None or self.dynamic_tree is not None

    @property
    def is_spread(self) -> bool:
        """Whether its rows are long, so that fewer requests are simulated."""
        return self.models.token_ids is not None

    @property
    def name(self) -> str:
        """Unique among the cases."""
        proposal = "cached" if self.cached else "one-hot"
        parts = [self.verification.method.value, f"{self.draft_sampling.value} {proposal}", self.dtype, self.truncation]
        parts += [f"{self.cache_dtype} cache"] if self.cache_dtype else []
        parts += ["ragged"] if len(self.lengths) > 1 else []
        parts += [self.depth_rule.value] if self.depth_rule else []
        parts += [f"{self.siblings.value} siblings"] if self.trees and self.cached else []
        parts += [f"tree {' '.join(map(str, tree))}" for tree in self.trees if len(self.trees) == 1]
        parts += [f"tree {self.dynamic_tree.name}"] if self.dynamic_tree else []
        parts += ["padded slots"] if self.padded_slots else []
        parts += ["padded rows"] if self.padded_rows else []
        parts += ["stats not kept"] if not self.row_stats and self.cached else []
        always = (NARROW_DRAFT.name, PEAKED.name, SHARED.name, BIASED.name, CANDIDATES.name)
        named = self.models.name in always or self.models.allowed is not None or self.is_spread
        parts += [self.models.name] if named else []
        parts += [self.edits.name] if self.edits else []
        return ", ".join(parts)

    def _is_run_by(self, features: Features) -> bool:
        method = self.verification.method
        if not isinstance(method, methods.OwnMethod):
            return method in features.methods
        return features.own_methods or (features.own_hooks and runs_on_kernels(method))

    def lacking(self, features: Features) -> str | None:
        """What the case needs and a subject does not have; None if it has everything."""
        way = (self.verification.method, self.draft_sampling, self.cached)
        profiles_truncate = any(profile.truncates for profile in self.profiles)
        needs = (
            (self._is_run_by(features), f"method {self.verification.method.value}"),
            (self.draft_sampling in features.draft_samplings, f"{self.draft_sampling.value} drafts"),
            (
                features.drafts is None or way in features.drafts,
                f"{way[0].value} of {way[1].value} drafts, {'cached' if self.cached else 'one-hot'}",
            ),
            (DTYPES[self.dtype] in features.dtypes, f"{self.dtype} logits"),
            (features.truncation or not profiles_truncate, "truncation"),
            (features.narrow_draft or self.models.draft_to_target is None, "a smaller draft vocabulary"),
            (features.masks or self.models.allowed is None, "masks of allowed tokens"),
            (features.edits or self.edits is None, "penalties along a draft"),
            (features.ragged or not self.is_ragged, "ragged batches"),
            (features.padded_slots or not self.padded_slots, "padded slots"),
            (features.padded_rows or not self.padded_rows, "padded target rows"),
            (not features.whole_rounds or self.row_stats, "statistics of draft rows that it could leave out"),
        )
        return next((f"no {what}" for has, what in needs if not has), None)


def _case(
    method: methods.Method, sampling: DraftSampling, cached: bool, truncation: str = "none", dtype: str = "float32"
) -> Case:
    models, profiles = TRUNCATIONS[truncation]
    case = Case(models, probe(method, max(CONSTANT)), sampling, cached, truncation, profiles, dtype)
    return replace(case, lengths=RAGGED, padded_slots=True) if truncation == "mixed" else case


def full_cases() -> list[Case]:
    """Every way to draft and verify x every truncation x every dtype, and the special cases."""
    cases = [_case(*drafts, truncation, dtype) for drafts in DRAFTS for truncation in TRUNCATIONS for dtype in DTYPES]
    cases += special_cases(tuple(DTYPES)) + masked_cases(DRAFTS) + spread_cases() + depth_cases(DRAFTS)
    return cases + edited_cases(DRAFTS)


def small_cases() -> list[Case]:
    """Every way to draft and verify: plain in float32, mixed in bfloat16, each truncation once; the special cases."""
    cases = [_case(*drafts, truncation, dtype)
             for truncation, dtype in (("none", "float32"), ("mixed", "bfloat16")) for drafts in DRAFTS]  # fmt: skip
    rotation = [(truncation, dtype) for truncation in ("top-k", "top-p", "min-p") for dtype in DTYPES]
    cases += [_case(*drafts, *pair) for drafts, pair in zip(DRAFTS, cycle(rotation), strict=False)]
    depth = depth_cases((BY_PROBABILISTIC, BY_BLOCK))
    edited = edited_cases((BY_COUPLED, BY_BLOCK))
    return cases + special_cases(("float32",)) + masked_cases(()) + spread_cases()[:1] + depth + edited


def own_cases(method: methods.OwnMethod, is_full: bool) -> list[Case]:
    """A method of the user's own: every way to draft for it x every truncation (x every dtype, if full), and others."""
    dtypes = tuple(DTYPES) if is_full else ("float32",)
    drafts = drafts_of(method)
    cases = [_case(*each, truncation, dtype) for each in drafts for truncation in TRUNCATIONS for dtype in dtypes]
    cases += [replace(_case(*each), models=NARROW_DRAFT) for each in drafts if each[1] is not GREEDY]
    cases += [replace(_case(*drafts[0]), lengths=RAGGED, padded_rows=True)]
    return [*cases, replace(_case(*drafts[0]), models=MASKED)]


def special_cases(dtypes: tuple[str, ...]) -> list[Case]:
    """What does not cross with everything.

    Args:
        dtypes: of the cases with a smaller draft vocabulary.
    """
    probabilistic = _case(Method.probabilistic, SAMPLED, True)
    block = _case(Method.block, SAMPLED, True)
    cases = [
        replace(_case(*drafts), models=NARROW_DRAFT, dtype=dtype)
        for drafts in DRAFTS
        for dtype in dtypes
        if drafts[1] is not GREEDY
    ]
    cases += [replace(case, models=models) for models in (SHARED, BIASED) for case in (probabilistic, block)]
    coupled = _case(Method.coupled, COUPLED, True)
    cases += [replace(case, models=CANDIDATES) for case in (probabilistic, block, coupled)]
    cases += [_case(method, SAMPLED, False) for method in (Method.strict, Method.probabilistic, Method.block)]
    cases += [_case(method, COUPLED, False) for method in (Method.strict, Method.coupled)]
    cases += [replace(case, row_stats=False) for case in (probabilistic, block)]
    cases += [replace(case, lengths=RAGGED, padded_rows=True) for case in (probabilistic, block)]
    cases += [
        replace(case, models=WIDE, truncation="some cut", profiles=UNCUT_BESIDE_CUT) for case in (probabilistic, block)
    ]
    cases += [replace(_case(Method.greedy, GREEDY, False), profiles=(Profile(temperature=0.0),))]
    cases += [replace(probabilistic, verification=Verification(Method.lenient, leniency=1.0))]
    return cases


def masked_cases(drafts: tuple[Drafts, ...]) -> list[Case]:
    """Pairs under a grammar: some ways to draft and verify, and what may go wrong beside masks.

    Args:
        drafts: those ways.
    """
    cases = [replace(_case(*each), models=MASKED) for each in drafts]
    block = replace(_case(Method.block, SAMPLED, True), models=MASKED_NARROW_DRAFT)
    cut = _case(Method.probabilistic, SAMPLED, True, "top-k")
    cut = replace(cut, models=MASKED, profiles=(Profile(temperature=0.8, top_k=2),), lengths=RAGGED, padded_slots=True)
    return [
        *cases,
        block,
        replace(block, row_stats=False),
        cut,
        replace(cut, row_stats=False, padded_rows=True, padded_slots=False),
    ]


def depth_cases(drafts: tuple[Drafts, ...]) -> list[Case]:
    """Ways to draft and verify at the depth that the engine decides: by draft rows, by the batch, by the rounds before.

    An engine's step, unlike a row, decides nothing about a request's first token, so that these requests are longer.
    """
    models = {rule: STEPS if rule.is_of_step else CONTROL for rule in DepthRule if rule.is_lossless}
    ways = [(rule, each) for rule in models for each in drafts]
    # steps cost the host's time
    ways = [(rule, each) for rule, each in ways if not rule.is_of_step or each[1] is not GREEDY]
    return [replace(_case(*each), models=models[rule], depth_rule=rule) for rule, each in ways]


def edited_cases(drafts: tuple[Drafts, ...]) -> list[Case]:
    """Ways to draft and verify where target rows have penalties, biases and a least length; drafters know nothing of
    it."""
    cases = [replace(_case(*each), edits=PENALTIES) for each in drafts]
    cases += [replace(_case(*each), edits=ALL_EDITS) for each in drafts]
    cut = _case(Method.probabilistic, SAMPLED, True, "top-k")
    rounded = _case(Method.block, SAMPLED, True, dtype="bfloat16")
    return [*cases, replace(cut, edits=ALL_EDITS), replace(rounded, edits=PENALTIES)]


def spread_cases() -> list[Case]:
    """Pairs whose few tokens lie far apart in a vocabulary that kernels read in several chunks."""
    cut = {"top-k": Profile(top_k=4), "top-p": Profile(temperature=0.5, top_p=0.85)}
    truncated = ((BY_BLOCK, "top-k"), (BY_PROBABILISTIC, "top-p"), (BY_STRICT, "top-k"), (BY_COUPLED, "top-p"))
    plain = (BY_BLOCK, BY_PROBABILISTIC, BY_STRICT, BY_COUPLED)
    cases = [replace(_case(*drafts, "none", "bfloat16"), models=SPREAD) for drafts in plain]
    return cases + [
        replace(_case(*drafts, truncation, "bfloat16"), models=ABOVE_ZEROS, profiles=(cut[truncation],))
        for drafts, truncation in truncated
    ]
