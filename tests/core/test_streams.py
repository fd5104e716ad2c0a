"""Random streams: published Philox vectors, Triton's own words, and what a number may and may not depend on."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernels.random import streams
from kernels.random.streams import Purpose, gumbel, philox, uniform

pytestmark = pytest.mark.fast

MASK = 0xFFFFFFFF
words_32 = st.integers(0, MASK)
seeds_64 = st.integers(-(2**63), 2**63 - 1)

# Known answers of philox4x32-10 published with Random123: counter, key, words.
KNOWN_ANSWERS = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "digits of pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def philox_by_definition(seed: int, counter: tuple[int, int, int, int]) -> list[int]:
    """Ten rounds in Python's own integers."""
    key = [seed & MASK, (seed >> 32) & MASK]
    word = [value & MASK for value in counter]
    for _ in range(10):
        low, high = 0xD2511F53 * word[0], 0xCD9E8D57 * word[2]
        word = [(high >> 32) ^ word[1] ^ key[0], high & MASK, (low >> 32) ^ word[3] ^ key[1], low & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return word


@pytest.mark.parametrize("case", KNOWN_ANSWERS)
def test_published_known_answers(case: str):
    counter, key, words = KNOWN_ANSWERS[case]
    assert philox(torch.tensor(signed(key[0] | key[1] << 32)), *counter).tolist() == list(words)


@settings(max_examples=60, deadline=None)
@given(seeds_64, words_32, words_32, words_32, words_32)
def test_words_by_definition(seed: int, draw: int, position: int, round_index: int, purpose: int):
    """Few numbers are mixed as integers, many as tensors."""
    expected = philox_by_definition(seed, (draw, position, round_index, purpose))
    for num in (0, 1, streams.FEW, streams.FEW + 1):
        words = philox(torch.full((num,), seed), draw, position, round_index, purpose)
        assert words.shape == (num, 4) and words.tolist() == [expected] * num


def test_arguments_broadcast():
    seeds, positions = torch.tensor([[5], [-6]]), torch.tensor([7, 8, 9])
    words = philox(seeds, 0, positions, torch.tensor([[1], [2]]), Purpose.accept)
    assert words.shape == (2, 3, 4)
    assert words[1, 2].tolist() == philox_by_definition(-6, (0, 9, 2, Purpose.accept))


TRITON_PROGRAM = """
import torch, triton
import triton.language as tl
from kernels.random.streams import philox

@triton.jit
def words_kernel(seeds, counters, words, NUM: tl.constexpr):
    index = tl.arange(0, NUM)
    seed = tl.load(seeds + index)
    c0 = tl.load(counters + 4 * index).to(tl.uint32)
    c1 = tl.load(counters + 4 * index + 1).to(tl.uint32)
    c2 = tl.load(counters + 4 * index + 2).to(tl.uint32)
    c3 = tl.load(counters + 4 * index + 3).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, c0, c1, c2, c3)
    tl.store(words + 4 * index, w0.to(tl.int64))
    tl.store(words + 4 * index + 1, w1.to(tl.int64))
    tl.store(words + 4 * index + 2, w2.to(tl.int64))
    tl.store(words + 4 * index + 3, w3.to(tl.int64))

generator = torch.Generator().manual_seed(0)
seeds = torch.randint(-2**63, 2**63 - 1, (64,), generator=generator)
counters = torch.randint(0, 2**32, (64, 4), generator=generator)
words = torch.empty(64, 4, dtype=torch.int64)
words_kernel[(1,)](seeds, counters, words, NUM=64)
print(torch.equal(words, philox(seeds, *counters.unbind(1))))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_words_are_those_of_triton(tmp_path: Path):
    program = tmp_path / "words.py"
    program.write_text(TRITON_PROGRAM)
    environment = dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


@given(words_32, words_32)
def test_uniform_lies_in_the_open_interval(high: int, low: int):
    value = float(streams.to_unit(torch.tensor(high), torch.tensor(low)))
    assert 0 < value < 1
    assert value == max(((high >> 5) * 2**26 + (low >> 6)) * 2.0**-53, 2.0**-54)


def test_uniform_takes_words_0_and_1():
    seed = torch.tensor(99)
    words = philox(seed, 3, 4, 5, Purpose.draft)
    assert uniform(seed, Purpose.draft, 4, 5, draw=3) == streams.to_unit(words[0], words[1])


def test_uniforms_are_uniform():
    values = uniform(torch.arange(20_000), Purpose.accept, 12, 3)
    assert values.dtype == torch.float64
    assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-3


def test_each_part_of_the_address_changes_the_number():
    base = {"seeds": torch.tensor(1), "purpose": Purpose.accept, "positions": 10, "rounds": 2, "draw": 0}
    others = [
        {"seeds": torch.tensor(1 + 2**32)},
        {"purpose": Purpose.residual},
        {"positions": 11},
        {"rounds": 3},
        {"draw": 1},
    ]
    values = [float(uniform(**(base | change))) for change in [{}, *others]]
    assert len(set(values)) == len(values)


def test_gumbel_by_definition():
    noise = gumbel(torch.tensor([7]), torch.tensor([40]), 5)
    for token in range(5):
        high, low = (philox(torch.tensor(7), token // 4, 40, half, Purpose.coupled)[token % 4] for half in (0, 1))
        assert noise[0, token] == -torch.log(-torch.log(streams.to_unit(high, low)))


@pytest.mark.parametrize("blocks_per_chunk", [1, 3, 7, 10_000])
def test_gumbel_depends_on_seed_position_and_token_only(blocks_per_chunk: int, monkeypatch: pytest.MonkeyPatch):
    seeds, positions = torch.tensor([3, -4, 5]), torch.tensor([0, 1, 2**20])
    whole = gumbel(seeds, positions, 63)
    monkeypatch.setattr(streams, "BLOCKS_PER_CHUNK", blocks_per_chunk)
    assert torch.equal(gumbel(seeds[1:2], positions[1:2], 30), whole[1:2, :30])
    assert torch.equal(gumbel(seeds, positions, 63), whole)


def test_gumbel_noise_is_gumbel():
    noise = gumbel(torch.arange(100), torch.full((100,), 9), 201)
    assert noise.shape == (100, 201)
    assert stats.kstest(noise.flatten().numpy(), "gumbel_r").pvalue > 1e-3


def test_no_rows():
    empty = torch.zeros(0, dtype=torch.long)
    assert gumbel(empty, empty, 6).shape == (0, 6)
    assert uniform(empty, Purpose.draft, empty, empty).shape == (0,)
