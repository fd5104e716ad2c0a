"""Faults of a server and of single answers: recorded, and without effect on the rest; a wrong server is refused."""

from dataclasses import replace

import pytest

from harness.analysis.results import read_results
from harness.backends.server import notes
from harness.backends.server.draft_evidence import NUM_MISSING
from harness.backends.server.server import ServerBackend
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.server import Engine, server_of
from harness.records.counts import Knowledge
from harness.report.warnings import warnings
from kernels.methods import VerificationMethod
from kernels.verification import Verification
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, MAX_TOKENS, assert_rounds_of, cell_on, run_on, scripts_of
from tests.support.server_scripts import SEEDS, script_of


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("dies", "ConnectionLost"),
        ("stalls", "Stalled"),
        ("malformed", "MalformedAnswer"),
        ("backwards", "MalformedAnswer"),
        ("unlimited", "MalformedAnswer"),
        ("refused", "RequestRefused"),
        ("always_busy", "Overloaded"),
        ("busy", None),
        ("resets", "CountersReset"),
    ],
)
def test_a_fault_is_recorded_and_the_rest_counts(tmp_path, fault, error):
    """Would catch a fault that is hidden, and one that moves the counts of other requests."""
    with ScriptedServer(depth=DEPTH) as server:
        cell = cell_on(server, num_requests=8, stall_timeout_s=0.3)
        scripts = scripts_of(cell, server)
        broken = list(scripts)[2]
        server.faults[broken % SEEDS] = fault
        server.count(script_of(1, DEPTH, 4000))
        (record,), frame = run_on(tmp_path, cell)
    is_lost = error not in (None, "CountersReset")
    assert {item.seed for item in record.requests} == scripts.keys() - ({broken} if is_lost else set())
    assert [item.error for item in record.failures] == ([] if error is None else [error])
    for request in record.requests:
        assert [item.num_output_tokens for item in request.rounds] == list(scripts[request.seed].sizes)
    assert sum(block.reported["client:num_retried"] for block in record.blocks) == {"busy": 1, "always_busy": 3}.get(
        fault, 0
    )
    labels = frame.iloc[0]["labels"]
    assert labels == ("" if error is None else "1 requests failed" if is_lost else error)
    found = warnings(read_results(tmp_path))
    assert error is None or any(text.startswith(f"failed: {error}: ") for text in found)


LOST = {
    "dies": "ConnectionLost",
    "stalls": "Stalled",
    "malformed": "MalformedAnswer",
    "backwards": "MalformedAnswer",
    "refused": "RequestRefused",
    "always_busy": "Overloaded",
}


@pytest.mark.parametrize("format_", ["vllm_0.33", "sglang", "vllm_0.25"])
def test_all_faults_among_256_streams_cost_their_own_requests_alone(tmp_path, format_):
    """Would catch a fault under load that loses, doubles or moves the drafts of another stream, however counted."""
    by_block = format_ == "vllm_0.25"
    # what a server counts of an answer whose reader leaves depends on the moment
    lost = {fault: error for fault, error in LOST.items() if not (by_block and fault in ("malformed", "backwards"))}
    with ScriptedServer(format_, DEPTH, waits_for=256) as server:
        cell = cell_on(server, num_requests=256, num_blocks=1, stall_timeout_s=2.5)
        scripts = scripts_of(cell, server)
        broken = dict(zip([*lost, "busy"], list(scripts)[10::20], strict=False))
        server.faults |= {seed % SEEDS: fault for fault, seed in broken.items()}
        (record,), frame = run_on(tmp_path, cell)
    del broken["busy"]
    kept = {seed: script for seed, script in scripts.items() if seed not in broken.values()}
    assert sorted(item.error for item in record.failures) == sorted(lost.values())
    assert {item.seed for item in record.requests} == kept.keys() and len(kept) == 256 - len(lost)
    for request in record.requests:
        script = kept[request.seed]
        if format_ == "vllm_0.33":
            assert_rounds_of(script, request)
        elif format_ == "sglang":
            steps = len(script.accepted)
            counts = request.counts.num_drafts, request.counts.num_draft_tokens, request.counts.num_accepted_tokens
            assert counts == (steps, DEPTH * steps, sum(script.accepted))
    if format_ != "vllm_0.33":
        accepted = [number for script in kept.values() for number in script.accepted]
        row = frame.iloc[0]
        assert row["num_drafts"] == len(accepted) and row["num_accepted_tokens"] == sum(accepted)
        assert row["acceptance_rate_per_pos_2"] == pytest.approx(sum(n > 1 for n in accepted) / len(accepted))


def test_counters_that_were_reset_leave_no_counts(tmp_path):
    """Would catch the difference of counters of two servers."""
    with ScriptedServer("vllm_0.25", DEPTH) as server:
        cell = cell_on(server, num_requests=8)
        server.count(script_of(1, DEPTH, 4000))
        server.faults[list(scripts_of(cell, server))[2] % SEEDS] = "resets"
        (record,), frame = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.arrivals and frame["num_accepted_tokens"].isna().all()
    assert frame.iloc[0]["labels"] == "CountersReset" and len(record.requests) == 8


@pytest.mark.parametrize(
    ("format_", "settings", "found"),
    [
        ("vllm_0.33", {"drafting": DraftingConfig(DEPTH + 1)}, "found num_spec_tokens = 3"),
        ("vllm_0.33", {"verification": Verification(VerificationMethod.block)}, "no log shows that runner V2"),
        ("sglang", {}, "found False in the server's /server_info"),
        ("sglang", {"drafter": drafter_of("none")}, "found speculative_algorithm = EAGLE3"),
    ],
)
def test_an_arm_that_its_server_is_not_is_refused_with_the_evidence(tmp_path, format_, settings, found):
    """Would catch numbers under a name that the server does not have: another K, drafts in a baseline, another rule."""
    info = {"speculative_num_steps": DEPTH, "speculative_use_rejection_sampling": False}
    info["speculative_algorithm"] = "EAGLE3"
    with ScriptedServer(format_, DEPTH, info=info) as server:
        (record,), frame = run_on(tmp_path, replace(cell_on(server), **settings))
    assert not record.requests and record.failures[0].error == "RefusedArm" and found in record.failures[0].message
    assert "failed" in frame.iloc[0]["labels"]


DRAFTED = {
    "vllm_0.25": "vllm:spec_decode_num_draft_tokens_total = ",
    "vllm_0.33": "num_draft_tokens = ",
    "tensorrt_llm": "trtllm_spec_decode_drafted_tokens_total = ",
    "llama_cpp": "draft_n = ",
}
"""What each engine shows of its drafts; of SGLang its settings, above."""


@pytest.mark.parametrize("is_plain", [False, True], ids=["own adapter", "plain adapter"])
@pytest.mark.parametrize("format_", DRAFTED)
def test_a_baseline_whose_server_drafts_is_refused(tmp_path, format_, is_plain):
    """Would catch a baseline that drafts, over which every speedup is too low; the plain adapter reads no drafts."""
    with ScriptedServer(format_, DEPTH) as server:
        cell = replace(cell_on(server), drafter=drafter_of("none"))
        engine = Engine.plain if is_plain else cell.server.engine
        (record,), frame = run_on(
            tmp_path, replace(cell, server=server_of(engine, url=cell.server.url, stall_timeout_s=60.0))
        )
    assert not record.requests and [item.error for item in record.failures] == ["RefusedArm"]
    assert "a baseline without drafts" in record.failures[0].message and DRAFTED[format_] in record.failures[0].message
    assert frame["speedup"].isna().all()


@pytest.mark.parametrize("kind", [DrafterKind.draft_model, DrafterKind.ngram])
@pytest.mark.parametrize("format_", [*DRAFTED, "sglang"])
def test_an_arm_whose_server_drafts_nothing_is_refused(tmp_path, format_, kind):
    """Would catch a drafter that is loaded and never used, as llama.cpp's without --spec-type: a speedup of noise."""
    with ScriptedServer(format_, 0) as server:
        cell = cell_on(server)
        # of one-hot drafts SGLang has no other
        strict = format_ == "sglang" and kind is DrafterKind.ngram
        verification = Verification(VerificationMethod.strict) if strict else cell.verification
        drafter = drafter_of(kind, **({"ngram_min": 2, "ngram_max": 2} if kind is DrafterKind.ngram else {}))
        (record,), _ = run_on(tmp_path, replace(cell, drafter=drafter, verification=verification))
    assert not record.requests and [item.error for item in record.failures] == ["RefusedArm"]
    message = record.failures[0].message
    assert f"expected drafter={kind.value}, found a server that reports no drafted token in" in message
    assert ("draft_n = 0" in message) == (format_ == "llama_cpp")
    assert not list((tmp_path / "checkpoints").glob("*"))


class Silent(dict):
    """Every answer is without drafts."""

    def get(self, *_):
        return "silent"


@pytest.mark.parametrize("kind", [DrafterKind.draft_model, DrafterKind.ngram])
def test_drafts_of_other_clients_do_not_vouch_for_an_arm(tmp_path, kind):
    """Would catch a drafter that is never used, on a server whose counters grow by what others ask of it."""
    with ScriptedServer(depth=DEPTH, faults=Silent(), num_others=5) as server:
        cell = replace(
            cell_on(server),
            drafter=drafter_of(kind, **({"ngram_min": 2, "ngram_max": 2} if kind is DrafterKind.ngram else {})),
        )
        (record,), _ = run_on(tmp_path, cell)
    assert not record.requests and [item.error for item in record.failures] == ["RefusedArm"]
    message = record.failures[0].message
    assert (
        "no drafted token" in message and "; its counters are of all its clients: vllm:spec_decode_num_draft" in message
    )


@pytest.mark.parametrize(
    ("format_", "num_held"),
    [("llama_cpp", 0), ("llama_cpp", 3), ("vllm_0.33", 0), ("vllm_0.25", 0)],
    ids=["steps", "a block", "steps of vllm", "a block of vllm"],
)
def test_drafts_shorter_than_k_are_refused_or_told(tmp_path, format_, num_held):
    """Would catch "K = 3" of a llama.cpp with a least probability, which drafts in few steps; vLLM may cut drafts by
    its own budget."""
    with ScriptedServer(format_, DEPTH, cuts_drafts=True, num_held=num_held) as server:
        # every answer ends with fewer drafts, for want of room
        cell = cell_on(server, num_requests=8, num_blocks=1)
        cell = replace(cell, decoding=replace(cell.decoding, max_new_tokens=60, ignore_eos=True))
        (record,), _ = run_on(tmp_path, cell)
    if format_ == "llama_cpp":
        assert [item.error for item in record.failures] == ["RefusedArm"] and not record.requests
        message = record.failures[0].message
        assert "expected K = 3 draft tokens in every step" in message and "--spec-draft-p-min 0" in message
    else:
        assert not record.failures and notes.SHORT_DRAFTS in record.fallbacks
        assert record.blocks[0].reported[NUM_MISSING] > 0


@pytest.mark.parametrize("format_", ["llama_cpp", "vllm_0.33", "vllm_0.25"])
def test_drafts_that_the_end_cuts_are_no_shorter_than_k(tmp_path, format_):
    """Would catch an arm that is refused, or doubted, for the last drafts of its answers."""
    with ScriptedServer(format_, DEPTH, cuts_at=MAX_TOKENS) as server:
        (record,), _ = run_on(tmp_path, cell_on(server, num_requests=12, num_blocks=1))
    assert not record.failures and notes.SHORT_DRAFTS not in record.fallbacks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpt"}, "server.model: expected one that .* lists .zoo., found gpt"),
        ({"url": "http://127.0.0.1:9"}, "server.url"),
    ],
)
def test_a_wrong_model_or_address_is_found_before_anything_runs(tmp_path, change, message):
    with ScriptedServer() as server:
        cell = cell_on(server)
        backend = ServerBackend(replace(cell, server=replace(cell.server, **change)), ServerBackend.Shared())
        with pytest.raises(ValueError, match=message):
            ServerBackend.prepare_together([backend], [])


def test_a_tokenizer_that_differs_is_a_failure_of_the_cell(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.scripted_server.WORDS", {301: " one", 302: " two"})
    with ScriptedServer(depth=DEPTH) as server:
        (record,), frame = run_on(tmp_path, cell_on(server))
    assert frame.iloc[0]["labels"] == "TokenizerDiffers" and len(record.requests) == 6
