"""Time a run alone and beside one busy process per core (`make demo-load`).

The run is `make demo` unless other settings are given. Beside the load it may take at most --limit times as long. Give
the machine nothing else to do: it takes some 15 minutes.

examples:
  python -m tests.support.run_beside_load
  python -m tests.support.run_beside_load drafter=eagle3 workload.num_prompts=8
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOOK_S = 2.0
QUIET = 0.1
"""Share of all cores that other work may take before the measurement."""


def seconds(settings):
    """How long a run takes from the start of its process to the end of its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments", "run", *settings, f"output.folder={folder}/run"]
        # threads are chosen as for a user who has set none
        own = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        with open(Path(folder) / "log", "w") as log:
            began = time.perf_counter()
            done = subprocess.run(command, env=own, stdout=log, stderr=subprocess.STDOUT, check=False)
            elapsed_s = time.perf_counter() - began
        if done.returncode:
            sys.exit((Path(folder) / "log").read_text()[-2000:])
        return elapsed_s


@contextmanager
def load(num_processes):
    """Processes that keep a core busy each."""
    with ExitStack() as stack:
        for _ in range(num_processes):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def core_seconds():
    """Seconds that all cores have worked, and have not, since the system started."""
    user, nice, system, idle, wait, *others = map(int, Path("/proc/stat").read_text().split()[1:9])
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + sum(others)) / ticks_per_s, (idle + wait) / ticks_per_s


def busy_share(before, own_s=0.0):
    """Share of all cores that other work has taken since `before`, of `core_seconds`."""
    busy_s, idle_s = (now - then for now, then in zip(core_seconds(), before, strict=True))
    return (busy_s - own_s) / (busy_s + idle_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="of the run; experiment=quickstart")
    parser.add_argument("--limit", type=float, default=2.5, help="of the ratio of both times")
    parser.add_argument("--anyway", action="store_true", help="measure on a machine that is not quiet too")
    options = parser.parse_args()
    settings = options.settings or ["experiment=quickstart"]
    num_cores = len(os.sched_getaffinity(0))
    before = core_seconds()
    time.sleep(LOOK_S)
    share = busy_share(before)
    if share > QUIET and not options.anyway:
        sys.exit(f"expected a quiet machine, found {share:.0%} of its cores in use; wait, or give --anyway")
    alone_s = seconds(settings)
    print(f"alone: {alone_s:.1f} s", flush=True)
    with load(num_cores):
        beside_s = seconds(settings)
    ratio = beside_s / alone_s
    print(f"beside {num_cores} busy processes on {num_cores} cores: {beside_s:.1f} s, {ratio:.2f} times as long")
    return 0 if ratio <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
