"""Rules outside the package run on the kernels, and decide and draw as the reference does.

Would catch a hook that one of the passes does not call, and a compiled kernel that outlives the source of its hooks.
"""

from dataclasses import replace

import pytest
import torch
import triton

from kernels.contract import Verification, VerificationResult
from kernels.core import triton_core
from kernels.methods import OwnMethod
from kernels.methods.hooks import Hooks, hooks_of
from tests.support.kernel_rounds import LENGTHS, MIXED, UNCUT, assert_same_verdict, kernel_round
from tests.support.own_rules import RULES, HalfOnKernels, Tempered, half
from tests.support.random_round import GREEDY, PLAIN

ROUNDS = {
    "few requests": ((UNCUT, LENGTHS, 5003), {}),
    "some cut": ((MIXED, LENGTHS, 1001), {}),
    "one-hot drafts": ((UNCUT, LENGTHS, 2001), {"one_hot": True}),
    "one-hot drafts, some cut": ((MIXED, LENGTHS, 1001), {"one_hot": True}),
    "short rows": ((MIXED, LENGTHS, 96), {}),
    "masked": ((UNCUT, LENGTHS, 1001), {"masked": True}),
    "40 requests": (((UNCUT * 7)[:40], (LENGTHS * 7)[:40], 600), {}),
}


@pytest.mark.parametrize("verification", RULES.values(), ids=RULES)
def test_the_rounds_accept_and_reject(verification: Verification):
    """Would catch rounds below that show nothing of a rule."""
    counts = [kernel_round(*shape, seed=7, **options).expected(verification) for shape, options in ROUNDS.values()]
    accepted = torch.cat([each.num_accepted for each in counts])
    assert int((accepted > 0).sum()) >= 5 and int((accepted == 0).sum()) >= 5


@pytest.mark.parametrize("verification", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("shape", "options"), ROUNDS.values(), ids=ROUNDS)
def test_kernels_run_it_as_the_reference_does(verification: Verification, shape: tuple, options: dict):
    batch = kernel_round(*shape, seed=7, **options)
    found, expected = batch.found(verification), batch.expected(verification)
    assert_same_verdict(found, expected)


def test_temperature_zero_keeps_the_argmax_whatever_the_hooks_say():
    """Of all requests, and beside sampled ones: half the odds would reject every second argmax."""
    batch = kernel_round([GREEDY] * 4 + UNCUT[:2], [3] * 6, 63, seed=3)
    assert batch.draft.logits is not None
    best = batch.target_logits.view(6, 4, 63).argmax(dim=2)
    draft = replace(batch.draft, token_ids=best[:, :3].contiguous())
    found = replace(batch, draft=draft).found(RULES["half"])
    assert found.num_accepted[:4].tolist() == [3] * 4
    assert torch.equal(found.token_ids[:4], best[:4])


@triton.jit
def third(parameters, index, draft_prob, uniform_number):
    return 3.0 * uniform_number * draft_prob


def test_an_edited_hook_is_another_kernel():
    """The object's key is that of its sources: a kernel on disk is not taken for another hook's."""
    one, same, other = Hooks(limit=half), Hooks(limit=half), Hooks(limit=third)
    assert one is not same and one != same, "a launch finds its kernel by identity"
    if hasattr(half, "cache_key"):  # compiled, not interpreted
        assert one.cache_key == same.cache_key != other.cache_key
        assert repr(one) == one.mangle() == repr(same) != repr(other)


def test_methods_that_ask_the_same_share_their_kernels():
    assert hooks_of(OwnMethod(Tempered(1.0))) is hooks_of(OwnMethod(Tempered(2.0)))
    assert hooks_of(OwnMethod(HalfOnKernels())).is_own


@pytest.mark.gpu
@pytest.mark.parametrize("num_requests", [4, 64, 512])
@pytest.mark.parametrize("verification", RULES.values(), ids=RULES)
def test_a_captured_graph_runs_it_again(verification: Verification, num_requests: int):
    """At full speed: a round in a CUDA graph, replayed on other rows, decides as the reference does."""
    core = triton_core()
    settings, lengths = [PLAIN] * num_requests, [3] * num_requests
    fixed, other = (kernel_round(settings, lengths, 5000, torch.bfloat16, seed=seed) for seed in (1, 2))

    def round_() -> VerificationResult:
        return core.verify(fixed.target_logits, fixed.draft, fixed.sampling, verification, fixed.streams)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        round_()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = round_()
    for logits in (fixed.target_logits.clone(), other.target_logits):
        fixed.target_logits.copy_(logits)
        graph.replay()
        assert_same_verdict(found, replace(fixed, target_logits=logits).expected(verification))
