"""Results that cannot be written any more in the middle of a run: one line, and nothing that was finished is lost."""

import subprocess

import pytest

from harness.records.files import read_cell
from harness.records.runs import read_runs
from tests.runner.test_failing_cells import run_command


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A folder that is a disk of its own with room for the records of a small run."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs to mount a tmpfs, as root may: {error}")
    monkeypatch.setenv("RESULTS", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("server", ["LosesTheFolder", "LosesItBeforeTheManifestKnows"])
@pytest.mark.parametrize(
    ("what", "reason"), [("room", "No space left on device"), ("writing", "Read-only file system")]
)
def test_a_disk_that_takes_no_more_ends_the_run_and_keeps_what_was_finished(
    server, what, reason, small_disk, monkeypatch, capsys
):
    """Would catch cells that fail one after the other for it, half a file, a traceback, and a lost cell."""
    monkeypatch.setenv("LOSES", what)
    results = small_disk / "results"
    assert run_command(server, results, module="tests.support.servers_without_a_disk") == 1
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if line.startswith("error: ")]
    assert error.startswith(f"error: {results}") and reason in error
    assert not [line for line in lines if "Traceback" in line or line.startswith("failed: ")]
    finished = {path: path.read_bytes() for path in (results / "cells").glob("*.json.gz")}
    assert len(finished) == 2 and not any(read_cell(path).has_failed for path in finished)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    (small_disk / "filler").unlink(missing_ok=True)
    monkeypatch.setenv("SERVER_IS_MENDED", "1")
    assert run_command(server, results, module="tests.support.servers_without_a_disk") == 0
    (run,) = read_runs(results)
    assert len(run.cells) == 3 and all(path.read_bytes() == content for path, content in finished.items())
    assert not [path for path in results.rglob(".*") if path.is_file()]
