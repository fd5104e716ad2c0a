"""Backends outside the package of which one cell fails, in every way that a cell can."""

from harness.backends.backend import BackendRun
from tests.fake_servers import FakeServer


class FailingServer(FakeServer):
    """Answers every request but those of the second block of the method `block`, where something goes wrong."""

    num_blocks = 0

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        self.num_blocks += on_request is not None
        fails = self.num_blocks == 2 and not self.cell.is_baseline and self.cell.verification.method.value == "block"

        def told(num_tokens: int) -> None:
            on_request(num_tokens)
            if fails:
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


class CannotBeMade(FakeServer):
    def __init__(self, cell, shared) -> None:
        raise ValueError("no such server")
