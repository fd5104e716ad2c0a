"""What only a GPU can show of the kernels: large rows, CUDA graphs, far addresses, no waiting for the device.

Most of the time goes into compiling: a kernel is compiled for its method, dtype, mask, truncation and the alignment of
its rows. So sizes and dtypes come in pairs; every value of each meets every method.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.chain.request_rows import anchored
from kernels.contract import Sampling, Streams
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw as reference_coupled_draw
from kernels.reference.draw import draw as reference_draw
from tests.support.kernel_rounds import (
    LENGTHS,
    MIXED,
    UNCUT,
    KernelRound,
    assert_same_drawn,
    assert_same_verdict,
    kernel_round,
    moved,
    streams_of,
)
from tests.support.random_round import GREEDY, PLAIN, Method, Setting, sampling_of, verification_of

pytestmark = pytest.mark.gpu
METHODS = pytest.mark.parametrize(
    "method",
    [Method.probabilistic, Method.block, Method.strict, Method.typical, Method.coupled],
    ids=lambda method: method.value,
)
DRAWS = pytest.mark.parametrize("coupled", [False, True], ids=["draw", "coupled draw"])
MASKED = pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
SETTINGS_OF_BATCHES = pytest.mark.parametrize("settings", [MIXED, UNCUT], ids=["cutting", "uncut"])
"""Where nothing is cut, draws and the methods that read the target only take one launch."""
CUDA = torch.device("cuda")


def draw_arguments(
    num_rows: int, vocab_size: int, dtype: torch.dtype, settings: list[Setting] = MIXED
) -> tuple[Tensor, Sampling, Streams]:
    generator = torch.Generator(CUDA).manual_seed(num_rows)
    logits = 3 * torch.randn(num_rows, vocab_size, generator=generator, device=CUDA)
    sampling = replace(sampling_of(*(settings * num_rows)[:num_rows]), truncates=settings is MIXED)
    return logits.to(dtype), moved(sampling, CUDA), moved(streams_of(num_rows, num_rows), CUDA)


@METHODS
@SETTINGS_OF_BATCHES
@pytest.mark.parametrize(("vocab_size", "dtype"), [(262_144, torch.bfloat16), (128_255, torch.float32)], ids=str)
def test_large_vocabulary(method: Method, settings: list, vocab_size: int, dtype: torch.dtype):
    batch = kernel_round(settings, LENGTHS, vocab_size, dtype, shared_noise=method is Method.coupled, seed=1)
    assert_same_verdict(batch.found(verification_of(method)), batch.expected(verification_of(method)))


@METHODS
@SETTINGS_OF_BATCHES
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("same ids", torch.bfloat16), ("mapped ids", torch.bfloat16), ("one-hot", torch.float32)],
    ids=str,
)
def test_large_vocabulary_under_masks(method: Method, settings: list, kind: str, dtype: torch.dtype):
    """Rows with a mask beside free ones; the last word is not full."""
    ids = torch.randperm(128_255, generator=torch.Generator().manual_seed(2))[:32_000] if kind == "mapped ids" else None
    batch = kernel_round(
        settings, LENGTHS, 128_255, dtype, ids, one_hot=kind == "one-hot", shared_noise=method is Method.coupled,
        seed=1, masked=True,
    )  # fmt: skip
    assert_same_verdict(batch.found(verification_of(method)), batch.expected(verification_of(method)))


@DRAWS
@SETTINGS_OF_BATCHES
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(128_255, torch.bfloat16), (262_144, torch.bfloat16), (262_144, torch.float16), (128_255, torch.float32)],
    ids=str,
)
def test_draws_from_a_large_vocabulary(coupled: bool, settings: list, vocab_size: int, dtype: torch.dtype):
    from kernels.draw import coupled_draw, draw

    arguments = draw_arguments(32, vocab_size, dtype, settings)
    if coupled:
        found = coupled_draw(*arguments, vocab_size)
        assert_same_drawn(found, reference_coupled_draw(*arguments, vocab_size))
    else:
        found = draw(*arguments, Purpose.draft)
        assert_same_drawn(found, reference_draw(*arguments, Purpose.draft))


def overwrite(target: KernelRound, source: KernelRound) -> None:
    """Give every tensor of one round the values of the other's."""
    pairs = [
        (target.target_logits, source.target_logits),
        (target.draft.logits, source.draft.logits),
        (target.draft.idx_mapping, source.draft.idx_mapping),
        (target.draft.token_ids, source.draft.token_ids),
        (target.draft.num_draft_tokens, source.draft.num_draft_tokens),
        *((getattr(target.sampling, name), getattr(source.sampling, name)) for name in SETTINGS),
        *((getattr(target.streams, name), getattr(source.streams, name)) for name in STREAMS),
    ]
    if target.mask is not None:
        pairs += [(target.mask.words, source.mask.words), (target.mask.rows, source.mask.rows)]
        pairs += [(target.draft.mask.words, source.draft.mask.words), (target.draft.mask.rows, source.draft.mask.rows)]
    for into, values in pairs:
        into.copy_(values)


SETTINGS = ("temperature", "top_k", "top_p", "min_p")
STREAMS = ("seeds", "positions", "rounds")


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of the call, and its results, which every replay writes again."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


@METHODS
@pytest.mark.parametrize(("settings", "masked"), [(MIXED, False), (UNCUT, True)], ids=["cutting", "uncut and masked"])
def test_graph_replays_on_changed_inputs(method: Method, settings: list, masked: bool):
    """Temperatures, lengths, padded slots, slots, tokens and masks all change between replays."""
    from kernels.launch.workspace import Workspace
    from kernels.verify import verify

    def round_of(settings: list, lengths: list[int], seed: int) -> KernelRound:
        return kernel_round(settings, lengths, 5000, torch.bfloat16, padded=True, seed=seed, masked=masked)

    rounds = [round_of(settings, LENGTHS, 1), round_of(settings[::-1], LENGTHS[::-1], 2)]
    rounds += [round_of([PLAIN, GREEDY] * 3, [3] * 6, 3)]
    fixed, workspace = round_of(settings, LENGTHS, 1), Workspace()

    def call():
        arguments = (fixed.target_logits, fixed.draft, fixed.sampling, verification_of(method), fixed.streams)
        return verify(*arguments, workspace, mask=fixed.mask)

    graph, found = captured(call)
    for batch in [*rounds, *rounds]:
        overwrite(fixed, batch)
        graph.replay()
        assert_same_verdict(found, batch.expected(verification_of(method)))


@METHODS
def test_a_wrong_count_does_not_outlive_its_replay(method: Method):
    """Would catch counters that wait for rows which never come: a graph cannot start with others."""
    from kernels.launch.workspace import Workspace
    from kernels.verify import verify

    batch, workspace = kernel_round(UNCUT, [3] * 6, 5000, torch.bfloat16, padded=True, seed=8), Workspace()
    arguments = (batch.target_logits, batch.draft, batch.sampling, verification_of(method), batch.streams, workspace)
    expected = batch.expected(verification_of(method))
    graph, found = captured(lambda: verify(*arguments))
    for count in (3, 4, 3, 2**32 + 1, 3, 2**63 - 1, 3):
        batch.draft.num_draft_tokens[::2] = count
        graph.replay()
        flagged = expected.invalid.clone()
        flagged[::2] |= count > 3
        assert_same_verdict(found, replace(expected, invalid=flagged))
        assert workspace.busy_counters() == []


@DRAWS
@SETTINGS_OF_BATCHES
def test_graph_of_a_draw_replays_on_changed_inputs(coupled: bool, settings: list):
    from kernels.draw import coupled_draw, draw
    from kernels.launch.workspace import Workspace

    logits, sampling, streams = draw_arguments(8, 5000, torch.bfloat16, settings)
    workspace = Workspace()

    def call():
        if coupled:
            return coupled_draw(logits, sampling, streams, 5000, workspace=workspace)
        return draw(logits, sampling, streams, Purpose.draft, workspace=workspace)

    graph, found = captured(call)
    for _ in range(3):
        logits.copy_(logits.roll(1, dims=0))
        streams.rounds.add_(1)
        graph.replay()
        if coupled:
            assert_same_drawn(found, reference_coupled_draw(logits, sampling, streams, 5000))
        else:
            assert_same_drawn(found, reference_draw(logits, sampling, streams, Purpose.draft))


@METHODS
@MASKED
def test_nothing_waits_for_the_device(method: Method, masked: bool):
    from kernels.launch.workspace import Workspace
    from kernels.verify import verify

    batch = kernel_round(MIXED, LENGTHS, 5000, torch.bfloat16, padded=True, seed=4, masked=masked)
    workspace = Workspace()
    arguments = (batch.target_logits, batch.draft, batch.sampling, verification_of(method), batch.streams, workspace)
    verify(*arguments, mask=batch.mask)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify(*arguments, mask=batch.mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def far_apart(values: Tensor) -> Tensor:
    """The same values, with the last entry of the first axis more than 2^31 elements from the first."""
    stride = 2**31 // (len(values) - 1) + 1
    stride += -stride % 16
    memory = torch.empty(stride * len(values), dtype=values.dtype, device=values.device)
    view = memory.as_strided(values.shape, (stride, *values.stride()[1:]))
    return view.copy_(values)


@METHODS
def test_target_rows_beyond_2_31_elements(method: Method):
    batch = kernel_round([PLAIN, GREEDY, (0.7, 0, 0.9, 0.0)], [3, 3, 3], 5000, torch.bfloat16, seed=5)
    far = replace(batch, target_logits=far_apart(batch.target_logits))
    assert_same_verdict(far.found(verification_of(method)), batch.expected(verification_of(method)))


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block], ids=lambda method: method.value)
def test_draft_cache_beyond_2_31_elements(method: Method):
    """A contiguous cache of 4.3 GB, all requests in its last slots."""
    batch = kernel_round([PLAIN, (0.7, 0, 0.9, 0.0)] * 4, [3] * 8, 5000, torch.bfloat16, seed=6)
    assert batch.draft.logits is not None and batch.draft.idx_mapping is not None
    num_slots, width, vocab_size = batch.draft.logits.shape
    num_far = 2**31 // (width * vocab_size) + 1
    cache = torch.empty(num_far + num_slots, width, vocab_size, dtype=torch.bfloat16, device=CUDA)
    cache[num_far:] = batch.draft.logits
    draft = replace(batch.draft, logits=cache, idx_mapping=batch.draft.idx_mapping + num_far)
    far = replace(batch, draft=draft)
    assert_same_verdict(far.found(verification_of(method)), batch.expected(verification_of(method)))


@DRAWS
def test_drawn_rows_beyond_2_31_elements(coupled: bool):
    from kernels.draw import coupled_draw, draw

    logits, sampling, streams = draw_arguments(8, 5000, torch.bfloat16)
    far = far_apart(logits)
    if coupled:
        found = coupled_draw(far, sampling, streams, 5000)
        assert_same_drawn(found, reference_coupled_draw(logits, sampling, streams, 5000))
    else:
        found = draw(far, sampling, streams, Purpose.draft)
        assert_same_drawn(found, reference_draw(logits, sampling, streams, Purpose.draft))


@METHODS
@SETTINGS_OF_BATCHES
def test_order_in_which_programs_finish_does_not_matter(method: Method, settings: list):
    """Many requests, many times over one workspace: a race between programs would show as another answer."""
    from kernels.launch.workspace import Workspace
    from kernels.verify import verify

    batch = kernel_round(settings * 43, LENGTHS * 43, 9000, torch.bfloat16, padded=True, seed=7)
    workspace = Workspace()
    expected = batch.expected(verification_of(method))
    for _ in range(30):
        found = verify(
            batch.target_logits, batch.draft, batch.sampling, verification_of(method), batch.streams, workspace
        )
        assert_same_verdict(found, expected)


@triton.jit
def _anchored_kernel(values, found, one, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    tl.store(found + places, anchored(tl.load(values + places)))
    tl.store(one, anchored(tl.load(values + 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_anchored_keeps_every_bit(dtype: torch.dtype):
    """Would catch a register of the wrong type, and half of a float64."""
    values = torch.randn(64, dtype=dtype, device="cuda")
    special = [float("nan"), float("inf"), -0.0, torch.finfo(dtype).tiny / 4, -float("inf")]
    values[: len(special)] = torch.tensor(special, dtype=dtype)
    found, one = torch.empty_like(values), torch.empty(1, dtype=dtype, device="cuda")
    _anchored_kernel[(1,)](values, found, one, SIZE=64)
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    assert torch.equal(found.view(bits), values.view(bits)) and torch.equal(one.view(bits), values[3:4].view(bits))
