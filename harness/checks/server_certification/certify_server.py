"""Certify a server: check that it serves the target, ask it many requests, test the law of their first tokens.

Each case is tested at FALSE_ALARM / RESERVE / (number of cases), so that a flawless server fails with probability
FALSE_ALARM at most. A case that fails is asked once more with other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checks.certification.evaluate import FALSE_ALARM, POWER, RESERVE, CaseVerdict
from harness.checks.certification.goodness_of_fit import Fit, detectable_variation, fit
from harness.checks.server_certification.config import CertifyServerConfig, case_name
from harness.checks.server_certification.draw import Answer, Draws, Plan, draw
from harness.checks.server_certification.known_model import KnownModel, Tokens
from harness.checks.server_certification.same_model import check_same_model
from harness.checks.server_certification.sequence_law import SequenceLaw, sequence_laws
from harness.checks.server_certification.served import Served
from harness.records.counts import DraftCounts

TIMES_ROUNDING = 2.0
"""The server's law may be so many times as far from the exact one as rounding to its dtype makes it here: it rounds in
other places and sums in another order."""


@dataclass(frozen=True)
class ServedCase:
    """The result of one case."""

    name: str
    verdict: CaseVerdict
    reason: str
    fit: Fit
    tolerated: float
    """Noncentrality that rounding may have."""
    rounding_variation: float
    """Total variation that rounding makes here, the mean over the prompts."""
    detectable: float
    """Total variation that is detected with probability POWER, the mean over the prompts."""
    num_short: int
    """Answers of another length than asked for, which no law has."""
    confirmation: Fit | None = None
    """Of a case whose law differs: the same with fresh requests."""


@dataclass(frozen=True)
class ServerCertification:
    """Everything that was found out about a server."""

    config: CertifyServerConfig
    url: str
    model: str
    version: str | None
    target: str
    """Fingerprint of its weights."""
    assumptions: tuple[str, ...]
    """What its files do not say and was taken, or what the user vouched for."""
    level: float
    """Of each single test."""
    prompts: tuple[Tokens, ...]
    cases: tuple[ServedCase, ...]
    drafts: DraftCounts | None
    """What the server drafted meanwhile; None where its counters do not tell."""
    draws: Draws
    """Of the first requests."""

    @property
    def is_green(self) -> bool:
        """Whether every case passes."""
        return all(case.verdict is CaseVerdict.passed for case in self.cases)


def certify_server(
    url: str,
    config: CertifyServerConfig,
    load: Callable[[], KnownModel],
    tell: Callable[[str], None],
) -> ServerCertification:
    """Certify the server at an address.

    Args:
        url: of the server.
        config: the settings.
        load: makes the target; called once the server has answered.
        tell: called with a line on what goes on.

    Raises:
        OtherModel: it does not serve the target.
        ValueError: it does not answer, too many requests fail, or rounding moves a cut.
    """
    served = Served(url, config)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load()
        prompts = model.prompts(config.prompts)
        check_same_model(served, model, prompts)
        tell("the server gives the target's token ids, text and greedy answers; computing the law of the answers")
        laws = _laws(model, prompts, config)
        return _certify(served, config, model, prompts, laws, tell)
    finally:
        torch.set_num_threads(num_threads)


def _laws(model: KnownModel, prompts: Sequence[Tokens], config: CertifyServerConfig) -> list[list[SequenceLaw]]:
    """Of each case those of all prompts."""
    of_prompt = max(1, config.requests // len(prompts))
    by_prompt = [sequence_laws(model, prompt, config.cases, config.tokens, of_prompt) for prompt in prompts]
    laws = [list(of_case) for of_case in zip(*by_prompt, strict=True)]
    for sampling, of_case in zip(config.cases, laws, strict=True):
        if any(law.divergence == float("inf") for law in of_case):
            raise ValueError(
                f"{case_name(sampling)}: expected a cut that rounding to {config.dtype.value} does not move, found one "
                "that it does; take another value"
            )
    return laws


def _certify(
    served: Served,
    config: CertifyServerConfig,
    model: KnownModel,
    prompts: Sequence[Tokens],
    laws: list[list[SequenceLaw]],
    tell: Callable[[str], None],
) -> ServerCertification:
    level = FALSE_ALARM / RESERVE / len(config.cases)
    before = served.counters()

    def ask(numbers: Sequence[int], stream: str) -> tuple[dict[int, _Counted], Draws]:
        counted = {number: _Counted(laws[number], config.tokens) for number in numbers}
        plan = Plan(
            cases=[(number, config.cases[number]) for number in numbers],
            prompts=prompts,
            num_requests=config.requests,
            num_tokens=config.tokens,
            budget_s=config.budget_s,
            concurrency=config.concurrency,
            stream=f"{config.seed}:{stream}",
            vocabulary=model.vocabulary,
        )
        return counted, draw(served, plan, lambda answer: counted[answer.case].take(answer), tell)

    counted, draws = ask(range(len(config.cases)), "first")
    drafts = served.drafts_since(before)
    found = {number: each.fit() for number, each in counted.items()}
    differing = [number for number, each in found.items() if each.p_value < level]
    confirmations: dict[int, Fit] = {}
    if differing:
        tell(f"{len(differing)} of {len(found)} cases have another law: asking again with other seeds")
        confirmations = {number: each.fit() for number, each in ask(differing, "again")[0].items()}
    return ServerCertification(
        config=config,
        url=served.url,
        model=served.model,
        version=served.version,
        target=model.fingerprint,
        assumptions=model.assumptions,
        level=level,
        prompts=tuple(prompts),
        cases=tuple(
            _judged(case_name(sampling), counted[number], found[number], confirmations.get(number), level, draws)
            for number, sampling in enumerate(config.cases)
        ),
        drafts=drafts,
        draws=draws,
    )


class _Counted:
    """The answers of one case."""

    def __init__(self, laws: Sequence[SequenceLaw], num_tokens: int) -> None:
        self._laws, self._num_tokens = laws, num_tokens
        self.num_short = 0
        self._counts = torch.zeros(len(laws), 2, max(len(law.exact) for law in laws), dtype=torch.int64)

    def take(self, answer: Answer) -> None:
        if len(answer.token_ids) != self._num_tokens:
            self.num_short += 1
            return
        self._counts[answer.prompt, answer.half, self._laws[answer.prompt].place(answer.token_ids)] += 1

    @property
    def tolerated(self) -> float:
        num_samples = self._counts.sum((1, 2)).tolist()
        divergences = [law.divergence for law in self._laws]
        return TIMES_ROUNDING**2 * sum(n * each for n, each in zip(num_samples, divergences, strict=True))

    @property
    def rounding_variation(self) -> float:
        return sum(law.variation for law in self._laws) / len(self._laws)

    def fit(self) -> Fit:
        """Raises ValueError if a prompt has no whole answers."""
        if not bool(self._counts.sum(2).all()):
            raise ValueError(
                f"expected answers of {self._num_tokens} tokens to every prompt, found none to some "
                f"({self.num_short} of another length); give it more time (--budget-s), or fewer --prompts"
            )
        return fit(self._counts, self._law(), self.tolerated)

    def _law(self) -> Tensor:
        """[G, N], padded with bins that no answer falls into."""
        law = torch.zeros(self._counts.shape[0], self._counts.shape[2], dtype=torch.float64)
        for row, each in zip(law, self._laws, strict=True):
            row[: len(each.exact)] = each.exact
        return law


def _judged(
    name: str, counted: _Counted, found: Fit, confirmation: Fit | None, level: float, draws: Draws
) -> ServedCase:
    reasons = [f"{counted.num_short} answers of another length"] if counted.num_short else []
    if draws.failures:
        reasons.append(f"{len(draws.failures)} requests of all cases failed, the first: {draws.failures[0]}")
    if found.num_impossible:
        reasons.append(f"{found.num_impossible} answers that the target cannot give")
    elif found.p_value < level:
        reasons.append("another law than the target's")
    if confirmation is not None:
        reasons.append("confirmed" if confirmation.p_value < level else "not confirmed by fresh requests")
    return ServedCase(
        name=name,
        verdict=CaseVerdict.failed if reasons else CaseVerdict.passed,
        reason="; ".join(reasons),
        fit=found,
        tolerated=counted.tolerated,
        rounding_variation=counted.rounding_variation,
        detectable=detectable_variation(found.num_samples, level, found.df, POWER, counted.tolerated),
        num_short=counted.num_short,
        confirmation=confirmation,
    )
