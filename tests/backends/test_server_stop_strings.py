"""Stop strings on a server: what it is asked, and answers that end where the local engine ends them."""

from dataclasses import replace

import pytest

from harness.analysis import load_results
from harness.records.request import CutReason, FinishReason
from tests.support.scripted_server import ScriptedServer, stopped
from tests.support.server_cells import DEPTH, cell_on, run_on, scripts_of

STOP = " and of and"
"""The scripted answers are ` of and of and of ...`: its end is the fourth token, within a step of most of them."""
PLACE = 4


def run_with_stop(tmp_path, server, **workload):
    cell = cell_on(server)
    cell = replace(cell, decoding=replace(cell.decoding, stop=["never", STOP]))
    cell = replace(cell, workload=replace(cell.workload, **workload))
    (record,), _ = run_on(tmp_path, cell)
    assert not record.failures
    return cell, record


@pytest.mark.parametrize("format_", ["vllm_0.25", "vllm_0.33", "sglang", "tensorrt_llm", "llama_cpp", "plain"])
def test_an_answer_ends_at_its_stop_string(tmp_path, format_):
    """Would catch a string that is not asked for, tokens of the last step behind it, and an end that counts as that
    of the sequence."""
    with ScriptedServer(format_, DEPTH) as server:
        cell, record = run_with_stop(tmp_path, server)
        assert all(body["stop"] == ["never", STOP] for body in server.bodies)
    scripts = scripts_of(cell, server)
    ended = [item for item in record.requests if stopped(scripts[item.seed], [STOP]).stop is not None]
    assert len(ended) >= 3
    for item in record.requests:
        assert (item.finish_reason is FinishReason.stop) == (item in ended and format_ != "plain")
    for item in ended if format_ != "plain" else ():
        assert item.stop.string == STOP
        if not item.output_token_ids:
            continue
        assert len(item.output_token_ids) == item.num_output_tokens == PLACE
        assert item.stop.num_cut_characters == len(STOP)
    assert any("which answers ended at a stop string" in note for note in record.fallbacks) == (format_ == "plain")


def test_rounds_of_a_server_are_cut_as_our_own(tmp_path):
    """Would catch accepted tokens behind the stop string that count."""
    with ScriptedServer("vllm_0.33", DEPTH) as server:
        cell, record = run_with_stop(tmp_path, server)
    scripts = scripts_of(cell, server)
    (row,) = load_results(tmp_path).to_dict("records")
    cut = [item.rounds[-1] for item in record.requests if item.rounds[-1].cut_reason is CutReason.stop]
    assert cut and all(item.num_draft_tokens == item.num_accepted_tokens == item.num_output_tokens - 1 for item in cut)
    wasted = 0
    for item in record.requests:
        script = stopped(scripts[item.seed], [STOP])
        if script.stop is not None:
            num_cut = 1 + script.accepted[-1] + sum(script.sizes[:-1]) - PLACE
            assert item.rounds[-1].num_cut_tokens == num_cut
            wasted += num_cut
    assert (row["num_cut_stop"], row["num_tokens_behind_stop"]) == (len(cut), wasted)


@pytest.mark.parametrize("format_", ["vllm_0.33", "plain"])
def test_the_next_turn_reads_the_text_before_the_stop_string(tmp_path, format_):
    with ScriptedServer(format_, DEPTH) as server:
        _, record = run_with_stop(tmp_path, server, num_turns=2)
        bodies = server.bodies
    asked = [body for body in bodies if len(body.get("messages", ())) > 1]
    if format_ == "plain":
        answers = [body["messages"][1]["content"] for body in asked]
        assert answers and not any(STOP in text for text in answers)
    else:
        first = {item.key: item for item in record.requests if item.turn == 0 and item.stop}
        assert first and any(item.turn == 1 for item in record.requests)
