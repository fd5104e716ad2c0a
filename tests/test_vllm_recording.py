"""Recording inside vLLM, in a stand-in for it, and what `replay` reads of it."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tests.stand_in_vllm_worker as stand_in
from experiments.replay import main as replay_command
from harness.backends.recordings.cells import write_cells
from harness.backends.recordings.read import read_recording, recordings_at
from harness.metrics.recorded_terms import read_recording as read_cells
from harness.plugins.recording import frames
from harness.plugins.vllm import recorder, signatures
from harness.plugins.vllm.recording import Recording, RefusedRecording
from harness.plugins.vllm.signatures import RefusedVersion
from harness.records.acceptance_terms import COLUMNS
from harness.replay.estimators import Estimator, reaching, replayed_rules
from kernels.contract import Draft, Sampling, Streams, VerificationMethod
from kernels.reference.acceptance import acceptance_terms
from kernels.reference.verify import verify
from tests.stand_in_vllm_engine import Engine, K, V

Method = VerificationMethod
SITE = os.environ.get("REJECTION_LAB_VLLM_SITE", "")
REQUIRED = [name for name, column in COLUMNS.items() if column.is_required]
COPIES = 400
CUT, HOT = {"temperature": 0.7, "top_k": 6}, {"temperature": 1.0}


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    stand_in.install(monkeypatch)
    # frames end by number of rounds alone
    monkeypatch.setattr(recorder, "FLUSH_S", 1e6)


def recorded(folder, engine, method="block", num_steps=14, num_requests=6, **params):
    """Run requests of two kinds while it is recorded."""
    engine.worker.start_recording(str(folder), method, certify=False)
    for index in range(num_requests):
        sampling = params or (CUT if index % 2 else HOT)
        engine.start(f"r{index}", [index % 3, 1 + index % 2, index % 4], max_tokens=24, eos_token_id=9, **sampling)
    for _ in range(num_steps):
        engine.step()
    return engine.worker.stop_recording()


def exact_terms(engine, req_id, position, drafts, processed=True):
    """The terms of a draft from the tables, by the core's own contract.

    `processed`: rows as the engine hands them over, float32 over the temperature and cut; else raw rows with their
    sampling, as our own engine has them.
    """
    params = engine.params[req_id]
    fed = torch.tensor([engine.tokens[req_id][position - 1], *drafts])
    target, cache = engine.target[fed], engine.draft[fed[:-1]][None]
    top_k = params.top_k if params.top_k > 0 else V
    off = torch.zeros(1)
    temperature = torch.tensor([params.temperature])
    one = Sampling(torch.ones(1), off.long(), off + 1, off, truncates=False)
    if processed:
        sampling = drawn = replace(one, temperature=(temperature > 0).float())
        divisor = params.temperature or 1.0
        target, cache = target / divisor, cache / divisor
        ranks = target.argsort(dim=1, descending=True).argsort(dim=1)
        target = target.masked_fill(ranks >= top_k, -torch.inf)
    else:
        sampling = Sampling(temperature, torch.tensor([top_k]), off + 1, off)
        drawn = replace(one, temperature=temperature)
    draft = Draft(torch.tensor([drafts]), torch.tensor([len(drafts)]), cache if engine.is_sampled else None,
                  sampling=drawn if engine.is_sampled else None)  # fmt: skip
    terms = acceptance_terms(target, draft, sampling)._asdict()
    return {name: terms[name][0].numpy() for name in REQUIRED}


def check_terms(folder, engine):
    """Every recorded round is one that the engine ran, in order, with the terms of its own context."""
    (path,) = recordings_at(folder)
    found = {item.about.id: list(item.rounds) for item in read_recording(path).requests}
    num_drafts = 0
    for req_id, position, drafts, count in engine.rounds:
        item = found[req_id].pop(0)
        emitted = engine.tokens[req_id][position : position + count]
        assert (item.position, item.draft_token_ids, item.output_token_ids) == (position, tuple(drafts), tuple(emitted))
        if not drafts:
            assert not item.terms
            continue
        num_drafts += 1
        exact, own = (exact_terms(engine, req_id, position, drafts, processed) for processed in (True, False))
        assert sorted(item.terms) == sorted(REQUIRED)
        for name in REQUIRED:
            np.testing.assert_array_equal(item.terms[name], exact[name], err_msg=name)
            np.testing.assert_allclose(item.terms[name], own[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert not any(found.values()) and num_drafts > 20


@pytest.mark.parametrize(
    ("is_sampled", "method", "params"),
    [(True, "block", {}), (True, "strict", CUT), (False, "probabilistic", {}), (True, "block", {"temperature": 0.0})],
)
def test_recorded_terms_are_those_of_the_core_for_the_same_rows(tmp_path, is_sampled, method, params):
    """Exactly those of the rows that are handed over, and to float32 those of raw rows with their temperature."""
    engine = Engine(is_sampled)
    told = recorded(tmp_path, engine, method, **params)
    check_terms(tmp_path, engine)
    assert told["num_rounds"] == len(engine.rounds) and told["num_requests"] == 6


def other_request(self, *arguments):
    """The rounds of a step under the next request's number."""
    found = Recording._step(self, *arguments)
    return found._replace(requests=found.requests[1:] + found.requests[:1])


def unprocessed_rows(self, target_logits, draft, sampling):
    """The target's rows as they are, though they are processed."""
    hot = replace(sampling, temperature=0.8 * sampling.temperature)
    Recording.keep(self, target_logits, draft, hot)


def kept_cache(self, target_logits, draft, sampling):
    """The draft rows without a copy: the next drafts overwrite them."""
    self._rows = recorder.VerifiedRows(target_logits, draft, sampling)


@pytest.mark.parametrize(
    ("name", "broken"), [("_step", other_request), ("keep", unprocessed_rows), ("keep", kept_cache)]
)
def test_a_broken_recorder_is_found(tmp_path, monkeypatch, name, broken):
    class Broken(Recording):
        pass

    setattr(Broken, name, broken)
    monkeypatch.setattr("harness.plugins.vllm.worker.Recording", Broken)
    engine = Engine()
    if broken is kept_cache:
        # the thread comes late
        take = recorder.Recorder._take
        steps = []
        monkeypatch.setattr(recorder.Recorder, "_take", lambda self, step: steps.append((self, step)))
        monkeypatch.setattr(recorder.Recorder, "_flush", lambda self, flush=recorder.Recorder._flush: (
            [take(*each) for each in steps], steps.clear(), flush(self)))  # fmt: skip
    recorded(tmp_path, engine)
    with pytest.raises(AssertionError):
        check_terms(tmp_path, engine)


def test_replay_gives_what_every_method_accepts_of_these_drafts(tmp_path, capsys):
    """Measured directly: the core verifies each recorded draft COPIES times. Five standard errors."""
    engine = Engine()
    recorded(tmp_path, engine, "probabilistic", num_steps=20, **HOT)
    assert replay_command([str(tmp_path)]) == 0
    assert "block" in capsys.readouterr().out
    (item,) = read_cells(tmp_path)[1]
    records = {each.key: each for each in item.cell.record.requests}
    drafts = []
    for request, index in zip(item.terms.request, item.terms.round_index, strict=True):
        record = records[item.terms.keys[request]]
        output, end = record.output_token_ids, 3 + sum(each.num_output_tokens for each in record.rounds[:index])
        (req_id,) = (name for name, each in engine.tokens.items() if tuple(each[3 : 3 + len(output)]) == output)
        drafts += [[engine.tokens[req_id][end - 1], *each[2]] for each in engine.rounds if each[:2] == (req_id, end)]
    assert len(drafts) == len(item.terms.request)
    fed = torch.tensor(drafts).repeat(COPIES, 1)
    numbers = torch.arange(len(fed))
    streams = Streams(numbers, numbers, numbers)
    draft = Draft(fed[:, 1:], torch.full((len(fed),), K), engine.draft[fed[:, :-1]])
    sampling = Sampling.same_for_all(len(fed), 1.0, 0, 1.0, 0.0)
    # the drafts of coupled share noise with the target's draw
    for rule in (rule for rule in replayed_rules() if rule.method is not Method.coupled):
        accepted = verify(engine.target[fed.flatten()], draft, sampling, rule, streams).num_accepted
        means = accepted.view(COPIES, -1).double().mean(dim=1)
        expected = reaching(item.terms, rule, Estimator.given).sum(axis=1).mean()
        assert abs(float(means.mean()) - expected) < 5 * float(means.std()) / COPIES**0.5 + 1e-9, rule


def test_prompts_are_identified_by_their_tokens_and_copies_counted(tmp_path):
    """Would catch copies of a prompt that count as prompts of their own, which makes intervals too narrow."""
    engine = Engine()
    recorded(tmp_path, engine, num_steps=24, **HOT)
    assert write_cells(tmp_path) == []
    (item,) = read_cells(tmp_path)[1]
    records = item.cell.record.requests
    assert len({each.prompt_id for each in records}) == 6 and {each.sample for each in records} == {0}
    assert item.cell["target"] == "served-target" and item.cell["verification"] == "block"
    again = Engine(seed=1)
    recorded(tmp_path, again, num_steps=24, **HOT)
    write_cells(tmp_path)
    (item,) = read_cells(tmp_path)[1]
    assert {each.sample for each in item.cell.record.requests} == {0, 1} and len(item.cell.record.requests) == 12


def test_steps_without_drafts_and_prompts_that_are_read_in_parts(tmp_path):
    """Such steps never reach rejection_sample. Would catch a recording without their tokens."""
    engine = Engine()
    engine.worker.start_recording(str(tmp_path), certify=False)
    for name in "ab":
        engine.start(name, [1, 2], max_tokens=20, eos_token_id=9)
    engine.step(prefilling=["b"])
    engine.step(prefilling=["b"])
    for _ in range(14):
        engine.step()
    engine.drafted["a"] = []
    engine.step()
    engine.worker.stop_recording()
    check_terms(tmp_path, engine)
    assert write_cells(tmp_path) == []


def test_what_cannot_be_replayed_is_left_out_and_counted(tmp_path, capsys):
    """Would catch half of a request that becomes a record, and requests that are dropped without a note."""
    engine = Engine()
    engine.start("before", [1], max_tokens=5)
    engine.step()
    engine.worker.start_recording(str(tmp_path), certify=False)
    engine.start("whole", [1, 2], max_tokens=8)
    engine.start("grammar", [1, 3], max_tokens=8, structured_outputs=object())
    engine.start("long", [1, 4], max_tokens=500)
    engine.start("preempted", [1, 5], max_tokens=30)
    engine.start("withdrawn", [1, 6], max_tokens=30)
    for _ in range(3):
        engine.step()
    engine.drafted["withdrawn"][1] = -1
    others = [name for name in engine.tokens if name != "preempted"]
    engine.step(others)
    engine.tokens["preempted"].append(1)
    for _ in range(10):
        engine.step()
    engine.worker.stop_recording()
    assert replay_command([str(tmp_path)]) == 0
    notes = capsys.readouterr().err
    for reason in ("rounds of requests that ran before the recording", "1 requests are left out: they had a grammar",
                   "1 requests are left out: they did not end", "1 requests are left out: they lack rounds",
                   "1 requests are left out: they had draft tokens withdrawn"):  # fmt: skip
        assert reason in notes
    assert len(read_cells(tmp_path)[0][0].record.requests) == 1


def test_a_prompt_of_embeddings_is_left_out_alone(tmp_path):
    """Would catch a recording that one such request ends."""
    engine = Engine()
    engine.worker.start_recording(str(tmp_path), certify=False)
    item = stand_in.new_request("embedded", [], max_tokens=8)
    item.prompt_token_ids, item.prompt_embeds = None, object()
    engine.runner.add_requests(SimpleNamespace(scheduled_new_reqs=[item], finished_req_ids=set()))
    engine.tokens["embedded"], engine.params["embedded"], engine.drafted["embedded"] = [1], item.sampling_params, []
    engine.start("whole", [1, 2], max_tokens=8)
    for _ in range(10):
        engine.step()
    engine.worker.stop_recording()
    (note,) = write_cells(tmp_path)
    assert note.startswith("1 requests are left out: they had a prompt that is not tokens alone")


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
