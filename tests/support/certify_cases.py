"""The cases of certification by name."""

import torch

from harness.checks.certification.cases import full_cases

CPU = torch.device("cpu")
CASES = {case.name: case for case in full_cases()}
SPREAD = ("block, sampled cached, bfloat16, none, spread", "strict, greedy one-hot, bfloat16, top-k, spread over zeros")
PACKAGES = {
    "dflash": "dflash",
    "dflash2": "dflash",
    "economize": "economize",
    "flashspec": "flashspec",
    "flashspec_batched": "flashspec",
    "mini_infer": "mini_infer",
    "naive_hsd": "seqspecdecod",
    "sequential_sd": "seqspecdecod",
}
"""The package of subjects that run on a CPU and take it from PYTHONPATH."""
