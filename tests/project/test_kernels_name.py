"""The top-level name `kernels` is shared with an unrelated package on PyPI that other libraries probe for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run_python(code: str, *search_path: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter at the root of the repository."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, search_path)), HF_HUB_OFFLINE="1")
    return subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


def install(folder: Path, name: str, version: str, *files: str) -> Path:
    """Make a folder a search path on which a distribution with these files is installed."""
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    (information / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return folder


@pytest.fixture
def other_package(tmp_path: Path) -> Path:
    """A search path on which the distribution called kernels is installed."""
    return install(tmp_path, "kernels", "0.17.2", "kernels/__init__.py")


@pytest.fixture
def our_package(tmp_path: Path) -> Path:
    """A search path on which our own distribution is installed."""
    return install(tmp_path, "rejection-lab", "0.1.0", "kernels/__init__.py", "kernels/contract.py")


def test_clean_machine_imports_nothing_heavy():
    code = (
        "import sys, kernels, kernels.contract; "
        "print(sorted({'torch', 'triton', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_package_is_ours_and_has_no_version():
    done = run_python("import kernels; print(kernels.__file__); print(hasattr(kernels, '__version__'))")
    assert done.stdout.split() == [str(REPOSITORY / "kernels" / "__init__.py"), "False"]


def test_other_distribution_is_refused_with_the_remedy(other_package: Path):
    done = run_python("import kernels", other_package)
    assert done.returncode != 0
    assert "ImportError" in done.stderr
    assert "kernels 0.17.2" in done.stderr
    assert "pip uninstall kernels" in done.stderr


def test_own_distribution_is_not_mistaken_for_the_other(our_package: Path):
    done = run_python("import kernels.contract", our_package)
    assert done.returncode == 0, done.stderr
