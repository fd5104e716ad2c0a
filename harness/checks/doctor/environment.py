"""What is installed, and where things are kept: packages, extras, compilers, cores, memory, disk. No torch."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from math import inf
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness.checks.doctor.finding import Finding, problem, remark
from harness.models.kept_folders import cache_folder
from harness.records.provenance import provenance
from harness.records.runs import RUNS
from harness.runner.optional_packages import EXTRAS, is_installed

USES = {
    "grammar": "constraint=... on the local engine",
    "server": "backend=server",
    "gguf": "a GGUF file as target.path or drafter.path",
    "slurm": "launcher=slurm",
    "ray": "launcher=ray",
    "tracking": "output.tracking",
}
"""Extra of `pip install` -> what needs it."""
LEAST_MEMORY_GB, LEAST_DISK_GB = 4, 5
"""Below these a run of the built-in models, or of their records and downloads, may not end."""
PROJECT = "rejection-lab"
CONTROL_GROUP = Path("/sys/fs/cgroup")


def look_at_environment() -> Iterator[Finding]:
    """Findings in the order in which a reader wants them."""
    here = provenance()
    yield from _packages(here["packages"])
    yield from _extras()
    yield from _compiler()
    yield from _cpu(here["cpu"])
    yield _memory()
    yield from _disk()


def _packages(packages: Mapping[str, str | None]) -> Iterator[Finding]:
    """The versions of what the project depends on, as its own metadata ask for them."""
    try:
        wanted = [Requirement(text) for text in requires(PROJECT) or ()]
    except PackageNotFoundError:
        yield problem("packages", f"{PROJECT} is not installed", f"{pip()} install -e . in the checkout")
        return
    wrong, mended = [], []
    for item in wanted:
        if item.marker is not None and not item.marker.evaluate({"extra": ""}):
            continue
        try:
            found: str | None = version(item.name)
        except PackageNotFoundError:
            found = None
        if found is None or not item.specifier.contains(found, prereleases=True):
            wrong.append(f"{item.name} {found or 'missing'} (expected {item.specifier or 'any'})")
            mended.append(f"'{item.name}{item.specifier}'")
    if wrong:
        yield problem("packages", ", ".join(wrong), f"{pip()} install {' '.join(mended)}")
        return
    named = ", ".join(f"{name} {packages[name]}" for name in ("torch", "triton", "transformers") if packages[name])
    yield Finding(
        "packages", f"Python {platform.python_version()}, {named}: within the versions that this project accepts"
    )


def pip() -> str:
    """The command that installs into the Python that runs this, from where the user stands."""
    running = Path(sys.executable)
    return f"{running.relative_to(Path.cwd()) if running.is_relative_to(Path.cwd()) else running} -m pip"


def _extras() -> Iterator[Finding]:
    """What only some settings need: it is no fault where it is missing."""
    missing = [extra for extra, packages in EXTRAS.items() if not all(map(is_installed, packages))]
    there = [extra for extra in EXTRAS if extra not in missing]
    if there:
        yield Finding("extras", f"installed: {', '.join(there)}")
    if missing:
        needed = ", ".join(f"{extra} (for {USES[extra]})" for extra in missing)
        install = f"{pip()} install '{PROJECT}[{','.join(missing)}]'"
        yield Finding("extras", f"not installed: {needed}", advice=f"if you want them: {install}")


def _compiler() -> Iterator[Finding]:
    """Triton compiles a small C program for each kernel that it launches."""
    chosen = os.environ.get("CC")
    found = shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None)
    if found is None:
        yield remark(
            "compiler",
            f"no C compiler ({f'CC={chosen}' if chosen else 'gcc, clang or cc'}), without which Triton launches no "
            "kernel on a GPU",
            "install gcc, or name a compiler in CC; runs on a CPU do not need it",
        )
        return
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        yield remark(
            "compiler",
            f"{Path(found).name}, but no Python.h, which Triton's launchers include on a GPU",
            "install the headers of this Python (python3-dev); runs on a CPU do not need them",
        )
        return
    yield Finding("compiler", f"{Path(found).name} and Python.h are there for Triton")


def _cpu(cpu: Mapping[str, Any]) -> Iterator[Finding]:
    num_cores, load = cpu["num_cores"], os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    found = f"{cpu['model']}, {num_cores} cores for this process, {load:.1f} programs wanted one in the last minute"
    if load > 0.5 * num_cores:
        yield remark(
            "CPU",
            found,
            "something else computes here: acceptance is not touched, but speeds of a CPU, and of small models on a "
            "GPU, are; stop it or wait before you measure speed",
        )
    else:
        yield Finding("CPU", found)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > num_cores:
        yield remark("CPU", f"OMP_NUM_THREADS={threads}: more threads than cores", f"set {num_cores} at most")
    elif threads:
        yield Finding("CPU", f"OMP_NUM_THREADS={threads}: torch computes with as many threads")


def _memory() -> Finding:
    """Of the host, by /proc/meminfo where there is one."""
    source = Path("/proc/meminfo")
    if not source.is_file():
        return Finding("memory", "not known on this system")
    values = dict(line.split(":", 1) for line in source.read_text().splitlines() if ":" in line)
    free_gb = min(int(values["MemAvailable"].split()[0]) / 1e6, _left_in_container_gb())
    found = f"{free_gb:.1f} GB of memory are free"
    if free_gb < LEAST_MEMORY_GB:
        return problem("memory", found, f"free some: the built-in models want {LEAST_MEMORY_GB} GB, others more")
    return Finding("memory", found)


def _left_in_container_gb() -> float:
    """What a limit of the control group leaves; infinity without one."""
    try:
        most, used = (int((CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        parts = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text().splitlines())
        # copies of files, which the system drops when something else wants their room
        files = int(parts["inactive_file"]) + int(parts["active_file"])
    except (OSError, ValueError, KeyError):
        # there is no such file, or the limit is "max"
        return inf
    return (most - used + files) / 1e9


def _disk() -> Iterator[Finding]:
    """Room and permission where records and caches are written."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    hub = Path(os.environ.get("HF_HOME") or user / "huggingface").expanduser()
    places = {
        "records": (RUNS, "output.folder=FOLDER"),
        "models unpacked": (cache_folder(), "REJECTION_LAB_CACHE"),
        "Hugging Face": (Path(os.environ.get("HF_HUB_CACHE") or hub / "hub").expanduser(), "HF_HOME"),
        "Triton": (Path(os.environ.get("TRITON_CACHE_DIR") or "~/.triton/cache").expanduser(), "TRITON_CACHE_DIR"),
    }
    for name, (place, setting) in places.items():
        there = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
        free_gb = shutil.disk_usage(there).free / 1e9
        found = f"{name}: {free_gb:.0f} GB are free at {place}"
        if not os.access(there, os.W_OK):
            yield problem("disk", f"{name}: {place} cannot be written", f"allow it, or set another place: {setting}")
        elif free_gb < LEAST_DISK_GB:
            yield problem(
                "disk", found, f"free some ({LEAST_DISK_GB} GB may be needed), or set another place: {setting}"
            )
        else:
            yield Finding("disk", found)
    if os.environ.get("HF_HUB_OFFLINE"):
        yield remark(
            "disk", "HF_HUB_OFFLINE is set: models and data sets come from the cache alone", "unset it to download"
        )
