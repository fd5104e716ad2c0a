"""Processor time of the engine's loop for a request and round, steps left out.

    python -m tests.support.host_time DRAFTS REQUESTS

Steps are launched ahead, as with CUDA graphs, and return rows that were drawn beforehand: 1 to DRAFTS + 1 tokens a
round, an end of sequence now and then. Four times as many requests as are in flight, of 8 prompt and at most 100 new
tokens. To compare commits, run it in a checkout of each, in turns and on one core.
"""

from __future__ import annotations

import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

from harness.engine import engine as engine_module
from harness.engine.engine import Engine, EngineRun
from harness.engine.graph_runner import CapturedStep
from harness.engine.request import Request
from harness.engine.slots import ENDS_PROMPT
from harness.engine.step import StepOutput
from kernels.contract import Draft, DraftSampling, VerificationMethod
from tests.support.toy_markov import toy_engine, transitions

VOCAB_SIZE, EOS, NUM_OUTPUTS, NUM_REPEATS = 50, 2, 37, 7


def given_outputs(num_slots: int, num_drafts: int) -> list[StepOutput]:
    """What steps of a size return, one after the other."""
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(NUM_OUTPUTS):
        tokens = torch.randint(3, VOCAB_SIZE, (num_slots, num_drafts + 1), generator=generator)
        tokens[torch.rand(tokens.shape, generator=generator) < 0.004] = EOS
        drafts, counts = tokens[:, :num_drafts], torch.full((num_slots,), num_drafts)
        accepted = torch.randint(0, num_drafts + 1, (num_slots,), generator=generator)
        numbers = torch.stack([accepted, counts, torch.zeros_like(counts)], dim=1)
        found.append(StepOutput(torch.cat([tokens, drafts, numbers], dim=1), torch.zeros(1), Draft(drafts, counts)))
    return found


def engine_of_given_steps(num_drafts: int, num_slots: int) -> Engine:
    """An engine whose steps compute nothing."""
    table = transitions(VOCAB_SIZE, seed=3)
    sizes: dict[str, Any] = {"num_speculative_tokens": num_drafts, "max_new_tokens": 100, "num_slots": num_slots}
    ways: dict[str, Any] = {"graphs": True, "overlaps": True, "eos_token_ids": frozenset({EOS})}
    method = VerificationMethod.probabilistic
    engine = toy_engine(table, table, method, DraftSampling.sampled, **sizes, **ways)
    runner: Any = engine._runner

    def captured(size: Any) -> CapturedStep:
        inputs, given = runner._new_inputs(size)
        outputs = itertools.cycle(given_outputs(size.num_slots, num_drafts))

        def run() -> StepOutput:
            output = next(outputs)
            ends = inputs[: size.num_slots] == ENDS_PROMPT
            if size.num_prompt_rows and bool(ends.any()):
                decided = output.decided.clone()
                decided[ends, -3:] = 0
                output = output._replace(decided=decided)
            return output

        return CapturedStep(inputs, given, run)

    runner._capture = captured
    return engine


def main(num_drafts: int, num_slots: int) -> None:
    """Print the best of some runs."""
    # other work on the core does not count
    engine_module.time = SimpleNamespace(perf_counter=time.thread_time, sleep=time.sleep)  # type: ignore[assignment]
    engine = engine_of_given_steps(num_drafts, num_slots)
    asked = [
        Request(str(row), "toy", 0, 0, 50 + row, tuple((7 * row + 3 * place) % VOCAB_SIZE for place in range(8)))
        for row in range(4 * num_slots)
    ]

    def run() -> tuple[EngineRun, float]:
        began = time.thread_time()
        found = engine.run(asked, lambda answer: None)
        return found, time.thread_time() - began

    run()
    runs = [run() for _ in range(NUM_REPEATS)]
    num_rounds = sum(len(record.rounds) for record in runs[0][0].requests)
    clock_us, all_us = (
        1e6 * min(seconds) / num_rounds for seconds in zip(*((a.wall_s, b) for a, b in runs), strict=True)
    )
    print(f"{clock_us:.2f} us for a request and round, {all_us:.2f} us with its record, {num_rounds} rounds")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]))
