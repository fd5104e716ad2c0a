"""What a stop of a block on a server keeps: answers that have ended, their times, and its own class."""

import asyncio
import gc
import threading
import time
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import pytest

from harness.backends.server import server as server_module
from harness.backends.server.answer_records import recorded
from harness.backends.server.load_result import Answered
from harness.backends.server.server import ServerBackend
from harness.config.drafter import drafter_of
from harness.config.workload import TooLong
from harness.records import fault_points
from harness.runner.cell_checkpoint import CellCheckpoint
from harness.workload.conversations import conversations, load_prompts
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, MAX_TOKENS, cell_on, run_on, scripts_of
from tests.support.server_scripts import SEEDS


def test_what_stops_a_block_keeps_its_class():
    """Would catch a group of exceptions, by which the sweep knows neither a wrong setting nor a stop."""

    class Stop(BaseException):
        pass

    def stop(_):
        raise Stop

    with ScriptedServer(depth=DEPTH) as server:
        cell = cell_on(server)
        cell = replace(cell, workload=replace(cell.workload, num_turns=2, too_long=TooLong.error))
        played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)[:1]
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], played)
        with pytest.raises(Stop):
            backend.generate(played, stop)
        backend.prompts.max_length = len(backend.prompts.question(played[0], []).token_ids) + MAX_TOKENS
        with pytest.raises(ValueError, match=r"turn 2: expected at most"):
            backend.generate(played)


@pytest.mark.parametrize("ends", ["killed", "stopped", "stopped while one stalls"])
def test_what_has_ended_is_kept_while_others_are_in_flight(monkeypatch, ends):
    """Would catch a killed or stopped run that loses its block, and time of others that is charged to what is kept."""
    monkeypatch.setattr("harness.backends.server.load_generator.KEEP_EVERY_S", 0.2 if ends == "killed" else 60.0)
    kept = []

    class Stop(BaseException):
        pass

    def keep(run):
        kept.append(run)
        if ends == "killed" and sum(len(item.requests) for item in kept) == 5:
            raise Stop

    ended = []

    def stop(num_tokens):
        ended.append(num_tokens)
        if ends == "stopped" and len(ended) == 5:
            raise Stop

    def on_round():
        if ends == "stopped while one stalls" and len(ended) == 5:
            raise Stop

    with ScriptedServer(depth=DEPTH) as server:
        cell = cell_on(server)
        seeds = list(scripts_of(cell, server))
        server.faults[seeds[0] % SEEDS] = "stalls"
        played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], played)
        began = time.perf_counter()
        with pytest.raises(Stop):
            backend.generate(played, stop, keep=keep, on_round=on_round)
        elapsed_s = time.perf_counter() - began
    found = [request for run in kept for request in run.requests]
    # the last one that was stopped had not yet ended
    assert sorted(item.seed for item in found) == sorted(seeds[1:]) or (ends == "stopped" and len(found) == 4)
    assert all(item.rounds for item in found)
    share_s = sum(item.share_s for request in found for item in request.rounds)
    kept_s = sum(run.wall_s for run in kept)
    # the request that stalls has at least its sixth of every moment
    assert share_s <= kept_s * (1 + 1e-9) and kept_s < elapsed_s * (5 / 6 if ends == "killed" else 1)


def test_a_stop_while_answers_are_handed_over_keeps_the_time_that_they_took(monkeypatch):
    """Would catch a last part that is charged with moments which requests of the part before shared."""
    for name in ("KEEP_EVERY_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(f"harness.backends.server.load_generator.{name}", 0.1)
    is_keeping, may_end, parts = threading.Event(), threading.Event(), []

    class Stop(BaseException):
        pass

    def noted(played, *arguments):
        parts.append(played)
        return recorded(played, *arguments)

    def keep(run):
        is_keeping.set()
        assert may_end.wait(60)

    def on_round():
        if is_keeping.is_set():
            # the loop runs on until the thread that keeps has ended
            asyncio.get_running_loop().call_later(0.2, may_end.set)
            raise Stop

    monkeypatch.setattr(server_module, "recorded", noted)
    with ScriptedServer(depth=DEPTH) as server:
        cell = cell_on(server)
        server.faults[next(iter(scripts_of(cell, server))) % SEEDS] = "stalls"
        played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], played)
        with pytest.raises(Stop):
            backend.generate(played, keep=keep, on_round=on_round)
    *_, before, last = parts
    assert before.answered and {item.span for item in before.answered} <= {*last.others}


@pytest.mark.parametrize("others", ["have ended", "stall"])
def test_requests_that_fail_at_a_stop_cost_no_others(monkeypatch, others):
    """Would catch answers that are lost with those that a stopped server did not give, or that were declined before."""
    stalls = others == "stall"
    monkeypatch.setattr("harness.backends.server.load_generator.KEEP_EVERY_S", 0.1 if stalls else 60.0)
    monkeypatch.setattr("harness.backends.server.load_generator.LOOK_EVERY_S", 0.1 if stalls else 60.0)
    ended, declined, kept = [], [], []
    # at a stop it is the caller's own thread that hands over; before, others do
    caller = threading.get_ident()

    class Stop(BaseException):
        pass

    def decline_before(played, *arguments):
        found = recorded(played, *arguments)
        if threading.get_ident() == caller:
            return found
        declined.extend(found.requests)
        return replace(found, knowledge=None)

    monkeypatch.setattr("harness.backends.server.server.recorded", decline_before)

    def on_round():
        if not stalls or (declined and len(ended) == 4):
            raise Stop

    with ScriptedServer(depth=DEPTH) as server:
        cell = cell_on(server)
        seeds = list(scripts_of(cell, server))
        server.faults |= {seeds[0] % SEEDS: "malformed"} | ({seeds[1] % SEEDS: "stalls"} if stalls else {})
        played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], played)
        with pytest.raises(Stop):
            backend.generate(played, ended.append, keep=kept.append, on_round=on_round)
    assert not any(run.failures for run in kept)
    assert sorted(item.seed for run in kept for item in run.requests) == sorted(seeds[2 if stalls else 1 :])


@pytest.mark.parametrize("fault", [None, "silent"])
@pytest.mark.parametrize("format_", ["vllm_0.33", "sglang"])
def test_answers_that_are_kept_leave_memory_and_nothing_else_changes(format_, fault, tmp_path, monkeypatch):
    """Would catch a long block that fills memory, answers that its sums count twice or not at all, and a silent last
    answer whose knowledge is lost with the answers before it."""

    def count(place):
        if place == "a frame is on disk":
            gc.collect()
            alive.append(sum(type(item) is Answered for item in gc.get_objects()))

    def keep(checkpoint, part, original=CellCheckpoint.keep):
        written.append(len(part.requests))
        original(checkpoint, part)

    monkeypatch.setattr(fault_points, "on_reached", count)
    monkeypatch.setattr(CellCheckpoint, "keep", keep)

    def quiet(played, adapter, max_new_tokens, check, known, counts):
        """Also checks the knowledge of a silent last answer after all others were handed over."""
        if len(played.answered) == 12:
            last = played.answered[-1]
            silent = SimpleNamespace(drafts=lambda reply: None if reply is last.reply else adapter.drafts(reply))
            whole = recorded(played, silent, max_new_tokens).knowledge
            alone.append(
                recorded(replace(played, answered=[last]), silent, max_new_tokens, None, whole).knowledge is whole
            )
        return recorded(played, adapter, max_new_tokens, check, known, counts)

    monkeypatch.setattr(server_module, "recorded", quiet)
    found, alone = [], []
    for keep_every_s in (60.0, 0.0):
        monkeypatch.setattr("harness.backends.server.load_generator.KEEP_EVERY_S", keep_every_s)
        alive, written = [], []
        with ScriptedServer(format_, DEPTH) as server:
            cell = cell_on(server, num_requests=12, concurrency=1, num_blocks=1)
            last = list(scripts_of(cell, server))[-1]
            server.faults |= {last % SEEDS: fault} if fault else {}
            folder = tmp_path / str(keep_every_s)
            (record,), _ = run_on(folder, replace(cell, server=replace(cell.server, url=server.url)))
        requests = {item.seed: (item.output_token_ids, item.num_output_tokens, item.counts) for item in record.requests}
        rounds = {item.seed: [each.num_draft_tokens for each in item.rounds] for item in record.requests}
        (block,) = record.blocks
        notes = [text for text in record.fallbacks if "client itself was late" not in text]
        found.append((requests, rounds, record.knowledge, block.counts, block.num_requests, sorted(notes)))
        # what was on disk before a frame was written is not in memory any more
        assert len(alive) > 1 or keep_every_s
        assert all(each + before <= 12 for each, before in zip(alive, accumulate([0, *written]), strict=False))
    assert found[0] == found[1] and len(found[0][0]) == 12
    assert all(alone) and alone


@pytest.mark.parametrize(
    ("format_", "depth"),
    [("vllm_0.33", DEPTH), ("vllm_0.25", DEPTH), ("llama_cpp", DEPTH), ("vllm_0.25", 0)],
    ids=["answers tell", "counters tell", "steps tell", "no drafts"],
)
def test_a_stopped_baseline_keeps_nothing_of_a_server_that_drafts(format_, depth):
    """Would catch a baseline that goes on with answers of a server that was not yet found to draft."""
    kept, ended = [], []

    class Stop(BaseException):
        pass

    def stop(num_tokens):
        ended.append(num_tokens)
        if len(ended) == 4:
            raise Stop

    with ScriptedServer(format_, depth) as server:
        cell = replace(cell_on(server, concurrency=1), drafter=drafter_of("none"))
        played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
        backend = ServerBackend(cell, ServerBackend.Shared())
        ServerBackend.prepare_together([backend], played)
        with pytest.raises(Stop):
            backend.generate(played, stop, keep=kept.append)
    # the one whose end stopped the block has not been put away
    assert sum(len(run.requests) for run in kept) == (0 if depth else 3)
