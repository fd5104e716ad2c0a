"""Play cells in several processes, on all GPUs that there are: their kernels take longer to compile than to play.

A process is started afresh, makes its own subject, and plays the jobs whose numbers it is sent, one at a time; it lists
the jobs itself, because a control cannot be sent. What comes out does not depend on who plays it.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from harness.certification.cases import Case
from harness.certification.controls import Control
from harness.certification.evaluate import Conditions, Outcome, evaluate
from harness.certification.jobs import chosen_jobs
from harness.certification.schedule import Schedule
from harness.certification.subject import load_subject


class WorkerError(ValueError):
    """A worker died or raised an error; the message says which cell it was at. A note has the worker's traceback."""


@dataclass(frozen=True)
class Failure:
    """What a worker sends instead of an outcome."""

    message: str
    trace: str


@dataclass
class _Worker:
    """A process, this end of its pipe, and the number of the job that it plays."""

    process: SpawnProcess
    connection: Connection
    job: int | None = None


def simulate_in_workers(
    conditions: Conditions, jobs: Mapping[int, Case | Control], num_workers: int
) -> Iterator[tuple[int, Outcome]]:
    """Play jobs and hand out each outcome as it comes.

    Args:
        conditions: of the certification.
        jobs: what to play, by its number in `chosen_jobs`.
        num_workers: processes, at least 1.

    Yields:
        (the number of the job, its outcome).

    Raises:
        WorkerError: a worker died or raised an error; the others are stopped.
    """
    schedule, workers = Schedule(jobs), []
    try:
        for number in range(num_workers):
            workers.append(_started(replace(conditions, device=device_of(conditions.device, number))))
        for number, worker in enumerate(workers):
            _send_next(worker, schedule.next(number), jobs)
        while any(worker.job is not None for worker in workers):
            ready = wait([worker.connection for worker in workers if worker.job is not None])
            for number, worker in enumerate(workers):
                if worker.connection in ready and worker.job is not None:
                    index, outcome = worker.job, _received(worker, jobs)
                    _send_next(worker, schedule.next(number), jobs)
                    yield index, outcome
        for worker in workers:
            worker.process.join()
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()
            worker.connection.close()


def device_of(device: torch.device, number: int) -> torch.device:
    """Where a worker plays: workers take turns at the GPUs, unless one was named."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", number % torch.cuda.device_count())


def _started(conditions: Conditions) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(conditions, there), daemon=True)
    process.start()
    # The worker alone holds its end, so that its death closes the pipe.
    there.close()
    return _Worker(process, here)


def _send_next(worker: _Worker, index: int | None, jobs: Mapping[int, Case | Control]) -> None:
    """Send the number of a job, or None, upon which the worker ends."""
    worker.job = index
    try:
        worker.connection.send(index)
    except OSError as error:
        raise _death(worker, jobs) from error


def _received(worker: _Worker, jobs: Mapping[int, Case | Control]) -> Outcome:
    try:
        found = worker.connection.recv()
    except (EOFError, OSError) as error:
        raise _death(worker, jobs) from error
    if isinstance(found, Failure):
        failed = WorkerError(f"{_task(worker, jobs)} raised {found.message}; certify.workers=1 plays in one process")
        failed.add_note(found.trace)
        raise failed
    assert isinstance(found, Outcome)
    return found


def _task(worker: _Worker, jobs: Mapping[int, Case | Control]) -> str:
    return "a worker" if worker.job is None else f"the worker that played {jobs[worker.job].name!r}"


def _death(worker: _Worker, jobs: Mapping[int, Case | Control]) -> WorkerError:
    worker.process.join()
    return WorkerError(
        f"{_task(worker, jobs)} died with exit code {worker.process.exitcode}; if memory ran out, set fewer "
        "certify.workers or a smaller certify.batch"
    )


def _work(conditions: Conditions, connection: Connection) -> None:
    """The whole life of a worker: play what is asked for until there is nothing more."""
    # An interrupt reaches every process of the terminal; the parent answers it and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if conditions.device.type == "cuda":
        torch.cuda.set_device(conditions.device)
    try:
        jobs = chosen_jobs(conditions.config, conditions.size)
        subject = load_subject(conditions.config.subject, conditions.device)
        while (index := connection.recv()) is not None:
            connection.send(evaluate(subject, jobs[index], conditions))
    except (EOFError, BrokenPipeError):
        return  # the parent is gone
    except Exception as error:
        connection.send(Failure(f"{type(error).__name__}: {error}", traceback.format_exc()))
