"""Workers as jobs of SLURM, by submitit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from harness.config.schema import SettingsError
from harness.runner.launchers.remote import Invitation, RemoteLauncher, RemoteProcess, join_run, worker_folder
from harness.runner.launchers.slurm import NO_SLURM, Executor, Slurm
from harness.runner.launchers.slurm_queue import SlurmQueue
from harness.runner.plan.run_plan import RunPlan
from harness.runner.stop_signals import blocked


class SlurmProcess(RemoteProcess):
    """A job of SLURM, or of submitit's local executor."""

    def __init__(self, job: Any, executor: Executor, queue: SlurmQueue) -> None:
        self._job, self._executor, self._queue = job, executor, queue

    def cancel(self) -> None:
        if self._executor is Executor.local:
            self._job.cancel(check=False)
        else:
            self._queue.cancel(str(self._job.job_id))

    def has_ended(self) -> bool:
        if self._executor is Executor.local:
            return bool(self._job.done())
        return self._queue.has_ended(str(self._job.job_id))

    def ending(self) -> str:
        path, lines = self._job.paths.stdout, ["nothing"]
        # of a job that never ran there is none
        with suppress(OSError):
            lines += path.read_text(errors="replace").split("\n")
        last = [line for line in lines if line.strip()][-1]
        return f"no connection to job {self._job.job_id}; the end of its log {path}: {last.strip()[:500]}"


class SlurmLauncher(RemoteLauncher):
    """Starts workers as jobs of SLURM."""

    def __init__(self, plan: RunPlan, config: Slurm) -> None:
        submitit = _submitit()
        self._config, folder = config, worker_folder(plan)
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=config.executor.value)
        except RuntimeError as error:
            raise SettingsError(NO_SLURM) from error
        self._queue = SlurmQueue()
        memory = {} if config.memory_gb is None else {"mem_gb": config.memory_gb}
        self._executor.update_parameters(
            name=plan.name,
            timeout_min=config.time_limit_min,
            cpus_per_task=config.cpus_per_worker,
            stderr_to_stdout=True,
            **_gpus(config),
            **memory,
            **({} if config.partition is None else {"slurm_partition": config.partition}),
            # another job goes on with what a lost one did
            slurm_additional_parameters={"no_requeue": True, **config.sbatch_options},
        )
        super().__init__(plan, config)

    def submit(self, invitation: Invitation, plan: RunPlan) -> RemoteProcess:
        submitit = _submitit()
        try:
            # a key reaches all processes of a terminal, those of the local executor too
            with blocked(signal.SIGINT):
                job = self._executor.submit(join_run, invitation, plan)
        except (OSError, submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            raise SettingsError(
                f"launcher=slurm: expected that SLURM takes a job with {_asked(self._config)}, found: {error}"
            ) from error
        return SlurmProcess(job, self._config.executor, self._queue)

    def close(self, hurry: Callable[[], bool]) -> None:
        super().close(hurry)
        for path in worker_folder(self._plan).glob("*_submitted.pkl"):
            # what jobs were started with, the secret among it
            path.unlink(missing_ok=True)
        self._queue.close(hurry)


def _asked(config: Slurm) -> str:
    """The settings that decide where a job fits."""
    names = ("gpus_per_worker", "gpu_type", "cpus_per_worker", "memory_gb", "time_limit_min", "partition", "sbatch")
    given = {name: getattr(config, name) for name in names}
    return ", ".join(f"launcher.{name}={value}" for name, value in given.items() if value not in (None, ()))


def _gpus(config: Slurm) -> dict[str, Any]:
    if not config.gpus_per_worker:
        # a cluster without GPUs refuses to be asked for none
        return {}
    if config.gpu_type is None:
        return {"gpus_per_node": config.gpus_per_worker}
    return {"slurm_gres": f"gpu:{config.gpu_type}:{config.gpus_per_worker}"}


def _submitit() -> Any:
    import submitit

    return submitit
