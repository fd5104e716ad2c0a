"""Scratch memory that a captured CUDA graph may still be using must not be given back, and is counted."""

import torch

from kernels.contract import Verification, VerificationMethod
from kernels.workspace import Workspace

CPU = torch.device("cpu")


def test_memory_that_a_larger_call_has_outgrown_is_kept():
    workspace = Workspace()
    small = workspace.buffer("masses", 4, torch.float64, CPU)
    address = small.data_ptr()
    del small
    large = workspace.buffer("masses", 1000, torch.float64, CPU)
    assert workspace.num_bytes == 8 * 1004
    assert large.data_ptr() != address
    assert workspace.buffer("masses", 10, torch.float64, CPU) is large
    assert workspace.num_bytes == 8 * 1004


def test_a_rule_for_more_drafts_leaves_the_shorter_one_in_place():
    workspace, verification = Workspace(), Verification(VerificationMethod.synthetic, synthetic_rates=(0.5,))
    short = workspace.rule(verification, 1, CPU)
    longer = workspace.rule(verification, 9, CPU)
    assert longer is not short and longer[: len(short)].tolist() == short.tolist()
    assert workspace.num_bytes == 8 * (len(short) + len(longer))


def test_a_new_map_of_ids_leaves_the_old_one_in_place():
    workspace = Workspace()
    first = workspace.to_draft_ids(torch.tensor([3, 1]), 5)
    second = workspace.to_draft_ids(torch.tensor([0, 4]), 5)
    assert first.tolist() == [-1, 1, -1, 0, -1] and second.tolist() == [0, -1, -1, -1, 1]
    assert workspace.num_bytes == 4 * 10
