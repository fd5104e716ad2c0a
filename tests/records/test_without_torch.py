"""The device of a run, told without torch."""

import os
import stat

import pytest

from harness.records import without_torch
from harness.records.without_torch import DeviceHere, device_here, why_no_gpu

LISTED = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA {} (UUID: GPU-2)\n"


@pytest.mark.parametrize(
    ("listed", "visible", "expected"),
    [
        (LISTED.format("H100 80GB HBM3"), None, DeviceHere("cuda", "NVIDIA H100 80GB HBM3")),
        (LISTED.format("H100 80GB HBM3"), "", DeviceHere("cpu", None)),
        (LISTED.format("A100-SXM4-40GB"), None, None),
        (LISTED.format("H100 80GB HBM3") + "  MIG 1g.10gb Device 0: (UUID: MIG-1)\n", None, None),
        ("", None, None),
    ],
    ids=["alike", "hidden", "of two types", "divided", "no answer"],
)
def test_the_device_is_told_only_where_it_is_sure(listed, visible, expected, tmp_path, monkeypatch):
    """Would catch cells of another GPU that are taken for finished, or that a list calls drifted."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<END\n{listed}END\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(without_torch, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(without_torch, "version", lambda name: "2.9.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_here() == expected


def test_a_gpu_beyond_those_there_may_be_is_not_found(tmp_path, monkeypatch):
    """Would catch a run on a second GPU that only a worker misses, and a GPU that is there but refused."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(without_torch, "version", lambda package: "2.13.0")
    monkeypatch.setattr(without_torch, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(without_torch, "_NVIDIA", tmp_path)
    reasons = {(shown, index): why_no_gpu(shown, index) for shown in (None, "3") for index in (0, 1, 2)}
    assert [key for key, reason in reasons.items() if reason is None] == [(None, 0), (None, 1), ("3", 0)]
    assert reasons[None, 2] == "there are 2 at most" and why_no_gpu("") == "CUDA_VISIBLE_DEVICES hides all"
