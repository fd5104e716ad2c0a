"""Packed weights come back byte for byte, whole, whoever asks and however often; damaged ones are refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.models import packed_weights, zoo
from harness.models.checkpoint import CheckpointError, checkpoint_folder, stored_tensors
from harness.models.packed_weights import FORMAT, PACKED, pack, place_of, unpack, unpacked

pytestmark = pytest.mark.fast
SINGLE = "model.safetensors"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def head(tmp_path, cache):
    """The built-in EAGLE head, packed, in a folder of one's own."""
    return Path(shutil.copytree(zoo.ZOO / "eagle", tmp_path / "head"))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_file_comes_back(tmp_path_factory, content):
    """Would catch an odd number of bytes, none, and words of another byte order."""
    folder = tmp_path_factory.getbasetemp()
    (folder / "file").write_bytes(content)
    pack(folder / "file", folder / PACKED)
    assert unpack(folder / PACKED) == content


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_the_built_in_weights_are_packed_in_two_thirds_of_their_bytes(kind, tmp_path):
    tracked = zoo.ZOO / kind / PACKED
    (tmp_path / SINGLE).write_bytes(unpack(tracked))
    assert stored_tensors(tmp_path) and not (zoo.ZOO / kind / SINGLE).exists()
    for name in ("first", "second"):
        pack(tmp_path / SINGLE, tmp_path / name)
    packed = (tmp_path / "first").read_bytes()
    assert packed == (tmp_path / "second").read_bytes()
    assert max(len(packed), tracked.stat().st_size) < 0.68 * (tmp_path / SINGLE).stat().st_size


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def changed(place: float):
    def of(content: bytes) -> bytes:
        at = int(place * len(content))
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

    return of


def stating(**fields):
    def of(content: bytes) -> bytes:
        line, _, stream = content.partition(b"\n")
        return json.dumps({**json.loads(line), **fields}).encode() + b"\n" + stream

    return of


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        changed(0.2),
        changed(0.7),
        stating(num_bytes=10),
        stating(num_bytes=-1),
        stating(sha256="0" * 64),
        stating(format="rejection-lab packed weights 2"),
        lambda content: b"",
        lambda content: b"[1]\n" + content,
        lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        lambda content: content.partition(b"\n")[0],
    ],
)
def test_a_damaged_file_is_named_and_leaves_nothing(damage, head, cache):
    packed = head / PACKED
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(CheckpointError) as told:
        unpacked(head)
    text = str(told.value)
    assert text.startswith(f"{packed}: expected packed weights ({FORMAT}) that are whole, found ") and "\n" not in text
    assert f"{packed.stat().st_size} bytes; fetch the file again (from where the folder came from)" in text
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_packed_folder_is_unpacked_once(head, cache):
    folder = unpacked(head)
    assert folder.parents[2] == cache and folder == place_of(head)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", SINGLE]
    assert (folder / SINGLE).read_bytes() == unpack(head / PACKED)
    before = [(path, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    assert unpacked(head) == checkpoint_folder(head) == folder and unpacked(folder) == folder
    assert [(path, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())] == before
    assert checkpoint_folder(head, patterns=("*.json",)) == head


def test_other_content_has_another_folder_and_a_clone_the_same(head, tmp_path):
    """Would catch weights of an earlier commit that are taken for today's, and a copy for every checkout."""
    folder = unpacked(head)
    assert place_of(Path(shutil.copytree(head, tmp_path / "other" / "head"))) == folder
    config = (head / "config.json").read_text()
    (head / "config.json").write_text(config + "\n")
    assert unpacked(head) != folder
    (head / "config.json").write_text(config)
    (tmp_path / SINGLE).write_bytes(unpack(head / PACKED)[:-1] + b"\0")
    pack(tmp_path / SINGLE, head / PACKED)
    assert unpacked(head) != folder


@pytest.mark.parametrize("name", [SINGLE, "config.json"])
def test_what_the_cache_lost_is_written_again(name, head, cache):
    """Would catch a cache that a cleaner of old files went through."""
    folder = unpacked(head)
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    assert unpacked(head) == folder and (folder / name).read_bytes() == content
    (folder / name).write_bytes(content[:10])
    assert unpacked(head) == folder and (folder / name).read_bytes() == content
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", [SINGLE, "config.json"])
def test_what_the_cache_holds_of_the_same_size_is_not_taken_for_the_same(name, head, cache):
    """Would catch a bit that a disk lost, which changes drafts and nothing else."""
    folder = unpacked(head)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert unpacked(head) == folder and (folder / name).read_bytes() == content


def test_content_is_checked_once_by_a_process(head, cache, monkeypatch):
    """Would catch a start that reads hundreds of megabytes for every cell."""
    folder, read = unpacked(head), []
    unpacked(head)
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or whole(path))
    unpacked(head)
    assert folder / SINGLE not in read and head / PACKED not in read


def test_a_built_in_file_that_is_damaged_has_the_advice_of_a_clone(head, cache, monkeypatch):
    """Would catch a user's own folder that is to be fetched by git."""
    (head / PACKED).write_bytes(b"none")
    monkeypatch.setattr(packed_weights, "__file__", str(head.parent / "packed_weights.py"))
    with pytest.raises(CheckpointError, match=r"fetch the file again \(git checkout, or install the package again\)"):
        unpacked(head)


@pytest.mark.parametrize("name", [PACKED, "config.json"])
def test_a_file_that_cannot_be_read_is_not_told_as_a_cache_that_cannot_be_written(name, head, cache, monkeypatch):
    def refused(way):
        def of(path, *given):
            if path == head / name:
                raise PermissionError(13, "Permission denied", str(path))
            return way(path, *given)

        return of

    for way in ("read_bytes", "open"):
        monkeypatch.setattr(Path, way, refused(getattr(Path, way)))
    with pytest.raises(CheckpointError, match=r"expected a file that can be read, found: Permission denied") as told:
        unpacked(head)
    assert str(told.value).startswith(f"{head / name}: ")


def test_both_forms_side_by_side_are_refused(head):
    (head / SINGLE).write_bytes(b"mine")
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors or model\.safetensors\.packed, found both"):
        unpacked(head)
    assert (head / SINGLE).read_bytes() == b"mine"


def test_a_cache_that_cannot_be_written_is_named(head, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="or name another folder in REJECTION_LAB_CACHE"):
        unpacked(head)


WAITS = """
import sys
from pathlib import Path
from harness.models.packed_weights import PACKED, SINGLE, unpack, unpacked

print("ready", flush=True)
sys.stdin.readline()
head = Path(sys.argv[1])
print((unpacked(head) / SINGLE).read_bytes() == unpack(head / PACKED))
"""


def test_processes_that_unpack_at_once_all_find_it_whole(head, cache):
    command = [sys.executable, "-c", WAITS, str(head)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert {process.communicate()[0] for process in processes} == {"True\n"}
    assert list((cache / "unpacked").glob("*/*")) == [place_of(head)]


KILLED = """
import os, signal, sys
from pathlib import Path
from harness.models.packed_weights import unpacked

def half(path, content):
    with path.open("wb") as stream:
        stream.write(content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

Path.write_bytes = half
unpacked(Path(sys.argv[1]))
"""


def test_a_killed_process_leaves_no_half_of_it(head, cache):
    done = subprocess.run([sys.executable, "-c", KILLED, str(head)], check=False)
    assert done.returncode == -signal.SIGKILL and not place_of(head).exists()
    folder = unpacked(head)
    assert (folder / SINGLE).read_bytes() == unpack(head / PACKED)
    assert list((cache / "unpacked").glob("*/*")) == [folder], "what it wrote is taken away, too"
