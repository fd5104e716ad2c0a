"""Recording inside vLLM, in a stand-in for it, and what `replay` reads of it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tests.support.stand_in_vllm_worker as stand_in
from experiments.replay import main as replay_command
from harness.analysis.replay.estimators import Estimator, reaching, replayed_rules
from harness.analysis.results import read_results
from harness.backends.recordings.cells import write_cells
from harness.backends.recordings.read import read_recording, recordings_at
from harness.plugins.vllm import recorder
from harness.plugins.vllm.recording import Recording
from harness.records.acceptance_terms import COLUMNS
from kernels.contract import Draft, Sampling, Streams, VerificationMethod
from kernels.reference.acceptance import acceptance_terms
from kernels.reference.verify import verify
from tests.support.recorded_engines import CUT, HOT, recorded
from tests.support.stand_in_vllm_engine import Engine, K, V

Method = VerificationMethod
REQUIRED = [name for name, column in COLUMNS.items() if column.is_required]
COPIES = 400


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    stand_in.install(monkeypatch)
    # frames end by number of rounds alone
    monkeypatch.setattr(recorder, "FLUSH_S", 1e6)


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
    (item,) = read_results(tmp_path).recording.cells
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
    (item,) = read_results(tmp_path).recording.cells
    records = item.cell.record.requests
    assert len({each.prompt_id for each in records}) == 6 and {each.sample for each in records} == {0}
    assert item.cell["target"] == "served-target" and item.cell["verification"] == "block"
    again = Engine(seed=1)
    recorded(tmp_path, again, num_steps=24, **HOT)
    write_cells(tmp_path)
    (item,) = read_results(tmp_path).recording.cells
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
    assert len(read_results(tmp_path).cells[0].record.requests) == 1


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
