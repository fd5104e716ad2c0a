"""Backends outside the package under which the folder of the results cannot be written any more."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from harness.backends.backend import BackendRun
from harness.records import fault_points
from tests.support.fake_servers import FakeServer


class LosesTheFolder(FakeServer):
    """The second block of the baseline, the last of all, ends with results that cannot be written any more."""

    num_blocks = 0

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        self.num_blocks += on_request is not None
        if self.cell.is_baseline and self.num_blocks == 2 and "SERVER_IS_MENDED" not in os.environ:
            lose_as_asked()
        return super().generate(conversations, on_request, start_s)


class LosesItBeforeTheManifestKnows(FakeServer):
    """The same happens between the record of the second cell and the manifest that is to list it."""

    num_finished = 0

    def generate(self, conversations, on_request=None, start_s=0.0) -> BackendRun:
        if "SERVER_IS_MENDED" not in os.environ:
            fault_points.on_reached = self.count
        return super().generate(conversations, on_request, start_s)

    @classmethod
    def count(cls, place: str) -> None:
        cls.num_finished += place == "the checkpoint is closed"
        if place == "the checkpoint is closed" and cls.num_finished == 2:
            lose_as_asked()


def lose_as_asked() -> None:
    """Fill the disk that the environment names, or make it read-only."""
    folder = Path(os.environ["RESULTS"])
    if os.environ["LOSES"] == "room":
        with suppress(OSError), open(folder / "filler", "wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
    # busy while another process has a file open there to write
    while os.environ["LOSES"] == "writing" and subprocess.call(["mount", "-o", "remount,ro", str(folder)]):
        pass
