"""Verification rules outside the package with hooks for the kernels, each of which uses other hooks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.chain.accept_count import entry
from kernels.contract import Verification
from kernels.methods import OWN_NOISE, Guarantee, MethodTraits, OwnMethod, Rule
from kernels.methods.block import log_prefix_ratios
from kernels.methods.hooks import ENTROPY, Hooks
from kernels.reference.entropy import entropies
from kernels.reference.odds import Odds
from kernels.reference.proposal import Proposal
from tests.support.own_methods import HalfStrict


@triton.jit
def half(parameters, index, draft_prob, uniform_number):
    return 2.0 * uniform_number * draft_prob


@triton.jit
def half_left(parameters, weight):
    return 0.5 * weight


HALF_HOOKS = Hooks(limit=half, left=half_left)


class HalfOnKernels(HalfStrict):
    """Lossless: accept with half the probability; the rejected token keeps half its weight."""

    @classmethod
    def hooks(cls) -> Hooks | None:
        return HALF_HOOKS


@triton.jit
def tempered(parameters, index, target_prob, draft_prob, uniform_number, entropy):
    return uniform_number * draft_prob * tl.exp(-tl.load(parameters) * entropy) < target_prob


@triton.jit
def less_covered(parameters, target_weight, draft_weight):
    return tl.maximum(target_weight - tl.load(parameters + 1).to(tl.float32) * draft_weight, 0.0)


TEMPERED_HOOKS = Hooks(test=tempered, statistic=ENTROPY, residual=less_covered)


@dataclass(frozen=True)
class Tempered(Rule):
    """Lossy: u q(X) exp(-s H(p)) < p(X), then from [p - t q]+: an entropy, parameters and a residual of its own."""

    strength: float = 0.5
    share: float = 0.5
    traits = MethodTraits(Guarantee.lossy, OWN_NOISE, reads_draft=True)

    def odds(self, proposal: Proposal) -> Odds:
        discount = torch.exp(-self.strength * entropies(proposal.target)[proposal.rows[:, :-1]])
        return Odds(proposal.target_logprobs.exp(), proposal.draft_logprobs.exp() * discount)

    def scale(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        return super().scale(proposal, num_accepted) / self.share

    @classmethod
    def hooks(cls) -> Hooks | None:
        return TEMPERED_HOOKS


@triton.jit
def bare_product(parameters, columns, target_logprobs, draft_logprobs, uniform_numbers, num_usable, one_hot):
    log_ratios = tl.zeros_like(target_logprobs)
    log_ratio = tl.full((), 0.0, tl.float64)
    num_accepted = tl.full((), 0, tl.int32)
    for index in range(1, num_usable + 1):
        step = entry(target_logprobs, columns, index - 1) - entry(draft_logprobs, columns, index - 1)
        log_ratio = tl.minimum(log_ratio + step, 0.0)
        log_ratios = tl.where(columns == index, log_ratio, log_ratios)
        if entry(uniform_numbers, columns, index - 1) < tl.exp(log_ratio):
            num_accepted = index
    rest = (num_accepted < num_usable) & (one_hot == 0)
    return num_accepted, tl.where(rest, (num_accepted * 0 + 1) << num_accepted, 0), log_ratios


@triton.jit
def settled(parameters, uniform_number, mass, ratio):
    return mass >= 0.0


BARE_HOOKS = Hooks(count=bare_product, mass_passes=settled)


class BareProduct(Rule):
    """Biased, a control: block verification that accepts by P_i instead of h_i."""

    traits = MethodTraits(Guarantee.biased, OWN_NOISE, reads_draft=True, stops_at_first_failure=False)

    def odds(self, proposal: Proposal) -> Odds:
        ratios = log_prefix_ratios(proposal)[:, 1:].exp()
        return Odds(ratios, torch.ones_like(ratios))

    def scale(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        return log_prefix_ratios(proposal).gather(1, num_accepted[:, None])[:, 0].exp()

    @classmethod
    def hooks(cls) -> Hooks | None:
        return BARE_HOOKS


RULES = {
    name: Verification(OwnMethod(rule, f"tests.support.own_rules:{type(rule).__name__}"))
    for name, rule in {
        "half": HalfOnKernels(),
        "tempered": Tempered(),
        "tempered, other parameters": Tempered(2.0, 0.25),
        "bare product": BareProduct(),
    }.items()
}
