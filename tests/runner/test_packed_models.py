"""Runs of packed weights: by path as built in, and refused before work where they are damaged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.run import main
from harness.drafters.eagle3 import Eagle3
from harness.models import zoo
from harness.models.packed_weights import PACKED, pack_folder
from harness.records.files import read_cell
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


def test_a_head_that_is_built_in_for_a_target_is_taken_without_a_path(tmp_path, monkeypatch, capsys):
    """Of a public model, for which the zoo's stand in here; for any other target a path is asked for as before."""
    named = copy_of("target", tmp_path / "Public-Model")
    pack_folder(zoo.zoo_path("eagle3"), tmp_path / "heads" / "Public-Model" / "eagle3")
    monkeypatch.setattr(zoo, "HEADS", tmp_path / "heads")
    monkeypatch.setattr(Eagle3, "traits", replace(Eagle3.traits, built_in_for=(str(named),)))
    folder = small_run(tmp_path / "run", f"target.path={named}", "drafter=eagle3", "measurement.baseline=false")
    (record,) = [read_cell(path) for path in (folder / "cells").iterdir()]
    head = zoo.head_path(str(named), "eagle3")
    assert Path(record.config["drafter"]["path"]) == head
    report = "".join(path.read_text() for path in [folder / "report.md", *(folder / "tables").glob("*.*")])
    assert f"unpacked/{head.parent.name}/eagle3" in report and str(tmp_path / "cache") not in report
    assert "eagle3 · K = " in report and "(eagle3)" not in report
    capsys.readouterr()
    assert main([f"target.path={named}", "target.weights=random", "drafter=eagle3", "--list"]) == 2
    assert "needs drafter.path, or drafter.weights=random" in capsys.readouterr().err
    assert main([f"target.path={named}", "drafter=eagle3", "backend=server", "server.url=http://x:1", "--list"]) == 2
    assert "expected drafter.path with a server" in capsys.readouterr().err
    other = copy_of("target", tmp_path / "Other")
    assert main([f"target.path={other}", "drafter=eagle3", "--list"]) == 2
    assert (
        f"needs drafter.path, or drafter.weights=random; only the built-in target and {named}"
        in capsys.readouterr().err
    )
    (tmp_path / "heads" / "Public-Model" / "eagle3" / PACKED).unlink()
    assert main([f"target.path={named}", "drafter=eagle3", "--list"]) == 2
    assert "expected the built-in eagle3 for " in capsys.readouterr().err


def copy_of(kind: str, to: Path) -> Path:
    return Path(shutil.copytree(zoo.zoo_path(kind), to))
