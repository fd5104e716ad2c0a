"""Which sampling core a device gets, what of it is imported, and that what it keeps changes nothing."""

from dataclasses import replace

import pytest
import torch

from kernels.contract import RowStats, Streams
from kernels.core import core_for, cpu_core
from kernels.random.streams import gumbel
from kernels.reference.acceptance import acceptance_terms
from kernels.reference.kept_noise import KeptNoise
from kernels.reference.truncation import keep_row_stats, largest, processed
from kernels.reference.verify import verify
from tests.support.own_process import output_of
from tests.support.random_round import GREEDY, PLAIN, SAMPLED_METHODS, SHARES_NOISE, Round, verification_of

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from kernels.core import core_for
print(core_for(torch.device("cpu")).name)
"""


def test_a_cpu_gets_the_reference():
    core = core_for(torch.device("cpu"))
    assert core.name == "reference"


def test_a_machine_without_triton_has_a_core():
    assert output_of(WITHOUT_TRITON) == "reference\n"


SETTINGS = [PLAIN, (0.7, 40, 0.9, 0.02), GREEDY, PLAIN, (1.3, 0, 0.8, 0.0), (0.8, 0, 1.0, 0.1)]
LENGTHS = [3, 3, 2, 0, 1, 3]


@pytest.mark.parametrize("settings", [SETTINGS, [GREEDY] * 6, [PLAIN] * 6], ids=["mixed", "greedy", "plain"])
@pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda item: item.value)
def test_what_the_core_keeps_changes_no_decision(method, settings):
    """Would catch statistics of another row, noise of another position, terms of another round."""
    core = cpu_core()
    for seed in range(6):
        given = Round(settings, LENGTHS, seed=seed, shared_noise=method in SHARES_NOISE)
        requests = torch.arange(len(settings))
        draft, rows = given.draft(requests), given.rows(requests)
        stats = RowStats.empty(len(settings), 3)
        for position in range(3):
            part = processed(given.cache[:, position], given.sampling)
            keep_row_stats(part, given.sampling, stats.at((slice(None), position)))
        with_stats = replace(draft, row_stats=stats)
        # a round later the same positions come again, and their noise is known
        for later in range(2):
            streams = Streams(given.streams.seeds, given.streams.positions, given.streams.rounds + later)
            found = core.verify(rows, with_stats, given.sampling, verification_of(method), streams)
            expected = verify(rows, draft, given.sampling, verification_of(method), streams)
            assert torch.equal(found.token_ids, expected.token_ids)
            assert torch.equal(found.invalid, expected.invalid)
        kept = acceptance_terms(rows, with_stats, given.sampling, compared=found.compared)
        anew = acceptance_terms(rows, draft, given.sampling)
        for name, term in anew._asdict().items():
            torch.testing.assert_close(getattr(kept, name), term, rtol=1e-9, atol=1e-12, msg=name)


def test_noise_is_that_of_its_position_however_little_room_there_is(monkeypatch):
    monkeypatch.setattr("kernels.reference.kept_noise.MAX_BYTES", 8 * 20 * 5)
    noise, generator = KeptNoise(), torch.Generator().manual_seed(3)
    for num_rows in [1, 3, 5, 2, 7, 5, 4, 1, 5] * 5:
        seeds, positions = (torch.randint(0, size, (num_rows,), generator=generator) for size in (3, 4))
        assert torch.equal(noise(seeds, positions, 20), gumbel(seeds, positions, 20))


@pytest.mark.parametrize("vocab_size", [1, 63, 128, 130, 321])
def test_the_largest_is_the_first_of_equals_wherever_it_lies(vocab_size):
    rows = torch.randn(40, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    rows[10:20] = rows[10:20].round()
    rows[20], rows[21, vocab_size // 2], rows[22, -1] = -torch.inf, torch.nan, torch.inf
    assert torch.equal(largest(rows), rows.argmax(dim=1))
