"""A page of guides/ as a reader follows it: files are written, files are changed, commands are run, in its order.

A block right below a line that ends with a path, "`my_drafters.py`:", is that file, or as `diff` its change. A `bash`
block is run. Any other block is only read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "guides"
BLOCK = re.compile(r"(?:`(?P<path>[\w./-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = '#!/bin/sh\nexec {python} -m experiments "$@"\n'


class Block(NamedTuple):
    """A fenced block of a page."""

    path: str | None
    """The file that it is, or changes."""
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Those of a page of guides/, in order."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    return [Block(*found.group("path", "language", "text")) for found in BLOCK.finditer(text)]


def follow(page: str, folder: Path, tree: Path = ROOT, **variables: str) -> list[str]:
    """Do what a page says, in a folder, without a GPU; returns what each `bash` block printed.

    Args:
        page: of guides/.
        folder: where the reader stands: files that are written lie here.
        tree: the checkout whose program runs, and whose files a `diff` changes.
        variables: of the environment of commands.
    """
    return [run(block.text, folder, tree, **variables) for block in written(page, folder, tree)]


def written(page: str, folder: Path, tree: Path = ROOT) -> Iterator[Block]:
    """Write and change the files of a page; gives its `bash` blocks at their places."""
    for block in blocks(page):
        if block.language == "bash":
            yield block
        elif block.path is not None and block.language == "diff":
            assert tree != ROOT, f"{page} would change this checkout"
            changed = tree / block.path
            changed.write_text(_patched(changed.read_text(encoding="utf-8"), block), encoding="utf-8")
        elif block.path is not None:
            # a path with folders is one of the checkout
            place = tree if "/" in block.path else folder
            assert place != ROOT, f"{page} would change this checkout"
            (place / block.path).write_text(block.text, encoding="utf-8")


def copy_of_checkout(folder: Path) -> Path:
    """The packages and settings of this checkout in a folder, for pages that change them; the zoo is not copied."""
    zoo = ROOT / "harness" / "models" / "zoo"
    for name in ("kernels", "harness", "experiments", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=lambda parent, names: [
            item for item in names if item == "__pycache__" or Path(parent, item) == zoo
        ])  # fmt: skip
    (folder / zoo.relative_to(ROOT)).symlink_to(zoo)
    return folder


def run(command: str, folder: Path, tree: Path = ROOT, **variables: str) -> str:
    """What a command prints, in a shell that finds `rejection-lab`; it must end with 0."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "rejection-lab"
    program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"PATH": path, "PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def _patched(text: str, block: Block) -> str:
    """The text of a file with the lines of a `diff` block; hunks are parted by lines `@@`."""
    for hunk in re.split(r"^@@.*\n", block.text, flags=re.MULTILINE):
        lines = [(line[:1], line[1:]) for line in hunk.splitlines()]
        before, after = ("".join(f"{line}\n" for sign, line in lines if sign != left_out) for left_out in "+-")
        if lines:
            assert text.count(before) == 1, f"{block.path}: expected once\n{before}"
            text = text.replace(before, after)
    return text
