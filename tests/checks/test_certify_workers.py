"""Several processes find exactly what one finds, share the cells sensibly, and stop with one line when one fails."""

import multiprocessing
from dataclasses import replace

import pytest
import torch

from experiments.certify import main
from harness.checks.certification.certify import MAX_WORKERS, certify, resolve_workers
from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.evaluate import CaseVerdict
from harness.checks.certification.jobs import chosen_jobs
from harness.checks.certification.workers import device_of, group_of, in_turns
from harness.config.device import Device

JOBS = dict(enumerate(chosen_jobs(CertifyConfig(), Size.full)))
BROKEN_SUBJECT = """
import os
from dataclasses import replace
from harness.checks.certification.subject import reference

def raises(device):
    def draw(*arguments, **named):
        raise RuntimeError("no such kernel")
    return replace(reference(device), draw=draw)

def dies(device):
    return replace(reference(device), draw=lambda *arguments, **named: os._exit(9))
"""


def test_two_workers_find_exactly_what_one_finds():
    one = CertifyConfig(device=Device.cpu, samples=1000, methods=("coupled",), cells="float32, none", workers=1)
    expected = certify(one, lambda outcome: None)
    seen = []
    found = certify(replace(one, workers=2), seen.append)
    assert (expected.num_workers, found.num_workers) == (1, 2)
    assert {outcome.verdict for outcome in found.outcomes} >= {CaseVerdict.passed, CaseVerdict.rejected}
    timeless = [[replace(outcome, wall_s=0.0) for outcome in run.outcomes] for run in (expected, found)]
    assert timeless[0] == timeless[1]
    assert sorted(outcome.name for outcome in seen) == sorted(outcome.name for outcome in found.outcomes)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "raised RuntimeError: no such kernel (broken_subject.py, line 8, in draw); --workers 1"),
        ("dies", "died with exit code 9"),
    ],
)
def test_a_worker_that_fails_stops_the_command_with_one_line(function, message, monkeypatch, tmp_path, capsys):
    (tmp_path / "broken_subject.py").write_text(BROKEN_SUBJECT)
    monkeypatch.syspath_prepend(tmp_path)
    settings = [
        "device=cpu",
        "workers=2",
        "samples=1000",
        "methods=greedy,strict",
        "cells=greedy one-hot, float32, none",
    ]
    arguments = [*(f"--{item}" for item in settings), "--no-controls", f"--subject=broken_subject:{function}"]
    assert main([*arguments, f"--output={tmp_path}"]) == 1
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert message in line and "the worker that simulated '" in line
    assert not multiprocessing.active_children()
    assert not list(tmp_path.glob("*.json"))


def test_every_job_is_handed_out_once_and_each_group_starts_in_the_first_turn_the_longest_first():
    """Would catch a job that is lost or runs twice, and workers that all compile the kernels of one group at once."""
    order = in_turns(JOBS)
    assert sorted(order) == sorted(JOBS)
    groups = [group_of(JOBS[index]) for index in order]
    first_turn = groups[: len(set(groups))]
    assert len(set(first_turn)) == len(first_turn)
    costs = [groups.count(group) * (1 + group[-1]) for group in first_turn]
    assert costs == sorted(costs, reverse=True)


def test_a_gpu_gets_workers_that_leave_two_cores_and_a_cpu_one_a_core_where_there_are_jobs_for_them(monkeypatch):
    """Would catch processes that cost more to start than they save, and more of them than jobs."""
    for num_cpus, on_gpu, on_cpu in ((64, MAX_WORKERS, 8), (8, 6, 8), (2, 1, 2), (None, 1, 1)):
        monkeypatch.setattr("os.cpu_count", lambda num_cpus=num_cpus: num_cpus)
        assert resolve_workers(0, torch.device("cuda"), 80) == on_gpu
        assert resolve_workers(0, torch.device("cpu"), 80) == on_cpu
    assert resolve_workers(0, torch.device("cpu"), 9) == 1
    assert resolve_workers(5, torch.device("cpu"), 80) == 5
    assert resolve_workers(5, torch.device("cpu"), 3) == 3


def test_workers_take_turns_at_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(torch.device("cuda"), number).index for number in range(3)] == [0, 1, 0]
    assert device_of(torch.device("cuda", 1), 0).index == 1
    assert device_of(torch.device("cpu"), 1) == torch.device("cpu")
