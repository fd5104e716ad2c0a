"""On a GPU the kernels of a run are compiled before its steps launch them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_process import ROOT

pytestmark = pytest.mark.gpu
CELLS = (
    "drafter=eagle3,mtp",
    "verification=probabilistic,coupled",
    "workload.num_prompts=3",
    "workload.num_turns=1",
    "decoding.max_new_tokens=8",
    "backend.device=cuda",
    "measurement.num_resamples=100",
)


def told_by_a_run(folder: Path) -> str:
    """Standard error of a run of its own that shares Triton's cache with the others of a folder."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "experiments", "run", *CELLS, "--fresh", f"output.folder={folder / 'run'}"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_no_kernel_of_a_run_is_compiled_where_it_is_launched(tmp_path: Path):
    """Would catch a step that launches on a GPU what it does not launch on the meta device, and processes that compile
    for another GPU."""
    first, second = told_by_a_run(tmp_path), told_by_a_run(tmp_path)
    assert re.search(r": (\d+) of \1 kernels compiled in ", first), first
    assert re.search(r": \d+ kernels were compiled before; steps captured in .*; measured from ", second), second
    for told in (first, second):
        assert "one after another" not in told
