"""Without a GPU, Triton kernels run in Triton's interpreter, and tests that need one skip themselves.

Triton reads the choice when a kernel is defined. On a GPU the workers of a run share one cache of compiled kernels.
"""

import gc
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
STARTED = pytest.StashKey[float]()

if "PYTEST_XDIST_WORKER" in os.environ and "OMP_NUM_THREADS" not in os.environ:
    # workers side by side that each take every core wait for each other; processes that tests start read the variable
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

if torch.cuda.is_available():
    for name, folder in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        os.environ.setdefault(name, str(ROOT / ".pytest_cache" / folder))
else:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    from tests.support.forked_workers import end_server, fork_workers
    from tests.support.quick_interpreter import shorten

    fork_workers()
    shorten()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stamp", type=Path, help="write commit, device and result of the run into this JSON file")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, leave files that have no fast tests alone: importing all takes longer than the fast tests do."""
    is_asked = config.option.markexpr.startswith("fast") and collection_path.suffix == ".py"
    return True if is_asked and "pytest.mark.fast" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Leave what the imports built out of every later garbage collection: it is most of what they go through."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[STARTED] = time.monotonic()


def pytest_unconfigure() -> None:
    if not torch.cuda.is_available():
        end_server()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """The stamp: which commit was tested, on what, with which result. Only the process that started the run has one."""
    path = config.getoption("--stamp")
    if path is None or hasattr(config, "workerinput"):
        return
    counts = {name: len(terminalreporter.stats.get(name, ())) for name in ("passed", "failed", "error", "skipped")}

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    stamp = {
        "commit": git("rev-parse", "HEAD"),
        "has_uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "passed": exitstatus == 0 and counts["passed"] > 0,
        "counts": counts,
        "seconds": round(time.monotonic() - config.stash[STARTED], 1),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    (ROOT / path).write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A pipe that a failing server opens when its cell is under way."""
    path = tmp_path / "begun"
    os.mkfifo(path)
    monkeypatch.setenv("TELL", str(path))
    return path
