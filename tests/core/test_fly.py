"""FLy's gate and window at their edges, on both cores: which rejected draft tokens are deferred."""

import math
from dataclasses import replace

import pytest
import torch

from kernels.contract import Draft, Streams, TokenMask, Verification
from kernels.random.streams import Purpose, uniform
from kernels.reference.truncation import process, sampling_rows
from tests.support.kernel_rounds import DEVICE, KernelRound, assert_same_verdict
from tests.support.random_round import GREEDY, PLAIN, Method, Round, Setting, sampling_of

PROBS = (0.5, 0.3, 0.1, 0.06, 0.04, 0.0)
"""Of every target row: token 0 passes at temperature 0, token 5 is impossible."""
TOP_3 = -sum(prob * math.log(prob) for prob in PROBS[:3])
"""Entropy of the three most likely tokens, in nats."""


def half_open(**changed: float) -> Verification:
    """A window of 2, and a threshold that the target of these tests just reaches."""
    given = {"window_size": 2, "entropy_threshold": TOP_3 * 0.9999} | changed
    return Verification(Method.fly, **given)


HALF_OPEN = half_open()
NO_DRAFT = -1


def accepted(
    drafts: list[list[int]],
    verification: Verification,
    lengths: list[int] | None = None,
    mask: TokenMask | None = None,
    probs: tuple[float, ...] = PROBS,
) -> list[int]:
    """Tokens that both cores accept of one-hot drafts at temperature 0, four a request, one target row for all."""
    rows = torch.tensor(probs).log().expand(5 * len(drafts), -1).contiguous()
    settings = replace(sampling_of(*[GREEDY] * len(drafts)), truncates=False)
    draft = Draft(torch.tensor(drafts), torch.tensor(lengths or [4] * len(drafts)))
    indices = torch.arange(len(drafts))
    batch = KernelRound(rows, draft, settings, Streams(indices, indices, indices), mask).on(DEVICE)
    found = batch.found(verification)
    assert_same_verdict(found, batch.expected(verification))
    assert not found.invalid.any()
    return found.num_accepted.tolist()


def test_a_window_that_is_full_defers_the_token_in_front_of_it():
    """Would catch a window that may reach beyond the draft, is one token short, or counts deferred tokens as passed."""
    drafts = {
        (1, 0, 0, 0): 4,
        (1, 0, 0, 1): 3,  # nothing is behind the last
        (0, 1, 0, 0): 4,  # the window ends with the draft
        (0, 0, 1, 0): 2,  # it reaches one token beyond
        (1, 0, 1, 0): 0,
        (1, 1, 0, 0): 0,  # the second would be deferred, but does not pass natively
        (1, 0, 0, NO_DRAFT): 3,
        (1, 0, NO_DRAFT, 0): 0,
        (5, 0, 0, 0): 0,  # impossible
    }
    assert accepted([list(each) for each in drafts], HALF_OPEN) == list(drafts.values())
    ragged = accepted([[1, 0, 0, 0]] * 4, HALF_OPEN, lengths=[3, 2, 1, 0])
    assert ragged == [3, 0, 0, 0], "tokens behind a request's own drafts are no window"
    assert accepted([[1, 0, 1, 0]], half_open(window_size=1)) == [4], "two deferrals in a round"
    assert accepted([[1, 0, 0, 0]], half_open(window_size=4)) == [0], "a window as long as the draft"
    assert accepted([[1, 0, 0, 0]], half_open(window_size=2**40)) == [0]


@pytest.mark.parametrize(
    ("top_k", "entropy"),
    [(1, -0.5 * math.log(0.5)), (3, TOP_3), (100, -sum(prob * math.log(prob) for prob in PROBS if prob))],
)
def test_the_gate_opens_at_its_threshold(top_k: int, entropy: float):
    """Would catch an entropy of other tokens, in bits, or normalised again."""
    near = [half_open(entropy_top_k=top_k, entropy_threshold=entropy * each) for each in (0.9999, 1.0001)]
    assert [accepted([[1, 0, 0, 0]], each) for each in near] == [[4], [0]]


def test_equal_logits_count_as_many_tokens_as_are_left():
    """Would catch a sum over distinct logits."""
    for factor, expected in ((0.9999, 4), (1.0001, 0)):
        gate = half_open(entropy_threshold=factor * 3 / 6 * math.log(6))
        assert accepted([[1, 0, 0, 0]], gate, probs=(1 / 6,) * 6) == [expected]


def test_the_gate_reads_what_top_k_leaves():
    """Of two tokens of six; would catch an entropy of the row before it is cut."""
    rows = torch.tensor(PROBS).log().expand(3 * 12, -1).contiguous()
    indices = torch.arange(12)
    draft, settings = Draft(torch.tensor([[1, 0]] * 12), torch.full((12,), 2)), sampling_of(*[(1.0, 2, 1.0, 0.0)] * 12)
    batch = KernelRound(rows, draft, settings, Streams(indices, indices, indices)).on(DEVICE)
    entropy = -sum(prob / 0.8 * math.log(prob / 0.8) for prob in (0.5, 0.3))
    gates = [Verification(Method.fly, window_size=1, entropy_threshold=entropy * each) for each in (0.9999, 1.0001)]
    opened, closed = (batch.found(gate) for gate in gates)
    assert_same_verdict(opened, batch.expected(gates[0]))
    assert_same_verdict(closed, batch.expected(Verification(Method.probabilistic)))
    assert int(opened.num_accepted.sum()) > int(closed.num_accepted.sum())


def test_the_gate_reads_what_a_mask_leaves():
    """Of three tokens of six, at temperature 0."""
    allowed = TokenMask(torch.tensor([[0b000111]], dtype=torch.int32), torch.zeros(5, dtype=torch.long))
    left = -sum(prob / 0.9 * math.log(prob / 0.9) for prob in PROBS[:3])
    for factor, expected in ((0.9999, 4), (1.0001, 0)):
        gate = half_open(entropy_threshold=left * factor)
        assert accepted([[1, 0, 0, 0]], gate, mask=allowed) == [expected]


@pytest.mark.parametrize("setting", [PLAIN, (0.7, 12, 1.0, 0.0), GREEDY], ids=str)
def test_sampled_drafts_are_deferred_as_defined(setting: Setting):
    """Against the definition, token by token; also that the token behind the accepted ones is the native residual's."""
    num_requests, width, window, threshold = 60, 5, 2, 0.6
    batch = Round([setting] * num_requests, [width] * num_requests, vocab_size=40, seed=4)
    verdict = batch.verify(Verification(Method.fly, window_size=window, entropy_threshold=threshold))
    native = batch.verify(Verification(Method.probabilistic))
    rows = sampling_rows(batch.sampling, torch.zeros(width, dtype=torch.long))
    warm = replace(rows, temperature=torch.ones(width)) if setting is GREEDY else rows
    num_deferred = 0
    for request in range(num_requests):
        target, proposed, gated = (
            process(logits[:width], settings).exp()
            for logits, settings in (
                (batch.target[request], rows),
                (batch.cache[request], rows),
                (batch.target[request], warm),
            )
        )
        tokens = batch.token_ids[request].tolist()
        seed, position, round_ = (getattr(batch.streams, name)[request] for name in ("seeds", "positions", "rounds"))
        numbers = uniform(seed, Purpose.accept, position + torch.arange(width), round_)
        passes = [float(numbers[i]) * float(proposed[i, x]) < float(target[i, x]) for i, x in enumerate(tokens)]
        expected = 0
        for i, token in enumerate(tokens):
            top = gated[i].topk(3).values
            has_window = i + window < width and all(passes[i + 1 : i + 1 + window])
            gate = float(-(top * top.log()).nan_to_num(0.0).sum()) >= threshold and float(gated[i, token]) > 0
            if not passes[i] and not (has_window and gate):
                break
            num_deferred += not passes[i]
            expected += 1
        assert int(verdict.num_accepted[request]) == expected
        if expected == int(native.num_accepted[request]):
            assert torch.equal(verdict.token_ids[request], native.token_ids[request])
    assert num_deferred > 5
