"""Scratch memory that a captured CUDA graph may still be using must not be given back, and is counted."""

import pytest
import torch

from kernels.launch.workspace import Workspace
from kernels.methods.synthetic import Synthetic

pytestmark = pytest.mark.fast

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
    workspace, rule = Workspace(), Synthetic((0.5,))
    short = workspace.rule(rule, 1, CPU)
    longer = workspace.rule(rule, 9, CPU)
    assert longer is not short and longer[: len(short)].tolist() == short.tolist()
    assert workspace.num_bytes == 8 * (len(short) + len(longer))


def test_a_new_map_of_ids_leaves_the_old_one_in_place():
    workspace = Workspace()
    first = workspace.to_draft_ids(torch.tensor([3, 1]), 5)
    second = workspace.to_draft_ids(torch.tensor([0, 4]), 5)
    assert first.tolist() == [-1, 1, -1, 0, -1] and second.tolist() == [0, -1, -1, -1, 1]
    assert workspace.num_bytes == 4 * 10


def test_maps_of_ids_in_turn_take_no_more_memory_than_once():
    """Would catch memory that grows with every call of two drafters that share a workspace."""
    workspace, maps = Workspace(), [torch.tensor([3, 1]), torch.tensor([0, 4])]
    found = [workspace.to_draft_ids(ids, 5) for ids in maps]
    for _ in range(10):
        # another tensor over the same memory is the same map
        assert all(workspace.to_draft_ids(ids[:], 5) is each for ids, each in zip(maps, found, strict=True))
    assert workspace.num_bytes == 4 * 10


def test_a_map_of_ids_that_changes_is_built_again_where_it_was():
    workspace, ids = Workspace(), torch.tensor([3, 1])
    found = workspace.to_draft_ids(ids, 5)
    for _ in range(3):
        ids.copy_(torch.tensor([0, 4]))
        assert workspace.to_draft_ids(ids, 5) is found
    assert found.tolist() == [0, -1, -1, -1, 1]
    assert workspace.num_bytes == 4 * 5
