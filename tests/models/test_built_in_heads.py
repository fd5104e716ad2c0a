"""Heads that are built in for public models fit these."""

from __future__ import annotations

import pytest

from harness.config.models import Weights
from harness.drafters.eagle3 import Eagle3
from harness.drafters.registry import load_head
from harness.models.meta import META
from harness.models.random_target import random_target
from harness.models.zoo import head_path

SHAPES = {"HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2"}


@pytest.mark.parametrize("target_id", Eagle3.traits.built_in_for)
def test_a_built_in_head_loads_beside_its_target(target_id, tmp_path, monkeypatch):
    """Would catch a folder of another name, sizes of another target, positions that no row of its training
    had, and a head that must ask for assumptions."""
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path))
    target = random_target(shape=SHAPES[target_id], device=META)
    loaded = load_head(Eagle3(path=str(head_path(target_id, "eagle3")), weights=Weights.checkpoint), target)
    assert loaded is not None and loaded.num_positions == 1024 < target.num_positions
    head = loaded.head
    assert head.assumptions == ("it has no lm_head, and the target's rows of its draft tokens are taken",)
    assert head.config.verifier == target_id and head.output_matrix.shape == (head.vocab_size, head.hidden_size)
