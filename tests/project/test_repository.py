"""What is tracked: size, paths, the lock file, the make targets, and the numbers that pages quote."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.report.quoted import INDEX, written

ROOT = Path(__file__).parents[2]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|tmp|home|Users)/\w")
MAX_TRACKED_BYTES = 45_000_000
MAX_ZOO_BYTES = 22_000_000
MAX_RESULT_FILES, MAX_RESULT_BYTES = 330, 5_000_000


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def pins() -> dict[str, str]:
    """The locked versions by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {
        canonicalize_name(name): version
        for name, version in (line.split("==") for line in lines if line and not line.startswith("#"))
    }


def run_make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_tracked_files_are_light():
    assert sum(path.stat().st_size for path in tracked_files()) < MAX_TRACKED_BYTES


def test_results_are_few_and_light():
    """Would catch a run that is tracked with everything that `report` writes, where a page quotes one table of it."""
    results = [path for path in tracked_files() if path.is_relative_to(ROOT / "results")]
    assert len(results) <= MAX_RESULT_FILES and sum(path.stat().st_size for path in results) <= MAX_RESULT_BYTES


def test_the_built_in_models_are_light():
    zoo = [path for path in (ROOT / "harness" / "models" / "zoo").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in zoo) <= MAX_ZOO_BYTES


def test_no_tracked_file_names_a_path_of_one_machine():
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{path.name}:{number}" for number, line in enumerate(lines, start=1) if MACHINE_PATH.search(line)]
    assert not found


def test_the_lock_pins_public_versions_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = re.compile(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*")
    assert not [line for line in lines if not line.startswith("#") and not pinned.fullmatch(line)]


def test_the_lock_agrees_with_every_requirement_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    locked = pins()
    for requirement in map(Requirement, [*project["dependencies"], *(item for extra in extras for item in extra)]):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None and version in requirement.specifier, f"{requirement}: locked is {version}"


def test_help_lists_every_target_in_one_line():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r"^  make (\S+) +\S", run_make(ROOT, "help").stdout, re.MULTILINE)
    assert phony is not None and listed == phony[1].split()


@pytest.mark.parametrize(
    ("python", "message"),
    [("", "no Python 3.11 or newer on the path"), ("no-such-python", "no-such-python is not a Python 3.11 or newer")],
    ids=["none found", "named wrongly"],
)
def test_without_a_python_make_says_so_before_it_makes_anything(python, message, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    result = run_make(tmp_path, "test", f"PYTHON={python}")
    assert result.returncode != 0
    assert message in result.stderr
    assert not (tmp_path / ".venv").exists()


PIP_SAYS = """
import os, sys
print("Collecting torch==2.13.0 (from -c constraints.txt (line 1))")
print("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (31 kB)")
print("WARNING: Running pip as the 'root' user can break things", file=sys.stderr)
print("Downloading https://index/whl/torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (899.8 MB)", flush=True)
open(sys.argv[1]).read()
print("Using cached nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux_2_27_x86_64.whl (1.1 GB)")
print("Using cached six-1.17.0-py2.py3-none-any.whl (0.1 MB)")
print("Installing collected packages: nvidia-cublas-cu12, six, torch", flush=True)
sys.stderr.write("ERROR: no space left\\n" if sys.argv[2] == "1" else "")
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 1])
def test_an_installation_tells_its_steps_and_what_went_wrong(code, tmp_path):
    """Would catch minutes without a word, a line for each of a hundred packages, and an error of pip that is lost."""
    install = runpy.run_path(str(ROOT / ".ci" / "install.py"))["install"]
    os.mkfifo(tmp_path / "fifo")
    told = []

    def tell(text):
        told.append(text)
        if text.startswith("still downloading"):
            with suppress(FileNotFoundError):
                (tmp_path / "fifo").open("w").close()
                (tmp_path / "fifo").unlink()

    assert install([sys.executable, "-c", PIP_SAYS, str(tmp_path / "fifo"), str(code)], tell, every_s=0.05) == code
    steps = [text for text in told if not text.startswith("still ")]
    assert steps[:4] == [
        "finding versions that fit",
        "downloading torch 2.13.0 (899.8 MB)",
        "taking from pip's cache nvidia_cublas_cu12 12.8.4.1 (1.1 GB)",
        "unpacking 3 packages",
    ]
    assert any(re.match(r"still downloading torch .*, 1 packages so far \(\d+ s\)", text) for text in told)
    assert ("ERROR: no space left" in steps) == (code == 1)
    assert steps[-1].startswith("pip failed with exit code 1" if code else "installed in ")


def test_links_between_pages_lead_somewhere():
    """Would catch a page that moved, and a heading that was reworded."""
    pages = [path for path in tracked_files() if path.suffix in (".md", ".ipynb")]
    dead = []
    for page in pages:
        for target in re.findall(r"\]\(([^)\s\\]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert not dead


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_and_index_are_what_the_tables_give():
    """Would catch a number of a page that no table has, and a table that changed behind a page."""
    found = written(ROOT)
    assert (found.changes, found.index) == ((), (ROOT / INDEX).read_text()), "run: python -m harness.report.quoted"
