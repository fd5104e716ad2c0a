"""GGUF files: their header and tokenizer, which file a path means, and who may be given one."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from experiments.run import main
from harness.backends.server.process import Servers
from harness.backends.server.prompts import ServedPrompts
from harness.backends.server.server import ServerBackend
from harness.config.cli.ending import WRONG_SETTINGS
from harness.config.models import Layers
from harness.models.checkpoint import CheckpointError
from harness.models.gguf import gguf_in, gguf_tokenizer, read_header
from harness.models.gguf_checkpoint import converted
from harness.models.rounded_weights import rounded_weights_here
from harness.models.target import load_target
from harness.runner.plan.compose import compose_plan
from harness.workload.chat import decode_answer, encode_chat
from tests.support.gguf_files import SPECIAL, TOKENS, header, write_gguf, write_gguf_model
from tests.support.tiny_models import random_causal_lm

SERVED = ("backend=server", "server=llama_cpp", "verification=greedy", "decoding.temperature=0", "target=local")


def test_a_header_is_read_as_it_was_written(tmp_path):
    """Would catch a type that is read with another width, so that all behind it is lost."""
    assert read_header(write_gguf(tmp_path / "a.gguf")) == header()


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("gpt-2", ["hi", "Ġwo", "Ġ", "12", "3", "'", "L", "L"]),
        ("smollm", ["hi", "Ġwo", "Ġ", "1", "2", "3", "'", "L", "L"]),
        ("llama-bpe", ["hi", "Ġwo", "Ġ", "12", "3", "'LL"]),
        ("qwen2", ["hi", "Ġwo", "Ġ", "1", "2", "3", "'LL"]),
    ],
)
def test_text_is_split_as_the_file_says(tmp_path, split, words):
    """Would catch digits that are joined, contractions that are cut, and special tokens that are spelt out."""
    tokenizer = gguf_tokenizer(write_gguf(tmp_path / "a.gguf", tokenizer__ggml__pre=split))
    ids = tokenizer.encode("hi wo 123'LL", add_special_tokens=False)
    assert [TOKENS[token] for token in ids] == words
    encoded = encode_chat(tokenizer, [{"role": "user", "content": "hi é\n"}])
    assert encoded.note is None and [encoded.token_ids[place] for place in (0, -1)] == [1, 0]
    assert decode_answer(tokenizer, encoded.token_ids) == "hi é\n" and tokenizer.eos_token == SPECIAL[0]


def test_a_file_that_begins_texts_with_a_token_does(tmp_path):
    tokenizer = gguf_tokenizer(write_gguf(tmp_path / "a.gguf", tokenizer__ggml__add_bos_token=True))
    assert tokenizer.encode("hi")[0] == 1 and tokenizer.encode("hi", add_special_tokens=False)[0] != 1


@pytest.mark.parametrize(("split", "as_llama_3"), [("llama-bpe", True), ("qwen2", False)])
def test_words_and_beginnings_are_those_of_llama_cpp(tmp_path, split, as_llama_3):
    """Would catch words of Llama 3 that are tokens and are cut, since no merges lead to them, and a lost beginning."""
    tokens, types = [*TOKENS, "zqx"], [*header()["tokenizer.ggml.token_type"], 1]
    changes = {"tokens": tokens, "token_type": types, "pre": split, "add_bos_token": None}
    path = write_gguf(tmp_path / "a.gguf", **{f"tokenizer__ggml__{name}": value for name, value in changes.items()})
    found = [tokens[token] for token in gguf_tokenizer(path).encode("zqx")]
    assert found == ([SPECIAL[1], "zqx"] if as_llama_3 else ["z", "q", "x"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer__ggml__pre": "tekken"}, "found tokenizer.ggml.model = gpt2, tokenizer.ggml.pre = tekken"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.json and tokenizer_config.json beside the file"),
        ({"version": 1}, "expected a GGUF file"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_refused(tmp_path, change, message):
    """Would catch prompts that are split by another rule than the model was trained with."""
    with pytest.raises(CheckpointError, match=message):
        gguf_tokenizer(write_gguf(tmp_path / "a.gguf", **change))


def cell_of(*arguments):
    return compose_plan([*SERVED, *arguments]).cells[-1]


def test_a_file_is_a_target_and_a_drafter(tmp_path):
    """Would catch a folder that is served, a tokenizer of another model, and a digest of weights not served."""
    target, folder = write_gguf(tmp_path / "target.gguf"), tmp_path / "drafter"
    folder.mkdir()
    drafter = write_gguf(folder / "small.gguf")
    (folder / "model.safetensors").write_bytes(b"of this engine")
    cell = cell_of(f"target.path={target}", "drafter=draft_model", f"drafter.path={folder}")
    adapter = cell.server.adapter(cell, str(folder))
    assert adapter.served_target(str(target), tmp_path) == str(target) and str(drafter) in adapter.speculation()
    assert ServedPrompts(cell).tokenizer.eos_token == SPECIAL[0]
    before = ServerBackend(cell, Servers()).weights()
    (folder / "model.safetensors").write_bytes(b"others of this engine")
    assert ServerBackend(cell, Servers()).weights() == before
    write_gguf(drafter, general__name="another")
    assert ServerBackend(cell, Servers()).weights()["drafter"] != before["drafter"]


def several(folder):
    for name in "ab":
        write_gguf(folder / f"{name}.gguf")
    return folder


def broken(folder):
    path = write_gguf(folder / "a.gguf")
    path.write_bytes(path.read_bytes()[:100])
    return path


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (several, (), "target.path: .* expected one GGUF file in the folder, found a.gguf, b.gguf"),
        (broken, (), "target.path: .*a.gguf: expected a GGUF file, found that it is none: it ends within its header"),
        (lambda folder: folder, (), "target.path: expected a GGUF file, or a folder with one, for a server that reads"),
        (
            lambda folder: write_gguf(folder / "a.gguf", tokenizer__ggml__pre="tekken"),
            (),
            "target.path: .* found tokenizer.ggml.model = gpt2, tokenizer.ggml.pre = tekken; put the model's own",
        ),
        (lambda folder: folder / "none.gguf", (), "target.path: .* found no GGUF file"),
        (
            lambda folder: write_gguf(folder / "a.gguf"),
            ("server=vllm",),
            "target.path: expected a folder of safetensors with backend=server, found .*backend=local reads those of",
        ),
        (
            lambda folder: write_gguf(folder / "a.gguf"),
            ("drafter=draft_model", "drafter.path=."),
            "drafter.path: expected a GGUF file, or a folder with one",
        ),
    ],
    ids=[
        "several",
        "broken",
        "no file",
        "no tokenizer",
        "not there",
        "a server that reads none",
        "a drafter without one",
    ],
)
def test_what_is_no_such_file_is_one_line_before_anything_runs(tmp_path, capsys, make, given, message):
    """Would catch a worker, or the server's log, that finds it minutes later."""
    left_out = ["server=llama_cpp"] if "server=vllm" in given else []
    # a method is of drafts
    left_out += [] if any(item.startswith("drafter=") for item in given) else ["verification"]
    arguments = [item for item in SERVED if not any(name in item for name in left_out)]
    assert main([*arguments, f"target.path={make(tmp_path)}", *given, "--list"]) == WRONG_SETTINGS
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_a_folder_means_its_only_file(tmp_path):
    assert gguf_in(str(tmp_path)) is None and gguf_in("owner/model") is None
    path = write_gguf(tmp_path / "a.gguf")
    assert gguf_in(str(tmp_path)) == gguf_in(str(path)) == path


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A Llama in a GGUF file, the path of that file, and the model with the weights that are stored in it."""
    pytest.importorskip("gguf")
    monkeypatch.setenv("REJECTION_LAB_CACHE", str(tmp_path / "cache"))
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    causal_lm = random_causal_lm("llama", vocab_size=len(TOKENS), head_dim=8, num_hidden_layers=2, **sizes)
    path = tmp_path / "tiny.gguf"
    causal_lm.load_state_dict(write_gguf_model(path, causal_lm))
    return path, causal_lm


def test_this_engine_runs_a_file_with_the_weights_that_it_stores(model, capsys):
    """Would catch heads whose rows stay in llama.cpp's order, weights rounded again, and a file that is converted anew
    for every cell."""
    path, causal_lm = model
    plan = compose_plan(["target=local", f"target.path={path}", "drafter=ngram", "workload.num_prompts=1"])
    target = load_target(plan.cells[0].target.path, layers=Layers.own)
    ids = torch.arange(2, 20)[None]
    written = AutoModelForCausalLM.from_pretrained(plan.cells[0].target.path)
    assert torch.equal(written(ids).logits, causal_lm(ids).logits)
    assert target.rounded_weights == rounded_weights_here(plan.cells[0].target) == "GGUF Q8_0 weights"
    assert target.assumptions == ("weights are those of tiny.gguf (Q8_0), written out in float32",)
    assert target.tokenizer.encode("hi") == gguf_tokenizer(path).encode("hi") and target.eos_token_ids == {0}
    told = capsys.readouterr().err
    assert told.count("is written as a checkpoint in float32, once, to") == 1


def test_a_file_that_another_process_has_written_out_meanwhile_is_taken(model, monkeypatch):
    """Would catch the second of two runs that start at once and ends with an error of the file system."""
    path, _ = model
    rename = Path.rename

    def second(unfinished, folder):
        shutil.copytree(unfinished, folder)
        return rename(unfinished, folder)

    monkeypatch.setattr(Path, "rename", second)
    folder = converted(str(path), print)
    assert list(folder.parent.iterdir()) == [folder] and (folder / "config.json").is_file()


def test_a_copy_of_a_file_is_the_same_model_and_another_content_is_not(model, tmp_path):
    """Would catch one model in the environments of two users as two, and a file that was replaced as the one before."""
    path, _ = model
    told = []
    before = converted(str(path), told.append)
    copied = shutil.copy(path, tmp_path / "cache" / path.name)
    os.utime(copied, (1, 1))
    assert converted(copied, told.append) == before and len(told) == 1
    content, stat = bytearray(path.read_bytes()), path.stat()
    content[-1] ^= 1
    path.write_bytes(content)
    # as tools that copy files with their times do
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = converted(str(path), told.append)
    assert after != before and len(told) == 2 and {before, after} == {*before.parent.iterdir()}


@pytest.mark.parametrize("kind", [OSError, SafetensorError])
def test_a_full_disk_is_told_as_one(model, monkeypatch, kind):
    """Would catch a configuration that is blamed for what could not be written."""

    def full(*_, **__):
        raise kind("No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(CheckpointError, match="expected to write this folder once, found: No space left on device"):
        converted(str(model[0]), print)


def test_a_tokenizer_that_is_put_beside_a_file_later_is_the_one_that_is_taken(model):
    """Would catch prompts that are still cut by the tokenizer with which the file was written out at first."""
    path, _ = model
    own = gguf_tokenizer(path)
    before = converted(str(path), print)
    own.add_tokens(["hi wo"])
    own.save_pretrained(path.parent)
    after = converted(str(path), print)
    counts = [len(AutoTokenizer.from_pretrained(folder).encode("hi wo")) for folder in (before, after)]
    assert counts == [2, 1] and converted(str(path), print) == after
