"""Backends outside the package of which one cell fails, in every way that a cell can."""

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from harness.backends.backend import BackendRun
from harness.records.schema import Failure
from tests.support.fake_servers import FakeServer, LosesRequests


class FailingServer(FakeServer):
    """Answers every request but those of the second block of the method `block`, where something goes wrong."""

    failing_block = 2
    num_blocks = 0
    has_failed = False

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        self.num_blocks += on_request is not None
        mended = "SERVER_IS_MENDED" in os.environ
        fails = (
            self.num_blocks == self.failing_block
            and not mended
            and not self.cell.is_baseline
            and self.cell.verification.method.value == "block"
        )

        def told(num_tokens: int) -> None:
            on_request(num_tokens)
            if fails and not self.has_failed:
                self.has_failed = True
                self.fail()

        return super().generate(conversations, on_request and told, start_s)

    def fail(self) -> None:
        raise NotImplementedError


class Raises(FailingServer):
    def fail(self) -> None:
        raise RuntimeError("out of memory\nwith a second line")


class BaselineRaises(Raises):
    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        if self.cell.is_baseline:
            self.fail()
        return FakeServer.generate(self, conversations, on_request, start_s)


class KilledBeforeItLooks(Raises):
    """The first process after the environment names a file dies before it has read a cell."""

    @staticmethod
    def resolved(cell):
        path = os.environ.get("ONCE")
        if path is not None and not os.path.exists(path) and os.environ.get("CUDA_VISIBLE_DEVICES") == "0":
            open(path, "wb").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return cell


class KilledWithItsPrompts(FakeServer):
    """The process dies in the last turn of the group whose prompts are in the file that the environment names, and
    deletes that file."""

    num_blocks = 0

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        self.num_blocks += on_request is not None
        path = self.cell.workload.path
        if self.cell.is_baseline and self.num_blocks == 2 and path == os.environ["GONE"]:
            os.unlink(path)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(conversations, on_request, start_s)


class WaitsForTheOther(Raises):
    """Of two hosts one is bad; the one that the environment names waits until the test has an event of the other."""

    has_waited = False

    @classmethod
    def resolved(cls, cell):
        device = os.environ.get("CUDA_VISIBLE_DEVICES")
        if device == os.environ["LAST"] and not cls.has_waited and Path(os.environ["TELL"]).exists():
            cls.has_waited = True
            open(os.environ["TELL"]).close()
        if device == "bad":
            raise ValueError("no GPU here")
        return cell


class CannotBeMade(FakeServer):
    def __init__(self, cell, shared) -> None:
        raise ValueError("no such server")


class KilledWhenMade(FakeServer):
    """The process dies before the method `strict` is made, whenever that is tried."""

    is_asked_to = True

    def __init__(self, cell, shared) -> None:
        if self.is_asked_to and not cell.is_baseline and cell.verification.method.value == "strict":
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(cell, shared)


class KilledIfAsked(KilledWhenMade):
    """The same if the environment asks for it."""

    is_asked_to = "KILL" in os.environ


class Killed(FailingServer):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class RaisesAndIsKilled(Killed):
    """The method `strict` raises an error, which a file counts, before the process dies of `block`."""

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        if not self.cell.is_baseline and self.cell.verification.method.value == "strict":
            with open(os.environ["ONCE"], "ab") as file:
                file.write(b"!")
            raise RuntimeError("before")
        return super().generate(conversations, on_request, start_s)


class Hangs(FailingServer):
    """Opens a pipe that the test gives, and is silent from there on."""

    def fail(self) -> None:
        self.pipe = open(os.environ["TELL"], "w")  # noqa: SIM115
        while True:
            signal.pause()


class LoadsForEver(FailingServer):
    """Opens the pipe while its models load, or in the first turn before the first round, as the environment says."""

    @staticmethod
    def prepare_together(backends, conversations) -> None:
        if os.environ["LOADS"] == "before the first turn":
            LoadsForEver.load()

    def generate(self, conversations, on_request=None, start_s=0.0, on_round=None) -> BackendRun:
        self.load()
        raise AssertionError

    @staticmethod
    def load() -> None:
        open(os.environ["TELL"], "w").close()
        while True:
            signal.pause()


class GoesOnWhenStopped(FailingServer):
    """Opens the pipe, and finishes the next request once it has been asked to stop."""

    def fail(self) -> None:
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno())
        open(os.environ["TELL"], "w").close()
        receiver.recv(1)


class PlaysOnUntilStopped(FailingServer):
    """Opens the pipe, and plays rounds of a request that does not end."""

    def generate(self, conversations, on_request=None, start_s=0.0, on_round=None) -> BackendRun:
        self.on_round = on_round
        return super().generate(conversations, on_request, start_s)

    def fail(self) -> None:
        open(os.environ["TELL"], "w").close()
        began_s = time.monotonic()
        while time.monotonic() - began_s < 60:
            self.on_round()
        raise RuntimeError("not stopped after a round")


class DiesOfTheSignal(FailingServer):
    """Opens the pipe, and loses its last request to the signal that the run gets too; offers all others."""

    def generate(self, conversations, on_request=None, start_s=0.0, keep=None) -> BackendRun:
        self.num_blocks += on_request is not None
        if self.num_blocks < 2 or "SERVER_IS_MENDED" in os.environ:
            return FakeServer.generate(self, conversations, on_request, start_s)
        run = FakeServer.generate(self, conversations[:-1], on_request, start_s)
        GoesOnWhenStopped.fail(self)
        lost = conversations[-1]
        failure = Failure("ServerGone", "no answer", request=(lost.prompt.prompt_id, 0, lost.sample))
        run = replace(run, failures=(failure,))
        keep(run)
        return run


class LosesRequestsUntilMended(LosesRequests):
    """Gives no answer to the first request of every block, until it is mended."""

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        is_warm_up = on_request is None
        generate = FakeServer.generate if is_warm_up or "SERVER_IS_MENDED" in os.environ else LosesRequests.generate
        return generate(self, conversations, on_request, start_s)


class Once(FailingServer):
    """Something goes wrong only once in a run: the file that the environment names says that it did."""

    num_times = 1

    def fail(self) -> None:
        with open(os.environ["ONCE"], "ab") as file:
            if file.tell() == self.num_times:
                return
            file.write(b"!")
        self.fail_once()

    def fail_once(self) -> None:
        raise NotImplementedError


class KilledOnce(Once):
    def fail_once(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class IsPreempted(Once):
    """The scheduler of a cluster tells two processes in the same cell that their time is up."""

    failing_block, num_times = 1, 2

    def fail_once(self) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)


class IsPreemptedAgainAndAgain(IsPreempted):
    """The same six times."""

    num_times = 6


class KilledInBothBlocks(KilledOnce):
    """The process is killed in the first block, and the one after it in the second."""

    num_times = 2

    @property
    def failing_block(self) -> int:
        return 2 if os.path.exists(os.environ["ONCE"]) else 1


class EndsTheRun(Once):
    """The scheduler tells the supervisor that its time is up, and requests go on finishing meanwhile."""

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        self.on_request = on_request
        return super().generate(conversations, on_request, start_s)

    def fail_once(self) -> None:
        os.kill(int(os.environ["SUPERVISOR"]), signal.SIGTERM)
        for _ in range(10**6):
            self.on_request(0)


class MeetsAnother(FakeServer):
    """Goes on only when a worker with another seed has come as far."""

    @staticmethod
    def prepare_together(backends, conversations) -> None:
        open(os.environ["MEET"], "rw"[backends[0].cell.seed]).close()


class LosesTheDevice(FailingServer):
    """Fails as after an illegal access on a GPU: every later call fails too, until the process ends."""

    def fail(self) -> None:
        def synchronize() -> None:
            raise RuntimeError("CUDA error")

        sys.modules["torch"] = SimpleNamespace(
            cuda=SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
        )
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class TellsItsDevice(FakeServer):
    def facts(self):
        return replace(super().facts(), sampling_core=os.environ["CUDA_VISIBLE_DEVICES"])
