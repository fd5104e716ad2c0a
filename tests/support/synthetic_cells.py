"""Cells of known truth for the tests of the results side: prompts differ in difficulty, rounds follow given rates."""

import copy
import json
from pathlib import Path

import numpy as np

from harness.analysis.cell import analyse
from harness.analysis.estimates import Estimates
from harness.analysis.frame import results_frame
from harness.analysis.sums import cell_sums
from harness.config.cell import UNIONS, CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.identity import plain_values
from harness.config.sections import MeasurementConfig
from harness.records.files import identity, write_cell
from harness.records.request import FinishReason, RequestRecord, RoundRecord
from harness.records.runs import Run
from harness.records.schema import SCHEMA_VERSION, CellRecord

NUM_RESAMPLES = 500
CONFIG = plain_values(
    CellConfig(
        drafter=drafter_of(DrafterKind.eagle3),
        drafting=DraftingConfig(num_speculative_tokens=3),
        measurement=MeasurementConfig(num_resamples=NUM_RESAMPLES),
    )
) | {"draft_sampling": "sampled", "guarantee": "lossless", "device": "cpu", "dtype": "float32"}


def analysed(*records):
    """The cells of one run."""
    return analyse([Run("run", Path(), {}, records)])


def row_of(record):
    """The row of a cell's metrics, by column."""
    return results_frame(analysed(record)).iloc[0]


def estimates_of(record):
    """Estimates with intervals, from the sums of a cell."""
    return Estimates(cell_sums(record), NUM_RESAMPLES, 0.95)


def config(**changes):
    """The configuration of a cell; a change is named group__name, or name at the top."""
    result = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        group, _, key = name.partition("__")
        if key:
            result[group][key] = value
        else:
            result[name] = value
    for union in UNIONS.values():
        given = result[union.section]
        if given[union.tag] in union.names:
            # the member's own settings, and those that a test gives
            of_member = plain_values(union.build(given[union.tag], {}))
            others = CONFIG[union.section].keys() - of_member.keys()
            result[union.section] = of_member | {name: value for name, value in given.items() if name not in others}
    return result


def round_record(num_draft, num_accepted, arrival_s, *, num_output=None, share_s=0.1, cut=None, **others):
    """A round; without a cut it emits accepted + 1 tokens."""
    return RoundRecord(
        num_proposed_tokens=others.pop("num_proposed", num_draft),
        num_draft_tokens=num_draft,
        num_accepted_tokens=num_accepted,
        num_output_tokens=num_accepted + 1 if num_output is None else num_output,
        cut_reason=cut,
        arrival_s=arrival_s,
        share_s=share_s,
        expected_accepted=others.pop("expected", None),
        **others,
    )


def request_record(rounds, prompt_id="a", **changes):
    """A request that answers with as many tokens as its rounds emitted."""
    fields = {
        "category": "writing",
        "turn": 0,
        "sample": 0,
        "seed": 1,
        "num_prompt_tokens": 10,
        "finish_reason": FinishReason.length,
        "submitted_s": 0.0,
        "output_token_ids": tuple(range(sum(item.num_output_tokens for item in rounds))),
    }
    return RequestRecord(prompt_id=prompt_id, rounds=tuple(rounds), **(fields | changes))


def cell_record(requests, wall_s=1.0, settings=None, **changes):
    """A cell of requests."""
    settings = config() if settings is None else settings
    fields = {
        "cell_id": identity({"config": settings, "wall_s": wall_s}),
        "config": settings,
        "provenance": {"gpu": None, "libraries": {"numpy": np.__version__}},
        "draft_logit_cache_bytes": 0 if settings["drafter"]["kind"] == "none" else 16 * 3 * 6144 * 4,
        "target_cache_bytes": 0,
        "drafter_cache_bytes": 0,
        "graph_bytes": 0,
        "num_target_parameters": 10_000_000,
        "num_drafter_parameters": 1_000_000,
    }
    return CellRecord(requests=tuple(requests), wall_s=wall_s, **(fields | changes))


def simulated_cell(
    settings, rates, *, num_prompts=40, num_turns=1, num_rounds=20, step_s=0.01, seed=0, spread=0.25, **changes
):
    """A cell whose conditional acceptance rate at position i is rates[i], shifted by the prompt's own difficulty.

    The difficulty of a prompt is the same in every cell, the rounds depend on `seed`.
    """
    generator = np.random.default_rng(seed)
    difficulty = np.random.default_rng(99).uniform(-spread, spread, num_prompts)
    requests, now = [], 0.0
    for prompt in range(num_prompts):
        own = np.clip(np.array(rates) + difficulty[prompt], 0.0, 1.0)
        expected = tuple(float(np.cumprod(np.clip(own + shift, 0, 1)).sum()) for shift in (-0.05, 0.0, 0.04))
        for turn in range(num_turns):
            submitted = now
            now += 2 * step_s
            rounds = [round_record(0, 0, now, share_s=2 * step_s)]
            for _ in range(num_rounds):
                now += step_s
                num_accepted = int(np.cumprod(generator.random(len(rates)) < own).sum())
                known = {"expected": expected, "position_bounds": tuple(map(float, own))} if rates else {}
                rounds.append(round_record(len(rates), num_accepted, now, share_s=step_s, **known))
            requests.append(request_record(rounds, f"prompt{prompt:03d}", turn=turn, submitted_s=submitted))
    return cell_record(requests, now, settings, **changes)


def baseline_settings(**changes):
    """Settings of the autoregressive baseline."""
    return config(drafter__kind="none", drafting__num_speculative_tokens=0, draft_sampling="greedy", **changes)


def shortened_cell(method, num_accepted):
    """Prompts a, b, .. of one request each: a full draft of 4 with the accepted tokens given, and a shortened one."""
    requests = []
    for index, accepted in enumerate(num_accepted):
        rounds = [round_record(0, 0, 0.1), round_record(4, accepted, 0.2, expected=(1.0, 1.5, 2.0))]
        rounds.append(round_record(1, 0, 0.3 + 0.1 * index, num_proposed=4, share_s=0.1 + 0.1 * index))
        requests.append(request_record(rounds, chr(ord("a") + index)))
    settings = config(verification__method=method, drafting__num_speculative_tokens=4)
    return cell_record(requests, 1.0, settings)


SHIFTS = {"strict": -0.08, "coupled": -0.04, "probabilistic": 0.0, "block": 0.03}
DRAFT_SAMPLING = {"coupled": "coupled", "pr35461": "coupled"}


def simulated_run(
    folder: Path, *, drafters=("eagle3",), depths=(3,), temperatures=(0.0, 1.0), methods=tuple(SHIFTS), num_prompts=20
):
    """Write a run of simulated cells with a baseline at every temperature; returns the folder."""
    cells = []
    for temperature in temperatures:
        settings = baseline_settings(decoding__temperature=temperature)
        cells.append(simulated_cell(settings, [], num_prompts=num_prompts, num_rounds=60))
        for rank, drafter in enumerate(drafters):
            for depth in depths:
                for method in methods:
                    settings = config(
                        decoding__temperature=temperature,
                        drafter__kind=drafter,
                        drafting__num_speculative_tokens=depth,
                        verification__method=method,
                        draft_sampling=DRAFT_SAMPLING.get(method, "sampled"),
                    )
                    shift = SHIFTS.get(method, 0.0) if temperature else 0.05
                    rates = [0.62 - 0.05 * rank + shift - 0.02 * position for position in range(depth)]
                    seed = int(temperature > 0) * (1 + list(methods).index(method))
                    cells.append(simulated_cell(settings, rates, num_prompts=num_prompts, num_rounds=30, seed=seed))
    for cell in cells:
        write_cell(cell, folder / "cells")
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "name": "simulated",
        "title": "A simulated run",
        "command": "python -m experiments.run",
        "started": "2026-11-20T12:00:00+00:00",
        "cells": [cell.cell_id for cell in cells],
        "num_cells": len(cells),
        "skipped": [{"cell": {"drafter": "ngram", "verification": "pr35461"}, "reason": "ngram has no distribution"}],
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


def drafted(method, sampling="sampled", *, temperature=1.0, depth=3, seed=1, rates=(0.6, 0.5, 0.4), **changes):
    """Ten prompts on a drafter, accepted at these rates by position."""
    settings = config(
        verification__method=method,
        draft_sampling=sampling,
        decoding__temperature=temperature,
        drafting__num_speculative_tokens=depth,
        **changes,
    )
    return simulated_cell(settings, rates[:depth], seed=seed, num_prompts=10)
