"""What can be known without weights is known before a worker starts, by `run` and by `run --list`, in one line."""

import pytest

from experiments import run as command
from harness.models.zoo import ZOO
from harness.sweep import whole_run
from tests.broken_inputs import cut, head, in_shards, model, target, without, written
from tests.stand_in_sweeps import stop

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
    (line,) = told.err.splitlines()
    assert not told.out
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
    "head without weights": (
        lambda at: head("eagle", without(model(at, "eagle"), "model.safetensors")),
        "drafter.path: {at}/eagle: expected weights in model.safetensors",
    ),
    "target without tokenizer": (
        lambda at: target(without(model(at), "tokenizer.json")),
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
        lambda at: target(model(at, model_type="mistral")),
        "target.path: expected model_type llama or qwen3 or glm4_moe_lite, found 'mistral' in {at}/target/config.json",
    ),
    "target of no type": (
        lambda at: target(model(at, model_type=None)),
        "target.path: expected model_type llama or qwen3 or glm4_moe_lite, found None in {at}/target/config.json",
    ),
    "draft model of another type": (
        lambda at: head("draft_model", model(at, "draft_model", model_type="gpt2")),
        "drafter.path: expected model_type llama or qwen3 or glm4_moe_lite, found 'gpt2' in {at}/draft_model/config",
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
    "head as target": (
        lambda at: target(ZOO / "eagle3"),
        f"target.path: expected a language model, found an EAGLE-3 head in {ZOO / 'eagle3'}; drafter=eagle3 runs it",
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


@pytest.mark.parametrize(("found", "kind", "changes"), OTHERS)
def test_a_head_of_another_kind_is_refused_by_name(found, kind, changes, tmp_path, monkeypatch, capsys):
    """Would catch an error about one of its tensors, and a head that runs as another kind."""
    folder = model(tmp_path, found, **changes)
    line = refused(["--list"], [*head(kind, folder), *SEVERAL], tmp_path / "run", monkeypatch, capsys)
    expected = f"expected {MODELS[kind]}, found {MODELS[found]} in {folder}"
    assert line == f"error: drafter.path: {expected}; drafter={found} runs it"
