"""The run command without a model: help, mistakes, the list of cells."""

import json
from pathlib import Path

import pytest

from experiments import run as command
from harness.config.schema import all_settings, group_options
from harness.runner import whole_run
from tests.support.own_process import output_of
from tests.support.stand_in_sweeps import stop

ROOT = Path(__file__).parents[2]


def test_help_list_and_mistakes_come_without_torch():
    code = (
        "import sys; from experiments.run import main; "
        "assert main(['--help']) == 0; assert not {'torch', 'hydra', 'pandas'} & set(sys.modules); "
        "assert main(['drafter=unknown']) == 2; "
        "assert main(['workload.path=nowhere.jsonl']) == main(['target.path=./no/where', 'drafter=eagle']) == 2; "
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules); "
        "assert main(['--list', 'drafter=mtp']) == 0; assert not {'torch', 'pandas'} & set(sys.modules)"
    )
    output_of(code)


def test_help_names_every_group_option_and_setting(capsys):
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    words = set(shown.replace(",", " ").replace("*", " ").replace("=", " ").split())
    for group, options in group_options().items():
        if len(options) > 1:
            assert {group, *options} <= words
    assert set(all_settings()) <= words
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drafter=eagel3"], "no such option (did you mean eagle3?); choices:"),
        (["--formt", "csv"], "unknown option --formt (did you mean --format?)"),
        (["--format", "xml"], "invalid choice: 'xml' (choose from"),
        (["workload.path=nowhere.jsonl"], "found none at 'nowhere.jsonl'"),
        (["quickstart"], "did you mean experiment=quickstart?"),
        (["output.folder=pyproject.toml/x"], "expected a folder that can be made and written to, found"),
        (["output.folder=/dev/null/x"], "(Not a directory)"),
        (["output.folder=/proc/nope/x"], "found '/proc/nope/x' ("),
        (["output.folder=/proc"], "found '/proc' ("),
        ([f"name={'n' * 300}"], "(File name too long)"),
        (
            [
                "drafter=mtp",
                "verification=synthetic",
                "verification.rates=[]",
                "verification.length=inf",
            ],
            "verification: length must be 1 or more, up to K + 1, found inf",
        ),
        (["verification.delta=nan", "verification=typical", "drafter=mtp"], "delta must be positive and finite"),
        (
            ["drafter=mtp", "drafting.num_speculative_tokens=4,2000"],
            "drafting.num_speculative_tokens: expected 0 to 32, found 2000",
        ),
        (["decoding.top_p=nan"], "decoding.top_p: expected a value in (0, 1]"),
        (
            ["drafter=eagle", "constraint=commit", "constraint.parser=qwen"],
            "constraint.parser: expected one of zoo, qwen3, glm,",
        ),
        (["drafter=eagle", "constraint=mask", "constraint.parser=nowhere:parser"], "No module named 'nowhere'"),
        (["decoding.max_new_tokens=64,1024"], "decoding.max_new_tokens: expected fewer than 1024, the tokens that"),
        (["decoding.max_new_tokens=99", "backend.max_length=99"], "decoding.max_new_tokens: expected fewer than 99"),
        (["--list", "--devices", "0,00"], "expected each device once, found 0 more than once in '0,00'"),
        (["--list", "--devices", "x"], "expected numbers or UUIDs of GPUs with commas between them, such as 0,1 or"),
        (["--list", "--devices", ""], "GPU-1a2b, found ''"),
        (["--list", "--devices", "0,"], "GPU-1a2b, found '0,'"),
        (["backend.device=cuda:x"], "backend.device: expected auto, cpu, cuda or cuda:N, found cuda:x"),
    ],
)
def test_a_mistake_gets_one_line_on_standard_error_and_exit_code_2(arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["workload.path={file}"],
            '{file}:2: expected one JSON value on the line, found \'{{"prompt": "b\' (Unterminated ',
        ),
        (["workload.path={file}", "workload.layout=gsm8k"], "{file}:2: expected one JSON value on the line, found"),
        (
            ["workload.num_prompts=81"],
            "workload.num_prompts: expected at most 80, the prompts there are, found 81; use",
        ),
        (["workload.categories=[cooking]"], "workload.categories: expected some of "),
    ],
    ids=["damaged", "layout", "too many", "category"],
)
@pytest.mark.parametrize("how", [[], ["--list"]], ids=["run", "list"])
def test_prompts_that_cannot_be_used_are_wrong_input(how, given, message, tmp_path, capsys):
    """Would catch the exit code of a failed cell for a mistake, and a reason that repeats what was expected."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b\n')
    folder = tmp_path / "run"
    given = [item.format(file=file) for item in given]
    assert command.main([*how, *given, "backend.device=cpu", f"output.folder={folder}"]) == 2
    told = capsys.readouterr().err
    (line,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert (
        line.startswith(f"error: {message.format(file=file)}") and line.count("expected") == told.count("expected") == 1
    )
    assert not folder.exists()


def test_a_name_that_is_too_long_in_a_folder_that_is_not_there_yet_is_a_mistake_too(capsys, tmp_path):
    """Would catch the bare error of the system, and the folders around it left behind."""
    assert command.main(["drafter=mtp", f"output.folder={tmp_path / 'new' / ('n' * 300)}"]) == 2
    assert "output.folder: expected a folder that can be made" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_grammar_that_cannot_be_followed_is_a_mistake_of_the_settings(monkeypatch, capsys):
    """Would catch a bad grammar that is found beside a loaded model, or called a prompt that is too long."""
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    arguments = ["drafter=eagle", "constraint=commit", "constraint.kind=regex", "constraint.grammar='[0-9'"]
    assert command.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: constraint.grammar: expected a regex that llguidance can follow, it says: ")
    assert "unclosed character class" in line and "found '[0-9': mend it" in line


@pytest.mark.parametrize(
    ("role", "fields", "arguments", "message"),
    [
        (
            "target",
            {"model_type": "mistral", "vocab_size": 6144},
            ["drafter=ngram", "target.layers=own"],
            "target.path: expected model_type llama or qwen3 or glm4_moe_lite, found 'mistral' in",
        ),
        (
            "drafter",
            {"vocab_size": 6143},
            ["drafter=eagle"],
            "expected vocab_size 6144, that of target zoo, found 6143",
        ),
        (
            "drafter",
            {"transformer_layer_config": {"vocab_size": 32001}, "draft_vocab_size": 6144},
            ["drafter=eagle3"],
            "expected vocab_size 6144, that of target zoo, found 32001",
        ),
        (
            "drafter",
            {"model_type": "llama", "vocab_size": 32002},
            ["drafter=draft_model"],
            "expected vocab_size 6144, that of target zoo, found 32002",
        ),
    ],
    ids=["model type", "EAGLE", "speculators layout", "draft model"],
)
def test_a_model_that_does_not_fit_is_a_mistake_of_the_settings(
    role, fields, arguments, message, monkeypatch, capsys, tmp_path
):
    """Would catch a folder that is only looked at when the run has begun."""
    (tmp_path / "config.json").write_text(json.dumps(fields))
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    assert command.main([*arguments, f"{role}.path={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and line.startswith(f"error: {role}.path: ") and "config.json" in line


@pytest.mark.parametrize(("role", "kind"), [("target", "eagle"), ("drafter", "draft_model")])
@pytest.mark.parametrize("weights", ["checkpoint", "random"])
def test_a_folder_without_a_checkpoint_is_a_mistake_of_the_settings(role, kind, weights, monkeypatch, capsys, tmp_path):
    """Would catch an estimate, a run in which every cell fails, and a drafter that is asked for before its target."""
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    given = [f"{role}.path={tmp_path}", f"{role}.weights={weights}"]
    assert command.main([f"drafter={kind}", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {role}.path: expected a folder with a checkpoint, found no config.json in {tmp_path}"
    # the folder of a training run, in place of that of its head
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").touch()
    assert command.main([f"drafter={kind}", *given]) == 2
    assert capsys.readouterr().err.strip() == f"{line}; {tmp_path / 'head'} has one"


@pytest.mark.parametrize(("role", "arguments"), [("target", ["drafter=ngram"]), ("drafter", ["drafter=eagle3"])])
def test_a_shard_that_is_missing_is_found_before_anything_runs(role, arguments, monkeypatch, capsys, tmp_path):
    """Would catch a folder that was copied in part, found at night when the cell's turn has come."""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr(whole_run, "run_plan", stop(AssertionError("a mistake was seen only after models were loaded")))
    assert command.main([*arguments, f"{role}.path={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {role}.path: ") and "found no model-00002-of-00002.safetensors;" in line


def test_the_list_shows_what_differs(capsys):
    assert command.main(["--list", "drafter=mtp", "verification=strict,block", "decoding.top_p=0.8,1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["target", "drafter", "K", "drafts", "T", "verification", "decoding.top_p"]
    assert lines[1] == ["1", "zoo", "none", "-", "-", "1.0", "-", "0.8"]
    assert lines[3] == ["3", "zoo", "mtp", "4", "sampled", "1.0", "strict", "0.8"]
    assert len(lines) == 1 + 2 + 4


def test_the_list_says_what_is_skipped(capsys):
    sweep = ["drafter=mtp,ngram", "verification=strict,pr35461", "invalid_cells=skip"]
    assert command.main(["--list", *sweep]) == 0
    assert "skipped drafter=ngram verification=pr35461: " in capsys.readouterr().err


def test_many_combinations_skipped_for_one_reason_share_a_line(capsys):
    """Would catch hundreds of lines where methods of trees and of chains are swept together, and a lost reason."""
    sweep = ["drafting.tree=null,2-1", "verification=block,recursive", "drafting.num_speculative_tokens=2,3,4"]
    assert command.main(["--list", "drafter=eagle3", "invalid_cells=skip", *sweep]) == 0
    lines = sorted(line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped"))
    assert len(lines) == 2 and lines[0].startswith("skipped 3 combinations, the first of them drafting.tree=null")
    assert "verification=recursive verifies trees" in lines[0]
    # a tree has one K
    assert lines[1].startswith("skipped drafting.tree=2-1 verification=block: verification=block verifies chains")


def test_a_list_ends_reasons_after_a_few(capsys):
    """Would catch a report that begins with fifty reasons, and combinations that are counted nowhere."""
    trees = "drafting.tree=null,2-1,2-2,2-3,4-1"
    sweep = [trees, "verification=block,recursive,traversal", "drafting.num_speculative_tokens=2,3"]
    assert command.main(["--list", "drafter=eagle3", "invalid_cells=skip", *sweep]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped")]
    assert lines[-1] == "skipped 1 more combinations (other reasons: 1)" and len(lines) == 8


def test_listing_the_cells_makes_no_folder(tmp_path, capsys):
    assert command.main(["--list", "drafter=mtp", f"output.folder={tmp_path / 'new'}"]) == 0
    assert not (tmp_path / "new").exists()


def test_skipped_combinations_are_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(whole_run, "run_plan", stop(KeyboardInterrupt()))
    command.main(
        ["drafter=mtp,ngram", "verification=pr35461", "invalid_cells=skip", f"output.folder={tmp_path / 'new'}"]
    )
    assert "skipped drafter=ngram: verification=pr35461 needs" in capsys.readouterr().err
