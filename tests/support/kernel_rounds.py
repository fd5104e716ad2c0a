"""Rounds for the tests of the kernels: everything a round may hold at once, and what it must not touch is poisoned.

Shapes: R requests, K the largest number of draft tokens, V the target's vocabulary, S slots of the draft-logit cache.
The kernels run on the GPU where there is one, else on the CPU in Triton's interpreter.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.contract import Draft, Drawn, Sampling, Streams, TokenMask, Verification, VerificationResult
from kernels.launch.workspace import Workspace
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw as reference_coupled_draw
from kernels.reference.draw import draw as reference_draw
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify as reference_verify
from tests.support.random_round import GREEDY, PLAIN, SAMPLED_METHODS, Method, Setting, sampling_of, verification_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
READS_DRAFT = [Method.probabilistic, Method.block, Method.lenient, Method.fly, Method.pr35461]
MIXED = [PLAIN, (0.7, 0, 0.9, 0.0), GREEDY, PLAIN, (1.3, 30, 0.8, 0.02), (0.9, 20, 1.0, 0.1)]
UNCUT = [PLAIN, (0.7, 0, 1.0, 0.0), GREEDY, PLAIN, (1.3, 0, 1.0, 0.0), (0.2, 0, 1.0, 0.0)]
"""Temperatures 0 and above, and nothing that truncates."""
LENGTHS = [3, 2, 3, -1, 3, 0]
RUBBISH = 10**12
"""A token id that must not be read."""


def always(*cases: Any, on_a_gpu: Iterable[Any] = ()) -> list[Any]:
    """Cases that are tested everywhere, and those that would take the interpreter minutes."""
    return [*cases, *(case for case in on_a_gpu if case not in cases)] if DEVICE.type == "cuda" else list(cases)


def sampled_methods(*cases: Method) -> pytest.MarkDecorator:
    """Every method that samples on a GPU; without one those given."""
    return pytest.mark.parametrize("method", always(*cases, on_a_gpu=SAMPLED_METHODS), ids=lambda method: method.value)


def draft_reading_methods(*cases: Method) -> pytest.MarkDecorator:
    """Every method that reads draft rows on a GPU; without one those given."""
    return pytest.mark.parametrize("method", always(*cases, on_a_gpu=READS_DRAFT), ids=lambda method: method.value)


@dataclass(frozen=True)
class KernelRound:
    """The arguments of one call of `verify`."""

    target_logits: Tensor
    draft: Draft
    sampling: Sampling
    streams: Streams
    mask: TokenMask | None = None

    def on(self, device: torch.device) -> "KernelRound":
        return KernelRound(*(moved(getattr(self, field.name), device) for field in fields(self)))

    def expected(self, verification: Verification) -> VerificationResult:
        arguments = (self.target_logits, self.draft, self.sampling, verification, self.streams)
        return reference_verify(*arguments, mask=self.mask)

    def found(self, verification: Verification, workspace: Workspace | None = None) -> VerificationResult:
        from kernels.verify import verify

        arguments = (self.target_logits, self.draft, self.sampling, verification, self.streams)
        with poisoned_allocations():
            return verify(*arguments, workspace=workspace, mask=self.mask)


def moved(value: Any, device: torch.device) -> Any:
    """A tensor, or a dataclass of tensors, on another device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if hasattr(value, "__dataclass_fields__"):
        return replace(value, **{field.name: moved(getattr(value, field.name), device) for field in fields(value)})
    return value


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Fill uninitialized memory with NaN, or with the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def streams_of(num_requests: int, seed: int) -> Streams:
    """Seeds of both signs and beyond 32 bits; positions and rounds of a long conversation."""
    generator = torch.Generator().manual_seed(seed)
    return Streams(
        torch.randint(-(2**63), 2**63 - 1, (num_requests,), generator=generator),
        torch.randint(0, 100_000, (num_requests,), generator=generator),
        torch.randint(0, 10_000, (num_requests,), generator=generator),
    )


def spaced(values: Tensor, num_extra: int) -> Tensor:
    """The same values in rows that lie `num_extra` elements further apart, NaN between them."""
    wide = values.new_full((*values.shape[:-1], values.shape[-1] + num_extra), torch.nan)
    wide[..., : values.shape[-1]] = values
    return wide[..., : values.shape[-1]]


ONE_TOKEN, NO_TOKEN = 0, 1
"""Masks of `random_words` that allow one token, and none."""


def random_words(num_masks: int, vocab_size: int, generator: torch.Generator) -> Tensor:
    """[num_masks, ceil(V / 32)] int32 that allow about half of the tokens, but for the first two; the last word is full
    of rubbish after its last token."""
    words = torch.randint(-(2**31), 2**31, (num_masks, -(-vocab_size // 32)), generator=generator).int()
    words[:2] = 0
    words[ONE_TOKEN, (vocab_size - 1) // 32] = 1 << ((vocab_size - 1) % 32) if vocab_size % 32 else -(2**31)
    if vocab_size % 32:
        words[:, -1] |= torch.tensor(-1 << (vocab_size % 32)).int()
    return words


def random_masks(num_requests: int, width: int, vocab_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """([M, ceil(V / 32)] int32 words, [R, K + 1] int64 mask of each row): every third row is free."""
    num_masks = 2 + num_requests
    rows = torch.randint(2, num_masks, (num_requests, width + 1), generator=generator)
    rows[(torch.arange(num_requests)[:, None] + torch.arange(width + 1)) % 3 == 1] = -1
    return random_words(num_masks, vocab_size, generator), rows


def kernel_round(
    settings: list[Setting],
    lengths: list[int],
    vocab_size: int,
    dtype: torch.dtype = torch.float32,
    draft_vocab: Tensor | int | None = None,
    padded: bool = False,
    one_hot: bool = False,
    shared_noise: bool = False,
    num_extra: int = 0,
    seed: int = 0,
    masked: bool = False,
    device: torch.device = DEVICE,
) -> KernelRound:
    """A round whose drafts are drawn from its cache, near enough to the targets to be accepted at times.

    The cache has two slots and one position more than are used, its slots lie in no order, and what belongs to no
    draft token is NaN; token ids beyond a request's own are rubbish.

    Args:
        settings: temperature, top-k, top-p and min-p of each request.
        lengths: draft tokens of each request; -1 is a padded slot.
        vocab_size: V.
        dtype: of all logits.
        draft_vocab: target ids that the drafter knows, or the number of them if they are the first; None: all.
        padded: the target rows of a request start at a multiple of K + 1; packed else.
        one_hot: no cache of logits.
        shared_noise: drafts are drawn with the coupled method's noise.
        num_extra: elements between the rows.
        seed: of everything.
        masked: some rows have a mask, the target's and the draft's; it is the same for most rows where both have one.
    """
    generator = torch.Generator().manual_seed(seed)
    num_requests, width = len(settings), max(*lengths, 0)
    sampling, streams = sampling_of(*settings), streams_of(num_requests, seed)
    sampling = replace(sampling, truncates=any(each[1:] != PLAIN[1:] for each in settings))
    target = (3 * torch.randn(num_requests, width + 1, vocab_size, generator=generator)).to(dtype)
    proposed = (target.float() + torch.randn(target.shape, generator=generator)).to(dtype)
    if draft_vocab is not None:
        proposed = proposed[..., draft_vocab if isinstance(draft_vocab, Tensor) else slice(draft_vocab)]
    draft_to_target = draft_vocab if isinstance(draft_vocab, Tensor) else None

    mapping = torch.randperm(num_requests + 2, generator=generator)[:num_requests]
    cache = torch.full((num_requests + 2, width + 1, proposed.shape[2]), torch.nan, dtype=dtype)
    token_ids = torch.full((num_requests, width), RUBBISH)
    words, mask_rows = random_masks(num_requests, width, vocab_size, generator) if masked else (None, None)
    cache_mask = None
    if words is not None:
        cache_mask = TokenMask(words, torch.full((num_requests + 2, width + 1), -1))
        drafted_under = mask_rows.clone()
        drafted_under[::2, ::2] = mask_rows.roll(1, 0)[::2, ::2]
        cache_mask.rows[mapping] = drafted_under
    for index in range(width):
        drafting = (torch.tensor(lengths) > index).nonzero()[:, 0]
        cache[mapping[drafting], index] = proposed[drafting, index]
        here = Streams(streams.seeds[drafting], streams.positions[drafting] + index, streams.rounds[drafting])
        rows, settings_here = proposed[drafting, index], sampling_rows(sampling, drafting)
        mask = None if cache_mask is None else replace(cache_mask, rows=cache_mask.rows[mapping[drafting], index])
        if shared_noise:
            drawn = reference_coupled_draw(rows, settings_here, here, vocab_size, draft_to_target, mask=mask)
        else:
            drawn = reference_draw(rows, settings_here, here, Purpose.draft, draft_to_target, mask=mask)
        token_ids[drafting, index] = drawn.token_ids

    beyond = torch.arange(width + 1) > torch.tensor(lengths)[:, None]
    target[beyond] = torch.nan
    rows = target.flatten(0, 1) if padded else target[~beyond]
    if one_hot:
        draft = Draft(token_ids, torch.tensor(lengths))
    else:
        draft = Draft(token_ids, torch.tensor(lengths), cache, mapping, draft_to_target, mask=cache_mask)
    mask = None
    if words is not None:
        mask = TokenMask(words, mask_rows.flatten() if padded else mask_rows[~beyond])
    batch = KernelRound(rows, draft, sampling, streams, mask).on(device)
    if num_extra == 0:
        return batch
    logits = None if one_hot else spaced(batch.draft.logits, num_extra)
    return replace(
        batch, target_logits=spaced(batch.target_logits, num_extra), draft=replace(batch.draft, logits=logits)
    )


def assert_same_verdict(found: VerificationResult, expected: VerificationResult) -> None:
    """Equal in every integer."""
    assert found.num_accepted.tolist() == expected.num_accepted.tolist()
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.invalid.tolist() == expected.invalid.tolist()
    assert (found.token_ids.dtype, found.num_accepted.dtype, found.invalid.dtype) == (
        torch.int64,
        torch.int64,
        torch.bool,
    )


def checked_verdict(batch: KernelRound, method: Method, workspace: Workspace | None = None) -> VerificationResult:
    """The kernels' verdict, after it has been compared with the reference's."""
    verification = verification_of(method)
    found = batch.found(verification, workspace)
    assert_same_verdict(found, batch.expected(verification))
    return found


LOGPROB_ATOL, LOGPROB_RTOL = 1e-6, 2.0**-21
"""A float32 exponential is within 2 ulp, so the logarithm of their sum within 2^-22; the scaled logit takes up to four
roundings of 2^-24 (difference, 1 / T, product, base 2), relative to itself, and the stored result one more."""


def assert_same_drawn(found: Drawn, expected: Drawn) -> None:
    """Equal tokens and flags; log probabilities within rounding, NaN where the reference has NaN."""
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.invalid.tolist() == expected.invalid.tolist()
    assert (found.token_ids.dtype, found.logprobs.dtype) == (torch.int64, torch.float32)
    torch.testing.assert_close(found.logprobs, expected.logprobs, atol=LOGPROB_ATOL, rtol=LOGPROB_RTOL, equal_nan=True)


def checked_draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    coupled: bool = False,
    purpose: Purpose = Purpose.draft,
    vocab_size: int | None = None,
    draft_to_target: Tensor | None = None,
) -> Drawn:
    """What the kernels draw, after it has been compared with what the reference draws."""
    from kernels.draw import coupled_draw, draw

    vocab_size = vocab_size or logits.shape[1]
    if coupled:
        expected = reference_coupled_draw(logits, sampling, streams, vocab_size, draft_to_target)
        with poisoned_allocations():
            found = coupled_draw(logits, sampling, streams, vocab_size, draft_to_target)
    else:
        expected = reference_draw(logits, sampling, streams, purpose, draft_to_target)
        with poisoned_allocations():
            found = draw(logits, sampling, streams, purpose, draft_to_target)
    assert_same_drawn(found, expected)
    return found
