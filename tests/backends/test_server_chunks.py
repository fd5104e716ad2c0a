"""Rounds read from the chunks of a server that tells of its drafts by counters alone, as vLLM 0.25 does."""

import asyncio
import os
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.backends.server.chunk_steps import steps_of_chunks
from harness.backends.server.load_result import Answered
from harness.backends.server.reply import SPREAD, Chunk, Reply
from harness.backends.server.rounds import Steps
from harness.plugins.vllm import register
from harness.plugins.vllm.chunks import COLLECTOR
from harness.plugins.vllm.signatures import RefusedVersion
from harness.records.counts import DraftCounts, Knowledge
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, MAX_TOKENS, cell_on, run_on, scripts_of
from tests.support.server_scripts import endless

SITE = os.environ.get("REJECTION_LAB_VLLM_SITE", "")
TAKEN = "every chunk of an answer was taken for a step"


def run_without_ends(tmp_path, server, **settings):
    """The record and frame of a cell whose answers all end at their limit, and its scripts by seed."""
    cell = cell_on(server, num_requests=24, **settings)
    cell = replace(cell, decoding=replace(cell.decoding, ignore_eos=True))
    scripts = {seed: endless(script, MAX_TOKENS) for seed, script in scripts_of(cell, server).items()}
    (record,), frame = run_on(tmp_path, cell)
    return record, frame.iloc[0], scripts


def test_chunks_that_the_counters_confirm_are_rounds(tmp_path):
    """Would catch a step given to another request, and drafts beyond the limit, which the counters hold."""
    with ScriptedServer("vllm_0.25", DEPTH) as server:
        record, row, scripts = run_without_ends(tmp_path, server)
    assert record.knowledge is Knowledge.rounds and not record.failures
    for request in record.requests:
        script = scripts[request.seed]
        assert [item.num_output_tokens for item in request.rounds] == list(script.sizes)
        assert [item.num_accepted_tokens for item in request.rounds[1:-1]] == list(script.accepted[:-1])
        left = script.sizes[-1]
        last = request.rounds[-1]
        assert (last.num_draft_tokens, last.num_accepted_tokens) == (left - 1, left - 1)
    assert sum(script.accepted[-1] + 1 - script.sizes[-1] for script in scripts.values()) > 0
    assert row["num_accepted_tokens"] == sum(size - 1 for item in scripts.values() for size in item.sizes)
    assert row["mean_acceptance_length_low"] < row["mean_acceptance_length"] < row["mean_acceptance_length_high"]
    assert any(TAKEN in text for text in record.fallbacks)


def merged(sizes):
    """Two steps in one chunk, as vLLM sends them where its front end falls behind."""
    return (*sizes[:2], sum(sizes[2:4]), *sizes[4:])


def shifted(sizes):
    """As many chunks, none larger than a step can be, with other tokens in them."""
    first, *middle, last = sizes
    tokens = sum(middle)
    full, left = divmod(tokens - len(middle), DEPTH)
    rest = [left] if left else []
    return first, *(1 + more for more in [DEPTH] * full + rest), *[1] * (len(middle) - full - len(rest)), last


CHUNKS = {"merges": merged, "shifts": shifted}


@pytest.mark.parametrize("fault", [*CHUNKS, "ends", "other"])
def test_chunks_that_the_counters_do_not_confirm_leave_counts_by_block(tmp_path, fault):
    """Would catch merged steps that count as one, tokens of another step, the step before a stop token, and another
    client's drafts."""
    with ScriptedServer("vllm_0.25", DEPTH, chunks_of=CHUNKS.get(fault, tuple)) as server:
        if fault == "ends":
            cell = cell_on(server, num_requests=24)
            scripts = scripts_of(cell, server)
            (record,), frame = run_on(tmp_path, cell)
            row = frame.iloc[0]
        else:
            if fault == "other":
                counted = server.count
                server.count = lambda script: counted(replace(script, accepted=(*script.accepted, 0)))
            record, row, scripts = run_without_ends(tmp_path, server)
    num_more = len(scripts) if fault == "other" else 0
    assert record.knowledge is Knowledge.blocks and not record.failures
    assert row["num_drafts"] == num_more + sum(len(script.accepted) for script in scripts.values())
    assert not any(TAKEN in text for text in record.fallbacks)


@pytest.mark.parametrize("has_ids", [True, False], ids=["ids", "text"])
def test_tokens_that_were_spread_over_chunks_are_no_steps(has_ids):
    """With K = 1 they fit the counters whatever the steps were. Would catch tokens of another step."""
    reply = Reply(finish_reason="length", parts={"usage": {"completion_tokens": 7}})
    reply.chunks = [
        Chunk(float(at), (1,) * size if has_ids else None, "a", None) for at, size in enumerate((1, 2, 2, 1, 1))
    ]
    arrivals, note = reply.arrivals()
    answered = Answered(SimpleNamespace(key=("a", 0, 0)), reply, 0.0, arrivals)
    found = steps_of_chunks([answered], DraftCounts(4, 4, 2, (4,), (2,)), depth=1)
    assert (note == SPREAD) is not has_ids
    assert found == ({("a", 0, 0): Steps((1,) * 4, (1, 1, 0, 0))} if has_ids else None)


class Collector:
    """A stand-in for vLLM's own, which merges what was not fetched."""

    def __init__(self):
        self.output, self.ready = None, asyncio.Event()

    def put(self, output):
        self.output = output if self.output is None or isinstance(output, Exception) else self.output + output
        self.ready.set()

    async def get(self):
        while self.output is None:
            await self.ready.wait()
        return self.get_nowait()

    def get_nowait(self):
        output, self.output = self.output, None
        self.ready.clear()
        if isinstance(output, Exception):
            raise output
        return output


@pytest.fixture
def front_end(monkeypatch):
    """The module in which vLLM's front end looks its collector up."""
    modules = {}
    for name in (COLLECTOR, "vllm.v1.engine.output_processor"):
        for depth in range(1, name.count(".") + 2):
            path = ".".join(name.split(".")[:depth])
            modules[path] = modules.get(path) or ModuleType(path)
            monkeypatch.setitem(sys.modules, path, modules[path])
        modules[name].RequestOutputCollector = Collector
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.25.1" if name == "vllm" else version(name))
    monkeypatch.setenv("REJECTION_LAB_CHUNKS", "steps")
    return modules[COLLECTOR]


def test_the_plug_in_sends_every_step(front_end):
    """Would catch an output that is merged, lost or out of order, and a reader that is never woken."""
    register()
    register()

    async def read():
        collector = front_end.RequestOutputCollector()
        for step in ([1], [2, 3], [4]):
            collector.put(step)
        found = [collector.get_nowait(), await collector.get(), collector.get_nowait(), collector.get_nowait()]
        waiting = asyncio.create_task(collector.get())
        await asyncio.sleep(0)
        collector.put([5])
        found.append(await waiting)
        collector.put([6])
        collector.put(ValueError("dead"))
        with pytest.raises(ValueError, match="dead"):
            await collector.get()
        return found

    assert asyncio.run(asyncio.wait_for(read(), 10)) == [[1], [2, 3], [4], None, [5]]
    assert front_end.RequestOutputCollector.__mro__[1] is Collector


@pytest.mark.skipif(not SITE, reason="REJECTION_LAB_VLLM_SITE names no folder with vLLM 0.25.1")
def test_what_is_replaced_has_these_names_in_vllm():
    """Would catch a collector that vLLM does not have, or does not look up where it is replaced."""
    engine = Path(SITE, "vllm", "v1", "engine")
    collector = (engine / "output_processor.py").read_text().partition("class RequestOutputCollector:")[2]
    for name in ("def put(self, output:", "async def get(self)", "def get_nowait(self)", "self.output:"):
        assert name in collector.partition("\n@dataclass")[0]
    assert "queue = RequestOutputCollector(" in (engine / "async_llm.py").read_text()


def test_the_plug_in_refuses_a_front_end_that_it_does_not_know(front_end, monkeypatch):
    monkeypatch.setattr(Collector, "put", lambda self, output, index: None)
    with pytest.raises(RefusedVersion, match=r"expected RequestOutputCollector.put to take \(self output\)"):
        register()
    monkeypatch.setenv("REJECTION_LAB_CHUNKS", "tokens")
    with pytest.raises(ValueError, match="REJECTION_LAB_CHUNKS: expected steps, found 'tokens'"):
        register()
