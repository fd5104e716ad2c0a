"""Builds the wheel rejection-lab-core from the sources of the repository around it: the core and the plug-ins.

    pip wheel --no-deps -w dist harness/plugins/packaging

What another name needs is done here: the core imports itself relatively, and the plug-ins' imports of it are renamed.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "kernels": "rejection_lab_core",
    "harness.plugins.recording": "rejection_lab_recording",
    "harness.plugins.vllm": "rejection_lab_vllm",
    "harness.plugins.sglang": "rejection_lab_sglang",
}
"""Package here -> package in the wheel."""
IMPORT = re.compile(r"^(\s*(?:from|import)\s+)(" + "|".join(map(re.escape, PACKAGES)) + r")(?=[.\s])", re.MULTILINE)


def renamed(text: str) -> str:
    """The same module with the names of the wheel in its imports."""
    return IMPORT.sub(lambda found: found[1] + PACKAGES[found[2]], text)


class BuildFromRepository(build_py):
    """Writes the packages where setuptools gathers the wheel's files."""

    def run(self) -> None:
        for source, name in PACKAGES.items():
            folder = ROOT.joinpath(*source.split("."))
            for path in sorted(folder.rglob("*.py")):
                target = Path(self.build_lib, name, path.relative_to(folder))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")


class WithPackages(Distribution):
    """A distribution that has modules, though setuptools finds none beside this file."""

    def has_pure_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildFromRepository}, distclass=WithPackages)
