"""Training a head for any target: text it writes, what is learnt of it, ending and going on, the head's file."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.train_head import main
from harness.models.eagle3 import load_eagle3
from harness.models.general.target import GeneralTarget
from harness.models.target import TargetModel
from harness.training import train_head
from harness.training.chat_segments import given_prompts
from harness.training.ranks import Ranks, run_together
from harness.training.rows import RowFiles
from harness.training.sampler import Segments
from harness.training.settings import HeadTraining, LossKind, Output
from harness.training.train_head import HeadRun
from tests.support.any_models import tiny_config, tiny_model
from tests.support.gradients_of_ranks import write_found
from tests.support.tiny_models import random_target, word_tokenizer

END = 7


def general_target(writes_text: bool = False) -> TargetModel:
    """One whose network is transformers' own."""
    config = tiny_config("gpt2")
    config.n_layer = 6
    return GeneralTarget(tiny_model("gpt2", config), word_tokenizer(config.vocab_size), name="tiny")


def own_target(writes_text: bool = False) -> TargetModel:
    """One with layers of our own, whose logits are a product with its output matrix."""
    return random_target()


def prompts(target: TargetModel, tell: Callable[[str], None]) -> Segments:
    given = [[4, 5, 6], [10, 11], [20, 21, 22, 23]]
    return given_prompts(given, stride=1, answer_tokens=20, end_id=END)


def head_run(folder: Path, began: float | None = None, **changes: Any) -> HeadRun:
    sizes = {"length": 32, "rows_at_once": 24, "batch_rows": 4, "num_unrolled": 3, "draft_vocab_size": 24}
    text = {"tokens": 2 * 24 * 32, "temperatures": (0.0, 1.0), "log_seconds": 1e9}
    settings = HeadTraining(**sizes | text | {"out": str(folder), "steps": 8, "learning_rate": 1e-2} | changes)
    began = time.monotonic() if began is None else began
    return HeadRun(settings, 3, general_target, prompts, began, {"path": "tiny"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("trained")
    head_run(folder)(Ranks(0, 1))
    return folder


def test_a_trained_head_drafts_better_on_rows_held_out(trained: Path) -> None:
    """Would catch a chain, labels or gradients that do not belong together."""
    lines = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 8]
    for temperature in ("T=0", "T=1"):
        before, after = (line[temperature]["expected_length"] for line in lines)
        assert after > before + 0.02


def test_the_head_proposes_the_most_frequent_tokens_of_answers_that_are_learnt(trained: Path) -> None:
    rows, target = RowFiles(trained / "rows").read(), general_target()
    held = HeadTraining(batch_rows=4, temperatures=(0.0, 1.0)).num_heldout
    counts = np.bincount(rows.tokens[held:][rows.is_answer[held:]], minlength=target.vocab_size)
    head = load_eagle3(trained / "head", target)
    assert head.draft_to_target is not None and not head.assumptions
    ids = head.draft_to_target.numpy()
    assert (np.diff(ids) > 0).all() and len(ids) == 24
    assert counts[ids].min() >= np.delete(counts, ids).max()
    verifier = json.loads((trained / "head" / "config.json").read_text())["speculators_config"]["verifier"]
    assert verifier["rounded_weights"] == "", "what the target's weights were"
    stored = load_file(trained / "head" / "model.safetensors")
    assert stored["t2d"].nonzero().flatten().tolist() == ids.tolist()
    assert stored["lm_head.weight"].dtype == torch.bfloat16


def test_a_run_that_ended_early_goes_on_to_the_bits_of_one_that_did_not(trained: Path, tmp_path: Path) -> None:
    """Would catch an optimizer that begins anew, other batches, or another vocabulary after a stop."""
    alone = Ranks(0, 1)
    head_run(tmp_path).write_text(alone)
    # its time is over: it makes one step and stops
    head_run(tmp_path, began=time.monotonic() - 3600, run_minutes=1.0).train(alone)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]["index"] == 1
    head_run(tmp_path)(alone)
    first, second = (load_file(folder / "head" / "model.safetensors") for folder in (trained, tmp_path))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_head_of_the_targets_output_learns_without_a_matrix_of_its_own(tmp_path: Path) -> None:
    """Would catch a matrix in its file, rows that are learnt, positions that no row had, and a run that goes on with
    another output."""
    head_run(tmp_path, output=Output.target)(Ranks(0, 1))
    lines = [json.loads(line)["T=1"]["expected_length"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1] > lines[0] + 0.02
    target = general_target()
    head = load_eagle3(tmp_path / "head", target)
    assert "lm_head.weight" not in load_file(tmp_path / "head" / "model.safetensors")
    assert head.config.layer.max_position_embeddings == 32
    assert torch.equal(head.output_matrix, target.output_matrix[head.draft_to_target])
    with pytest.raises(ValueError, match="began with, output=target"):
        head_run(tmp_path)(Ranks(0, 1))
    # its weights do not depend on its tokens, which may be others afterwards
    head_run(tmp_path, output=Output.target, draft_vocab_size=12)(Ranks(0, 1))
    fewer = load_eagle3(tmp_path / "head", target)
    assert set(fewer.draft_to_target.tolist()) < set(head.draft_to_target.tolist()) and fewer.vocab_size == 12
    assert torch.equal(fewer.fc.weight, head.fc.weight)


def test_a_run_begins_with_the_weights_of_a_head_and_keeps_what_it_is(trained: Path, tmp_path: Path) -> None:
    """Would catch weights that are drawn anew, other draft tokens, and a run that goes on from the start again."""
    alone, start = Ranks(0, 1), partial(load_eagle3, trained / "head")
    shutil.copytree(trained / "rows", tmp_path / "a" / "rows")
    shutil.copytree(trained / "rows", tmp_path / "b" / "rows")

    def run(name: str, **changes: Any) -> HeadRun:
        run = head_run(tmp_path / name, draft_vocab_size=8192, start="earlier", steps=4, **changes)
        return dataclasses.replace(run, start=start)

    run("a")(alone)
    lines = [json.loads(line)["T=1"] for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    ended = json.loads((trained / "log.jsonl").read_text().splitlines()[-1])["T=1"]
    # its file is of bfloat16
    assert lines[0]["expected_length"] == pytest.approx(ended["expected_length"], abs=0.02)
    first, second = (load_eagle3(folder / "head", general_target()) for folder in (trained, tmp_path / "a"))
    assert second.draft_to_target.tolist() == first.draft_to_target.tolist()
    assert not torch.equal(first.fc.weight, second.fc.weight)
    # its time is over: it makes one step and stops
    run("b", run_minutes=1e-9).train(alone)
    assert torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["state"]["index"] == 1
    run("b").train(alone)
    found = [load_file(tmp_path / name / "head" / "model.safetensors") for name in ("a", "b")]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    other = tmp_path / "other"
    shutil.copytree(trained / "head", other)
    weights = load_file(other / "model.safetensors")
    save_file(
        {name: tensor + 1 if name == "norm.weight" else tensor for name, tensor in weights.items()},
        other / "model.safetensors",
    )
    with pytest.raises(ValueError, match="expected behind start=earlier the files that this run began with"):
        dataclasses.replace(run("a"), start=partial(load_eagle3, other))(alone)
    with pytest.raises(ValueError, match="expected what this run began with, start=earlier"):
        head_run(tmp_path / "a", draft_vocab_size=8192)(alone)


def test_a_head_that_is_trained_further_names_the_target_it_is_trained_for(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch a file that names weights of its start, which it was not trained on, and a start that is not told."""
    start, out = tmp_path / "start", tmp_path / "out"
    shutil.copytree(trained / "head", start)
    shutil.copytree(trained / "rows", out / "rows")
    fields = json.loads((start / "config.json").read_text())
    fields["speculators_config"]["verifier"] |= {"name_or_path": "other", "rounded_weights": "GGUF Q4_1 weights"}
    (start / "config.json").write_text(json.dumps(fields))
    run = head_run(out, draft_vocab_size=8192, start=str(start), steps=1)
    dataclasses.replace(run, start=partial(load_eagle3, start))(Ranks(0, 1))
    assert "note: start: its file says that it was trained on GGUF Q4_1 weights of other" in capsys.readouterr().out
    verifier = json.loads((out / "head" / "config.json").read_text())["speculators_config"]["verifier"]
    assert (verifier["name_or_path"], verifier["rounded_weights"]) == (general_target().name, "")
    assert not load_eagle3(out / "head", general_target()).assumptions


@pytest.mark.parametrize("loads", [general_target, own_target])
def test_kept_states_teach_what_states_that_are_computed_anew_do(
    tmp_path: Path, loads: Callable[[bool], TargetModel]
) -> None:
    """Would catch states of other rows, and logits of other tokens."""
    heads = []
    for keeps in (False, True):
        folder = tmp_path / str(keeps)
        run = dataclasses.replace(head_run(folder, keep_states=keeps, batch_rows=5, steps=4), load=loads)
        run(Ranks(0, 1))
        heads.append(load_file(folder / "head" / "model.safetensors"))
    for name, tensor in heads[0].items():
        torch.testing.assert_close(heads[1][name], tensor, atol=2e-3, rtol=2e-2)


def test_without_minutes_a_run_trains_to_its_end(tmp_path: Path) -> None:
    """Would catch a learning rate that has not reached zero where the run ends."""
    head_run(tmp_path).write_text(Ranks(0, 1))
    head_run(tmp_path, steps=0, minutes=0.0, run_minutes=0.1)(Ranks(0, 1))
    ended = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert ended["fraction"] >= 1


def test_text_is_written_once_and_cut_where_time_is_over(tmp_path: Path) -> None:
    files = RowFiles(tmp_path / "rows")
    for _ in range(2):
        # minutes of all runs together
        head_run(tmp_path, generate_minutes=0.0).write_text(Ranks(0, 1))
        assert files.numbers == [0]
    before = files.read().tokens
    head_run(tmp_path).write_text(Ranks(0, 1))
    assert files.numbers == [0, 1]
    after = files.read().tokens
    assert np.array_equal(after[:24], before) and not np.array_equal(after[24:], before)
    head_run(tmp_path).write_text(Ranks(0, 1))
    assert files.numbers == [0, 1]


def test_a_head_in_training_keeps_its_text_unless_more_is_asked_for(tmp_path: Path) -> None:
    """Would catch a training set, or draft tokens, that change with every start."""
    alone, files = Ranks(0, 1), RowFiles(tmp_path / "rows")
    head_run(tmp_path, generate_minutes=0.0, tokens=4 * 24 * 32, steps=1, draft_vocab_size=8)(alone)
    tokens = load_eagle3(tmp_path / "head", general_target()).draft_to_target
    head_run(tmp_path, generate_minutes=0.0, tokens=4 * 24 * 32, steps=2, draft_vocab_size=8)(alone)
    head_run(tmp_path, generate_minutes=0.0, tokens=3 * 24 * 32, steps=3, draft_vocab_size=8)(alone)
    assert files.numbers == [0]
    head_run(tmp_path, generate_minutes=9.0, tokens=3 * 24 * 32, steps=4, draft_vocab_size=8)(alone)
    assert files.numbers == [0, 1, 2]
    head_run(tmp_path, generate_minutes=9.0, tokens=4 * 24 * 32, steps=5, draft_vocab_size=8)(alone)
    # as much was asked for before
    assert files.numbers == [0, 1, 2]
    head_run(tmp_path, generate_minutes=9.0, tokens=5 * 24 * 32, steps=6, draft_vocab_size=8)(alone)
    assert files.numbers == [0, 1, 2, 3, 4]
    after = load_eagle3(tmp_path / "head", general_target()).draft_to_target
    assert tokens is not None and after is not None and torch.equal(tokens, after)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]["index"] == 6


def test_a_run_whose_time_ends_while_text_is_written_does_not_train_on_a_part(tmp_path: Path) -> None:
    run = head_run(tmp_path, began=time.monotonic() - 3600, run_minutes=1.0)
    run(Ranks(0, 1))
    assert RowFiles(tmp_path / "rows").numbers == [0] and not (tmp_path / "checkpoint.pt").exists()
    other = head_run(tmp_path / "other", began=time.monotonic() - 3600, run_minutes=1.0)
    assert [other.write_text(Ranks(0, 1)) for _ in range(2)] == [False, True]
    assert RowFiles(tmp_path / "other" / "rows").numbers == [0, 1]


def test_progress_of_a_batch_of_text_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch minutes without a line, and a first batch that takes longer than asked for without a word."""

    @contextmanager
    def once(call: Callable[[], None], every_s: float) -> Iterator[None]:
        assert every_s <= 15
        call()
        yield
        call()

    monkeypatch.setattr(train_head, "repeated", once)
    head_run(tmp_path, generate_minutes=0.0).write_text(Ranks(0, 1))
    told = capsys.readouterr().out
    assert "text: 0 tokens, and 0% of the rows under way in " in told
    assert "text: 0 tokens, and 97% of the rows under way in " in told
    assert "note: the first rows took 0 s, more than generate_minutes=0; a training needs them" in told


def test_the_log_tells_where_the_loss_changes_and_goes_to_100_percent(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch values of two losses that seem to be of one, and a budget that is used up by 126.9 %."""
    shutil.copytree(trained / "rows", tmp_path / "rows")
    head_run(tmp_path)(Ranks(0, 1))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert told[1] == "step 6: from here on the loss is acceptance; earlier values do not compare with it"
    # a run that goes on behind the change has values of one loss
    head_run(tmp_path, steps=10)(Ranks(0, 1))
    assert "from here on" not in capsys.readouterr().out
    # the budget is over before the last line is
    head_run(tmp_path, steps=0, minutes=1e-9)(Ranks(0, 1))
    assert "step 10, 100.0%;" in capsys.readouterr().out


def test_text_is_counted_by_its_rows(tmp_path: Path) -> None:
    """Would catch files of few rows at once that are taken for as much text as those of many."""
    alone, files = Ranks(0, 1), RowFiles(tmp_path / "rows")
    head_run(tmp_path, rows_at_once=6, tokens=6 * 32).write_text(alone)
    head_run(tmp_path, rows_at_once=24, tokens=24 * 32).write_text(alone)
    assert files.numbers == [0, 1] and files.num_rows == 30 and files.read().tokens.shape == (30, 32)


@pytest.mark.parametrize(
    ("name", "value", "began_with"),
    [
        ("draft_vocab_size", 12, "24"),
        ("batch_rows", 6, "4"),
        ("loss", LossKind.acceptance, "kl_then_acceptance"),
        ("late_cross_entropy", 0.1, "0.05"),
    ],
)
def test_a_run_refuses_other_settings_than_it_began_with(trained: Path, name: str, value: Any, began_with: str) -> None:
    """With more rows of a step, rows that were learnt would be held out."""
    with pytest.raises(ValueError, match=f"began with, {name}={began_with}"):
        head_run(trained, **{name: value})(Ranks(0, 1))


def test_a_run_refuses_the_text_of_another_target(tmp_path: Path) -> None:
    """Would catch a head that is trained on what another target wrote."""
    head_run(tmp_path).write_text(Ranks(0, 1))
    other = dataclasses.replace(head_run(tmp_path), target={"path": "other"})
    told = r"expected the target that this run began with, target\.path=tiny, found target\.path=other; or choose"
    with pytest.raises(ValueError, match=told):
        other(Ranks(0, 1))


def test_the_folder_of_another_target_is_wrong_input_and_refused_at_once(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch an estimate, or a target that is loaded, before what ends the command."""
    (tmp_path / "target.json").write_text(json.dumps({"path": "other"}))
    assert main([f"out={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "target.path=other" in error and "found target.path=null" in error and "note:" not in error
    shutil.copy(trained / "checkpoint.pt", tmp_path)
    (tmp_path / "target.json").unlink()
    assert main([f"out={tmp_path}", "length=32", "num_unrolled=3", "draft_vocab_size=24", "temperatures=0,1"]) == 2
    error = capsys.readouterr().err
    assert "began with, batch_rows=4, found batch_rows=16" in error and "note:" not in error
    assert not (tmp_path / "target.json").exists()


def test_rows_held_out_that_are_learnt_too_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three prompts, at temperature 0: each has one answer, which is learnt and held out."""
    head_run(tmp_path, steps=1)(Ranks(0, 1))
    assert "note: 8 of 16 rows held out are learnt too" in capsys.readouterr().out
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["held_out_but_learnt"] == 8


def test_one_step_is_learnt_where_the_last_pair_predicts_what_lies_behind_the_row(tmp_path: Path) -> None:
    """Would catch pairs that have no weight."""
    head_run(tmp_path, length=33, num_unrolled=1, steps=1)(Ranks(0, 1))
    assert (tmp_path / "head" / "config.json").is_file()


def test_too_little_text_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 105 rows or more"):
        head_run(tmp_path, batch_rows=21, tokens=1)(Ranks(0, 1))


def test_two_processes_average_gradients_and_follow_the_first(tmp_path: Path) -> None:
    run_together(2, partial(write_found, str(tmp_path)))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["gradients"] == [[1.5], [1.5]] and first["agreed"] == 10.0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["minuts=3"], "unknown setting 'minuts' (did you mean minutes?); there are kind, start, out, minutes"),
        (["drafter=eagle3"], "drafter is not used here"),
        (["kind=medusa"], "expected eagle3, found"),
        (["minutes=0"], "minutes: expected more than 0, or 0 beside run_minutes"),
        (["seed=1,2"], "a run trains one head"),
        (["temperatures=3"], "temperatures: expected numbers from 0 to 2"),
        (
            ["start=built_in", "output=target"],
            "output: expected none beside start, whose head has its own, found target",
        ),
        (["start=/missing"], "start: expected a folder or a Hugging Face id"),
        (["start=built_in", "length=2000"], "length: expected at most 1024"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert told in output and "loading" not in output


def test_what_is_not_used_of_prompts_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch prompts that are too long, and later turns, that are left out without a word."""
    lines = [["How are you?", "And now?"], ["Say hello."], ["word " * 200]]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"turns": turns}) for turns in lines))
    given = ["length=96", "rows_at_once=1", "tokens=96", "only_text=true", f"workload.path={path}", f"out={tmp_path}"]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "note: 1 of 3 prompts are left out, of more than 48 tokens" in told
    assert "note: of 1 of 3 conversations only the first turn is asked" in told
    assert main([*given, "question_tokens=9"]) == 2
    assert "question_tokens: expected none beside workload.path" in capsys.readouterr().err


def test_the_command_trains_for_the_built_in_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["length=48", "rows_at_once=20", "tokens=960", "batch_rows=2", "steps=1", "draft_vocab_size=64"]
    more = ["question_tokens=12", "answer_tokens=12", "num_unrolled=2", f"out={tmp_path}"]
    assert main([*given, *more]) == 0
    assert "expected length on rows held out: T=0" in capsys.readouterr().out
    assert json.loads((tmp_path / "head" / "config.json").read_text())["draft_vocab_size"] == 64
