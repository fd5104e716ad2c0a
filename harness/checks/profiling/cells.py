"""Profiles of a round for the cells of a plan, one cell after another, each with the rates of its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.checks.profiling.profile import RoundProfile, num_rounds_of, output_tokens_needed, profile_round
from harness.checks.timing.bandwidth import machine_of
from harness.checks.timing.clock import clock_for
from harness.checks.timing.matrix_rate import matrix_rates
from harness.checks.timing.measured import Machine
from harness.config.cell import CellConfig
from harness.config.device import resolve_device
from harness.config.workload import TooLong
from harness.drafters.registry import check_capture
from harness.workload.conversations import Conversation, conversations, load_prompts


class Profiled(NamedTuple):
    """What came of one cell."""

    profile: RoundProfile
    dtype: str
    graphs: bool
    """Whether the running engine replays its steps as CUDA graphs; each timed piece is one anyway."""
    sampling_core: str
    notes: tuple[str, ...]
    """What changes speed or results without being asked for."""
    matrix_ways: dict[str, float]
    """Size of a product of matrices of that dtype -> operations per second, measured in the same run."""

    @property
    def matrix_rate(self) -> float:
        """The best of the sizes, operations per second."""
        return max(self.matrix_ways.values())


@dataclass(frozen=True)
class CellProfile:
    """One cell, profiled."""

    number: int
    """In the plan, from 1."""
    cell: CellConfig
    """As it was asked for."""
    machine: Machine
    found: Profiled


class _Bench:
    """What times the cells of one device, and its rates."""

    def __init__(self, device: torch.device, num_repeats: int) -> None:
        self.device = device
        # reading, not writing: lines that the flush left dirty would be written back in the time of the work
        self.clock = clock_for(device, num_repeats, "read")
        self.machine = machine_of(self.clock, device)
        self._matrix_ways: dict[torch.dtype, dict[str, float]] = {}

    def matrix_ways(self, dtype: torch.dtype) -> dict[str, float]:
        """See Profiled; measured once."""
        if dtype not in self._matrix_ways:
            self._matrix_ways[dtype] = matrix_rates(self.clock, self.device, dtype)
        return self._matrix_ways[dtype]


def profile_cells(cells: Sequence[CellConfig], length: int, num_repeats: int) -> Iterator[CellProfile]:
    """Profile the cells of a plan.

    Args:
        cells: their backend.max_concurrency is the number of slots, all of which decode.
        length: tokens in each slot, 2 or more.
        num_repeats: of each timed piece, 2 or more.

    Raises:
        ValueError: prompts cannot be read, a model does not fit, the length does not fit a target, or several ranks
            compute it.
    """
    for cell in cells:
        if cell.local.tensor_parallel > 1:
            # an experiment may say so; the graphs of pieces would be of this rank alone
            raise ValueError(
                "backend.tensor_parallel: expected 1, since pieces of a round are timed on one rank, found "
                f"{cell.local.tensor_parallel}; rejection-lab bench-ranks times whole rounds"
            )
    asked = [for_profile(cell, length, num_repeats) for cell in cells]
    played = [conversations(load_prompts(each.workload, each.seed), each.workload, each.seed) for each in asked]
    store = ModelStore()
    benches: dict[torch.device, _Bench] = {}
    for index, cell in enumerate(cells):
        device = resolve_device(cell.backend.device)
        if device not in benches:
            benches[device] = _Bench(device, num_repeats)
        profiled = _profile(asked[index], played[index], store, benches[device], num_rounds_of(num_repeats))
        yield CellProfile(index + 1, cell, benches[device].machine, profiled)


def for_profile(cell: CellConfig, length: int, num_repeats: int) -> CellConfig:
    """The cell with prompts that lead to the length, a conversation for each slot, and room for the rounds."""
    if cell.drafts_tree:
        raise ValueError(f"drafting.tree: expected null, since only chains are profiled, found {cell.drafting.tree}")
    if cell.drafting.depth is not None and not cell.is_baseline:
        raise ValueError(
            "drafting.depth: expected null or a number, since rounds of one depth are profiled, found "
            f"{cell.drafting.depth}"
        )
    num_slots, num_tokens = cell.backend.max_concurrency, _num_speculative_tokens(cell)
    num_new = output_tokens_needed(num_slots, length, num_tokens, num_rounds_of(num_repeats))
    return replace(
        cell,
        decoding=replace(cell.decoding, max_new_tokens=num_new, ignore_eos=True),
        backend=replace(cell.local, prompt_tokens_beside_rounds=None),
        workload=replace(
            cell.workload,
            num_requests=num_slots,
            num_turns=1,
            prompt_tokens=length - 1,
            request_rate=None,
            request_rates=None,
            too_long=TooLong.error,
        ),
        measurement=replace(cell.measurement, expected_acceptance=False),
    )


def _num_speculative_tokens(cell: CellConfig) -> int:
    return 0 if cell.is_baseline else cell.drafting.num_speculative_tokens


def _profile(
    cell: CellConfig, played: Sequence[Conversation], store: ModelStore, bench: _Bench, num_rounds: int
) -> Profiled:
    """Profile one cell; its engine is gone when the next one needs the memory."""
    backend = LocalBackend(cell, store)
    check_length(backend)
    # every timed piece is a graph on a GPU, whatever the engine itself does
    check_capture(cell.drafter, True, bench.device)
    backend.prepare(played)
    requests = [request for request in map(backend.requests.first, played) if request is not None]
    # before the engine takes its memory
    matrix_ways = bench.matrix_ways(backend.target.dtype)
    engine = backend.engine_of_cell.engine()
    profile = profile_round(engine, requests, bench.clock, num_rounds)
    notes = backend.facts().fallbacks
    if profile.num_invalid:
        notes += (
            f"in the timed round {profile.num_invalid} of {profile.num_slots} verifications met a row without a "
            "distribution or an impossible draft",
        )
    dtype = str(backend.target.dtype).removeprefix("torch.")
    graphs = engine.settings.graphs and engine.target.device.type == "cuda"
    return Profiled(profile, dtype, graphs, engine.core.name, notes, matrix_ways)


def check_length(backend: LocalBackend) -> None:
    """Raise ValueError unless prompt and output fit the positions of the target and the configured slots."""
    # the target is not loaded yet
    cell, longest = backend.cell, backend.requests.longest_sequence
    num_prompt, num_new = cell.workload.prompt_tokens or 0, cell.decoding.max_new_tokens
    if num_prompt + num_new > longest:
        raise ValueError(
            f"--length: expected at most {longest - num_new + 1} tokens in a slot of target {cell.target.name}, which "
            f"holds {longest} (positions of the target, backend.max_length) and {num_new} of them while the engine "
            f"runs, found {num_prompt + 1}; lower --length or --repeats"
        )
