"""Heads that are built in for public models fit these."""

from __future__ import annotations

import json

import pytest

from harness.config.models import TargetConfig, Weights
from harness.drafters.eagle3 import Eagle3
from harness.drafters.registry import load_head
from harness.models.assumptions import assumed_of_drafter
from harness.models.eagle3_config import Eagle3Config
from harness.models.meta import META
from harness.models.model_types import CONVERTED
from harness.models.random_target import random_target
from harness.models.rounded_weights import trained_weights_told
from harness.models.zoo import head_path

SHAPES = {"HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2"}


@pytest.mark.parametrize("target_id", Eagle3.traits.built_in_for)
def test_a_built_in_head_loads_beside_its_target(target_id, tmp_path, monkeypatch):
    """Would catch a folder of another name, sizes of another target, positions that no row of its training
    had, and a head that must ask for assumptions."""
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path))
    target = random_target(shape=SHAPES[target_id], device=META)
    drafter = Eagle3(path=str(head_path(target_id, "eagle3")), weights=Weights.checkpoint)
    target.rounded_weights, target.random_fingerprint = "GGUF Q4_1 weights", None
    loaded = load_head(drafter, target)
    assert loaded is not None and loaded.num_positions == 1024 < target.num_positions
    head = loaded.head
    assert head.assumptions == ("the head has no lm_head of its own: the target's rows of its draft tokens are taken",)
    assert head.config.to_dict()["speculators_config"]["verifier"]["rounded_weights"] == target.rounded_weights
    assert head.config.verifier == target_id and head.output_matrix.shape == (head.vocab_size, head.hidden_size)


def test_a_head_tells_of_what_weights_it_was_trained_where_the_target_has_others(tmp_path, monkeypatch):
    """Would catch a head of a target in 4 bits beside the published weights, of which no record says so."""
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path))
    folder = head_path("HuggingFaceTB/SmolLM2-135M-Instruct", "eagle3")
    target = random_target(shape="smollm2", device=META)
    told = "its file says that it was trained on GGUF Q4_1 weights of HuggingFaceTB/SmolLM2-135M-Instruct"
    cases = (
        ("", "weights that are not rounded"),
        ("fp8 weights, 8 bits", "fp8 weights, 8 bits"),
        (None, "random weights"),
    )
    fingerprint = target.random_fingerprint
    for rounded, here in cases:
        target.rounded_weights, target.random_fingerprint = rounded or "", fingerprint if rounded is None else None
        loaded = load_head(Eagle3(path=str(folder), weights=Weights.checkpoint), target)
        assert loaded is not None and f"{told}, and the target has {here}" in loaded.head.assumptions
    # before a run, of files alone, and of a head that was trained on the published ones
    public, rounded_file = tmp_path / "public", tmp_path / "rounded"
    for path, fields in ((public, {}), (rounded_file, {CONVERTED: {"file": "a.gguf", "type": "Q4_1"}})):
        path.mkdir()
        (path / "config.json").write_text(json.dumps({**target.config.to_dict(), **fields}))
    drafter = Eagle3(path=str(folder))
    assert any(told in text for text in assumed_of_drafter(drafter, TargetConfig(path=str(public))))
    assert not any(told in text for text in assumed_of_drafter(drafter, TargetConfig(path=str(rounded_file))))
    drawn = TargetConfig(shape="smollm2", weights=Weights.random)
    assert [text for text in assumed_of_drafter(drafter, drawn) if told in text] == [
        f"{told}, and the target has random weights"
    ]
    # and a head that was trained for random weights
    assert Eagle3Config.for_target(random_target(device=META), 8).rounded_weights == "random weights"
    stated = {"speculators_config": {"verifier": {"name_or_path": "a", "rounded_weights": ""}}}
    assert trained_weights_told(stated, "") == () == trained_weights_told({}, "GGUF Q8_0 weights")
    (text,) = trained_weights_told(stated, "GGUF Q8_0 weights")
    assert "trained on weights that are not rounded of a, and the target has GGUF Q8_0 weights" in text
