"""The plug-in for vLLM, in a stand-in for its worker; results/plugin_vllm_h200 has what vLLM itself did."""

import ast
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tests.support.stand_in_vllm_worker as stand_in
from harness.plugins.vllm import WorkerExtension, register, signatures
from harness.plugins.vllm.attest import LEVEL, NUM_REQUESTS, NUM_TOKENS, VOCAB_SIZE, Way, attest
from harness.plugins.vllm.handover import fresh_seeds, take_over
from harness.plugins.vllm.signatures import RefusedVersion, checked_version
from harness.plugins.vllm.verification import CoreVerification
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from kernels.reference.verify import verify

Method = VerificationMethod
CPU = torch.device("cpu")
V, K, S = 11, 3, 6
SLOTS, COUNTS = torch.tensor([4, 1, 5]), torch.tensor([3, 0, 2])
POSITIONS = torch.tensor([17, 3, 40])
"""Of the last token of each request."""
SITE = os.environ.get("REJECTION_LAB_VLLM_SITE", "")
"""A folder with vLLM 0.25.1, unpacked."""


def engine(temperatures, top_ks=(V,) * S, seed=0):
    """(worker, batch, target rows, draft cache, draft tokens) of a round."""
    generator = torch.Generator().manual_seed(seed)
    temperature, top_k = torch.tensor(temperatures), torch.tensor(top_ks)
    sampler = stand_in.Sampler(temperature, top_k, torch.arange(S) * 7919 + seed, V)
    rejection = stand_in.RejectionSampler(sampler, K)
    cache = torch.randn(S, K, V, generator=generator)
    worker = WorkerExtension()
    worker.device = CPU
    worker.model_runner = SimpleNamespace(rejection_sampler=rejection, speculator=stand_in.BaseSpeculator(cache))
    starts = torch.cat([torch.zeros(1, dtype=torch.long), (COUNTS + 1).cumsum(0)])
    rows = torch.arange(3).repeat_interleave(COUNTS + 1)
    local = torch.arange(len(rows)) - starts[rows]
    batch = SimpleNamespace(
        input_ids=torch.randint(V, (len(rows),), generator=generator).int(),
        positions=POSITIONS[rows] + local,
        logits_indices=torch.arange(len(rows)),
        cu_num_logits=starts.int(),
        idx_mapping=SLOTS.int(),
        idx_mapping_np=SLOTS.numpy(),
        expanded_idx_mapping=SLOTS[rows].int(),
        expanded_local_pos=local.int(),
        seq_lens=POSITIONS + 1 + COUNTS,
    )
    logits = torch.randn(len(rows), V, generator=generator).bfloat16()
    return worker, batch, logits, cache, starts


def expected_of(method, batch, logits, cache, starts, temperature):
    """What the core says to the same round, put together by hand."""
    token_ids = torch.zeros(3, K, dtype=torch.long)
    for request, count in enumerate(COUNTS.tolist()):
        first = int(starts[request]) + 1
        token_ids[request, :count] = batch.input_ids[first : first + count].long()
    off = torch.zeros(3)
    draft = Draft(token_ids, COUNTS, cache, SLOTS)
    sampling = Sampling((temperature[SLOTS] > 0).float(), off.long(), off + 1, off, truncates=False)
    streams = Streams(SLOTS * 7919, POSITIONS + 1, POSITIONS + 1)
    return verify(logits, draft, sampling, Verification(method), streams)


def sampled(worker, batch, logits, cache):
    return worker.model_runner.rejection_sampler(logits, batch, cache)


@pytest.mark.parametrize("method", [Method.strict, Method.probabilistic, Method.block])
def test_a_running_worker_gives_the_tokens_of_the_core(monkeypatch, method):
    """Would catch draft tokens, rows, seeds or positions that are taken from another place; greedy request 4 beside."""
    stand_in.install(monkeypatch)
    worker, *round_ = engine([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    worker.set_verification(method.value, certify=False)
    tokens, counts = sampled(worker, *round_[:3])
    temperature = worker.model_runner.rejection_sampler.sampler.sampling_states.temperature.gpu
    expected = expected_of(method, *round_, temperature)
    assert torch.equal(tokens, expected.token_ids) and counts.tolist() == (expected.num_accepted + 1).tolist()
    assert counts.dtype == torch.int32 and not bool(expected.invalid.any())
    assert worker.model_runner.rejection_sampler.sampler.num_prepared == 0, "rows that nothing changes are not copied"


def test_rows_that_something_changes_are_vllms_own(monkeypatch):
    """A temperature and a top-k, which the draft cache of this version holds in part: over the temperature, not cut."""
    stand_in.install(monkeypatch)
    worker, batch, logits, cache, starts = engine([0.6] * S, top_ks=(2,) * S)
    prepared = worker.model_runner.rejection_sampler.sampler
    worker.set_verification("block", certify=False)
    tokens, _ = sampled(worker, batch, logits, cache)
    rows = prepared.apply_sampling_params(
        logits, batch.expanded_idx_mapping, batch.idx_mapping_np, batch.positions, batch.input_ids, None
    )
    expected = expected_of(Method.block, batch, rows, cache, starts, torch.ones(S))
    assert torch.equal(tokens, expected.token_ids) and prepared.num_prepared == 2


def test_placeholders_are_rejected_with_all_that_follows(monkeypatch):
    stand_in.install(monkeypatch)
    for method in ("strict", "probabilistic", "block", "synthetic"):
        worker, batch, logits, cache, starts = engine([1.0] * S)
        worker.set_verification(method, (1.0,) * K if method == "synthetic" else (), certify=False)
        batch.input_ids[int(starts[0]) + 1] = batch.input_ids[int(starts[2]) + 2] = -1
        tokens, counts = sampled(worker, batch, logits, cache)
        assert counts[0] == 1 and counts[2] <= 2 and int(tokens[0, 0]) >= 0 and tokens[0, 1:].tolist() == [-1] * K


def test_drafts_get_seeds_of_their_round_until_vllms_own_method_is_back(monkeypatch):
    stand_in.install(monkeypatch)
    worker, batch, logits, cache, _ = engine([1.0] * S)
    before = sampled(worker, batch, logits, cache)
    seeds = worker.model_runner.rejection_sampler.sampler.sampling_states.seeds.gpu

    def proposed(num_rejected):
        return worker.model_runner.speculator.propose(
            batch, None, None, None, None, None, torch.tensor(num_rejected), None, None, None, seeds
        )[SLOTS]

    worker.set_verification("probabilistic", certify=False)
    first, again, later = proposed([1, 0, 0]), proposed([1, 0, 0]), proposed([0, 0, 0])
    assert torch.equal(first, again) and (first == later).tolist() == [False, True, True]
    assert len({*first.tolist(), *later.tolist(), *seeds.tolist()}) == 4 + S
    worker.set_verification("vllm")
    assert torch.equal(proposed([1, 0, 0]), seeds[SLOTS])
    assert all(map(torch.equal, sampled(worker, batch, logits, cache), before))


def test_whoever_comes_next_finds_vllms_own_method(monkeypatch):
    """As when the entry point set a method at start, and a call changes it later."""
    stand_in.install(monkeypatch)
    worker, batch, logits, cache, _ = engine([1.0] * S)
    before = sampled(worker, batch, logits, cache)
    worker.set_verification("block", certify=False)
    other = WorkerExtension()
    other.device, other.model_runner = CPU, worker.model_runner
    other.set_verification("strict", certify=False)
    other.set_verification("vllm")
    assert all(map(torch.equal, sampled(worker, batch, logits, cache), before))


def test_vllms_own_methods_can_be_chosen_too(monkeypatch):
    stand_in.install(monkeypatch)
    worker = engine([1.0] * S)[0]
    own = worker.model_runner.rejection_sampler
    own.synthetic_conditional_rates = rates = torch.ones(K)
    worker.set_verification("vllm:block")
    assert own.use_block_verification and own.synthetic_conditional_rates is None
    worker.set_verification("vllm")
    assert not own.use_block_verification and own.synthetic_conditional_rates is rates


def test_a_method_is_tested_on_the_device_before_it_runs(monkeypatch):
    """Would catch a certification that passes anything: with the old noise of a position, block fails."""
    stand_in.install(monkeypatch)
    monkeypatch.setattr("harness.plugins.vllm.worker.attest", lambda *arguments: attest(*arguments[:2], 2**15))
    worker = engine([1.0] * S)[0]
    found = worker.set_verification("block")
    assert found["passes"] and found["num_requests"] == 2**15
    monkeypatch.setattr("harness.plugins.vllm.attest.fresh_seeds", lambda old, *_: _[-1].copy_(old))
    worker.rejection_lab_attested = None
    worker.set_verification("vllm")
    with pytest.raises(RuntimeError, match="block does not emit the target's law"):
        worker.set_verification("block")
    assert worker.model_runner.rejection_sampler.sampler is worker._swap().own_sampler


def test_vllms_own_block_is_found_to_be_another_law(monkeypatch):
    """As in 0.25.1, one number decides about a position in every round."""
    stand_in.install(monkeypatch)
    worker = engine([1.0] * S)[0]
    (block,) = worker.attest_verification("vllm:block", 2**15)
    (standard,) = worker.attest_verification("vllm:standard", 2**15)
    assert block["p_value"] < LEVEL < standard["p_value"]


def test_greedy_drafts_are_certified_as_such():
    found = attest(Way(CoreVerification(Method.block, CPU), stand_in.gumbel_sample, False, True), CPU, 2**15)
    assert found.passes and found.degrees_of_freedom == VOCAB_SIZE**NUM_TOKENS - 1


def test_the_power_that_is_promised():
    from harness.checks.certification.goodness_of_fit import detectable_variation

    assert detectable_variation(NUM_REQUESTS, LEVEL, VOCAB_SIZE**NUM_TOKENS - 1, 0.99) < 0.007


def test_the_handover_leaves_placeholders_and_empty_drafts_as_they_are():
    fed = torch.tensor([9, 5, -1, 3, 8, 2, 7], dtype=torch.int32)
    given = take_over(
        fed, torch.tensor([0, 4, 5, 7]).int(), torch.tensor([10, 11, 12, 13, 4, 30, 31]), SLOTS.int(),
        torch.arange(S) / 4, torch.arange(S) + 50, K,
    )  # fmt: skip
    assert given.token_ids.tolist() == [[5, -1, 3], [0, 0, 0], [7, 0, 0]]
    assert given.num_draft_tokens.tolist() == [3, 0, 1] and given.slots.tolist() == SLOTS.tolist()
    assert given.temperature.tolist() == [1.0, 0.25, 1.25] and given.streams.seeds.tolist() == [54, 51, 55]
    assert given.streams.positions.tolist() == given.streams.rounds.tolist() == [11, 5, 31]


@pytest.mark.parametrize("name", ["0.33.0", "0.24.0"])
def test_versions_that_never_ran_are_refused_with_the_remedy(monkeypatch, name):
    stand_in.install(monkeypatch, version=name)
    worker = engine([1.0] * S)[0]
    with pytest.raises(RefusedVersion, match=f"{name}.*(set {signatures.TRY}=0.33.0|signatures.py)"):
        worker.set_verification("strict")


def test_other_parameters_under_the_same_version_are_refused(monkeypatch):
    stand_in.install(monkeypatch)
    checked_version()
    known = signatures.VERSIONS["0.25.1"]
    monkeypatch.setitem(
        signatures.VERSIONS,
        "0.25.1",
        replace(known, parameters={**known.parameters, "rejection_sampler": "self logits"}),
    )
    with pytest.raises(RefusedVersion, match=r"expected RejectionSampler.__call__ to take \(self logits\), found"):
        checked_version()


def test_another_runner_is_refused(monkeypatch):
    """V1 has no such sampler; its methods would be swapped for nothing."""
    stand_in.install(monkeypatch)
    worker = WorkerExtension()
    worker.device, worker.model_runner = CPU, SimpleNamespace(rejection_sampler=object(), speculator=object())
    with pytest.raises(RefusedVersion, match="expected a worker of Model Runner V2"):
        worker.set_verification("strict")


@pytest.mark.parametrize("wrong", ["typical", "block "])
def test_an_unknown_name_is_refused_before_anything_is_swapped(monkeypatch, wrong):
    with pytest.raises(ValueError, match="expected vllm, vllm:standard, vllm:block, strict"):
        WorkerExtension().set_verification(wrong)
    monkeypatch.setenv("REJECTION_LAB_VERIFICATION", wrong)
    with pytest.raises(ValueError, match="expected vllm, vllm:standard"):
        register()


def test_the_entry_point_is_silent_unless_asked(monkeypatch):
    """Without vLLM: it would raise if it looked for it."""
    monkeypatch.delenv("REJECTION_LAB_VERIFICATION", raising=False)
    register()
    monkeypatch.setenv("REJECTION_LAB_VERIFICATION", "block")
    with pytest.raises(RefusedVersion, match="found none"):
        register()


def test_fresh_seeds_leave_the_other_slots():
    fresh = torch.full((S,), -5)
    fresh_seeds(torch.arange(S), SLOTS, POSITIONS, torch.ones(3, dtype=torch.long), fresh)
    assert fresh[[0, 2, 3]].tolist() == [-5] * 3 and len(set(fresh[SLOTS].tolist()) | {-5}) == 4


@pytest.mark.skipif(not SITE, reason="REJECTION_LAB_VLLM_SITE names no folder with vLLM 0.25.1")
def test_the_parameters_are_those_of_vllm():
    """Read from its text, which needs nothing that it imports."""
    known = signatures.VERSIONS["0.25.1"]
    parameters = {**known.parameters, **known.recorded}
    for function, (module, path) in (signatures.FUNCTIONS | signatures.RECORDED).items():
        node = ast.parse((Path(SITE) / f"{module.replace('.', '/')}.py").read_text())
        for part in path.split("."):
            node = next(item for item in ast.walk(node) if getattr(item, "name", None) == part)
        found = " ".join(each.arg for each in (*node.args.args, *node.args.kwonlyargs))
        assert found == parameters[function]
