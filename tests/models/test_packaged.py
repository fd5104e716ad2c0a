"""Weights of public models that an installed package has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.models import packaged as packaged_module
from harness.models.packaged import PACKAGES, packaged

pytestmark = pytest.mark.fast

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package that is installed; the Hub cache is empty."""
    package = PACKAGES[NAME]
    folder = tmp_path / package.module
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('is looked for, and not imported')")
    found = folder / package.file
    found.write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package.module, raising=False)
    monkeypatch.setattr(packaged_module, "cached_snapshot", lambda name, revision: None)
    return found


def test_a_package_has_the_weights_that_the_hub_cache_has_not(file: Path) -> None:
    assert packaged(NAME, None) == file


def test_weights_of_the_hub_come_first_where_they_are_whole(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch 4 bits in the place of the weights that were fetched."""
    monkeypatch.setattr(packaged_module, "cached_snapshot", lambda name, revision: tmp_path)
    assert packaged(NAME, None) == file
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert packaged(NAME, None) is None


def test_other_models_and_named_revisions_are_the_hubs(file: Path) -> None:
    assert packaged("owner/model", None) is None and packaged(NAME, "main") is None


def test_without_the_package_the_hub_is_asked(file: Path) -> None:
    file.unlink()
    assert packaged(NAME, None) is None


def test_what_installs_a_package_is_what_the_demo_installs() -> None:
    """Would catch a version that is raised in one of the two places."""
    installed = (Path(__file__).parents[2] / "Makefile").read_text()
    assert all(package.how.rpartition("pip install ")[2] in installed for package in PACKAGES.values())
