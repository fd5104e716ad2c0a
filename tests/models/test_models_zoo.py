"""Where the built-in models lie, and the error when they are missing."""

from __future__ import annotations

import pytest

from harness.models import zoo
from harness.models.packed_weights import PACKED, pack


def make(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_bytes(folder.name.encode())
    pack(folder / "weights", folder / PACKED)
    (folder / "weights").unlink()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(zoo, "ZOO", tmp_path)
    return tmp_path / "cache"


def test_folders_of_the_built_in_models_are_whole(tmp_path, cache):
    for kind in zoo.KINDS:
        make(tmp_path / kind)
        assert zoo.zoo_path(kind, with_weights=False) == tmp_path / kind
        folder = zoo.zoo_path(kind)
        assert folder.is_relative_to(cache) and zoo.is_zoo_target(folder) == (kind == "target")
        assert (folder / "model.safetensors").read_bytes() == kind.encode()
    assert zoo.zoo_path("mtp") == zoo.zoo_path("target") and zoo.is_zoo_target(tmp_path / "target")
    assert not zoo.is_zoo_target(None) and not zoo.is_zoo_target(tmp_path / "eagle")


def test_an_unknown_kind_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="among target, eagle, eagle3, peagle, draft_model, mtp, found 'medusa'"):
        zoo.zoo_path("medusa")


def test_missing_files_are_named(tmp_path):
    make(tmp_path / "eagle")
    (tmp_path / "eagle" / PACKED).unlink()
    with pytest.raises(
        ValueError, match=r"eagle: expected the built-in eagle with model\.safetensors\.packed, found none"
    ):
        zoo.zoo_path("eagle")
