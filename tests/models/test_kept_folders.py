"""Folders of the user's cache while several processes write there."""

import fcntl
import os
import pwd
import subprocess
import sys

import pytest

from harness.models.checkpoint import CheckpointError
from harness.models.kept_folders import VARIABLE, cache_folder, kept

pytestmark = pytest.mark.fast

WRITES = """
import sys
from pathlib import Path
from harness.models.kept_folders import kept

def write(unfinished):
    (unfinished / "half").touch()
    print("begun", flush=True)
    sys.stdin.readline()
    (unfinished / "rest").touch()

kept(Path(sys.argv[1]), write)
"""


def begun(folder):
    """A process that writes a folder and waits for a line."""
    command = [sys.executable, "-c", WRITES, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    return process


def test_what_a_killed_process_left_is_taken_away_and_what_another_writes_is_not(tmp_path):
    """Would catch a conversion of gigabytes whose half stays for ever, and one deleted under a process at work."""
    killed = begun(tmp_path / "killed")
    killed.kill()
    killed.communicate()
    at_work = begun(tmp_path / "at_work")
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == [".at_work"]
    kept(tmp_path / "mine", lambda unfinished: (unfinished / "all").touch())
    at_work.communicate("\n")
    assert at_work.returncode == 0
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")) == [
        *("at_work/half", "at_work/rest", "mine/all")
    ]


REPAIRS = """
import sys
from pathlib import Path
from harness.models.kept_folders import kept

def write(unfinished):
    (unfinished / "good").touch()

print("begun", flush=True)
folder = kept(Path(sys.argv[1]), write, lambda found: (found / "good").exists())
print(folder.stat().st_ino, flush=True)
"""


def test_a_folder_that_another_process_has_repaired_is_not_taken_away(tmp_path):
    """Would catch a process that looks, finds damage, and takes away what has been put there since: the other one may
    be reading it."""
    folder = tmp_path / "model"
    (folder / "damaged").mkdir(parents=True)
    others = []

    def is_whole(found):
        found_whole = (found / "good").exists()
        if found.exists() and not others and list(tmp_path.glob(".model-*")):
            # it has looked, and now another process comes
            command = [sys.executable, "-c", REPAIRS, str(folder)]
            others.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert others[0].stdout.readline() == "begun\n"
            if is_free(tmp_path):
                others[0].wait()
        return found_whole

    kept(folder, lambda unfinished: (unfinished / "good").touch(), is_whole)
    (other,) = others
    told, _ = other.communicate()
    assert other.returncode == 0 and int(told) == folder.stat().st_ino


def is_free(folder):
    """Whether no process holds the lock of a folder."""
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(place)
    return True


def test_a_user_without_a_home_is_told_to_name_a_folder(tmp_path, monkeypatch):
    """As in a container that runs as a number. Would catch an error that says nothing of what to do."""

    def unknown(number):
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(CheckpointError, match=f"name a folder in {VARIABLE}"):
        cache_folder()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
