"""`check-head` names what is wrong with a pair, by faults that are put into copies of the built-in models, and names
nothing of the models as they are."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.check_head import main
from harness.checks.head import references
from harness.checks.head.forced import Forced, Reading
from harness.checks.head.prompts import turns_alike
from harness.checks.head.protocol import Runs, compose
from harness.checks.head.references import FOLDER, read_references
from harness.checks.head.texts import StatesOfTexts, texts_of
from harness.checks.head.trials import better, try_askings, try_variants
from harness.checks.head.variants import Trial
from harness.config.cli.ending import FAILED, SUCCESS
from harness.config.drafter import drafter_of
from harness.config.schema import SettingsError
from harness.drafters.registry import load_head
from harness.models.target import TargetOutput
from harness.models.zoo import zoo_path
from harness.runner.progress import progress_on

SMALL = ("workload.num_prompts=9", "decoding.max_new_tokens=32", "backend.device=cpu")
LAYERS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def pair():
    """The texts of a small protocol and the target that wrote them: damaged heads draft along them."""
    protocol = compose(["drafter=eagle3", *SMALL])
    runs = Runs(progress_on(sys.stderr))
    target = runs.models(protocol.cell).target
    cells = runs.results(protocol.plan)
    texts = [
        text
        for place, (config, cell) in enumerate(zip(protocol.plan.cells, cells, strict=True))
        for text in texts_of(config, cell.record, protocol.conversations, target, place)
    ]
    return Forced(protocol.cell, cells[0].record, StatesOfTexts(target, texts))


def named(pair: Forced, kind: str, folder: Path | None, states: StatesOfTexts | None = None) -> list[str]:
    """The alternatives that are better for a head, the best first."""
    config, target = drafter_of(kind, path=None if folder is None else str(folder)), pair.states.target
    loaded = load_head(config, target)
    forced = Forced(replace(pair.cell, drafter=config), pair.record, states or pair.states)
    return [item.name for item in better(list(try_variants(Trial(config, target, loaded.head, loaded.folder), forced)))]


def copied(kind: str, to: Path) -> Path:
    shutil.copytree(zoo_path(kind), to / kind)
    return to / kind


def with_fields(folder: Path, name: str = "config.json", **fields) -> Path:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


def with_weights(folder: Path, edit) -> Path:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


def norms_around_zero(weights):
    for name in weights:
        if "norm" in name:
            weights[name] -= 1


def ids_left_out(weights):
    weights["d2t"].zero_()
    del weights["t2d"]


def ids_one_too_high(weights):
    weights["d2t"] += 1
    del weights["t2d"]


def random_embedding(weights):
    weights["embed_tokens.weight"] = torch.randn(6144, 256, generator=torch.Generator().manual_seed(0)).bfloat16() / 20


def random_output(weights):
    shape = weights["lm_head.weight"].shape
    weights["lm_head.weight"] = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16() / 20


def halves_swapped(weights):
    weights["fc.weight"] = weights["fc.weight"].roll(256, dims=1)


def of_other_bits(folder: Path) -> Path:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    path.write_bytes(content[:8] + content[8 : 8 + size].replace(b'"BF16"', b'"F16" ') + content[8 + size :])
    return folder


def other_rope(folder: Path) -> Path:
    fields = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    return with_fields(folder, transformer_layer_config={**fields, "rope_theta": 100.0})


FAULTS = {
    "auxiliary layers [2, 5, 7]": ("eagle3", lambda folder: with_fields(folder, **{LAYERS: [7, 5, 2]})),
    "norm_before_residual false": ("eagle3", lambda folder: with_fields(folder, norm_before_residual=True)),
    "norm_output false": ("eagle3", lambda folder: with_fields(folder, norm_output=True)),
    "norms + 1": ("eagle", lambda folder: with_weights(folder, norms_around_zero)),
    "halves swapped": ("eagle", lambda folder: with_weights(folder, halves_swapped)),
    "d2t - 1": ("eagle3", lambda folder: with_weights(folder, ids_one_too_high)),
    "ids by rows of lm_head": ("eagle3", lambda folder: with_weights(folder, ids_left_out)),
    "the target's embedding": ("eagle3", lambda folder: with_weights(folder, random_embedding)),
    "the target's output matrix": ("eagle3", lambda folder: with_weights(folder, random_output)),
    "the target's rotary embedding": ("eagle3", other_rope),
    "the other 16 bits": ("eagle", of_other_bits),
}
"""Alternative that mends it -> head, and how it is damaged."""


@pytest.mark.parametrize("mend", FAULTS)
def test_a_fault_of_a_head_is_named(pair, mend, tmp_path):
    kind, damage = FAULTS[mend]
    assert named(pair, kind, damage(copied(kind, tmp_path)))[:1] == [mend]


def test_shifted_positions_are_named(pair):
    """Of an engine that hands over the state of the token before."""

    class LateStates(StatesOfTexts):
        def output(self, layers):
            hidden, aux = super().output(layers)
            late = [torch.cat([state[:, :1], state[:, :-1]], dim=1) for state in (hidden, *aux)]
            return TargetOutput(late[0], tuple(late[1:]))

    states = LateStates(pair.states.target, pair.states.texts)
    assert named(pair, "eagle", None, states)[:1] == ["states one place earlier"]


def test_an_untrained_head_is_not_said_to_be_shifted_for_sure(pair, tmp_path):
    """It passes the target's states on, of which the next one tells the next token. Would catch a fault that is named
    as if nothing else could look like it."""

    def passes_states_on(weights):
        half = len(weights["fc.weight"])
        weights["fc.weight"] = torch.cat([torch.zeros(half, half), torch.eye(half)], dim=1).to(torch.bfloat16)
        for name in weights:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weights[name].zero_()

    folder = with_weights(copied("eagle", tmp_path), passes_states_on)
    config, target = drafter_of("eagle", path=str(folder)), pair.states.target
    loaded = load_head(config, target)
    forced = Forced(replace(pair.cell, drafter=config), pair.record, pair.states)
    found = better(list(try_variants(Trial(config, target, loaded.head, loaded.folder), forced)))
    assert [item.name for item in found] == ["states one place earlier"] and "learned little" in found[0].fault


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "peagle"])
def test_nothing_is_named_of_sound_heads(pair, kind):
    """Would catch an alternative that is better by chance, or because it sees tokens to come."""
    assert named(pair, kind, None) == []


def test_drafts_along_texts_are_those_of_the_engine(pair):
    """At temperature 0, where every accepted token is the drafter's argmax: would catch other pairs, places or rows."""
    loaded = load_head(pair.cell.drafter, pair.states.target)
    counts = pair.counts(loaded, Reading())
    first = {item.prompt_id: item.rounds[1] for item in pair.record.requests}
    greedy = [text for text in pair.states.texts if text.sample == 0]
    alone = Forced(pair.cell, pair.record, StatesOfTexts(pair.states.target, greedy), stride=1000)
    found = alone.counts(loaded, Reading())
    assert len(counts) == 2 * len(found)
    for text, item in zip(greedy, found, strict=True):
        assert item.num_accepted_tokens == first[text.prompt_id].num_accepted_tokens, text.prompt_id


def lines_of(capsys, *arguments):
    code = main([*arguments, *SMALL])
    return code, capsys.readouterr()


def test_a_missing_part_is_refused_by_its_name(capsys, tmp_path):
    folder = with_weights(copied("eagle", tmp_path), lambda weights: weights.pop("fc.weight"))
    code, shown = lines_of(capsys, "zoo", f"{folder}", "drafter=eagle")
    assert code != SUCCESS and "expected a tensor fc.weight" in shown.err


@pytest.mark.parametrize(
    ("drafter", "message", "is_asked"),
    [
        ("eagle33", "drafter=eagle33: no such option (did you mean eagle3?); choices: dflash, ", False),
        ("./build/nope", "DRAFTER: expected a folder or a Hugging Face id (owner/name), found no folder", False),
        ("build/of/nope", "DRAFTER: expected a folder or a Hugging Face id (owner/name), found no folder", False),
        ("build/nope", "(owner/name), found no such folder, and on the Hub (revision main): no route", True),
    ],
)
def test_the_hub_is_asked_for_what_may_be_there_alone(drafter, message, is_asked, capsys, monkeypatch):
    """Would catch a failure of the network for a name that was mistyped."""
    asked = []

    def refuse(name, **_):
        asked.append(name)
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    assert main(["zoo", drafter, "backend.device=cpu"]) == 2
    assert message in capsys.readouterr().err
    assert asked == [drafter] * is_asked


def test_a_head_of_another_tokenizer_is_refused(capsys, tmp_path):
    folder = copied("eagle", tmp_path)
    shutil.copy(zoo_path("target") / "tokenizer_config.json", folder)
    tokenizer = json.loads((zoo_path("target") / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    names = list(vocabulary)
    vocabulary[names[300]], vocabulary[names[301]] = vocabulary[names[301]], vocabulary[names[300]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, shown = lines_of(capsys, "zoo", f"{folder}")
    assert code != SUCCESS and "tokenizer" in shown.err


def test_untrained_positions_are_named(capsys, tmp_path):
    head = with_fields(copied("eagle", tmp_path), max_position_embeddings=24)
    code, shown = lines_of(capsys, "zoo", f"{head}", "--no-trials")
    assert code == FAILED and "untrained positions" in shown.out.splitlines()[0]


CONTENT = "(message['content'] | trim)"
RIGHT = "'<|' + message['role'] + '|>\\n' + " + CONTENT + " + '<|end|>\\n'"
WRONG = "'### ' + message['role'] + ':\\n' + " + CONTENT + " + '\\n\\n'"
IS_OFF = "(enable_thinking is defined and not enable_thinking)"


def target_with(template: str, to: Path) -> Path:
    folder = copied("target", to)
    (folder / "chat_template.jinja").unlink()
    return with_fields(folder, "tokenizer_config.json", chat_template=template)


def test_another_chat_template_and_looping_answers_are_named(capsys, tmp_path):
    """Asked in another format than it was trained with, the target loops at temperature 0."""
    target = target_with(turns_alike(WRONG, "'### assistant:\\n'"), tmp_path)
    code = main([f"{target}", f"{zoo_path('eagle3')}", "--no-trials", "backend.device=cpu", "workload.num_prompts=12"])
    verdict = capsys.readouterr().out.splitlines()[0]
    assert code == FAILED and "looping answers" in verdict and "hold none of them" in verdict


def test_a_target_that_loops_by_itself_is_no_fault_of_its_head(capsys, tmp_path):
    """It loops at temperature 0 alone, and nothing else shows a fault. Would catch a verdict against a sound head."""
    target = target_with(turns_alike(RIGHT, "'### assistant:\\n'"), tmp_path)
    code = main([f"{target}", f"{zoo_path('eagle3')}", "--no-trials", "backend.device=cpu", "workload.num_prompts=18"])
    shown = capsys.readouterr().out
    assert code == SUCCESS and "FAULT" not in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("- looping answers")]
    assert "the target loops by itself, whatever the head" in line and "judge the head by temperature 1" in line


def test_an_end_of_sequence_that_is_missing_is_named(capsys, tmp_path):
    folder = copied("target", tmp_path)
    for name in ("config.json", "generation_config.json"):
        with_fields(folder, name, eos_token_id=[0])
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        with_fields(folder, name, eos_token="<|endoftext|>")
    code, shown = lines_of(capsys, f"{folder}", f"{zoo_path('eagle3')}", "--no-trials")
    verdict = shown.out.splitlines()[0]
    assert code == FAILED and "go on behind <|end|>" in verdict and "eos_token_id" in verdict


def test_thinking_is_named(tmp_path):
    """Of a switch that is on unless it is set, and with which the target was not trained."""
    opening = f"('<|assistant|>\\n' if {IS_OFF} else '### assistant:\\n')"
    target = target_with(turns_alike(f"({RIGHT} if {IS_OFF} else {WRONG})", opening), tmp_path)
    settings = ["target=local", f"target.path={target}", "drafter=eagle3", f"drafter.path={zoo_path('eagle3')}"]
    protocol = compose([*settings, "backend.device=cpu", "workload.num_prompts=15"])
    runs = Runs(progress_on(sys.stderr))
    found = better(list(try_askings(protocol, runs, runs.results(protocol.plan)[-1])))
    assert found[0].name == "thinking off" and found[0].mend == "workload.thinking=false"


def test_a_sound_head_beside_its_reference(capsys, tmp_path):
    code, shown = lines_of(capsys, "zoo", "mtp", "--output", f"{tmp_path}", "--no-trials")
    assert code == SUCCESS and "zoo_mtp does not compare" in shown.out
    content = json.loads((tmp_path / "check_head.json").read_text())
    assert content["sound"] and content["acceptance"]["0"]["mean_acceptance_length"][0] > 1.5


def test_references_are_of_pairs_that_the_settings_name():
    """Would catch a file that no pair finds, or without a source."""
    found = {item.name: item for item in read_references()}
    assert set(found) == {path.stem for path in FOLDER.glob("*.yaml")} and "zoo_eagle3" in found
    own = [item for item in found.values() if item.is_own]
    prompts = compose(["drafter=eagle3"]).prompts
    assert {item.fields["prompts"] for item in own} == {prompts}, "of the prompts that the protocol has today"
    assert all(item.fields["source"] and item.fields["engine"] for item in found.values())


def test_a_reference_is_found_whatever_cache_the_models_lie_in(tmp_path, monkeypatch):
    """Would catch a file that names a folder of the user who wrote it, which no other user's pair has."""
    monkeypatch.setattr(references, "FOLDER", tmp_path)
    standard = compose(["drafter=eagle3"])

    def in_cache(cache, digest="0123456789abcdef"):
        target = replace(standard.cell.target, path=f"{cache}/gguf/small.Q4_1-0123456789ab")
        drafter = replace(standard.cell.drafter, path=f"{cache}/unpacked/{digest}/eagle3")
        return replace(standard.cell, target=target, drafter=drafter)

    text = references.reference_text(in_cache("/one/cache"), standard.prompts, {0.0: {}}, "engine", "template")
    (tmp_path / "small.yaml").write_text(text)
    assert "/one/cache" not in text
    assert [item.name for item in references.references_of(in_cache("/two/cache"))] == ["small"]
    assert references.references_of(in_cache("/two/cache", digest="0123456789abcdee")) == []
    # one that was written by hand, or before paths were shown
    text = text.replace("target: gguf/", "target: /one/cache/gguf/").replace("path: unpacked/", "path: /one/unpacked/")
    (tmp_path / "small.yaml").write_text(text)
    assert text.count("/one/") == 2
    assert [item.name for item in references.references_of(in_cache("/two/cache"))] == ["small"]


def test_a_reference_is_of_the_same_work():
    """Would catch answers of another length, or with thinking, held against the protocol's."""
    (reference,) = [item for item in read_references() if item.name == "zoo_eagle3"]

    standard = compose(["drafter=eagle3"])
    assert reference.compares(standard)
    assert not replace(reference, fields={**reference.fields, "thinking": True}).compares(standard)
    for other in ("decoding.max_new_tokens=8", "seed=1", "workload.num_prompts=9"):
        assert not reference.compares(compose(["drafter=eagle3", other])), other


def test_a_reference_of_another_length_is_not_written(capsys, tmp_path):
    code = main(["zoo", "mtp", "decoding.max_new_tokens=8", "--write-reference", f"{tmp_path / 'a.yaml'}"])
    assert code != SUCCESS and "expected the standard protocol" in capsys.readouterr().err


def test_what_is_no_pair_is_refused():
    with pytest.raises(SettingsError, match="belongs to the protocol"):
        compose(["drafter=eagle3", "decoding.temperature=0.5"])
    with pytest.raises(SettingsError, match="found none"):
        compose([])
    with pytest.raises(SettingsError, match="random"):
        compose(["drafter=eagle3", "drafter.weights=random"])


@pytest.mark.gpu
def test_the_whole_check_on_a_gpu(capsys, tmp_path):
    """With fused layers and the kernels: a sound head, and one of which the layers are named in another order."""
    assert main(["zoo", "eagle3", "backend.device=cuda"]) == SUCCESS
    damaged = with_fields(copied("eagle3", tmp_path), **{LAYERS: [7, 5, 2]})
    capsys.readouterr()
    assert main(["zoo", f"{damaged}", "backend.device=cuda"]) == FAILED
    assert "drafter.aux_layers=[2,5,7]" in capsys.readouterr().out.splitlines()[0]
