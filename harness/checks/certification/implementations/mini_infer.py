"""mini-infer's `speculative_step`: it drafts, calls both models and verifies.

    pip download --no-deps mini-infer==0.2.5
    PYTHONPATH=mini_infer-0.2.5-py3-none-any.whl rejection-lab certify --subject mini_infer

No other module of version 0.2.5 calls it: the engine decodes without drafts.
"""

from __future__ import annotations

import torch

from harness.checks.certification.implementations.kernel_package import import_modules, version_of
from harness.checks.certification.implementations.probabilities import GREEDY, SAMPLED, Method, step_features
from harness.checks.certification.subject import EmittedTokens, Functions, ModelRound, whole_rounds

GET = "pip download --no-deps mini-infer==0.2.5"
VERIFIER = "mini_infer.speculative.verifier"
FEATURES = step_features(frozenset({(Method.probabilistic, SAMPLED, True), (Method.greedy, GREEDY, False)}))


def speculative_step(device: torch.device) -> Functions:
    """The subject; raises SettingsError where mini-infer is missing."""
    (verifier,) = import_modules("mini_infer", (VERIFIER,), GET)

    def run_round(given: ModelRound) -> EmittedTokens:
        token_ids, num_accepted = verifier.speculative_step(
            lambda context: (given.target(context), None),
            lambda context: (given.draft(context), None),
            given.token_ids,
            k_draft=given.num_draft_tokens,
            temperature=given.temperature,
        )
        return EmittedTokens(token_ids, num_accepted)

    return whole_rounds(f"mini-infer {version_of('mini-infer')}", run_round, FEATURES)
