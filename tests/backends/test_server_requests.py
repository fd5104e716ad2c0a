"""What the server backend sends, and what of an answer reaches its caller."""

import asyncio
import json
import pickle
import shutil
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from harness.backends.server.client import Client, connected
from harness.backends.server.process import Servers
from harness.backends.server.reply import NoConnection, Reply, RequestRefused
from harness.backends.server.server import ServerBackend
from harness.backends.server.weights import weights_of
from harness.config.drafter import drafter_of
from harness.config.models import TargetConfig
from harness.config.server import Engine, server_of
from harness.models.zoo import zoo_path
from harness.records.request import FinishReason
from harness.runner.plan.compose import compose_plan
from harness.workload.chat import thinking_arguments
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, MAX_TOKENS, cell_on, run_on, scripts_of
from tests.support.server_scripts import SEEDS

CONF = Path(__file__).parents[2] / "conf" / "server"
WITHOUT_CACHE = (
    "--no-enable-prefix-caching",
    "--disable-radix-cache",
    "--no-cache-prompt",
    '"enable_block_reuse": false',
)


@pytest.mark.parametrize(("format_", "name"), [("vllm_0.33", "repetition_penalty"), ("llama_cpp", "repeat_penalty")])
def test_no_default_of_a_server_takes_part(tmp_path, format_, name):
    """Would catch the penalty of a model's generation_config.json in one arm only, and a seed that is lost."""
    with ScriptedServer(format_, DEPTH) as server:
        (record,), _ = run_on(tmp_path, cell_on(server, num_requests=2))
        bodies = server.bodies
    assert {item["seed"] % SEEDS for item in bodies} == {item.seed % SEEDS for item in record.requests}
    neutral = {"top_p": 1.0, "min_p": 0.0, name: 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert all(body.items() >= neutral.items() for body in bodies)
    # its own default draws by temperature after the cuts
    order = ["temperature", "top_k", "top_p", "min_p"]
    assert format_ != "llama_cpp" or all(body["samplers"] == order for body in bodies)


EDITS = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.25}
SENT = {
    "vllm_0.33": EDITS | {"min_tokens": 4},
    "sglang": EDITS | {"min_tokens": 4, "logit_bias": {"7": -3.0}},
    "tensorrt_llm": EDITS | {"min_tokens": 4, "logit_bias": {"7": -3.0}},
    "llama_cpp": {
        "repeat_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.25,
        "logit_bias": [[7, -3.0]],
        "repeat_last_n": -1,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    },
}
"""What each engine must get, by its own names."""


@pytest.mark.parametrize("format_", SENT)
def test_what_changes_logits_goes_to_a_server_under_its_own_names(format_):
    """Would catch a setting that is dropped on its way, and a window of penalties that is shorter than the text."""
    wanted = SENT[format_]
    cell = cell_on(ScriptedServer(format_, port=1))
    given = EDITS | ({"min_tokens": 4} if "min_tokens" in wanted else {})
    given |= {"logit_bias": "7:-3"} if "logit_bias" in wanted else {}
    sampling = replace(cell.decoding.sampling, **given)
    assert cell.server.traits.refused_edit(sampling, drafts=True) is None
    adapter = cell.server.adapter(replace(cell, decoding=replace(cell.decoding, **given)), "")
    assert adapter.request_fields(sampling, 5).items() >= wanted.items()
    assert bool(adapter.notes_on_edits(sampling.edits)) == (format_ in ("sglang", "llama_cpp"))


@pytest.mark.parametrize("format_", ["vllm_0.33", "plain"])
def test_the_switch_for_reasoning_reaches_every_server(tmp_path, format_):
    """Would catch an arm that reasons beside one that does not: another prompt by ids, or a server's own default."""
    folder = shutil.copytree(zoo_path("target"), tmp_path / "target", ignore=shutil.ignore_patterns("*.safetensors"))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{%- if enable_thinking -%}{{- 'yes' -}}{%- endif -%}")
    asked = []
    for thinking in (True, False):
        with ScriptedServer(format_, depth=0) as server:
            cell = replace(cell_on(server), drafter=drafter_of("none"), target=TargetConfig(path=str(folder)))
            cell = replace(cell, workload=replace(cell.workload, thinking=thinking))
            (record,), _ = run_on(tmp_path / str(thinking), cell)
            assert not record.failures
            asked.append([body.get("chat_template_kwargs") or body["prompt"] for body in server.bodies])
    if format_ == "plain":
        assert asked == [[thinking_arguments(thinking)] * 6 for thinking in (True, False)]
    else:
        with_, without = (sorted(prompts) for prompts in asked)
        assert all(short == long[: len(short)] != long for long, short in zip(with_, without, strict=True))


@pytest.mark.parametrize("num_cached", [0, 16])
def test_prompts_from_a_cache_are_told_whatever_the_engine(tmp_path, num_cached):
    """Would catch an arm whose prompts the arm before has paid for."""
    with ScriptedServer("sglang", DEPTH, num_cached=num_cached) as server:
        (record,), _ = run_on(tmp_path, cell_on(server, num_requests=2))
    assert any("prefix cache" in text for text in record.fallbacks) == bool(num_cached)


STARTED = [engine for engine in Engine if "\ncommand:" in (CONF / f"{engine.value}.yaml").read_text()]
"""Engines that a run starts by itself."""


@pytest.mark.parametrize("engine", STARTED)
def test_no_server_that_is_started_takes_prompts_from_a_cache(engine):
    """Would catch an engine whose own default reuses prompts across requests, and so across arms."""
    cell = cell_on(ScriptedServer({Engine.vllm: "vllm_0.33"}.get(engine, engine.value), port=1))
    for arm in (cell, replace(cell, drafter=drafter_of("none"))):
        adapter = arm.server.adapter(arm, "")
        command = (CONF / f"{engine.value}.yaml").read_text()
        assert any(option in command + adapter.config_file() for option in WITHOUT_CACHE)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "http://user:hunter2@host:8000"},
        {"url": "http://host:8000?key=hunter2"},
        {"command": "vllm serve --api-key hunter2"},
        {"command": "env VLLM_API_KEY=hunter2 vllm serve"},
    ],
)
def test_a_secret_is_refused_and_not_shown(given):
    with pytest.raises(ValueError, match=r"server\.") as found:
        server_of(Engine.vllm, **given)
    assert "hunter2" not in str(found.value)


def test_a_connection_that_is_not_accepted_is_none(monkeypatch):
    """Would catch a time-out of ten seconds that is recorded as a silence of two minutes, and never tried again."""
    monkeypatch.setattr("harness.backends.server.client.CONNECT_TIMEOUT_S", 0.05)

    async def ask(port):
        async with connected(60.0, are_kept=True) as connections:
            client = Client(connections, f"http://127.0.0.1:{port}/v1/completions", lambda: 0.0, 0, 60.0)
            await client.ask({})

    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        with pytest.raises(NoConnection):
            asyncio.run(ask(server.getsockname()[1]))


@pytest.mark.parametrize(
    ("format_", "num_retries", "num_failed", "retried"),
    [("vllm_0.33", 3, 0, range(1, 3)), ("vllm_0.33", 0, 1, range(1)), ("llama_cpp", 0, 0, range(1))],
    ids=["sent again", "not again", "not kept"],
)
def test_a_connection_that_closes_unanswered_is_no_failure(tmp_path, format_, num_retries, num_failed, retried):
    """llama.cpp announces keep-alive and closes after a streamed answer: 20 of 40 requests failed."""
    with ScriptedServer(format_, DEPTH, closes_kept=True) as server:
        cell = cell_on(server, num_requests=12, concurrency=2, num_blocks=1)
        cell = replace(cell, server=replace(cell.server, num_retries=num_retries))
        (record,), _ = run_on(tmp_path, cell)
    assert {item.error for item in record.failures} == ({"ClosedUnanswered"} if num_failed else set())
    assert len(record.failures) >= num_failed and len(record.requests) + len(record.failures) == 12
    # each of two connections may teach it once
    assert record.blocks[0].reported["client:num_retried"] in retried
    assert any("sent again" in text for text in record.fallbacks) == (
        record.blocks[0].reported["client:num_retried"] > 0
    )


@pytest.mark.parametrize("event", ['{"error": null, "choices": [{"text": "a"}]}', '{"error": {"message": "no"}}'])
def test_an_error_of_null_is_none(event):
    """Would catch a server whose every chunk names the field, as some do: all its answers failed."""
    reply = Reply()
    if "null" in event:
        reply.take_line(b"data: " + event.encode(), 0.0)
        assert reply.text == "a"
    else:
        with pytest.raises(RequestRefused, match="no"):
            reply.take_line(b"data: " + event.encode(), 0.0)


@pytest.mark.parametrize(("format_", "fault"), [("sglang", "backwards"), ("vllm_0.33", "incomplete")])
def test_drafts_that_contradict_themselves_cost_one_request(tmp_path, format_, fault):
    """Would catch one answer that costs a cell all the others."""
    with ScriptedServer(format_, DEPTH) as server:
        cell = cell_on(server)
        broken = next(iter(scripts_of(cell, server)))
        server.faults[broken % SEEDS] = fault
        (record,), _ = run_on(tmp_path, cell)
    assert [item.error for item in record.failures] == ["MalformedAnswer"] and len(record.requests) == 5


def test_reasoning_is_output():
    """Would catch a time to first token that leaves reasoning out."""
    reply = Reply()
    for place, name in enumerate(("reasoning", "reasoning_content", "content")):
        reply.take_line(b"data: " + json.dumps({"choices": [{"delta": {name: "a"}}]}).encode(), float(place))
    assert [chunk.arrival_s for chunk in reply.chunks] == [0.0, 1.0, 2.0] and reply.text == "aaa"


def test_a_lower_limit_of_the_server_is_a_length_limit(tmp_path):
    """Would catch drafts beyond it that count as rejected, and answers that are silently shorter."""
    with ScriptedServer(depth=DEPTH, max_tokens=MAX_TOKENS // 2) as server:
        (record,), _ = run_on(tmp_path, cell_on(server))
    assert any("ended answers for their length before" in text for text in record.fallbacks)
    at_limit = [item for item in record.requests if item.finish_reason is FinishReason.length]
    assert at_limit and all(item.num_output_tokens == MAX_TOKENS // 2 for item in at_limit)
    last = [item.rounds[-1] for item in at_limit]
    assert all(item.num_draft_tokens == min(DEPTH, item.num_output_tokens - 1) for item in last)


def test_other_weights_under_the_same_path_are_another_cell(tmp_path):
    """Would catch records of other weights that a run goes on with, and ids that depend on where a folder lies."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    def weights(path):
        cell = cell_on(ScriptedServer(port=1))
        cell = replace(cell, target=TargetConfig(path=str(path)), drafter=replace(cell.drafter, path=str(folders[0])))
        return ServerBackend(cell, Servers()).weights()

    before = weights(folders[0])
    assert before == weights(folders[1]) and before["target"] == f"vllm: {before['drafter']}"
    (folders[1] / "model.safetensors").write_bytes(b"other")
    changed = weights(folders[1])
    assert changed["target"] != before["target"] and changed["drafter"] == before["drafter"]
    assert weights("owner/model")["target"] == "vllm: owner/model"


def test_weights_in_any_format_are_told_apart(tmp_path):
    """Would catch other weights under the same path that get the same cell, and settings that pass for weights."""
    (tmp_path / "config.json").write_text("{}")
    assert str(tmp_path) in weights_of(str(tmp_path))
    for name in ("model.gguf", "pytorch_model.bin", "rank0.engine"):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        paths, seen = (str(folder), str(folder / name)), set()
        for content in (b"weights", b"changed"):
            (folder / name).write_bytes(content)
            seen |= {weights_of(path) for path in paths}
        assert len(seen) == 4 and not any(str(folder) in item for item in seen)


def test_an_engine_of_the_users_own_is_an_option_like_another(tmp_path):
    """Would catch a server whose own settings a record does not hold, or that another process knows by no name."""
    name = "tests.support.own_engines:Mine"
    with ScriptedServer("plain", 0) as server:
        given = ["backend=server", f"server={name}", f"server.url={server.url}", "server.flavour=sour", "drafter=none"]
        (cell,) = compose_plan([*given, "workload.num_prompts=1", "workload.num_turns=1"]).cells
        (record,), _ = run_on(tmp_path, cell)
    assert record.requests and record.config["server"]["engine"] == name
    assert record.config["server"]["flavour"] == "sour" and name in record.provenance["imported"]
    assert pickle.loads(pickle.dumps(cell)) == cell
