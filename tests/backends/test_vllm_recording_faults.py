"""Recording inside vLLM, in a stand-in for it, that is killed, fails or is refused."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import tests.support.stand_in_vllm_worker as stand_in
from experiments.replay import main as replay_command
from harness.backends.recordings.cells import write_cells
from harness.backends.recordings.read import read_recording, recordings_at
from harness.plugins.recording import frames
from harness.plugins.vllm import recorder, signatures
from harness.plugins.vllm.recording import RefusedRecording
from harness.plugins.vllm.signatures import RefusedVersion
from kernels.contract import VerificationMethod
from tests.support.recorded_engines import recorded
from tests.support.stand_in_vllm_engine import Engine

Method = VerificationMethod
SITE = os.environ.get("REJECTION_LAB_VLLM_SITE", "")


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    stand_in.install(monkeypatch)
    # frames end by number of rounds alone
    monkeypatch.setattr(recorder, "FLUSH_S", 1e6)


def test_a_killed_worker_loses_what_was_not_written_and_replay_names_it(tmp_path, monkeypatch, capsys):
    """Would catch frames that stay in memory, a torn file that cannot be read, and an edited one that can."""
    monkeypatch.setattr(recorder, "ROUNDS_PER_FRAME", 6)
    engine = Engine()
    child = os.fork()
    if child == 0:
        try:
            engine.worker.start_recording(str(tmp_path), certify=False)
            for index in range(6):
                engine.start(f"r{index}", [index, 1], max_tokens=6)
            for _ in range(9):
                engine.step()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (path,) = recordings_at(tmp_path)
    whole = read_recording(path)
    num_rounds = sum(len(item.rounds) for item in whole.requests)
    # one step may wait in line and one may be under way
    assert not whole.is_ended and 6 * 9 - 3 * 6 <= num_rounds <= 6 * 9 and whole.num_torn == 0
    path.write_bytes(path.read_bytes()[:-5])
    assert replay_command([str(tmp_path)]) == 0
    found = capsys.readouterr()
    assert (
        "its worker was shut down, died, or still runs" in found.err
        and "bytes of a frame were not written whole" in found.err
    )
    assert "recording not ended" in found.out
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert replay_command([str(tmp_path)]) == 2
    assert "expected a recording as it was written" in capsys.readouterr().err


def test_a_recorder_that_fails_leaves_the_engine_running(tmp_path, monkeypatch):
    """Would catch a step that waits for a thread that has ended."""
    engine = Engine()
    engine.worker.start_recording(str(tmp_path), certify=False)
    take, num_steps = recorder.Recorder._take, []

    def fails_later(self, step):
        num_steps.append(step)
        take(self, step if len(num_steps) < 9 else None)

    monkeypatch.setattr(recorder.Recorder, "_take", fails_later)
    for name in "ab":
        engine.start(name, [1, 2], max_tokens=6)
    for _ in range(12):
        engine.step()
    with pytest.raises(RuntimeError, match="not all was recorded: 'NoneType'"):
        engine.worker.stop_recording()
    engine.step()
    assert "could not go on: AttributeError" in " ".join(write_cells(tmp_path))


def test_a_full_disk_leaves_what_was_written_before(tmp_path, monkeypatch):
    """Half of a frame reaches the file; it would be taken for damage if the next one stood behind it."""
    monkeypatch.setattr(recorder, "ROUNDS_PER_FRAME", 30)
    write, written = frames.write_whole, []

    def full(descriptor, data):
        written.append(data)
        write(descriptor, data[: len(data) // 2] if len(written) == 3 else data)
        if len(written) == 3:
            raise OSError("No space left on device")

    monkeypatch.setattr(frames, "write_whole", full)
    engine = Engine()
    with pytest.raises(RuntimeError, match="No space left on device"):
        recorded(tmp_path, engine, num_steps=24)
    (path,) = recordings_at(tmp_path)
    found = read_recording(path)
    assert found.failure == "OSError: No space left on device" and len(written) == 4
    assert sum(len(item.rounds) for item in found.requests) == 30 and found.num_torn == 0


def test_refusals_are_one_line(tmp_path, monkeypatch):
    """Would catch a worker that is switched before its recording is refused."""
    engine = Engine()
    worker, own = engine.worker, stand_in.SAMPLER_MODULE.rejection_sample
    with pytest.raises(ValueError, match="start_recording: expected strict, probabilistic, block, found 'synthetic'"):
        worker.start_recording(str(tmp_path), "synthetic")
    with pytest.raises(RuntimeError, match="expected a recording, found none"):
        worker.stop_recording()
    engine.runner.parallel_config.tensor_parallel_size = 2
    with pytest.raises(RefusedRecording, match="expected a worker that has its requests alone, found 2"):
        worker.start_recording(str(tmp_path))
    engine.runner.parallel_config.tensor_parallel_size = 1
    engine.runner.speculative_config.method = "dflash"
    with pytest.raises(RefusedRecording, match=r"expected drafts by eagle, .*found 'dflash'"):
        worker.start_recording(str(tmp_path))
    engine.runner.speculative_config.method = "eagle"
    (tmp_path / "file").touch()
    with pytest.raises(RefusedRecording, match="expected a folder to write to"):
        worker.start_recording(str(tmp_path / "file"))
    known = signatures.VERSIONS["0.25.1"]
    monkeypatch.setitem(signatures.VERSIONS, "0.25.1", replace(known, recorded={}))
    other = Engine().worker
    with pytest.raises(RefusedVersion, match=r"start_recording: expected vLLM .*found 0.25.1"):
        other.start_recording(str(tmp_path))
    assert stand_in.SAMPLER_MODULE.rejection_sample is own, "vLLM's own verification stays"


@pytest.mark.skipif(not SITE, reason="REJECTION_LAB_VLLM_SITE names no folder with vLLM 0.25.1")
def test_what_is_read_of_a_worker_has_these_names_in_vllm():
    """Would catch a stand-in that has what vLLM does not."""
    worker = "v1/worker/gpu"
    names = {
        f"{worker}/model_runner.py": ["self.parallel_config =", "self.speculative_config =", "self.model_config =",
                                      "self.req_states", "self.sample(", "self.add_requests(scheduler_output)"],
        f"{worker}/states.py": ["self.req_id_to_index"],
        f"{worker}/sample/states.py": ["self.vocab_size =", "self.seeds = UvaBackedTensor"],
        f"{worker}/sample/output.py": ["sampled_token_ids:", "num_sampled:"],
        f"{worker}/input_batch.py": ["req_ids:", "logits_indices:", "positions:", "cu_num_logits:"],
        "v1/core/sched/output.py": ["req_id:", "prompt_token_ids:", "sampling_params:", "mm_features:", "lora_request:",
                                    "prompt_embeds:", "scheduled_new_reqs:", "finished_req_ids:"],
        "sampling_params.py": ["temperature:", "top_k:", "top_p:", "min_p:", "max_tokens:", "ignore_eos:",
                               "stop_token_ids:", "def eos_token_id", "structured_outputs:"],
        "config/speculative.py": ["method:", "model:", "num_speculative_tokens:"],
        "config/parallel.py": ["tensor_parallel_size:", "pipeline_parallel_size:"],
    }  # fmt: skip
    texts = {path: (Path(SITE, "vllm", path)).read_text() for path in names}
    assert not [(path, name) for path, each in names.items() for name in each if name not in texts[path]]


def test_the_method_stays_while_it_is_recorded_and_afterwards(tmp_path):
    """Would catch a recording of two methods, and wrappers that stay after it."""
    engine = Engine()
    engine.worker.start_recording(str(tmp_path), "strict", certify=False)
    with pytest.raises(RuntimeError, match="call stop_recording first"):
        engine.worker.set_verification("vllm")
    engine.worker.stop_recording()
    verification = stand_in.SAMPLER_MODULE.rejection_sample
    assert verification.verification.method is Method.strict and verification.on_round is None
    assert not {"sample", "add_requests"} & set(vars(engine.runner))
    with pytest.raises(ValueError, match="no request came while they recorded"):
        write_cells(tmp_path)
