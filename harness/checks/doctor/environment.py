"""What is installed, and where things are kept: packages, extras, compilers, cores, memory, disk. No torch."""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
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
        yield problem("packages", f"{PROJECT} is not installed", "pip install -e . in the checkout")
        return
    wrong = []
    for item in wanted:
        if item.marker is not None and not item.marker.evaluate({"extra": ""}):
            continue
        try:
            found: str | None = version(item.name)
        except PackageNotFoundError:
            found = None
        if found is None or not item.specifier.contains(found, prereleases=True):
            wrong.append(f"{item.name} {found or 'missing'} (expected {item.specifier or 'any'})")
    if wrong:
        yield problem("packages", ", ".join(wrong), f"pip install --upgrade {PROJECT}")
        return
    named = ", ".join(f"{name} {packages[name]}" for name in ("torch", "triton", "transformers") if packages[name])
    yield Finding("packages", f"Python {platform.python_version()}, {named}: within what this version accepts")


def _extras() -> Iterator[Finding]:
    missing = {extra: [name for name in packages if not is_installed(name)] for extra, packages in EXTRAS.items()}
    there = [extra for extra, names in missing.items() if not names]
    if there:
        yield Finding("extras", f"installed: {', '.join(there)}")
    for extra, names in missing.items():
        if names:
            yield remark(
                "extras",
                f"{extra}: no {' and no '.join(names)}, which {USES[extra]} needs",
                f"pip install '{PROJECT}[{extra}]' if you want it",
            )


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
    found = f"{cpu['model']}, {num_cores} cores for this process, load {load:.1f}"
    if load > 0.5 * num_cores:
        yield remark(
            "CPU",
            found,
            "something else computes here: speeds of a CPU, and of small models on a GPU, will be disturbed; stop it "
            "or wait",
        )
    else:
        yield Finding("CPU", found)
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None:
        yield Finding("CPU", f"OMP_NUM_THREADS={threads}: torch computes with as many threads")


def _memory() -> Finding:
    """Of the host, by /proc/meminfo where there is one."""
    source = Path("/proc/meminfo")
    if not source.is_file():
        return Finding("memory", "not known on this system")
    values = dict(line.split(":", 1) for line in source.read_text().splitlines() if ":" in line)
    free_gb = int(values["MemAvailable"].split()[0]) / 1e6
    found = f"{free_gb:.1f} GB of memory are free"
    if free_gb < LEAST_MEMORY_GB:
        return problem("memory", found, f"free some: the built-in models want {LEAST_MEMORY_GB} GB, others more")
    return Finding("memory", found)


def _disk() -> Iterator[Finding]:
    """Room and permission where records and caches are written."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    hub = Path(os.environ.get("HF_HOME") or user / "huggingface").expanduser()
    places = {
        "records": RUNS,
        "models unpacked": cache_folder(),
        "Hugging Face": Path(os.environ.get("HF_HUB_CACHE") or hub / "hub").expanduser(),
        "Triton": Path(os.environ.get("TRITON_CACHE_DIR") or "~/.triton/cache").expanduser(),
    }
    for name, place in places.items():
        there = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
        free_gb = shutil.disk_usage(there).free / 1e9
        found = f"{name}: {free_gb:.0f} GB are free at {place}"
        if not os.access(there, os.W_OK):
            yield problem("disk", f"{name}: {place} cannot be written", "give yourself the right, or choose another")
        elif free_gb < LEAST_DISK_GB:
            yield problem("disk", found, f"free some: less than {LEAST_DISK_GB} GB may not do for a run")
        else:
            yield Finding("disk", found)
    if os.environ.get("HF_HUB_OFFLINE"):
        yield remark(
            "disk", "HF_HUB_OFFLINE is set: models and data sets come from the cache alone", "unset it to download"
        )
