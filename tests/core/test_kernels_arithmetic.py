"""What the kernels share, one function at a time: inverses, shares of masses, rows in words, bounds of noise."""

import ast
import math
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import kernels
from kernels.chain.sample_next import invert, invert_lanes, invert_pieces, load_masses, taken
from kernels.contract import Sampling, Streams
from kernels.core import reference_core, triton_core
from kernels.random.streams import gumbel, to_unit
from kernels.rows.gumbel_argmax import highest_noise
from kernels.rows.softmax_weights import inverse
from kernels.rows.unaligned import load_logits, load_row, read_in_words
from tests.support.kernel_rounds import DEVICE, assert_same_drawn, moved


@triton.jit
def inverting(temperatures, inverses):
    place = tl.program_id(0)
    tl.store(inverses + place, inverse(tl.load(temperatures + place)))


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 0.1, 0.3, 0.7, 1.0, 1.3, 3.0, 1000.0, 1e30])
def test_inverse_is_within_2_ulp(temperature: float):
    given = torch.tensor([temperature], device=DEVICE)
    found = torch.empty(1, dtype=torch.float64, device=DEVICE)
    inverting[(1,)](given, found)
    expected = 1.0 / float(given[0])
    assert abs(float(found[0]) - expected) <= 2 * math.ulp(expected)


@pytest.mark.parametrize(
    ("temperature", "expected"), [(0.0, 1.0), (1e-38, 1e30), (3e38, 1e-30), (math.inf, 1e-30)], ids=str
)
def test_inverse_of_a_temperature_out_of_range_is_finite(temperature: float, expected: float):
    given = torch.tensor([temperature], device=DEVICE)
    found = torch.empty(1, dtype=torch.float64, device=DEVICE)
    inverting[(1,)](given, found)
    assert float(found[0]) == pytest.approx(expected, rel=1e-7)


@triton.jit
def _lanes_kernel(masses, uniform_numbers, entries, rests, wholes, num_masses, PADDED: tl.constexpr):
    case = tl.program_id(0)
    loaded = load_masses(masses, num_masses, PADDED)
    entry, rest, whole = invert_lanes(loaded, tl.load(uniform_numbers + case), PADDED)
    tl.store(entries + case, entry)
    tl.store(rests + case, rest)
    tl.store(wholes + case, whole)


@triton.jit
def _pieces_kernel(weights, targets, at_once, in_steps, PIECES: tl.constexpr, PIECE: tl.constexpr):
    case = tl.program_id(0)
    target = tl.load(targets + case)
    places = tl.arange(0, PIECES)[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    loaded = tl.load(weights + places)
    pieces = tl.sum(loaded.to(tl.float64), axis=1)
    tl.store(at_once + case, invert_pieces(loaded, pieces, target, PIECES, PIECE))
    piece, in_front = invert(pieces, target, PIECES)
    one = tl.load(weights + piece * PIECE + tl.arange(0, PIECE))
    entry, _ = invert(one.to(tl.float64), target - in_front, PIECE)
    tl.store(in_steps + case, piece * PIECE + entry)


@triton.jit
def _taken_kernel(values, found):
    lanes = tl.arange(0, 32)
    loaded = tl.load(values + lanes)
    tl.store(found + tl.program_id(0), taken(loaded, lanes == tl.program_id(0)))


def test_the_value_of_a_lane_is_taken_to_the_bit():
    """Would catch a half of the value with a wrong sign, and a lane that is added to it."""
    values = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    special = [0.0, -0.0, 1.0, -1.0, float("inf"), 5e-324, -1e-310, 1.5e308, 2.0**31, -(2.0**-31)]
    values[: len(special)] = torch.tensor(special, dtype=torch.float64)
    found = torch.full((33,), 7.0, dtype=torch.float64, device=DEVICE)
    _taken_kernel[(33,)](values.to(DEVICE), found)
    assert torch.equal(found.cpu().view(torch.int64)[:32], values.view(torch.int64))
    assert float(found[32]) == 0.0


@pytest.mark.parametrize("num_masses", [1, 2, 31, 32, 33, 63, 64, 75])
def test_lanes_find_the_entry_of_a_share(num_masses: int):
    """Would catch lanes that forget the block in front of them, an entry without mass, and one behind the last."""
    generator = torch.Generator().manual_seed(num_masses)
    masses = torch.rand(num_masses, generator=generator, dtype=torch.float64)
    masses[torch.rand(num_masses, generator=generator) < 0.4] = 0
    masses[num_masses // 2] = 1.0
    masses[num_masses // 2 + 1 :][-3:] = 0
    shares = torch.cat([torch.tensor([0.0, 2.0**-54]), torch.rand(40, generator=generator)]).double()
    # 1 stands for a share that rounding leaves at the sum of all
    shares = torch.cat([shares, torch.tensor([1.0 - 2.0**-53, 1.0], dtype=torch.float64)])
    entries = torch.empty(len(shares), dtype=torch.int32, device=DEVICE)
    rests, wholes = (torch.empty(len(shares), dtype=torch.float64, device=DEVICE) for _ in range(2))
    behind = torch.cat([masses, torch.full((64,), float("nan"), dtype=torch.float64)]).to(DEVICE)
    padded = triton.next_power_of_2(num_masses)
    _lanes_kernel[(len(shares),)](behind, shares.to(DEVICE), entries, rests, wholes, num_masses, PADDED=padded)
    cumulative = masses.cumsum(0)
    last = int(masses.nonzero().max())
    for share, entry, rest, whole in zip(
        shares.tolist(), entries.tolist(), rests.tolist(), wholes.tolist(), strict=True
    ):
        assert whole == pytest.approx(float(cumulative[-1]), rel=1e-14)
        expected = (
            int(((cumulative > share * whole * (1 + 1e-14)) & (masses > 0)).nonzero().min()) if share < 0.99 else last
        )
        assert entry == expected and masses[entry] > 0, share
        assert rest == pytest.approx(share * whole - float(cumulative[entry] - masses[entry]), abs=1e-13)


@pytest.mark.parametrize(("num_pieces", "piece"), [(8, 8), (8, 4), (256, 8)])
@pytest.mark.parametrize("num_empty", [0, 1, 3], ids="{} empty".format)
def test_all_pieces_at_once_find_the_token_that_steps_find(num_pieces: int, piece: int, num_empty: int):
    """Would catch a token of a later piece, one without weight, and a target at or behind the sum of all."""
    generator = torch.Generator().manual_seed(piece + num_empty)
    weights = torch.rand(num_pieces, piece, generator=generator)
    weights[torch.rand(weights.shape, generator=generator) < 0.6] = 0
    weights[num_pieces - num_empty :] = weights[2] = 0
    weights[0, 1] = 0.25
    weights = weights.flatten()
    whole = float(weights.double().sum())
    drawn = torch.rand(60, generator=generator).double() * whole
    # what rounding leaves in front of the first token, at the sum of all and behind it
    targets = torch.cat([drawn, torch.tensor([-1e-18, 0.0, whole, 2 * whole], dtype=torch.float64)])
    at_once, in_steps = (torch.empty(len(targets), dtype=torch.int32, device=DEVICE) for _ in range(2))
    cases = weights.to(DEVICE), targets.to(DEVICE), at_once, in_steps
    _pieces_kernel[(len(targets),)](*cases, PIECES=num_pieces, PIECE=piece)
    assert at_once.tolist() == in_steps.tolist()
    assert all(weights[place] > 0 for place in at_once.tolist())
    assert at_once[-1] == int(weights.nonzero().max())


TILE = 64


@triton.jit
def _load_kernel(rows, found, num_tokens, in_words, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    tl.store(found + offsets, load_logits(rows, offsets, num_tokens, in_words))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_place_in_a_word_and_every_end(dtype: torch.dtype):
    """Would catch a word that is left out, a shift by the wrong part, and a token of the next row."""
    memory = torch.randn(4 * TILE, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    for place in range(9):
        for num_tokens in (0, 1, *range(TILE - 9, TILE + 1)):
            found = torch.empty(TILE, device=DEVICE)
            _load_kernel[(1,)](memory[place:], found, num_tokens, 16, TILE=TILE)
            expected = torch.full((TILE,), -float("inf"), device=DEVICE)
            expected[:num_tokens] = memory[place : place + num_tokens].float()
            assert torch.equal(found, expected), (place, num_tokens)


@triton.jit
def _load_row_kernel(rows, found, num_tokens, lead, TILE: tl.constexpr):
    places = tl.arange(0, TILE)
    tl.store(found + places, load_row(rows, places, num_tokens, None, lead))


@triton.jit
def _load_behind_kernel(rows, found, num_tokens, before, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    tl.store(found + offsets, load_logits(rows, offsets, num_tokens, 16, before))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("way", ["from its own word", "beside a row with a lead"])
def test_places_that_count_from_a_word_before_the_row(way: str, dtype: torch.dtype):
    """Would catch a token of the row before, or of the next one, that is taken for one of the row's."""
    memory = torch.randn(4 * TILE, generator=torch.Generator().manual_seed(2)).to(DEVICE, dtype)
    memory[:16], group = float("nan"), 16 // memory.element_size()
    for start in range(16, 16 + group):
        befores = [start % group] if way == "from its own word" else range(group)
        for before in befores:
            for num_tokens in (1, 2, TILE - 11, TILE - before - 1, TILE - before):
                found = torch.empty(TILE, device=DEVICE)
                if way == "from its own word":
                    _load_row_kernel[(1,)](memory[start:], found, num_tokens, 16, TILE=TILE)
                else:
                    _load_behind_kernel[(1,)](memory[start:], found, num_tokens, before, TILE=TILE)
                expected = torch.full((TILE,), -float("inf"), device=DEVICE)
                expected[before : before + num_tokens] = memory[start : start + num_tokens].float()
                assert torch.equal(found, expected), (start, before, num_tokens)


def test_rows_on_words_are_read_as_they_are():
    rows = torch.empty(2, 320, dtype=torch.bfloat16)
    assert read_in_words(rows, 320) is None
    assert read_in_words(rows[:, :319], 320) is not None and read_in_words(rows[:, 1:], 320) is not None
    assert read_in_words(rows, 321) is not None and read_in_words(rows[:, :255], 321) is None


HIGHEST = 2**32 - 1
NEAR_ONE = [HIGHEST - rest for rest in (0, 1, 31, 32, 33, 63, 64, 95, 1000, 3038, 2**16, 2**27)]
ELSEWHERE = [0, 1, 31, 32, 33, 12345, 2**31 - 1, 2**31, 15 * 2**28 - 1, 15 * 2**28, 15 * 2**28 + 32]


@triton.jit
def _bounds_kernel(words, bounds, COUNT: tl.constexpr):
    places = tl.arange(0, COUNT)
    high = tl.load(words + places).to(tl.uint32)
    tl.store(bounds + places, highest_noise(high))


@pytest.mark.parametrize("highs", [NEAR_ONE, ELSEWHERE], ids=["near one", "elsewhere"])
def test_no_noise_with_an_upper_word_lies_above_its_bound(highs):
    """Would catch a bound from all 32 bits of the word, of which the uniform number only has 27."""
    count = triton.next_power_of_2(len(highs))
    words = torch.tensor(highs + [0] * (count - len(highs)), dtype=torch.int64, device=DEVICE)
    bounds = torch.empty(count, device=DEVICE)
    _bounds_kernel[(1,)](words, bounds, COUNT=count)
    largest = -torch.log(-torch.log(to_unit(words, torch.full_like(words, HIGHEST))))
    assert (bounds.double() >= largest - 1e-4).all()  # kernels.rows.gumbel_argmax adds 1e-3 for float32


def test_the_winner_among_close_scores_is_the_exact_one():
    """Two tokens whose scores lie 0.004 apart, the better one with noise from the last bits of its upper word.

    Would catch the bound above: the draw then takes the other token.
    """
    seed, position, size = 69, 5, 112192
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), size)[0]
    logits = torch.full((1, size), -torch.inf)
    logits[0, 112191] = -3.53975
    logits[0, 78597] = 10.125
    scores = logits[0].double() + noise
    assert 0.003 < scores[112191] - scores[78597] < 0.005
    streams = Streams(*(torch.tensor([value], device=DEVICE) for value in (seed, position, 0)))
    sampling = Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0, torch.device(DEVICE))
    assert triton_core().coupled_draw(logits.to(DEVICE), sampling, streams, size).token_ids.item() == 112191


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_row_of_the_smallest_logits_draws_one_of_them(temperature):
    """Would catch a logit that overflows when it is divided by its temperature, and then can never win."""
    logits = torch.full((3, 64), torch.finfo(torch.float32).min, device=DEVICE)
    streams = Streams(*(torch.arange(3, device=DEVICE) for _ in range(3)))
    sampling = Sampling.same_for_all(3, temperature, 0, 1.0, 0.0, torch.device(DEVICE))
    drawn = triton_core().coupled_draw(logits, sampling, streams, 64)
    assert ((drawn.token_ids >= 0) & (drawn.token_ids < 64)).all() and not drawn.invalid.any()


EXTREMES = {
    "equal logits": (torch.full((2, 24), 1e17), 1.0),
    "the largest logits": (torch.full((2, 24), torch.finfo(torch.float32).max), 0.7),
    "a temperature near 0": (torch.arange(24).remainder(7).expand(2, 24).float(), 1e-20),
    "in two chunks": (torch.full((2, 2100), -1e18).index_fill(1, torch.tensor([7, 2099]), 1e18), 1.0),
}


@pytest.mark.parametrize(("logits", "temperature"), EXTREMES.values(), ids=EXTREMES)
@pytest.mark.parametrize("top_p", [1.0, 0.9], ids=["uncut", "cutting"])
def test_noise_decides_among_extreme_logits(logits: torch.Tensor, temperature: float, top_p: float):
    """Would catch noise that is added to a number so large that it is rounded away: the lowest id then always wins."""
    streams = Streams(*(torch.arange(1, 3) for _ in range(3)))
    sampling = Sampling.same_for_all(2, temperature, 0, top_p, 0.0)
    expected = reference_core().coupled_draw(logits, sampling, streams, logits.shape[1])
    found = triton_core().coupled_draw(
        logits.to(DEVICE), moved(sampling, DEVICE), moved(streams, DEVICE), logits.shape[1]
    )
    assert_same_drawn(moved(found, torch.device("cpu")), expected)


def volatile_loads(source: str) -> list[int]:
    """Lines on which a load is declared volatile: the only reason is a value that changes under the program."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if any(keyword.arg == "volatile" for keyword in call.keywords)]


def test_no_kernel_loads_a_value_that_changes_meanwhile():
    """All threads of a program must branch alike.

    A scalar load is made by every thread for itself. Where another program may change the value meanwhile, some threads
    read the old and some the new one, take different branches and meet at different barriers: reductions go wrong,
    rarely and only on a GPU. Such a value has to come from an atomic, whose result Triton hands to all threads alike
    (kernels.chain.row_epilogue.shared_now).
    """
    folder = Path(kernels.__file__).parent
    found = {str(path.relative_to(folder)): volatile_loads(path.read_text()) for path in folder.rglob("*.py")}
    assert len(found) > 20, "the kernels are not where this test looks for them"
    assert not {name: lines for name, lines in found.items() if lines}


def test_a_volatile_load_is_found():
    assert volatile_loads("stop = 4 - tl.load(\n    stops + request, volatile=True)\n") == [1]
