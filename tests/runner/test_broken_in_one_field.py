"""Configurations that are broken in one field each: none runs as if nothing were wrong.

A field that is wrong is refused before a worker starts, in one line that names it; what can be run all the same, and
what only a running server shows, stands in the record and in the report.
"""

import json

import pytest

from experiments import run as command
from harness.records.runs import read_runs
from harness.runner import whole_run
from tests.support.broken_inputs import head, model, prompts, target, written
from tests.support.scripted_server import ScriptedServer
from tests.support.small_run import SMALL
from tests.support.stand_in_sweeps import stop

ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
NO_DRAFTS = "a server that reports no drafted token"
FP8 = {"quant_method": "fp8"}
TARGETS = {
    "sliding_window": (lambda at: model(at, sliding_window=32), "sliding_window = 32"),
    "rope_parameters": (lambda at: model(at, rope_parameters=ROPE), "rope_type 'dynamic'"),
    "rms_norm_eps": (lambda at: model(at, rms_norm_eps="1e-5"), "rms_norm_eps"),
    "attention_bias": (lambda at: model(at, attention_bias=True), "self_attn.q_proj.bias"),
    "final_logit_softcapping": (lambda at: model(at, final_logit_softcapping=30.0), "final_logit_softcapping = 30.0"),
    "embedding_multiplier": (lambda at: model(at, embedding_multiplier=12.0), "embedding_multiplier = 12.0"),
    "quantization_config": (lambda at: model(at, quantization_config=FP8), "quantization_config"),
    "num_key_value_heads": (lambda at: model(at, num_key_value_heads=1), "self_attn.k_proj.weight of shape [64, 256]"),
    "vocab_size": (lambda at: model(at, vocab_size=6000), "model.embed_tokens.weight of shape [6000, 256]"),
    "a field of the future": (lambda at: model(at, attention_temperature=0.7), "attention_temperature = 0.7"),
    "eos_token_id beyond the vocabulary": (
        lambda at: written(model(at) / "generation_config.json", '{"eos_token_id": [99999]}'),
        "eos_token_id: expected ids of tokens from 0 to 6143, found 99999",
    ),
    "eos_token_id": (
        lambda at: written(model(at) / "generation_config.json", '{"eos_token_id": "4"}'),
        "eos_token_id = '4' in generation_config.json",
    ),
    "tie_word_embeddings": (lambda at: model(at, tie_word_embeddings="false"), "tie_word_embeddings = 'false'"),
    "rope_theta": (lambda at: model(at, rope_theta=5e5, rope_parameters={"rope_theta": 1e4}), "rope_theta = 500000.0"),
    "rope_type": (lambda at: model(at, rope_parameters=ROPE | {"rope_type": "su"}), "rope_parameters.rope_type = 'su'"),
    "factor": (
        lambda at: model(at, rope_parameters={"rope_type": "yarn"}),
        "expected rope_parameters.factor, found",
    ),
    "layer_types": (lambda at: model(at, layer_types=["full_attention"] * 3), "layer_types of 10 layers"),
    "hidden_act": (lambda at: model(at, hidden_act="swiglu"), "hidden_act = 'swiglu'"),
    "rope_scaling": (lambda at: model(at, rope_scaling="linear"), "rope_scaling = 'linear'"),
    "suppress_tokens": (
        lambda at: written(model(at) / "generation_config.json", '{"suppress_tokens": [7]}'),
        "suppress_tokens = [7] in generation_config.json",
    ),
}
HEADS = {
    "use_sliding_window": ("eagle3", {"use_sliding_window": True}, "use_sliding_window = True"),
    "output_multiplier": ("eagle3", {"output_multiplier": 2.0}, "output_multiplier = 2.0"),
    "norm_before_residual": ("eagle3", {"norm_before_residual": "false"}, "norm_before_residual = 'false'"),
    "norm_before_fc, as text": ("eagle3", {"norm_before_fc": "false"}, "norm_before_fc = 'false'"),
    "bias, as text": ("eagle", {"bias": "no"}, "bias = 'no'"),
    "speculators_config": ("eagle3", {"speculators_config": ["x"]}, "speculators_config = ['x']"),
    "speculators_model_type": ("eagle3", {"speculators_model_type": "mtp"}, "speculators_model_type = 'mtp'"),
    "eagle_config": ("eagle3", {"eagle_config": [1]}, "eagle_config"),
    "draft_vocab_size": ("eagle3", {"draft_vocab_size": 4000}, "lm_head.weight of shape [4000, 256]"),
    "aux layers": ("eagle3", {"eagle_aux_hidden_state_layer_ids": [2, 5, 99]}, "different layers from 0 to 10"),
    "norm_before_fc": ("eagle3", {"norm_before_fc": True}, "input_norm.weight"),
    "target_hidden_size": ("eagle3", {"target_hidden_size": 128}, "target_hidden_size 256"),
    "mask_token_id": ("peagle", {"mask_token_id": 6144}, "mask_token_id from 0 to 6143"),
    "parallel_drafting": ("peagle", {"parallel_drafting": False}, "parallel_drafting false"),
    "bias": ("eagle", {"bias": True}, "fc.bias"),
    "model_type": ("eagle", {"model_type": "gpt2"}, "model_type llama or qwen3, found 'gpt2'"),
    "tie_word_embeddings": ("draft_model", {"tie_word_embeddings": False}, "lm_head.weight"),
    "input_embedding_scale": ("draft_model", {"input_embedding_scale": 4.0}, "input_embedding_scale = 4.0"),
}
LINES = {
    "stop": ({"prompt": "a", "stop": ["b", ""]}, "stop: expected strings of one character or more"),
    "n": ({"prompt": "a", "n": 2}, "no n in a record"),
    "sampling": ({"prompt": "a", "sampling": {"top_kk": 5}}, "{'top_kk': 5}"),
    "json_schema": ({"prompt": "a", "json_schema": "object"}, "JSON schema"),
    "prompt": ({"promt": "a"}, "fields promt"),
    "turns": ({"turns": "a"}, "turns"),
}
SERVERS = {
    "command": (["server=vllm", "server.command='vlm serve {speculation} {reasoning} {weights}'"], "no vlm;"),
    "environment": (["server=vllm", "server.environment=nowhere"], "server.environment"),
    "url": (["server=plain", "server.url=http://127.0.0.1:1"], "server.url"),
    "url, written otherwise": (["server=plain", "server.url=127.0.0.1:8000"], "server.url: expected http://HOST:PORT"),
}


def assert_refused(given, field, folder, monkeypatch, capsys):
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a worker was started")))
    assert command.main([*given, f"output.folder={folder}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and field in line
    assert not folder.exists()


@pytest.mark.parametrize(("made", "field"), TARGETS.values(), ids=TARGETS)
def test_a_field_of_a_target_is_refused_by_name(made, field, tmp_path, monkeypatch, capsys):
    assert_refused(target(made(tmp_path)), field, tmp_path / "run", monkeypatch, capsys)


@pytest.mark.parametrize(("kind", "changes", "field"), HEADS.values(), ids=HEADS)
def test_a_field_of_a_drafter_is_refused_by_name(kind, changes, field, tmp_path, monkeypatch, capsys):
    assert_refused(head(kind, model(tmp_path, kind, **changes)), field, tmp_path / "run", monkeypatch, capsys)


@pytest.mark.parametrize(("line", "field"), LINES.values(), ids=LINES)
def test_a_field_of_a_prompt_is_refused_by_name(line, field, tmp_path, monkeypatch, capsys):
    assert_refused(prompts(tmp_path, line), field, tmp_path / "run", monkeypatch, capsys)


@pytest.mark.parametrize(("given", "field"), SERVERS.values(), ids=SERVERS)
def test_a_setting_of_a_server_is_refused_by_name(given, field, tmp_path, monkeypatch, capsys):
    assert_refused(["backend=server", "drafter=none", *given], field, tmp_path / "run", monkeypatch, capsys)


def only_record(folder, kind):
    """The record of the cell with a drafter, and the report."""
    (run,) = read_runs(folder)
    (record,) = [cell for cell in run.cells if cell.config["drafter"]["kind"] == kind]
    return record, (folder / "report.md").read_text()


def test_a_field_that_readers_take_differently_is_told_in_record_and_report(tmp_path):
    folder = model(tmp_path, "eagle3", norm_before_residual=None)
    assert command.main([*head("eagle3", folder), *SMALL, f"output.folder={tmp_path / 'run'}"]) == 0
    record, report = only_record(tmp_path / "run", "eagle3")
    assert any("norm_before_residual" in text for text in record.assumptions) and "norm_before_residual" in report


def test_a_server_that_was_started_without_drafts_is_told_in_record_and_report(tmp_path, capsys):
    """Of one field of its command line, which only its answers show."""
    with ScriptedServer(depth=0) as server:
        given = ["backend=server", "server=vllm", f"server.url={server.url}", "measurement.baseline=false"]
        others = [
            "drafter=eagle3",
            "decoding.temperature=0",
            "verification=greedy",
            f"output.folder={tmp_path / 'run'}",
        ]
        assert command.main([*given, *others, *SMALL]) == 1
    record, report = only_record(tmp_path / "run", "eagle3")
    assert record.has_failed and NO_DRAFTS in record.failures[0].message and NO_DRAFTS in report
    assert json.loads((tmp_path / "run" / "run.json").read_text())["cells"] == [record.cell_id]
