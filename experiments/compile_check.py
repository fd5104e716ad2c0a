"""Compile every kernel of the sampling core and of the fused layers for GPUs that need not be there; refuse spills.

    python -m experiments.compile_check

Prints registers, shared memory, stack and spills of every variant. Exit status 1 when one spills registers, or when a
kernel of these packages is launched by none of the calls here.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import kernels
from harness.compile_check import CompiledVariant, compile_for, complaints, kernels_in, to_text
from harness.engine.slots import MOST_ENDING_TOKENS
from harness.models import fused
from harness.models.fused.absorb_queries import absorb_queries
from harness.models.fused.add_rms_norm import add_rms_norm
from harness.models.fused.expand_values import expand_values
from harness.models.fused.expert_down import expert_down
from harness.models.fused.expert_gate_up import expert_gate_up
from harness.models.fused.gated_activation import silu_mul
from harness.models.fused.latent_attention import latent_attention
from harness.models.fused.norm_latents import norm_latents
from harness.models.fused.rotate_and_store import rotate_and_store
from harness.models.fused.route_tokens import route_tokens
from harness.models.fused.routing import Choice
from harness.models.fused.skinny_linear import MEASURED_CAPABILITY, launch, tiling_of
from harness.models.fused.slot_attention import slot_attention
from harness.models.fused.sum_experts import sum_experts
from harness.models.fused.tilings import COLUMNS
from kernels.contract import Draft, Sampling, Streams, TokenMask, Verification
from kernels.contract import VerificationMethod as Method
from kernels.coupled import coupled_draw
from kernels.draw import draw
from kernels.hold import hold
from kernels.logprobs import logprobs
from kernels.new_row_stats import new_row_stats
from kernels.streams import Purpose
from kernels.verify import verify

Launch = tuple[str, Callable[[], Any]]
TARGETS = (90, 80, 100)
ONLY_TARGETS = {"_skinny_linear_kernel": 10 * MEASURED_CAPABILITY[0] + MEASURED_CAPABILITY[1]}
"""Of kernels that run on GPUs of one compute capability: it. They are compiled for no other."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
VOCAB_SIZE, ODD_VOCAB_SIZE, LARGEST_VOCAB_SIZE, DRAFT_VOCAB_SIZE = 128_256, 128_255, 262_144, 32_000
TOY_VOCAB_SIZE = 8
NUM_REQUESTS, NUM_DRAFTS = 16, 3
MANY_ROWS = 64
"""So many that no row's keys are shared out over programs."""


class LayerSizes(NamedTuple):
    """A decoder layer."""

    hidden_size: int
    num_heads: int
    num_key_heads: int
    width: int
    intermediate_size: int
    has_head_norms: bool = False


class ExpertSizes(NamedTuple):
    """The experts of a layer, one of which all tokens share."""

    hidden_size: int
    num_experts: int
    width: int
    choice: Choice


class LatentSizes(NamedTuple):
    """The latent attention of a layer."""

    num_heads: int
    query_latent: int
    latent: int
    rotated: int
    nope: int
    value: int


LLAMA_3_8B = LayerSizes(4096, 32, 8, 128, 14336)
QWEN_3_8B = LayerSizes(4096, 32, 8, 128, 12288, has_head_norms=True)
BUILT_IN_TARGET = LayerSizes(256, 4, 2, 64, 704)
BUILT_IN_DRAFT_MODEL = LayerSizes(128, 2, 1, 64, 384)
GLM_47_FLASH = ExpertSizes(2048, 64, 1536, Choice(4, 1, 1, True, 1.8))
IN_GROUPS = ExpertSizes(512, 24, 128, Choice(4, 6, 3, True, 1.0))
GLM_47_FLASH_LATENTS = LatentSizes(20, 768, 512, 64, 192, 256)
CAPACITY = 2048
"""Positions of a slot."""
NUM_SHARES = 2
"""That a product may leave to be summed."""
MANY_REQUESTS = 300
"""So many that a program of the first pass reads two sets of chunks, and one of the second has 8 warps."""


def _sampling(num_requests: int, truncates: bool) -> Sampling:
    ones, zeros = torch.ones(num_requests), torch.zeros(num_requests)
    return Sampling(ones, zeros.long(), ones, zeros, truncates)


def _streams(num_requests: int) -> Streams:
    return Streams(*(torch.zeros(num_requests, dtype=torch.int64) for _ in range(3)))


def _mask(masked: bool, vocab_size: int, *size: int) -> TokenMask | None:
    words = torch.zeros(NUM_REQUESTS, -(-vocab_size // 32), dtype=torch.int32)
    return TokenMask(words, torch.zeros(size, dtype=torch.int64)) if masked else None


def _map() -> Tensor:
    return torch.arange(DRAFT_VOCAB_SIZE)


def _verify(
    method: Method,
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    num_drafts: int = NUM_DRAFTS,
    truncates: bool = False,
    one_hot: bool = False,
    small_vocabulary: bool = False,
    with_stats: bool = True,
    packed: bool = False,
    masked: bool = False,
    num_requests: int = NUM_REQUESTS,
) -> None:
    num_rows = num_requests * (num_drafts + 1) - int(packed)
    counts = torch.full((num_requests,), num_drafts)
    counts[-1] -= int(packed)
    size = (num_requests, num_drafts, DRAFT_VOCAB_SIZE if small_vocabulary else vocab_size)
    draft = Draft(
        torch.zeros(num_requests, num_drafts, dtype=torch.int64),
        counts,
        None if one_hot else torch.empty(size, dtype=dtype),
        None if one_hot else torch.arange(num_requests),
        _map() if small_vocabulary else None,
        new_row_stats(*size[:2]) if with_stats and not one_hot else None,
        _mask(masked and not one_hot, vocab_size, *size[:2]),
    )
    rule = Verification(method, synthetic_rates=tuple(0.5**place for place in range(num_drafts)))
    sampling = _sampling(num_requests, truncates)
    logits, mask = torch.empty(num_rows, vocab_size, dtype=dtype), _mask(masked, vocab_size, num_rows)
    verify(logits, draft, sampling, rule, _streams(num_requests), mask=mask)


def _draw(
    dtype: torch.dtype,
    *,
    vocab_size: int = VOCAB_SIZE,
    truncates: bool = False,
    small_vocabulary: bool = False,
    masked: bool = False,
    num_requests: int = NUM_REQUESTS,
) -> None:
    mask = _mask(masked, vocab_size, num_requests)
    vocab_size, target_ids = (DRAFT_VOCAB_SIZE, _map()) if small_vocabulary else (vocab_size, None)
    logits, stats = torch.empty(num_requests, vocab_size, dtype=dtype), new_row_stats(num_requests)
    sampling = _sampling(num_requests, truncates)
    draw(logits, sampling, _streams(num_requests), Purpose.draft, target_ids, stats, mask=mask)


def _hold(num_drafts: int) -> None:
    ones = torch.ones(NUM_REQUESTS, dtype=torch.int64)
    drafts, tokens, endings = (
        torch.zeros(NUM_REQUESTS, size, dtype=torch.int64) for size in (num_drafts, CAPACITY, MOST_ENDING_TOKENS)
    )
    hold(ones, num_drafts * ones, drafts, tokens, ones, endings)


def _coupled_draw(
    dtype: torch.dtype, *, truncates: bool = False, small_vocabulary: bool = False, masked: bool = False
) -> None:
    vocab_size, target_ids = (DRAFT_VOCAB_SIZE, _map()) if small_vocabulary else (VOCAB_SIZE, None)
    logits, sampling = torch.empty(NUM_REQUESTS, vocab_size, dtype=dtype), _sampling(NUM_REQUESTS, truncates)
    mask = _mask(masked, VOCAB_SIZE, NUM_REQUESTS)
    coupled_draw(logits, sampling, _streams(NUM_REQUESTS), VOCAB_SIZE, target_ids, mask=mask)


def _logprobs(dtype: torch.dtype, *, sampling: bool = False, truncates: bool = False, masked: bool = False) -> None:
    logits, token_ids = torch.empty(NUM_REQUESTS, VOCAB_SIZE, dtype=dtype), torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    mask = _mask(masked, VOCAB_SIZE, NUM_REQUESTS)
    logprobs(logits, token_ids, 5, _sampling(NUM_REQUESTS, truncates) if sampling else None, mask)


def _layer(sizes: LayerSizes, dtype: torch.dtype, num_tokens: int, num_rows: int = NUM_REQUESTS) -> None:
    """Every fused operation of a decoder layer."""
    hidden_size, num_heads, num_key_heads, width, intermediate_size, has_head_norms = sizes
    count = num_rows * num_tokens
    states, norm = torch.empty(count, hidden_size, dtype=dtype), torch.empty(width, dtype=dtype)
    add_rms_norm(states, None, states[0], 1e-5)
    add_rms_norm(states, states, states[0], 1e-5)
    silu_mul(torch.empty(count, 2 * intermediate_size, dtype=dtype))
    add_rms_norm(torch.empty(NUM_SHARES, count, hidden_size), states, states[0], 1e-5)
    cache, rows = torch.empty(1, num_key_heads, CAPACITY, width, dtype=dtype), torch.zeros(num_rows, dtype=torch.int64)
    qkv, table = torch.empty(count, (num_heads + 2 * num_key_heads) * width, dtype=dtype), torch.empty(CAPACITY, width)
    norms = (norm, norm, 1e-6) if has_head_norms else ()
    rotate_and_store(qkv, table, cache, cache, rows, rows, *norms)
    queries = rotate_and_store(torch.empty(NUM_SHARES, *qkv.shape), table, cache, cache, rows, rows, *norms)
    slot_attention(queries, cache, cache, rows, rows, width**-0.5)


def _products(sizes: LayerSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """Every product of a decoder layer and of its logits that is not torch's, with a bias and without one."""
    hidden_size, num_heads, num_key_heads, width, intermediate_size, _ = sizes
    qkv_size = (num_heads + 2 * num_key_heads) * width
    for in_features, num_rows, gated, may_split in (
        (hidden_size, qkv_size, False, True),
        (num_heads * width, hidden_size, False, True),
        (hidden_size, 2 * intermediate_size, True, False),
        (intermediate_size, hidden_size, False, True),
        (hidden_size, VOCAB_SIZE, False, False),
    ):
        states = torch.empty(num_tokens, in_features, dtype=dtype)
        weight, bias = torch.empty(num_rows, in_features, dtype=dtype), torch.empty(num_rows, dtype=dtype)
        tiling = tiling_of(states, weight, gated, may_split)
        if tiling is not None:
            launch(states, weight, None, tiling, gated)
            launch(states, weight, bias, tiling, gated)


def _experts(sizes: ExpertSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """Every fused operation of experts."""
    hidden_size, num_experts, width, choice = sizes
    states, router = (torch.empty(count, hidden_size, dtype=dtype) for count in (num_tokens, num_experts))
    routing = route_tokens(states, router, torch.empty(num_experts), choice)
    gate_up = torch.empty(num_experts, 2 * width, hidden_size, dtype=dtype)
    activated = expert_gate_up(states, gate_up, gate_up[0], routing)
    down = torch.empty(num_experts, hidden_size, width, dtype=dtype)
    sum_experts(expert_down(activated, down, down[0], routing), routing)


def _latents(sizes: LatentSizes, dtype: torch.dtype, num_tokens: int) -> None:
    """Every fused operation of latent attention."""
    count, width = NUM_REQUESTS * num_tokens, sizes.latent + sizes.rotated
    norms = torch.empty(sizes.query_latent, dtype=dtype), torch.empty(sizes.latent, dtype=dtype)
    joint, table = torch.empty(count, sizes.query_latent + width, dtype=dtype), torch.empty(CAPACITY, sizes.rotated)
    keys, rows = torch.empty(1, 1, CAPACITY, width, dtype=dtype), torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    norm_latents(joint, norms[0], 1e-6, norms[1], 1e-6, table, keys, rows, rows, True)
    states = torch.empty(count, sizes.num_heads, sizes.nope + sizes.rotated, dtype=dtype)
    expansion = torch.empty(sizes.num_heads, sizes.nope + sizes.value, sizes.latent, dtype=dtype)
    queries = absorb_queries(states, expansion, table, rows, sizes.latent, True)
    attended = latent_attention(queries, keys, rows, rows, sizes.latent, 256**-0.5)
    expand_values(attended.flatten(0, 1), expansion, sizes.value)


def every_method(dtype: torch.dtype) -> Iterator[Launch]:
    """Every method and every entry of the core, on batches that cut nothing."""
    name = str(dtype).removeprefix("torch.")
    for method in Method:
        yield f"verify {method.value}, {name}", partial(_verify, method, dtype)
    yield f"draw, {name}", partial(_draw, dtype)
    yield f"coupled draw, {name}", partial(_coupled_draw, dtype)
    yield f"logprobs, {name}", partial(_logprobs, dtype)


def truncated(dtype: torch.dtype, methods: Iterable[Method]) -> Iterator[Launch]:
    """The same on batches that may cut."""
    for method in methods:
        yield f"verify {method.value}, truncated", partial(_verify, method, dtype, truncates=True)
    yield "draw, truncated", partial(_draw, dtype, truncates=True)
    yield "coupled draw, truncated", partial(_coupled_draw, dtype, truncates=True)
    yield "logprobs, truncated", partial(_logprobs, dtype, sampling=True, truncates=True)


def other_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel."""
    options: dict[str, dict[str, Any]] = {
        "smaller draft vocabulary": {"small_vocabulary": True, "truncates": True},
        "one-hot drafts": {"one_hot": True},
        "no statistics, packed rows": {"with_stats": False, "packed": True},
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "toy vocabulary": {"vocab_size": TOY_VOCAB_SIZE},
        "many requests": {"num_requests": MANY_REQUESTS},
        "many requests, truncated": {"num_requests": MANY_REQUESTS, "truncates": True},
        "largest vocabulary, 8 drafts": {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
    }
    for method in (Method.probabilistic, Method.block, Method.strict):
        for words, chosen in options.items():
            yield f"verify {method.value}, {words}", partial(_verify, method, dtype, **chosen)
    yield "verify pr35461, many requests", partial(_verify, Method.pr35461, dtype, num_requests=MANY_REQUESTS)
    yield "draw, odd vocabulary", partial(_draw, dtype, vocab_size=ODD_VOCAB_SIZE)
    yield "draw, many requests", partial(_draw, dtype, num_requests=2 * MANY_REQUESTS)
    yield "draw, smaller vocabulary", partial(_draw, dtype, small_vocabulary=True)
    yield "coupled draw, smaller vocabulary", partial(_coupled_draw, dtype, small_vocabulary=True)
    yield "logprobs, processed", partial(_logprobs, dtype, sampling=True)


def masked(dtype: torch.dtype, methods: Iterable[Method]) -> Iterator[Launch]:
    """Rows with masks, on batches that cut nothing and on batches that may cut."""
    name = str(dtype).removeprefix("torch.")
    for words, truncates in {"masked": False, "masked and truncated": True}.items():
        chosen = {"masked": True, "truncates": truncates}
        for method in methods:
            yield f"verify {method.value}, {words}, {name}", partial(_verify, method, dtype, **chosen)
        for small in (False, True):
            vocabulary = ", smaller vocabulary" if small else ""
            yield f"draw, {words}, {name}{vocabulary}", partial(_draw, dtype, small_vocabulary=small, **chosen)
            yield (
                f"coupled draw, {words}, {name}{vocabulary}",
                partial(_coupled_draw, dtype, small_vocabulary=small, **chosen),
            )
        yield f"logprobs, {words}, {name}", partial(_logprobs, dtype, sampling=True, **chosen)


def other_masked_shapes(dtype: torch.dtype) -> Iterator[Launch]:
    """Vocabularies, layouts and drafts that change the code of a kernel with masks."""
    options: dict[str, dict[str, Any]] = {
        "one-hot drafts": {"one_hot": True},
        "smaller vocabulary, no statistics, packed rows": {
            "small_vocabulary": True,
            "with_stats": False,
            "packed": True,
        },
        "odd vocabulary": {"vocab_size": ODD_VOCAB_SIZE},
        "many requests": {"num_requests": MANY_REQUESTS},
        "many requests, truncated": {"num_requests": MANY_REQUESTS, "truncates": True},
        "largest vocabulary, 8 drafts": {"vocab_size": LARGEST_VOCAB_SIZE, "num_drafts": 8},
    }
    for method in (Method.probabilistic, Method.block):
        for words, chosen in options.items():
            yield f"verify {method.value}, masked, {words}", partial(_verify, method, dtype, masked=True, **chosen)
    yield "draw, masked, many requests", partial(_draw, dtype, masked=True, num_requests=2 * MANY_REQUESTS)


def layers(dtype: torch.dtype) -> Iterator[Launch]:
    """The decoder layers that are compiled for every type and target."""
    name = str(dtype).removeprefix("torch.")
    yield f"Llama-3-8B, 4 tokens, {name}", partial(_layer, LLAMA_3_8B, dtype, 4)
    yield f"GLM-4.7-Flash, 64 tokens, {name}", partial(_experts, GLM_47_FLASH, dtype, 64)
    yield f"GLM-4.7-Flash, 4 tokens, {name}", partial(_latents, GLM_47_FLASH_LATENTS, dtype, 4)


def products(dtype: torch.dtype) -> Iterator[Launch]:
    """Products of a few tokens, with every number of columns."""
    for pair in COLUMNS:
        words = f"products, {sum(pair)} tokens, {str(dtype).removeprefix('torch.')}"
        yield words, partial(_products, LLAMA_3_8B, dtype, sum(pair))


def built_in_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Those of the built-in models."""
    yield "built-in target, 4 tokens", partial(_layer, BUILT_IN_TARGET, dtype, 4)
    yield "built-in draft model, 1 token", partial(_layer, BUILT_IN_DRAFT_MODEL, dtype, 1)


def other_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Norms of heads, and numbers of tokens and rows that change the code of a kernel."""
    yield "Llama-3-8B, 1 token", partial(_layer, LLAMA_3_8B, dtype, 1)
    yield "Llama-3-8B, 9 tokens", partial(_layer, LLAMA_3_8B, dtype, 9)
    yield f"Llama-3-8B, {MANY_ROWS} rows", partial(_layer, LLAMA_3_8B, dtype, 4, MANY_ROWS)
    yield "Qwen3-8B, 6 tokens", partial(_layer, QWEN_3_8B, dtype, 6)
    yield "GLM-4.7-Flash, 128 tokens of experts", partial(_experts, GLM_47_FLASH, dtype, 128)
    yield "experts in groups, 16 tokens", partial(_experts, IN_GROUPS, dtype, 16)
    yield "GLM-4.7-Flash, 1 token", partial(_latents, GLM_47_FLASH_LATENTS, dtype, 1)
    yield "GLM-4.7-Flash, 128 tokens of a row", partial(_latents, GLM_47_FLASH_LATENTS, dtype, 128)


def holds() -> Iterator[Launch]:
    """With and without drafts."""
    yield "hold, no drafts", partial(_hold, 0)
    yield f"hold, {NUM_DRAFTS} drafts", partial(_hold, NUM_DRAFTS)


def kinds() -> Iterator[Launch]:
    """Every kind of kernel once."""
    bfloat16 = DTYPES[0]
    yield from every_method(bfloat16)
    yield from truncated(bfloat16, (Method.block,))
    yield from masked(bfloat16, (Method.block,))
    yield from holds()
    yield from layers(bfloat16)
    yield from built_in_layers(bfloat16)


def plain_calls() -> Iterator[Launch]:
    """Every method and every type; the layers."""
    for dtype in DTYPES:
        yield from every_method(dtype)
        yield from layers(dtype)
    for dtype in (torch.bfloat16, torch.float16):
        yield from products(dtype)
    yield from built_in_layers(torch.bfloat16)
    yield from other_layers(torch.bfloat16)


def special_calls() -> Iterator[Launch]:
    """Truncation, masks, and unusual shapes."""
    yield from truncated(torch.bfloat16, Method)
    yield from other_shapes(torch.bfloat16)
    yield from masked(torch.bfloat16, Method)
    yield from masked(torch.float32, (Method.block,))
    yield from other_masked_shapes(torch.bfloat16)
    yield from holds()


SHARES: tuple[tuple[int, Callable[[], Iterator[Launch]]], ...] = (
    (TARGETS[0], special_calls),
    (TARGETS[0], plain_calls),
    *((target, kinds) for target in TARGETS[1:]),
)
"""The calls whose kernels are compiled, in shares that processes take in turn: everything for the first target."""


def compile_share(number: int) -> list[CompiledVariant]:
    """The variants of one share; one that two shares need is in both."""
    target, calls = SHARES[number]
    return compile_for(target, calls())


def main() -> int:
    wrong: list[str] = []
    expected = kernels_in(kernels) | kernels_in(fused)
    num_processes = min(len(SHARES), os.cpu_count() or 1)
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        found = [variant for share in processes.map(compile_share, range(len(SHARES))) for variant in share]
    for target in TARGETS:
        variants = [item for item in found if item.target == target]
        wrong += complaints(target, variants, {name for name in expected if ONLY_TARGETS.get(name, target) == target})
    print(to_text(found))
    print(f"\n{len(found)} variants of {len({item.kernel for item in found})} kernels compiled")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
