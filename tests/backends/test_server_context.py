"""The tokens that a server gives each request: set, read back, and held against what the workload needs."""

import re
from dataclasses import replace

import pytest

from harness.backends.server.launch_of_cell import launch_of_cell
from harness.backends.server.reply import Reply
from harness.backends.server.server import ServerBackend
from harness.config.drafter import drafter_of
from harness.config.server import Engine, server_of
from harness.config.usage import unused_settings
from harness.config.view import SettingsView
from harness.config.workload import TooLong
from harness.workload.conversations import conversations, load_prompts
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, MAX_TOKENS, cell_on, run_on

STEP = 256
"""Positions of a slot are a multiple of it, and one of them stays empty."""


def started(num_turns=1, **backend):
    """A baseline whose llama.cpp is started, and its conversations."""
    cell = replace(cell_on(ScriptedServer("llama_cpp", 0, port=1), num_requests=4), drafter=drafter_of("none"))
    cell = replace(
        cell,
        server=server_of(Engine.llama_cpp, command="llama-server -c {context} --parallel {max_concurrency}"),
        workload=replace(cell.workload, num_turns=num_turns, too_long=TooLong.error),
        backend=replace(cell.backend, max_concurrency=3, **backend),
    )
    return cell, conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)


def context(cell, played):
    """What its command line says, of each of its slots."""
    backend = ServerBackend(cell, ServerBackend.Shared())
    ServerBackend.prepare_together([backend], played)
    launch = launch_of_cell(cell, backend.adapter, backend._num_tokens)
    total, slots = (int(launch.arguments[place]) for place in (2, 4))
    assert total % slots == 0 and slots == 3
    return total // slots, backend


def test_a_slot_holds_the_longest_conversation():
    """--parallel 16 alone left 512 positions a slot: answers were cut at 55 tokens without a word."""
    cell, played = started()
    length, backend = context(cell, played)
    longest = max(len(backend.prompts.question(item, []).token_ids) for item in played) + MAX_TOKENS
    assert length % STEP == 0 and longest < length <= longest + STEP
    long_answers = replace(cell, decoding=replace(cell.decoding, max_new_tokens=1000))
    assert length + 1000 - MAX_TOKENS - STEP < context(long_answers, played)[0]
    cell, played = started(num_turns=2)
    length, backend = context(replace(cell, decoding=replace(cell.decoding, max_new_tokens=1000)), played)
    # the second turn reads the first answer
    assert length > 2000


def test_a_slot_is_as_long_as_it_is_asked_to_be():
    """Would catch a setting that is ignored, and prompts that do not fit which are found once the server is up."""
    cell, played = started(max_length=STEP)
    assert "backend.max_length" not in unused_settings(SettingsView.of_cell(cell))
    assert context(cell, played)[0] == 2 * STEP
    with pytest.raises(ValueError, match=r"expected at most 2 tokens beside max_new_tokens"):
        context(started(max_length=MAX_TOKENS + 2)[0], played)


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"max_length": 16}, "ValueError", "expected at most 3 tokens beside max_new_tokens"),
        ({"num_slots": 4}, "RefusedArm", "expected 8 requests in flight .*, found total_slots = 4"),
        ({}, None, ""),
    ],
)
def test_a_server_that_is_smaller_than_its_workload_is_refused(tmp_path, limits, error, message):
    """Would catch answers that are cut, and requests that wait at the server under the name of requests in flight."""
    with ScriptedServer("llama_cpp", DEPTH, **limits) as server:
        cell = cell_on(server, concurrency=8)
        (record,), _ = run_on(tmp_path, replace(cell, workload=replace(cell.workload, too_long=TooLong.error)))
        assert bool(server.bodies) == (error is None)
    if error is None:
        assert not record.failures
    else:
        (failure,) = record.failures
        assert failure.error == error and re.search(message, failure.message)


@pytest.mark.parametrize("format_", ["plain", "llama_cpp", "vllm_0.33"])
def test_answers_that_a_server_cuts_are_told_whatever_it_gives(tmp_path, format_):
    """Would catch a limit that is noticed by token ids alone, which not every server gives."""
    with ScriptedServer(format_, 0, max_tokens=MAX_TOKENS // 2) as server:
        (record,), _ = run_on(tmp_path, replace(cell_on(server), drafter=drafter_of("none")))
    assert any("ended answers for their length before" in text for text in record.fallbacks)


def test_the_time_of_an_end_of_sequence_without_text_counts():
    """Would catch an answer that ends with its last word, a step before the server was done."""
    reply = Reply()
    for place, event in enumerate((
        b'{"choices": [{"text": "a", "finish_reason": null}]}',
        b'{"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}',
    )):  # fmt: skip
        reply.take_line(b"data: " + event, float(place))
    assert reply.arrivals() == (((0.0, 1), (1.0, 1)), None)
    reply = Reply()
    for place, event in enumerate((
        b'{"choices": [{"text": "a", "finish_reason": null}], "timings": {"predicted_n": 1}}',
        b'{"choices": [{"text": "", "finish_reason": null}], "timings": {"predicted_n": 2}}',
        b'{"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}',
    )):  # fmt: skip
        reply.take_line(b"data: " + event, float(place))
    assert reply.arrivals() == (((0.0, 1), (1.0, 1)), None)
