"""Evaluate jobs in several processes, on all GPUs that there are: kernels take longer to compile than to run.

A process is started afresh, makes its own subject, and is sent the numbers of jobs; it lists the jobs itself, because a
control cannot be sent. What comes out does not depend on which process does it.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue

import torch

from harness.checks.certification.cases import Case
from harness.checks.certification.controls import Control
from harness.checks.certification.evaluate import Conditions, Outcome, evaluate
from harness.checks.certification.jobs import chosen_jobs
from harness.checks.certification.subject import Subject, load_subject
from harness.config.own_code import own_place
from kernels.methods import DraftSampling, Method

Group = tuple[Method, DraftSampling, str, bool]
"""Method, draft sampling, dtype and whether anything truncates: what the kernels of a job are compiled for."""
TRUNCATION_COST = 2
"""How many plain jobs a truncating one is taken for."""


class WorkerError(ValueError):
    """A worker died or raised an error; the message names its job. A note has the worker's traceback."""


def group_of(job: Case | Control) -> Group:
    """The group of a case, or of the case that a control changes."""
    case = job.case if isinstance(job, Control) else job
    truncates = any(profile.truncates for profile in case.profiles)
    return case.verification.method, case.draft_sampling, case.dtype, truncates


def in_turns(jobs: Mapping[int, Case | Control]) -> list[int]:
    """The numbers of the jobs, one of every group in turn and the longest group first.

    Workers compile different kernels at the same time in this order, and find those of later turns in Triton's cache.
    """
    groups: dict[Group, list[int]] = {}
    for index, job in jobs.items():
        groups.setdefault(group_of(job), []).append(index)

    def cost(group: Group) -> int:
        truncates = group[-1]
        return len(groups[group]) * (TRUNCATION_COST if truncates else 1)

    longest_first = [groups[group] for group in sorted(groups, key=cost, reverse=True)]
    return [index for turn in zip_longest(*longest_first) for index in turn if index is not None]


def evaluate_in_workers(
    conditions: Conditions, jobs: Mapping[int, Case | Control], num_workers: int
) -> Iterator[tuple[int, Outcome]]:
    """Evaluate jobs and yield each outcome as it comes.

    Args:
        conditions: of the certification.
        jobs: by their number in `chosen_jobs`.
        num_workers: processes, at least 1.

    Yields:
        (the number of the job, its outcome).

    Raises:
        WorkerError: a worker died or raised an error; the others are stopped.
    """
    context = multiprocessing.get_context("spawn")
    devices, started = context.SimpleQueue(), context.SimpleQueue()
    for number in range(num_workers):
        devices.put(device_of(conditions.device, number))
    others = multiprocessing.active_children()
    executor = ProcessPoolExecutor(num_workers, context, _begin, (conditions, devices, started))
    futures = {executor.submit(_evaluate, index): index for index in in_turns(jobs)}
    workers = [process for process in multiprocessing.active_children() if process not in others]
    try:
        for future in as_completed(futures):
            try:
                outcome = future.result()
            except BrokenProcessPool as error:
                # The executor's thread waits for the workers; a second wait beside it would lose an exit code.
                executor.shutdown()
                raise _death(workers, started, jobs) from error
            except Exception as error:
                failed = WorkerError(
                    f"the worker that simulated {jobs[futures[future]].name!r} raised {type(error).__name__}: {error}"
                    f"{''.join(getattr(error, '__notes__', ()))}; --workers 1 simulates in one process"
                )
                failed.add_note("".join(traceback.format_exception(error)))
                raise failed from error
            yield futures[future], outcome
    finally:
        for worker in workers:
            worker.terminate()
        executor.shutdown(cancel_futures=True)


def device_of(device: torch.device, number: int) -> torch.device:
    """Where a worker runs: workers take turns at the GPUs, unless one was named."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", number % torch.cuda.device_count())


def _death(workers: list[BaseProcess], started: SimpleQueue, jobs: Mapping[int, Case | Control]) -> WorkerError:
    """The error for workers that ended by themselves; the executor has stopped the others, with SIGTERM."""
    last: dict[int, int] = {}
    while not started.empty():
        pid, index = started.get()
        last[pid] = index
    dead = [worker for worker in workers if worker.exitcode not in (0, -signal.SIGTERM)] or workers
    names = [f"the worker that simulated {jobs[last[worker.pid]].name!r}" for worker in dead if worker.pid in last]
    return WorkerError(
        f"{names[0] if names else 'a worker'} died with exit code {dead[0].exitcode}; if memory ran out, set fewer "
        "--workers or a smaller --batch"
    )


_conditions: Conditions
_started: SimpleQueue


def _begin(conditions: Conditions, devices: SimpleQueue, started: SimpleQueue) -> None:
    """The first call in a worker."""
    global _conditions, _started
    # An interrupt reaches every process of the terminal; the parent answers it and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _conditions, _started = replace(conditions, device=devices.get()), started
    if _conditions.device.type == "cuda":
        torch.cuda.set_device(_conditions.device)


@cache
def _subject_and_jobs() -> tuple[Subject, list[Case | Control]]:
    config = _conditions.config
    return load_subject(config.subject, _conditions.device), chosen_jobs(config, _conditions.size)


def _evaluate(index: int) -> Outcome:
    _started.put((multiprocessing.current_process().pid, index))
    subject, jobs = _subject_and_jobs()
    try:
        return evaluate(subject, jobs[index], _conditions)
    except Exception as error:
        # its frames stay in this process; notes go along
        error.add_note(own_place(error))
        raise
