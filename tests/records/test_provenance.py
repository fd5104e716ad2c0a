"""Where a result comes from, and that it says nothing about who made it."""

import getpass
import json
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from harness.records.provenance import PACKAGES, git_state, provenance

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]


def git(folder, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_it_names_time_versions_and_hardware():
    found = provenance(sampling_core="triton")
    assert datetime.fromisoformat(found["time_utc"]).utcoffset().total_seconds() == 0
    assert found["python"] == platform.python_version()
    assert set(found["packages"]) == set(PACKAGES)
    assert found["packages"]["torch"]
    assert found["cpu"]["num_cores"] >= 1
    assert found["cpu"]["model"]
    assert found["config_hash"] is None
    assert found["sampling_core"] == "triton"


def test_it_is_plain_json():
    found = provenance()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_it_holds_no_path_host_or_user():
    text = json.dumps(provenance())
    assert not any(str(folder) in text for folder in (ROOT, Path.home(), sys.prefix))
    host, user = platform.node(), getpass.getuser()
    strings = [word.strip('",:{}[]') for word in text.split()]
    assert host not in strings
    assert user not in strings


def test_threads_are_known_only_once_torch_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert provenance()["torch_threads"] is None
    assert provenance()["gpu"] is None
    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    found = provenance()
    assert found["torch_threads"] == 3
    assert found["gpu"]["name"] == "A GPU"
    assert found["gpu"]["capability"] == "9.0"
    assert found["gpu"]["cuda"] == "13.0"


class FakeTorch:
    class cuda:
        is_available = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 0)
        device_count = staticmethod(lambda: 2)

        @staticmethod
        def get_device_properties(index):
            return type("Properties", (), {"name": "A GPU", "total_memory": 1 << 30, "major": 9, "minor": 0})

    class version:
        cuda = "13.0"

    get_num_threads = staticmethod(lambda: 3)


def test_git_state_sees_commits_and_changes(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    git_state.cache_clear()
    (tmp_path / "untracked").write_text("ignored")
    assert git_state(tmp_path)["dirty"] is False
    git_state.cache_clear()
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}


@pytest.mark.parametrize("content", [None, "not a repository"], ids=["no checkout", "broken checkout"])
def test_outside_a_checkout_there_is_no_git_state(content, tmp_path):
    """A folder inside another project's checkout does not take over its commit."""
    folder = tmp_path / "inside"
    folder.mkdir()
    git(tmp_path, "init")
    if content is not None:
        (folder / ".git").write_text(content)
    assert git_state(folder) is None
