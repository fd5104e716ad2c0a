"""Kill runs with SIGKILL again and again, start them again, and compare with an undisturbed run (`make soak`).

Every run is a forked process that is killed at a named fault point, reached for the n-th time, or at a random moment;
so is the run that goes on there, up to --chain times in a row, before one is left alone. Cells, tokens and tables must
be those of the undisturbed run. Most runs are of a scripted server, so that 200 kills take minutes; the rest run the
built-in models. At the end --requests requests go through the built-in models in one run: memory must not grow, and the
CPU time of a request must stay. It takes some 20 minutes on two cores; give the machine nothing else to do meanwhile.

examples:
  python -m tests.support.run_soak
  python -m tests.support.run_soak --kills 40 --zoo-kills 6 --requests 0
  python -m tests.support.run_soak --kills 0 --zoo-kills 0 --requests 3000
"""

from __future__ import annotations

import argparse
import gc
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from harness.config.backend import Local
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import WorkloadConfig
from harness.records import fault_points
from harness.records.files import read_cell
from kernels.contract import VerificationMethod
from tests.runner.test_sweep import cell as zoo_cell
from tests.runner.test_sweep import plan
from tests.support.resumed_runs import Told, differences, plan_of, run
from tests.support.run_beside_load import busy_share, core_seconds

PLACES_IN_BLOCKS = ("a request has ended", "half of a frame is written", "a frame is written", "a frame is on disk")
MAX_GROWTH_BYTES = 512
"""Of resident memory, a request."""
NUM_SLICES = 20
"""Of the long run, whose memory is compared."""
NUM_PER_PIECE = 48
"""Requests of the long run, three times as many as run together."""
MAX_CHANGE = 0.05
"""Of the CPU time of a request, in the long run."""
INSIDE = mmap.mmap(-1, 1)
"""Whether the child is inside a block; both processes see it."""


class Inside(Told):
    """Notes when a block is under way."""

    def cell(self, label, index, num_cells):
        INSIDE[0] = 0

    def advance(self, num_requests=1, num_tokens=0):
        INSIDE[0] = 1


def zoo_plan(folder):
    """Baseline and one method on the built-in models, two turns, kept as often as possible."""
    from harness.backends.local import local

    local.KEEP_EVERY_S = 0.0
    cell = replace(
        zoo_cell(VerificationMethod.block),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=8),
        workload=WorkloadConfig(num_prompts=8, num_turns=2),
        backend=Local(device="cpu", dtype="float32", max_concurrency=3),
        measurement=MeasurementConfig(num_warmup_requests=0, num_resamples=100),
    )
    return plan(folder, cell)


def child(folder, plan_for, place, times):
    """Run a plan; die at a place that is reached for the n-th time, if one is given."""
    left = [times]

    def count(reached):
        if reached == "a turn is played":
            INSIDE[0] = 0
        left[0] -= reached == place
        if place is not None and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.on_reached = count
    run(folder, plan_for=plan_for, told=Inside())


def forked(function, *arguments):
    """Start a process that has everything imported."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    INSIDE[0] = 0
    process.start()
    return process


def counted(folder, plan_for):
    """Run undisturbed in a process of its own: how often each place is reached, and the seconds it took."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def count_places():
        found = Counter()
        fault_points.on_reached = lambda place: found.update([place])
        began = time.perf_counter()
        run(folder, plan_for=plan_for)
        sender.send((dict(found), time.perf_counter() - began))

    process = forked(count_places)
    found = receiver.recv()
    process.join()
    return found


class Soak:
    """Kills of one plan."""

    def __init__(self, name, plan_for, root, seed):
        self.name, self.plan_for, self.root = name, plan_for, root
        self.random = random.Random(seed)
        self.undisturbed = root / f"{name}-undisturbed"
        self.counts, self.duration_s = counted(self.undisturbed, plan_for)
        self.num_killed = self.num_inside = self.num_resumed = 0
        self.wrong = []

    def go(self, num_kills, chain):
        """Kill so often, and compare every folder in the end."""
        number = 0
        while self.num_killed < num_kills and len(self.wrong) < 5:
            folder = self.root / f"{self.name}-{number}"
            for _ in range(self.random.randint(1, min(chain, num_kills - self.num_killed))):
                if self.kill_once(folder) == 0:
                    break
            process = forked(child, folder, self.plan_for, None, 0)
            process.join()
            self.num_resumed += 1
            found = [f"exit code {process.exitcode}"] if process.exitcode else differences(self.undisturbed, folder)
            self.wrong += [f"{folder.name}: {line}" for line in found]
            if not found:
                shutil.rmtree(folder, ignore_errors=True)
            number += 1

    def kill_once(self, folder):
        """One run that is killed on its way; returns its exit code, 0 if it came to its end before."""
        if self.random.random() < 0.25:
            process = forked(child, folder, self.plan_for, None, 0)
            process.join(self.random.uniform(0, self.duration_s))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        else:
            inside = [place for place in PLACES_IN_BLOCKS if place in self.counts]
            place = self.random.choice(inside if self.random.random() < 0.95 else sorted(self.counts))
            times = self.random.randint(1, max(1, self.counts[place] // 2))
            process = forked(child, folder, self.plan_for, place, times)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            self.num_killed += 1
            self.num_inside += INSIDE[0]
        elif process.exitcode:
            self.wrong.append(f"{folder.name}: exit code {process.exitcode}")
        return process.exitcode

    def report(self):
        print(
            f"{self.name}: {self.num_killed} kills, {self.num_inside} of them inside a block, {self.num_resumed} runs "
            f"compared with the undisturbed one, {len(self.wrong)} of them not the same"
        )
        if 4 * self.num_inside < 3 * self.num_killed:
            self.wrong.append("expected three of four kills inside a block")
        if self.wrong:
            print("\n".join(self.wrong))


def long_run(root, num_requests):
    """Memory, CPU time and counts of one run of many requests; returns what is wrong."""
    from harness.backends.local import local
    from harness.runner.run_cells import run_cells

    # so that finished requests are handed over some hundred times, as in hours of a real run
    local.KEEP_EVERY_S = 1.0
    cell = replace(
        zoo_cell(VerificationMethod.block),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=8, ignore_eos=True),
        workload=WorkloadConfig(num_prompts=16, num_turns=1, num_requests=num_requests, prompt_tokens=32),
        backend=Local(device="cpu", dtype="float32", max_concurrency=16),
        measurement=MeasurementConfig(baseline=False, num_warmup_requests=4, num_resamples=100, num_blocks=NUM_SLICES),
    )
    # made before the run, so that they do not grow with it
    samples, finished = np.zeros((num_requests, 3)), []

    class Sampled(Told):
        def advance(self, requests=1, num_tokens=0):
            samples[self.num_requests] = time.process_time(), resident_bytes(), num_tokens
            self.num_requests += 1

    gc.collect()
    before, began_s = core_seconds(), time.process_time()
    run_cells(plan(root / "long", cell), root / "long", Sampled(), finished)
    others = busy_share(before, time.process_time() - began_s)
    seconds, resident, tokens = samples.T
    record = read_cell(root / "long" / "cells" / f"{finished[0]}.json.gz")
    num_tokens = [sum(item.num_output_tokens for item in items) for items in (record.requests, record.blocks)]
    counted = {
        "requests": (num_requests, int((tokens > 0).sum()), len(record.requests)),
        "tokens": (8 * num_requests, int(tokens.sum()), *num_tokens),
    }
    wrong = [
        f"{name}: expected as many everywhere, found {found}" for name, found in counted.items() if len({*found}) > 1
    ]
    wrong += check_memory(resident) + check_cpu_time(seconds, others)
    print("".join(f"{line}\n" for line in wrong), end="")
    return wrong


def check_memory(resident):
    """Show that resident memory grows by less than MAX_GROWTH_BYTES a request, or say what was found.

    A finished request costs 6 KiB as long as its rounds are in memory; the limit is less than a tenth of it. Slices of
    the run, which are its blocks, are compared by their medians, since the allocator moves single samples by MiB; the
    first fifth, in which it gets its working set, is left out. How far the 16 medians lie from a line gives its slope
    an interval. The upper end at 99 % must be below the limit: a leak as large as the limit passes in 1 of 100 runs.
    """
    slices = np.array_split(np.arange(len(resident)), NUM_SLICES)[NUM_SLICES // 5 :]
    fit = stats.linregress([item.mean() for item in slices], [np.median(resident[item]) for item in slices])
    upper = fit.slope + stats.t.ppf(0.99, len(slices) - 2) * fit.stderr
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = f"resident memory grows by {fit.slope:.0f} bytes a request, by less than {upper:.0f} at 99 %"
    print(f"long run: {len(resident)} requests; {text}; at most {peak / 1024:.0f} MiB")
    advice = "; take more requests to tell" if fit.slope < MAX_GROWTH_BYTES else ""
    return [] if upper < MAX_GROWTH_BYTES else [f"{text}, expected less than {MAX_GROWTH_BYTES}{advice}"]


def check_cpu_time(seconds, others):
    """Compare the CPU time of a request in the last tenth and in the first, by the medians of pieces of each.

    Requests of a batch end together, so that a piece holds several batches; the median ignores single pieces in which
    the machine had other work. More of it slows every request: `others` is its share of all cores.
    """
    tenth = len(seconds) // 10
    pieces = (np.diff(part[::NUM_PER_PIECE]) for part in (seconds[:tenth], seconds[-tenth:]))
    first, last = (float(np.median(part)) / NUM_PER_PIECE for part in pieces)
    text = f"CPU time of a request: {1e3 * first:.2f} ms in the first tenth, {1e3 * last:.2f} ms in the last"
    text += f" ({last / first - 1:+.1%}; other work took {others:.0%} of the cores)"
    print(f"long run: {text}")
    return [] if abs(last / first - 1) <= MAX_CHANGE else [f"{text}, expected a change of {MAX_CHANGE:.0%} at most"]


def resident_bytes():
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=180, help="of runs of a scripted server")
    parser.add_argument("--zoo-kills", type=int, default=20, help="of runs of the built-in models")
    parser.add_argument("--chain", type=int, default=4, help="kills of one run in a row, at most")
    parser.add_argument("--requests", type=int, default=10_000, help="of the long run; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for what, plan_for, num_kills in (("scripted", plan_of, options.kills), ("zoo", zoo_plan, options.zoo_kills)):
            if num_kills:
                soak = Soak(what, plan_for, root, options.seed)
                soak.go(num_kills, options.chain)
                soak.report()
                wrong += soak.wrong
        if options.requests:
            wrong += long_run(root, options.requests)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
