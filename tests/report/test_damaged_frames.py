"""Files of frames whose digests are right and whose content is not: another version's, or made by hand."""

import json
from shutil import copytree, rmtree

import pytest
from hypothesis import given

import tests.support.stand_in_vllm_worker as stand_in
from harness.backends.recordings.cells import write_cells
from harness.backends.recordings.read import read_recording
from harness.plugins.recording import content
from harness.plugins.recording.frames import first_digest, framed, read_frames
from harness.plugins.vllm import recorder
from harness.records import checkpoint, fault_points
from tests.report.test_damaged_files import often, read_or_refused
from tests.support.damaged_json import damaged
from tests.support.killed_runs import Killed, kill_at
from tests.support.recorded_engines import recorded
from tests.support.resumed_runs import differences, run
from tests.support.stand_in_vllm_engine import Engine


def written(path, magic, text):
    """Write the frames that a JSON text lists, if it lists any; whether it does."""
    try:
        contents = json.loads(text)
        data, digest = magic, first_digest(magic)
        for each in contents:
            frame, digest = framed(each, digest)
            data += frame
    except (ValueError, TypeError, RecursionError):
        return False
    path.write_bytes(data)
    return True


def test_a_recording_of_other_content_is_read_or_refused(tmp_path, monkeypatch):
    """Would catch rounds of request -1, terms that belong to other drafts, and a traceback of `replay`."""
    stand_in.install(monkeypatch)
    monkeypatch.setattr(recorder, "FLUSH_S", 1e6)
    recorded(tmp_path, Engine(is_sampled=True), num_steps=8, num_requests=3)
    (path,) = tmp_path.glob(f"*{content.SUFFIX}")
    contents, _, _ = read_frames(path.read_bytes(), content.MAGIC)
    num_rounds = [len(item.rounds) for item in read_recording(path).requests]

    @often
    @given(damaged(contents))
    def check(found):
        if written(path, content.MAGIC, found.text):
            rmtree(tmp_path / "cells", ignore_errors=True)
            read_or_refused(lambda: write_cells(tmp_path), str(tmp_path))
            file = read_or_refused(lambda: read_recording(path), str(path))
            if file is not None and len(file.requests) == len(num_rounds) and file.failure is None:
                assert sum(len(item.rounds) for item in file.requests) == sum(num_rounds)

    check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"request": [-1]}, "expected rounds of 1 requests, found one of request -1"),
        ({"output_token_ids": [[]]}, "expected a token of every round"),
        ({"time_s": []}, "expected columns of one length"),
    ],
)
def test_rounds_that_no_request_can_have_are_refused(change, message, tmp_path):
    """Would catch rounds that are counted for another request, since -1 is the last one in Python."""
    header = {"engine": "vllm", "libraries": {"vllm": "0"}, "method": "block", "num_speculative_tokens": 1}
    header |= dict.fromkeys(("draft_dtype", "drafter_path", "gpu")) | dict.fromkeys(("target", "dtype", "core"), "x")
    header |= {"drafter": "ngram", "device": "cpu", "start_unix_s": 0}
    about = {"id": "a", "prompt": "b", "num_prompt_tokens": 1, "seed": 0, "temperature": 0, "top_k": 0, "top_p": 1}
    about |= {"min_p": 0, "max_tokens": 1, "ignore_eos": False, "stop_token_ids": [], "submitted_s": 0, "cannot": None}
    rounds = {"request": [0], "position": [1], "draft_token_ids": [[]], "output_token_ids": [[3]], "time_s": [1]}
    rounds |= {"share_s": [1], **change}
    frame = {"requests": [about], "rounds": rounds, "terms": {}, "num_unknown": 0}
    path = tmp_path / f"a{content.SUFFIX}"
    assert written(path, content.MAGIC, json.dumps([{"header": header}, frame]))
    with pytest.raises(ValueError, match="expected") as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path}: ") and f"frame 2: {message}" in str(error.value).replace(
        "rounds: ", ""
    )


@pytest.mark.parametrize("place", [None, "a turn is played"], ids=["finished", "under way"])
def test_a_checkpoint_of_other_content_is_used_as_it_stands_or_set_aside(place, tmp_path, monkeypatch):
    """Would catch a cell that fails, for good, since what an earlier version left of it is not what this one reads."""
    folder, before = tmp_path / "run", tmp_path / "before"
    if place is None:
        run(folder)
    else:
        kill_at(monkeypatch, place, 5)
        with pytest.raises(Killed):
            run(folder)
        monkeypatch.setattr(fault_points, "on_reached", None)
    copytree(folder, before)
    (path, *_) = sorted((folder / "checkpoints").iterdir())
    contents, _, _ = read_frames(path.read_bytes(), checkpoint.MAGIC)
    run(tmp_path / "undisturbed")
    kinds = {"part": ("block", "is_whole", "played", "clock_s", "provenance", "facts", "requests", "num_skipped_turns")}
    kinds |= {"finished": ("cell_id", "config", "files", "provenances")}
    ((kind, names),) = [(kind, names) for kind, names in kinds.items() if kind in contents[0]]
    for name in names:
        for value in (None, "x", 3.5):
            rmtree(folder)
            copytree(before, folder)
            changed = [{kind: {**contents[0][kind], name: value}}, *contents[1:]]
            assert written(path, checkpoint.MAGIC, json.dumps(changed))
            told, _ = run(folder)
            assert not differences(tmp_path / "undisturbed", folder)
            assert any("set aside" in note for note in told.notes) == ((name, value) != ("clock_s", 3.5))
