"""A share of masses is found at the same entry by every way to it: by lanes, by all pieces at once, and by steps."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.chain.sample_next import invert, invert_lanes, invert_pieces, load_masses, taken
from tests.support.kernel_rounds import DEVICE


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
