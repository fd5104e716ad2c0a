"""What `doctor` says of a machine: of what is missing, what to do, and of a core that is wrong, not to trust it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from experiments.doctor import main
from harness.checks.doctor import device, environment
from harness.config.cli.ending import FAILED, SUCCESS
from kernels.methods.probabilistic import Probabilistic
from kernels.reference.odds import Odds


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """As few cases as there are."""
    monkeypatch.setattr(device, "CASES", "probabilistic, sampled cached, float32, none")


def lines_of(capsys, *arguments):
    code = main(list(arguments))
    lines = capsys.readouterr().out.splitlines()
    return code, lines


def test_a_sound_machine_has_nothing_to_put_right(capsys):
    """Would catch a check that fails where everything runs."""
    code, lines = lines_of(capsys, "--device", "cpu")
    assert code == SUCCESS and lines[-1].startswith("nothing hinders runs here")
    (core,) = [line for line in lines if "sampling core:" in line]
    assert core.startswith("ok") and "GREEN" in core and "controls are rejected" in core


def test_what_is_missing_is_named_with_what_to_do(capsys, monkeypatch, tmp_path):
    """Would catch a doctor that finds, and gives no advice; and one that ends at its first finding."""
    monkeypatch.setattr(environment, "is_installed", lambda package: package != "submitit")
    monkeypatch.setattr(device, "look_at_device", lambda name: ())
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(environment, "LEAST_DISK_GB", 10**9)
    # a container that may have less than its host
    monkeypatch.setattr(environment, "CONTROL_GROUP", tmp_path)
    # and that has read files, whose copies in memory are counted as used, and are no loss
    for name, text in {
        "memory.max": "6000000000",
        "memory.current": "5900000000",
        "memory.stat": "anon 5000000000\ninactive_file 600000000\nactive_file 300000000",
    }.items():
        (tmp_path / name).write_text(f"{text}\n")
    code, lines = lines_of(capsys, "--device", "cpu")
    assert code == FAILED
    advice = dict(pairwise(lines))
    for found, wanted in {
        "slurm (for launcher=slurm)": "slurm",
        "no C compiler (CC=no-such-compiler)": "install gcc",
        "HF_HUB_OFFLINE is set": "unset it",
        "records: ": "output.folder=",
        "1.0 GB of memory are free": "free some",
    }.items():
        (line,) = [item for item in lines if found in item]
        assert wanted in advice[line]


def test_a_core_that_is_wrong_is_not_to_be_trusted(capsys, monkeypatch):
    """Would catch a verdict that is not looked at; the broken copy accepts drafts as if they were twice as likely."""

    def odds(self, proposal):
        return Odds(2 * proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())

    monkeypatch.setattr(Probabilistic, "odds", odds)
    code, lines = lines_of(capsys, "--device", "cpu")
    assert code == FAILED
    (core,) = [line for line in lines if "sampling core:" in line]
    assert core.startswith("PROBLEM") and "RED" in core


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_named_with_its_speed(capsys):
    """Would catch a roofline of bytes that are not read; a busy GPU may be told to be slow, not to be fast."""
    code, lines = lines_of(capsys)
    assert code in (SUCCESS, FAILED)
    assert any("GPU:" in line and torch.cuda.get_device_name() in line for line in lines)
    (speed,) = [line for line in lines if " speed:" in line]
    assert 0 < int(speed.split("%")[0].split()[-1]) < 150
