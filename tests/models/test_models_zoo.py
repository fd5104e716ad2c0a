"""Where the built-in models lie, and the error when they are missing."""

from __future__ import annotations

import pytest

from harness.models import zoo


def make(folder):
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("")


def test_paths_of_the_built_in_models(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "ZOO", tmp_path)
    for kind in zoo.KINDS:
        make(tmp_path / kind)
        assert zoo.zoo_path(kind) == tmp_path / kind
    assert zoo.zoo_path("mtp") == tmp_path / "target"


def test_an_unknown_kind_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="among target, eagle, eagle3, peagle, draft_model, mtp, found 'medusa'"):
        zoo.zoo_path("medusa")


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "ZOO", tmp_path)
    make(tmp_path / "eagle")
    (tmp_path / "eagle" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"eagle: expected the built-in eagle with model\.safetensors, found none"):
        zoo.zoo_path("eagle")
