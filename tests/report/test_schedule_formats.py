"""Schedules in the formats of engines, read back by the rules of each."""

import json
from bisect import bisect_right
from itertools import pairwise

import pytest

from harness.config.depth import depth_at, read_depths
from harness.report.schedule_formats import files, vllm

pytestmark = pytest.mark.fast

TABLES = [((1, 4), (8, 2), (32, 0)), ((1, 0), (2, 3)), ((1, 3),), ((1, 5), (2, 4), (3, 1))]


def read_vllm(text, size):
    """Inclusive ranges, the last depth before a gap or the end carried on."""
    content = json.loads(text)
    ranges = content.get("num_speculative_tokens_per_batch_size", [[1, 1, content["num_speculative_tokens"]]])
    assert ranges[0][0] == 1 and all(low <= high for low, high, _ in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    return [depth for low, _, depth in ranges if low <= size][-1]


def read_sglang(text, size):
    """The largest key that is not above the batch size; the slot's only candidate."""
    slots = {int(key): slot["candidate_steps"] for key, slot in json.loads(text).items()}
    keys = sorted(slots)
    (depth,) = slots[keys[max(bisect_right(keys, size) - 1, 0)]]
    return depth


@pytest.mark.parametrize("table", TABLES)
def test_every_format_means_the_same_depth_at_each_batch_size(table):
    """Would catch ranges that end where the next begins, and a size that is taken for the one before."""
    found = files(table, 64)
    for size in range(1, 101):
        expected = depth_at(table, size)
        assert read_vllm(found["vllm.json"], size) == read_sglang(found["sglang.json"], size) == expected
    setting = found["depth.txt"].strip().removeprefix("drafting.depth=")
    assert setting == "3" if len(table) == 1 else read_depths(setting, 8) == table
    assert json.loads(found["vllm.json"])["num_speculative_tokens"] == max(depth for _, depth in table)


def test_no_drafts_at_any_batch_size_have_no_form_for_vllm():
    assert "vllm.json" not in files(((1, 0),), 8)
    with pytest.raises(ValueError, match="start vLLM without speculation"):
        vllm(((1, 0),), 8)
