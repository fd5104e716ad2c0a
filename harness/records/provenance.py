"""Where a result comes from: code, libraries and hardware, for every record.

Names things and versions only: no paths, no host name, no user name. This module does not import torch; what only
torch knows is given when something else has imported it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("rejection-lab", "torch", "triton", "transformers", "tokenizers", "numpy", "pandas")
ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 10
UNKNOWN = "not known"
NO_VERSION = "(unknown version)"
"""Of a server that does not tell its own."""


def provenance(
    sampling_core: str | None = None,
    draft_core: str | None = None,
    imported: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Describe the code, the libraries and the hardware of this process, as plain JSON values.

    Args:
        sampling_core: which implementation of the sampling core ran, triton or reference; kept as given.
        draft_core: which one drew the drafts; kept as given, left out if None.
        imported: PACKAGE.MODULE:NAME of each object of the user's own -> SHA-256 of its source file; left out if empty.

    Returns:
        time_utc: ISO 8601, to the second. git: see `git_state`. python, packages: versions, None for a package that is
        not installed. platform, cpu. torch_threads and gpu: None unless torch has been imported (and sees a GPU).
        sampling_core. config_hash: always None.
    """
    return {
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(ROOT),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": {"system": platform.system(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver())},
        "cpu": {"model": _cpu_model(), "num_cores": _num_cores()},
        "torch_threads": _torch_threads(),
        "gpu": _gpu(),
        "sampling_core": sampling_core,
        "config_hash": None,
        **({} if draft_core is None else {"draft_core": draft_core}),
        **({"imported": dict(imported)} if imported else {}),
    }


@cache
def git_state(root: Path) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout whose top folder is `root`, and `diff`, a digest of what differs from the
    commit in Python files but tests, if anything does; None if it is not a checkout."""
    if shutil.which("git") is None or not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    diff = _output("git", "-C", str(root), "diff", "HEAD", "--", "*.py", ":!tests") if changes else ""
    digest = {"diff": hashlib.sha256(diff.encode()).hexdigest()[:16]} if diff else {}
    return {"commit": commit, "dirty": changes != "", **digest}


def measured_with(found: Mapping[str, Any]) -> dict[str, str]:
    """What must be the same wherever parts of one cell are measured, from a provenance: name -> value, in words."""
    git, cpu, packages, imported = (
        part if isinstance(part := found.get(name), Mapping) else {} for name in ("git", "cpu", "packages", "imported")
    )
    gpu = found.get("gpu")
    device = cpu.get("model") if gpu is None else gpu.get("name") if isinstance(gpu, Mapping) else gpu
    values = {
        "commit": (git.get("commit"), UNKNOWN),
        "changes since the commit": (git.get("diff"), "none"),
        "python": (found.get("python"), UNKNOWN),
        **{name: (value, "not installed") for name, value in packages.items()},
        "device": (device, UNKNOWN),
        "threads of torch": (found.get("torch_threads"), UNKNOWN),
        **{name: (digest, UNKNOWN) for name, digest in imported.items()},
    }
    return {name: without if value is None else str(value) for name, (value, without) in values.items()}


def served_by(found: Mapping[str, Any]) -> dict[str, str]:
    """Engine and version of the server that a provenance of a cell on one is of; empty where it did not say."""
    engine, _, engine_version = str(found.get("sampling_core") or "").partition(" ")
    return {engine: engine_version} if engine_version not in ("", NO_VERSION) else {}


def _output(*command: str) -> str | None:
    """What a command prints, stripped; None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int | None:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _torch_threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _gpu() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "num_gpus": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


@cache
def _driver() -> str | None:
    listed = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return listed.splitlines()[0].strip() if listed else None
