"""Do the fast tests find the mistakes of mutants.toml? Makes one mistake at a time in a copy of the tree.

    python tests/support/run_mutants.py [PART OF A FILE NAME ...]

TEST_WORKERS mutants are tried at a time (2). Fails when fewer than MIN_KILLED of the list are found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
MIN_KILLED = 58
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "results", "__pycache__", ".*_cache", ".hypothesis", "build")


def mutants() -> list[dict]:
    """The list: what each breaks, file, old, new, tests."""
    return tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]


def fast_files() -> list[str]:
    """The test files that `make test-fast` runs: those that mark themselves."""
    tests, mark = ROOT / "tests", "\npytestmark = pytest.mark.fast\n"
    found = (path for path in tests.rglob("test_*.py") if mark in path.read_text(encoding="utf-8"))
    return sorted(path.relative_to(tests).as_posix() for path in found)


def mutated(source: str, mutant: dict) -> str:
    """The source with the mistake.

    Raises:
        ValueError: the text to replace does not occur exactly once.
    """
    if (count := source.count(mutant["old"])) != 1:
        raise ValueError(f"mutants.toml: expected {mutant['old']!r} once in {mutant['file']}, found it {count} times")
    return source.replace(mutant["old"], mutant["new"])


def fails(tree: Path, files: list[str]) -> bool:
    """Whether a test in these files fails; an error of pytest itself is an error here."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "fast and not gpu", "-p", "no:cacheprovider"]
    command += [f"tests/{name}" for name in files]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def is_killed(tree: Path, mutant: dict) -> bool:
    """Try one mutant in a copy: its own tests first, then every fast test."""
    path = tree / mutant["file"]
    source = path.read_text(encoding="utf-8")
    path.write_text(mutated(source, mutant), encoding="utf-8")
    try:
        rest = [name for name in fast_files() if name not in mutant["tests"]]
        return fails(tree, mutant["tests"]) or fails(tree, rest)
    finally:
        path.write_text(source, encoding="utf-8")


def main(parts: list[str]) -> int:
    chosen = [each for each in mutants() if not parts or any(part in each["file"] for part in parts)]
    num_workers = int(os.environ.get("TEST_WORKERS", "2"))
    trees: SimpleQueue[Path] = SimpleQueue()

    def attempt(mutant: dict) -> bool:
        tree = trees.get()
        try:
            killed = is_killed(tree, mutant)
        finally:
            trees.put(tree)
        print(f"{'killed  ' if killed else 'SURVIVED'}  {mutant['file']}: {mutant['breaks']}", flush=True)
        return killed

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(num_workers) as pool:
        for number in range(num_workers):
            trees.put(Path(shutil.copytree(ROOT, Path(folder) / str(number), ignore=LEFT_OUT)))
        if fails(Path(folder) / "0", sorted({name for each in chosen for name in each["tests"]})):
            print("mutants: expected the tests to pass without a mutant; run make test-fast", file=sys.stderr)
            return 2
        num_killed = sum(pool.map(attempt, chosen))
    wanted = MIN_KILLED if not parts else len(chosen)
    print(f"{num_killed} of {len(chosen)} mutants killed, expected {wanted} or more")
    return 0 if num_killed >= wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
