"""Runs of packed weights: by path as built in, and refused before work where they are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.run import main
from harness.models import zoo
from harness.models.packed_weights import PACKED, pack_folder
from tests.support.small_run import small_run


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path / "cache"))


def test_packed_folders_of_ones_own_run_as_the_built_in_models_do(tmp_path):
    """By path, also where they were packed here; cells are those of the same weights unpacked."""
    pack_folder(zoo.zoo_path("target"), tmp_path / "target")
    pack_folder(zoo.zoo_path("eagle"), tmp_path / "head")
    paths = f"target.path={tmp_path / 'target'}", f"drafter.path={tmp_path / 'head'}"
    folders = [
        small_run(tmp_path / name, "drafter=eagle", "measurement.baseline=false", *given)
        for name, given in (("own", paths), ("built_in", ()))
    ]
    names = [{path.name for path in (folder / "cells").iterdir()} for folder in folders]
    assert names[0] == names[1]


@pytest.mark.parametrize(("kind", "key"), [("target", "target"), ("eagle", "drafter")])
def test_a_damaged_built_in_model_is_told_before_work(kind, key, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(zoo, "ZOO", Path(shutil.copytree(zoo.ZOO, tmp_path / "zoo")))
    packed = tmp_path / "zoo" / kind / PACKED
    packed.write_bytes(packed.read_bytes()[:-1])
    assert main(["drafter=eagle", f"output.folder={tmp_path / 'run'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"error: {key}: {packed}: expected packed weights") and not (tmp_path / "run").exists()
