"""A run of the built-in models that takes seconds: three prompts of one turn, eight tokens each, on a CPU."""

from __future__ import annotations

from pathlib import Path

from experiments.run import main

SMALL = (
    "workload.num_prompts=3",
    "workload.num_turns=1",
    "decoding.max_new_tokens=8",
    "backend.device=cpu",
    "measurement.num_warmup_requests=0",
    "measurement.num_resamples=100",
)


def small_run(folder: Path, *settings: str) -> Path:
    """Run the cells of some settings; returns the folder with their records and report."""
    assert main([*settings, *SMALL, f"output.folder={folder}"]) == 0
    return folder
