"""A training that a CPU has no room or no time for is refused before anything is loaded, with numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.train_head import main
from harness.config.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS
from harness.config.schema import SettingsError
from harness.models import free_memory
from harness.models.eagle3 import Eagle3Config, Eagle3Head, load_eagle3
from harness.models.random_weights import RandomWeights
from harness.models.target import load_target
from harness.training import cpu_time
from harness.training.cpu_time import LeastTime, check_on_cpu, matrix_rate
from harness.training.settings import HeadTraining, Output

DTYPE = torch.float32


@pytest.fixture(scope="module")
def target():
    return load_target(None, device="meta")


@pytest.fixture
def settings(tmp_path):
    return HeadTraining(out=str(tmp_path))


def test_the_least_time_is_that_of_the_products(settings):
    """Would catch a bound above what a run takes, which refuses runs that would end in time."""
    small = replace(settings, batch_rows=2, length=32, rows_at_once=2, draft_vocab_size=64, num_unrolled=1)
    target = load_target(None)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        positions = torch.arange(32).expand(2, -1)
        view = target.new_cache(2, 32).view(slice(0, 2), positions, 32)
        target.logits(target.forward(torch.zeros(2, 32, dtype=torch.int64), positions, view).hidden)
    forward, learnt = counter.get_total_flops(), 2 * 3 * 2 * 32 * target.hidden_size * 64
    least = LeastTime.of(small, target, 1.0)
    # attention, which torch does not count here
    assert least.step_s == pytest.approx(forward + learnt, rel=0.02)
    assert least.text_s == pytest.approx(least.step_s - learnt)
    assert LeastTime.of(replace(small, keep_states=True, processes=2), target, 0.5).step_s == 4 * learnt
    assert LeastTime.of(replace(small, keep_states=True, output=Output.target), target, 1.0).step_s == learnt * 2 / 3


@pytest.mark.parametrize(
    ("rate", "changes", "told"),
    [
        (
            1e8,
            {},
            r"rows_at_once: expected the first rows within generate_minutes=10, found 256 rows of 1,024 tokens, ",
        ),
        (
            1e8,
            {"generate_minutes": 1e6},
            r"batch_rows: expected time for 10 steps or more in 20 minutes, found that a ",
        ),
    ],
)
def test_what_takes_longer_than_its_time_is_refused(rate, changes, told, settings, target):
    with pytest.raises(SettingsError, match=told) as refused:
        check_on_cpu(replace(settings, **changes), target, DTYPE, rate)
    advice = r"\d minutes or more on this CPU \(0 GFLOP/s in float32, measured\); set length=128 rows_at_once=64 "
    assert re.search(advice + r"batch_rows=4 draft_vocab_size=1024 \(.* at least\), or take a GPU$", str(refused.value))


def test_few_steps_are_told_and_many_are_not(settings, target):
    note = check_on_cpu(settings, target, DTYPE, 3e10)
    assert note is not None and re.search(
        r"alone \d\d steps in 20 minutes, with all else fewer; for more of them set length=128 ", note
    )
    assert check_on_cpu(settings, target, DTYPE, 3e12) is None
    assert check_on_cpu(replace(settings, steps=5), target, DTYPE, 3e10) is None


def test_a_target_that_has_no_room_is_refused_before_it_is_drawn(tmp_path, monkeypatch, capsys):
    """Would catch a process that the system kills."""

    def only_on_meta(self, name, place):
        assert place.is_meta, f"{name} was drawn"

    monkeypatch.setattr(RandomWeights, "put", only_on_meta)
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: 40 * 10**9)
    assert main([f"out={tmp_path / 'run'}", "target=llama3_8b", "backend.device=cpu"]) == FAILED
    told = capsys.readouterr().err
    assert "expected 100.84 GB of free memory on cpu (32.12 GB for 8,030,261,248 weights of target llama3_8b" in told
    assert not (tmp_path / "run").exists()


def test_a_rate_is_measured():
    assert 1e8 < matrix_rate(DTYPE) < 1e14


def test_beside_a_start_the_sizes_are_those_of_its_head(tmp_path, monkeypatch, capsys):
    """Would catch advice to set what the head has, and a run that such advice ends."""
    given = ["backend.device=cpu", "start=built_in", "num_unrolled=2", f"out={tmp_path / 'run'}"]
    small = ["tokens=1024", "length=64", "rows_at_once=16", "batch_rows=2", "question_tokens=16", "answer_tokens=16"]
    assert main([*given, *small, "temperatures=0", "loss=acceptance", "steps=1"]) == SUCCESS
    assert (tmp_path / "run" / "head" / "model.safetensors").is_file()
    monkeypatch.setattr(cpu_time, "matrix_rate", lambda dtype: 1e8)
    capsys.readouterr()
    assert main([*given[:-1], f"out={tmp_path / 'slow'}"]) == WRONG_SETTINGS
    told = capsys.readouterr().err
    assert re.search(r"; set length=128 rows_at_once=64 batch_rows=4 \(.* at least\), or take a GPU$", told.strip())


def test_the_least_time_beside_a_start_is_that_of_its_output(settings):
    target = load_target(None)
    head = load_eagle3(None, target)
    own = replace(settings, keep_states=True, draft_vocab_size=head.vocab_size)
    begun = replace(settings, keep_states=True, start="built_in")
    assert LeastTime.of(begun, target, 1.0, head) == LeastTime.of(own, target, 1.0)
    few = Eagle3Head(Eagle3Config.for_target(target, 64), target, own_output=False)
    taken = replace(own, draft_vocab_size=64, output=Output.target)
    assert LeastTime.of(begun, target, 1.0, few) == LeastTime.of(taken, target, 1.0)
