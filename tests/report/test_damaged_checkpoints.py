"""Checkpoints and records that were damaged or edited: named, set aside, and never counted."""

from dataclasses import replace
from shutil import copytree

import pytest

from harness.analysis.results import read_results
from harness.records import fault_points
from harness.records.checkpoint import Checkpoint, read_checkpoint
from harness.records.files import UnwritableError, read_cell, write_cell
from tests.records.test_unreadable import a_folder
from tests.support.killed_runs import killed
from tests.support.resumed_runs import NUM_PROMPTS, differences, run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder)
    return folder


def only_checkpoint(folder, number=0):
    return sorted((folder / "checkpoints").iterdir())[number]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-7], "are of a part that was not written whole; they are cut off"),
        (lambda data: data + bytes(99), "are of a part that was not written whole; they are cut off"),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "set aside as "),
        (lambda data: data[len(data) // 2 :], "set aside as "),
        (lambda data: b"", ""),
    ],
    ids=["torn", "zeros at the end", "one bit", "without its start", "empty"],
)
def test_a_damaged_checkpoint_is_named_and_never_used(damage, message, tmp_path, undisturbed, monkeypatch):
    """Would catch a part that is averaged in although it is not what was measured."""
    killed(tmp_path, monkeypatch, "a turn is played", 5)
    path = only_checkpoint(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    told, _ = run(tmp_path)
    assert not differences(undisturbed, tmp_path)
    named = [note for note in told.notes if str(path) in note]
    assert [message in note for note in named] == ([True] if message else [])
    assert (path.with_name(path.name + ".damaged").exists()) == (message == "set aside as ")


def test_a_second_process_that_writes_a_checkpoint_destroys_no_frame(tmp_path):
    """Would catch frames of one process that another, which opened the file before, writes over."""
    path = tmp_path / "cell.parts"
    one = Checkpoint(path)
    one.append("first")
    _, other, _ = read_checkpoint(path)
    other.append("second")
    with pytest.raises(UnwritableError, match="another process"):
        one.append("lost")
    other.append("third")
    assert read_checkpoint(path)[0] == ["first", "second", "third"]


def test_a_checkpoint_that_is_cut_during_the_run_ends_it_and_the_next_run_is_whole(tmp_path, monkeypatch, undisturbed):
    """Would catch a record that lacks what was on disk when the process no longer had it."""
    left = [4]

    def cut(place):
        left[0] -= place == "a turn is played"
        if not left[0]:
            left[0] = -1
            path = only_checkpoint(tmp_path)
            path.write_bytes(path.read_bytes()[:600])

    monkeypatch.setattr(fault_points, "on_reached", cut)
    with pytest.raises(UnwritableError, match="600 bytes"):
        run(tmp_path)
    run(tmp_path)
    assert not differences(undisturbed, tmp_path)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), a_folder])
def test_a_record_that_was_edited_is_set_aside(damage, tmp_path, undisturbed):
    """Or that is a folder now. Would catch a run that ends where it cannot write its record."""
    run(tmp_path)
    path = sorted((tmp_path / "cells").iterdir())[0]
    damage(path)
    told, _ = run(tmp_path)
    assert told.num_requests == NUM_PROMPTS and any(str(path) in note for note in told.notes)
    assert not differences(undisturbed, tmp_path) and path.with_name(path.name + ".damaged").exists()


def test_a_record_whose_times_were_edited_is_used_nowhere(tmp_path):
    """Would catch a speedup over times that were not measured, in a record that is consistent in itself."""
    run(tmp_path)
    for path in sorted((tmp_path / "cells").iterdir()):
        untouched = path.read_bytes()
        record = read_cell(path)
        write_cell(replace(record, wall_s=record.wall_s / 10), path.parent)
        with pytest.raises(ValueError, match="as the run wrote it") as error:
            read_results(path)
        assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
        for place in (tmp_path, path.parent):
            results = read_results(place)
            assert results.unreadable == (str(error.value),)
            assert len(results.cells) == 2 and record.cell_id not in [cell.record.cell_id for cell in results.cells]
        path.write_bytes(untouched)
    assert len(read_results(tmp_path).cells) == 3
    write_cell(replace(record, wall_s=record.wall_s / 10), path.parent)
    copytree(tmp_path / "cells", tmp_path / "elsewhere" / "cells")
    assert len(read_results(tmp_path / "elsewhere").cells) == 3
