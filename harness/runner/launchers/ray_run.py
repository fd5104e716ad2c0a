"""Workers as tasks of a Ray cluster that runs already."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from harness.config.cli.command_line import say
from harness.config.schema import SettingsError
from harness.runner.launchers.launcher import await_end
from harness.runner.launchers.ray import Ray
from harness.runner.launchers.remote import Invitation, RemoteLauncher, RemoteProcess, join_run
from harness.runner.plan.run_plan import RunPlan


class RayProcess(RemoteProcess):
    """A task of Ray."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def cancel(self) -> None:
        _ray().cancel(self._task, force=True)

    def has_ended(self) -> bool:
        return bool(_ray().wait([self._task], timeout=0)[0])

    def ending(self) -> str:
        try:
            _ray().get(self._task, timeout=ENDING_S)
        except _ray().exceptions.RayError as error:
            return f"no connection to its task of Ray: {' '.join(str(error).split())[-500:]}"
        return "its task of Ray ended"


ENDING_S = 10.0
"""How long Ray may take to find out why a task ended."""


class RayLauncher(RemoteLauncher):
    """Starts workers as tasks of Ray."""

    def __init__(self, plan: RunPlan, config: Ray) -> None:
        ray = _ray()
        self._tasks: list[Any] = []
        self._is_own = not ray.is_initialized()
        if self._is_own:
            _connect(ray, config)
        hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        asked = {"CPU": config.cpus_per_worker, "GPU": config.gpus_per_worker}
        if not any(all(host.get(name, 0) >= number for name, number in asked.items()) for host in hosts):
            wanted = f"{config.cpus_per_worker} CPU cores and {config.gpus_per_worker} GPUs"
            say(f"launcher=ray: no host of the cluster has {wanted}; waiting until it gets one")
        # each task gets a process of its own, in which nothing is imported yet; lost ones are replaced by the run
        self._join_run = ray.remote(
            num_cpus=config.cpus_per_worker,
            num_gpus=config.gpus_per_worker,
            accelerator_type=config.gpu_type,
            memory=None if config.memory_gb is None else int(config.memory_gb * 1e9),
            max_calls=1,
            max_retries=0,
        )(join_run)
        super().__init__(plan, config)

    def host_name(self) -> str:
        return str(_ray().util.get_node_ip_address())

    def submit(self, invitation: Invitation, plan: RunPlan) -> RemoteProcess:
        self._tasks.append(self._join_run.remote(invitation, plan))
        return RayProcess(self._tasks[-1])

    def close(self, hurry: Callable[[], bool]) -> None:
        super().close(hurry)
        if not self._is_own:
            return
        try:
            # the end of the connection would end those that still end their servers
            await_end(self._have_ended_within, hurry)
        finally:
            _ray().shutdown()

    def _have_ended_within(self, limit_s: float) -> bool:
        return not (self._tasks and _ray().wait(self._tasks, num_returns=len(self._tasks), timeout=limit_s)[1])


def _connect(ray: Any, config: Ray) -> None:
    """Connect to the cluster; Ray's own handler of SIGTERM would end a run with another exit code."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=config.address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError) as error:
        raise SettingsError(
            f"launcher.address: expected a Ray cluster that runs, found none at {config.address} ({error}); start one "
            "with ray start, or give the address of one"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _ray() -> Any:
    import ray

    return ray
