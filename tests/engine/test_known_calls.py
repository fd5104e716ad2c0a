"""Notes on the kernels of calls spare a start what an earlier one has found out, and change no result."""

import json
import os
import shutil
from pathlib import Path

import pytest

from harness.backends.local.local import LocalBackend
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.models import TargetConfig
from harness.engine.compile_ahead import known_calls
from harness.engine.compile_ahead.known_calls import FOLDER
from tests.support.tiny_models import edit_config, random_causal_lm, save_target_folder
from tests.support.toy_kernel_calls import CALLS, in_process_of_its_own


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What processes tell that are given the same calls one after another, six of which launch the same kernel."""
    folder = tmp_path_factory.mktemp("starts")

    def start() -> dict:
        told = in_process_of_its_own(CALLS, folder, "six and one")
        notes = [json.loads(path.read_text()) for path in (folder / "cache" / FOLDER).iterdir()]
        return told | {"notes": sorted(sorted(kernel for _, kernel in note.values()) for note in notes)}

    found = {"cold": start(), "warm": start()}
    shutil.rmtree(folder / "cache" / FOLDER)
    return found | {"without notes": start(), "warm again": start()}


def test_all_calls_are_run_unless_the_first_ones_lack_nothing(starts: dict[str, dict]):
    """Would catch a cold start that stops looking at cells that share the kernels of earlier ones, and one that looks
    at all of many though their kernels are there."""
    assert starts["cold"]["num_looked_at"] == 6
    assert starts["without notes"]["num_looked_at"] == 3


def test_calls_are_not_run_again_while_code_and_cache_are_the_same(starts: dict[str, dict]):
    """Would catch notes that nothing reads, and calls that get none because they were not tried."""
    assert starts["warm"]["num_looked_at"] == starts["warm again"]["num_looked_at"] == 0


def test_a_note_names_the_kernels_of_its_call_alone(starts: dict[str, dict]):
    """Would catch notes that name what other calls of the process launch, which grow from process to process, and
    kernels that are counted twice because two notes name them."""
    expected = [6 * ["scaling_kernel"] + 2 * ["shifting_kernel"], *6 * [["shifting_kernel"]]]
    assert [start["notes"] for start in starts.values()] == 4 * [expected]
    assert starts["cold"]["summary"].startswith("8 of 8 kernels compiled in ")
    assert {start["summary"] for name, start in starts.items() if name != "cold"} == {"8 kernels were compiled before"}
    assert {start["num_compiled_later"] for start in starts.values()} == {0}


def test_a_note_is_of_one_target_and_one_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Would catch a note that vouches for kernels of code that has changed since, or of another GPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    known_calls.remember("a call", 90, {})
    assert [known_calls.known("a call", target) for target in (90, 100)] == [set(), None]
    assert known_calls.known("another", 90) is None
    monkeypatch.setattr(known_calls, "_code", lambda: "of another commit")
    assert known_calls.known("a call", 90) is None


def test_notes_do_not_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Would catch notes on code of long ago that stay for ever, and one that goes though every start reads it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(known_calls, "MAX_NOTES", 3)
    for number, name in enumerate(("used", "first", "second")):
        known_calls.remember(name, 90, {})
        os.utime(known_calls._note(name, 90), (number, number))
    assert known_calls.known("used", 90) == set()
    known_calls.remember("third", 90, {})
    found = [name for name in ("used", "first", "second", "third") if known_calls.known(name, 90) is not None]
    assert found == ["used", "second", "third"]


def test_steps_of_a_model_whose_files_were_edited_are_others(tmp_path: Path):
    """Would catch a note that outlives the config.json that its kernels follow from."""
    folder = save_target_folder(tmp_path / "target", random_causal_lm())
    cell = CellConfig(target=TargetConfig(path=str(folder)), backend=Local(device="cpu"))

    def steps() -> str:
        return LocalBackend(cell).engine_of_cell.steps

    before = steps()
    assert steps() == before
    edit_config(folder, rms_norm_eps=1e-3)
    assert steps() != before
