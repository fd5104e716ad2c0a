"""sequential-speculative-decoding: its standard step, and hierarchical speculative decoding (HSD), capped and naive.

    pip download --no-deps sequential-speculative-decoding==0.1.1
    PYTHONPATH=sequential_speculative_decoding-0.1.1-py3-none-any.whl rejection-lab certify --subject sequential_sd

Each step drafts, calls both models and verifies. The capped prefix ratio of HSD (arXiv 2601.05724, Definitions 4 to 6)
is block verification's P, so that the capped step runs the cases of `block`, and the naive one, whose rejected rounds
call both models again and emit as many tokens as were drafted, is a subject of its own on the same cases.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, version_of
from harness.checks.certification.implementations.probabilities import SAMPLED, Method, step_features
from harness.checks.certification.subject import EmittedTokens, Functions, ModelRound, whole_rounds

GET = "pip download --no-deps sequential-speculative-decoding==0.1.1"
STANDARD, CAPPED, NAIVE = (f"seqspecdecod.{name}" for name in ("standard_sd", "capped_hsd", "naive_hsd"))


def standard_and_capped(device: torch.device) -> Functions:
    """The standard step as probabilistic and capped HSD as block; raises SettingsError where the package is missing."""
    standard, capped = import_modules("seqspecdecod", (STANDARD, CAPPED), GET)
    steps = {Method.probabilistic: standard.standard_speculative_step, Method.block: capped.capped_hsd_step}
    return _subject(f"{_package()}, standard and capped HSD", steps)


def naive(device: torch.device) -> Functions:
    """Naive HSD, on the cases of block; raises SettingsError where the package is missing."""
    (module,) = import_modules("seqspecdecod", (NAIVE,), GET)
    return _subject(f"{_package()}, naive HSD", {Method.block: module.naive_hsd_step})


def _package() -> str:
    return f"sequential-speculative-decoding {version_of('sequential-speculative-decoding')}"


def _subject(name: str, steps: dict[Method, Callable[..., Any]]) -> Functions:
    def run_round(given: ModelRound) -> EmittedTokens:
        found, num_accepted, _ = steps[Method(given.verification.method)](
            _as_model(given.draft),
            _as_model(given.target),
            given.token_ids,
            gamma=given.num_draft_tokens,
            draft_temperature=given.temperature,
            target_temperature=given.temperature,
        )
        return EmittedTokens(found[0, given.token_ids.shape[1] :].tolist(), num_accepted)

    return whole_rounds(name, run_round, step_features(frozenset((method, SAMPLED, True) for method in steps)))


def _as_model(logits: Callable[[Tensor], Tensor]) -> Callable[[Tensor], SimpleNamespace]:
    """A model of transformers, as far as the package reads its output."""
    return lambda token_ids: SimpleNamespace(logits=logits(token_ids))
